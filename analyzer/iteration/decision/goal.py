"""What is to be run in all, and how many iterations that is."""

from __future__ import annotations

import re
from enum import StrEnum
from math import ceil, isfinite
from numbers import Real
from typing import TYPE_CHECKING, Final

from ....errors import InputError, parameter
from ....records import dataclass
from .amounts import COUNT, read_count, read_duration_ns, read_ratio, read_usd

if TYPE_CHECKING:
    from ..result import Analysis


class GoalUnit(StrEnum):
    """Name what a goal counts."""

    ITERATIONS = "iterations"
    SAMPLES = "samples"
    TOKENS = "tokens"


_UNITS: Final = {
    GoalUnit.ITERATIONS: ("iteration", "iter", "step", "update"),
    GoalUnit.SAMPLES: ("sample", "image", "sequence", "example", "sentence", "request"),
    GoalUnit.TOKENS: ("token",),
}
_WORDS: Final = {word: unit for unit, words in _UNITS.items() for stem in words for word in (stem, f"{stem}s")}
_GOAL: Final = re.compile(rf"(?:({COUNT})\s*epochs?\s*(?:of|x|×)\s*)?({COUNT})\s*([a-z]+)")
_EXAMPLES: Final = '"90000 iterations", "3 epochs of 1281167 samples" or "2e9 tokens"'
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Say what is to be run in all, and what it may cost. `Goal.read` takes the words that `--for` takes."""

    count: float
    """Of each epoch."""
    unit: GoalUnit = GoalUnit.ITERATIONS
    epochs: float = 1.0
    allowance_ratio: float = 0.0
    """What comes on top of the iterations: loading, evaluation, checkpoints."""
    budget_usd: float | None = None
    deadline_ns: float | None = None

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be meant."""
        if self.unit not in tuple(GoalUnit):
            raise InputError(f"a goal's unit {self.unit!r}: expected {', '.join(GoalUnit)}")
        object.__setattr__(self, "unit", GoalUnit(self.unit))
        limits = (self.budget_usd, self.deadline_ns)
        positive = (self.count, self.epochs, *(item for item in limits if item is not None))
        if not all(_is_number(item) and item > 0 for item in positive):
            raise InputError("a goal's counts, budget and deadline: expected more than 0")
        if not _is_number(self.allowance_ratio) or self.allowance_ratio < 0:
            raise InputError("a goal's allowance: expected 0 or more")

    @classmethod
    def read(
        cls, words: str, *, allowance: str | None = None, budget: str | None = None, deadline: str | None = None
    ) -> Goal:
        """Return what words mean, as the options of `analyze` give them. Raises InputError for what says nothing.

        >>> Goal.read("3 epochs of 1.28M images", deadline="24h").epochs
        3.0
        """
        found = _GOAL.fullmatch(" ".join(words.casefold().split())) if len(words) <= _LONGEST else None
        unit = None if found is None else _WORDS.get(found[3])
        if found is None or unit is None:
            shown = repr(words if len(words) <= _LONGEST else f"{words[:40]}…")
            raise InputError(f"{parameter('for')} {shown}: expected such as {_EXAMPLES}")
        return cls(
            count=read_count(found[2], parameter("for")),
            unit=unit,
            epochs=read_count(found[1], parameter("for")) if found[1] else 1.0,
            allowance_ratio=0.0 if allowance is None else read_ratio(allowance, parameter("allowance")),
            budget_usd=None if budget is None else read_usd(budget, parameter("budget")),
            deadline_ns=None if deadline is None else read_duration_ns(deadline, parameter("deadline")),
        )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """Hold a goal as iterations of one trace."""

    goal: Goal
    iterations: float
    """Whole ones: an epoch's last may be smaller and is counted as the others."""
    samples_per_iteration: int | None = None
    tokens_per_sample: int | None = None
    """The two that the count rests on; None where it does not."""
    rank_count: int = 1
    """Ranks of the job that the trace is of; the goal is counted on one of them."""


def measure_goal(goal: Goal, result: Analysis, tokens_per_sample: int | None) -> RunLength:
    """Return how many iterations of a trace, under its scenario, a goal takes.

    Raises InputError where the trace does not say how many samples or tokens an iteration has.
    """
    if result.recorded.choice.rule == "all" and result.recorded.choice.count > 1:
        raise InputError(
            f"{parameter('iteration', 'all')} takes several iterations as one: leave it out beside {parameter('for')}"
        )
    samples, tokens, each = None, None, 1
    if goal.unit is not GoalUnit.ITERATIONS:
        samples = samples_per_iteration(result)
        if samples is None:
            raise InputError(
                f"{parameter('for')}: the trace does not say how many samples an iteration has{_hint(result)}: pass "
                f"them with {parameter('from_batch', 'N')}, or count iterations"
            )
        each = samples
    if goal.unit is GoalUnit.TOKENS:
        if tokens_per_sample is None:
            raise InputError(
                f"{parameter('for')}: the shapes do not tell how many tokens a sample has (no table is looked up by "
                f"samples and tokens): pass them with {parameter('from_sequence_length', 'N')}, or count samples or "
                "iterations"
            )
        tokens, each = tokens_per_sample, each * tokens_per_sample
    return RunLength(
        goal=goal,
        iterations=float(ceil(goal.epochs * ceil(goal.count / each))),
        samples_per_iteration=samples,
        tokens_per_sample=tokens,
        rank_count=result.trace.meta.world_size or 1,
    )


def _hint(result: Analysis) -> str:
    """Say what the shapes look like, where they look like anything."""
    from ...whatif.axis.infer import infer_batch_size

    try:
        return f" (its shapes look like {infer_batch_size(result.recorded.trace):,})"
    except InputError:
        return ""


def samples_per_iteration(result: Analysis) -> int | None:
    """Return the samples of an iteration, what-ifs applied; None where neither trace nor user says them."""
    meta, scenario = result.trace.meta.workload, result.scenario
    given = scenario.recorded_batch_size if scenario.batch_size is None else None
    told = meta.samples_per_iteration or meta.batch_size
    said = told if given in (None, meta.batch_size) else given
    return said and said * passes_of(result)


def passes_of(result: Analysis) -> int:
    """Return how many passes over the batch that is said make an iteration: 1 where that is of all of them.

    >>> passes_of(result)
    1
    """
    from ...whatif.axis.infer import count_passes, holds_leading

    trace, work = result.recorded.trace, result.recorded.trace.meta.workload
    said = result.scenario.recorded_batch_size or work.batch_size
    if said is None or work.samples_per_iteration not in (None, work.batch_size):
        return 1
    count = count_passes(trace, result.window.op_rows)
    return count if count > 1 and holds_leading(trace, said) else 1
