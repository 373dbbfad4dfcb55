"""What a sweep found, as plain records that every renderer reads, and where more stops to help."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final

from ....records import dataclass, field
from ...iteration.decision.electricity import Electricity, JobEnergy
from ...iteration.report import Source, TraceSummary
from ...whatif.scenario import Scenario

SWEEP_VERSION: Final = "1.0"


class AxisKind(StrEnum):
    """Say what a parameter belongs to."""

    FIGURE = "figure"
    """Of the GPU's datasheet."""
    ITERATION = "iteration"
    """Of the iteration, or of its host."""


class SweepLimit(StrEnum):
    """Name what time goes to; the shares of an iteration add up to 1."""

    COMPUTE = "compute"
    """Kernels that arithmetic at its peak bounds longer than memory does, at half of that peak or more."""
    MEMORY = "memory"
    """Kernels that memory bounds longer, at half of its bandwidth or more."""
    NEITHER = "far from both peaks"
    """Kernels at less than half of either: caches, latencies, the issue of instructions, tiles that do not fill."""
    SHORT = "short kernels"
    """Kernels whose work takes less than a kernel takes beside its work."""
    UNEXPLAINED = "kernels without a formula"
    COMMUNICATION = "communication"
    HOST = "host"
    """Waits for launches, and synchronisations."""
    WAITS = "other waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAxis:
    """Describe one parameter and the values that it takes."""

    name: str
    words: str
    kind: AxisKind
    unit: str
    """Base unit of the values; empty for counts and ratios."""
    values: tuple[float | str, ...]
    """Ascending, in base units; names for precisions."""
    base: float | str | None
    """What it is where nothing is varied; None where that is not known."""
    more_is_better: bool = True
    """Whether more of it should make nothing slower."""

    def ratio(self, index: int) -> float | None:
        """Return a value over what it is where nothing is varied."""
        value = self.values[index]
        if isinstance(value, str) or isinstance(self.base, str) or not self.base:
            return None
        return value / self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """Predict the iteration at one value of each parameter. Unknown is None."""

    at: tuple[int, ...]
    """Which value of each axis; empty for the one where nothing is varied."""
    gpu: str
    iteration_ns: float
    iteration_low_ns: float | None
    iteration_high_ns: float | None
    speedup: float
    """How much faster work is done than where nothing is varied."""
    speedup_low: float | None
    """Ends of its 90 % interval: what both have in common cancels."""
    speedup_high: float | None
    samples_per_s: float | None
    fits: bool | None
    is_tight: bool
    memory_needed_bytes: int | None
    memory_usable_bytes: int | None
    shares: Mapping[SweepLimit, float]
    beyond: tuple[str, ...] = ()
    """Figures that no GPU of the catalogue comes near: the models were never asked such a thing."""
    energy: JobEnergy | None = None
    """Of an iteration on all GPUs; None: not known."""

    @property
    def limit(self) -> SweepLimit:
        """Return what most of the time goes to."""
        return max(self.shares, key=lambda name: self.shares[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Say where more of the first parameter stops to help, at one value of the second."""

    line: int | None
    """Which value of the second axis; None where there is one axis."""
    point: SweepPoint
    """The first that is as good as any, but for `NEGLIGIBLE`."""
    gain_beyond: float
    """What more would still give, as a ratio less 1."""
    is_saturated: bool
    """Whether it lies before the end of what was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """Hold an iteration predicted while parameters vary; `points` go along the first axis, line by line of the
    second."""

    trace: TraceSummary
    source: Source
    scenario: Scenario = field(default_factory=Scenario)
    """What is asked beside the parameters."""
    gpu: str
    """The GPU that is varied, or that the iteration is predicted on."""
    axes: tuple[SweepAxis, ...]
    base: SweepPoint
    """Where nothing is varied."""
    points: tuple[SweepPoint, ...]
    knees: tuple[Knee, ...]
    slower_with_more: tuple[str, ...] = ()
    """Where the models say that more of a figure is slower, which no GPU is: one sentence each."""
    warnings: tuple[str, ...] = ()
    electricity: Electricity | None = None
    """What electricity costs, and what is counted beside boards and links; None where nobody said."""

    @property
    def work(self) -> str:
        """Return what is counted where iterations differ in how much they do; empty where their times compare."""
        names = {axis.name for axis in self.axes}
        if "sequence-length" in names:
            return "tokens"
        return "samples" if "batch" in names else ""

    def line(self, second: int | None = None) -> tuple[SweepPoint, ...]:
        """Return the points at one value of the second axis, or all where there is one axis."""
        return tuple(point for point in self.points if second is None or point.at[1] == second)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureElasticity:
    """Say what one per cent more of a figure does to the time."""

    name: str
    words: str
    unit: str
    base: float
    elasticity: float
    """d ln(time) / d ln(figure): -0.4 means that 1 % more of it takes 0.4 % off."""
    low: float
    """The least and the most that steps of other sizes give."""
    high: float
    busy_elasticity: float
    """The same of the time in which the GPU works: what the host hides is in it."""
    slower_with_more: float
    """By how much the iteration gets longer with more of it, as a ratio less 1, over the steps tried; 0: it does
    not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityReport:
    """Hold what one per cent more of each figure would buy, most first."""

    trace: TraceSummary
    source: Source
    scenario: Scenario = field(default_factory=Scenario)
    gpu: str
    base: SweepPoint
    figures: tuple[FigureElasticity, ...]
    absent: tuple[str, ...]
    """Figures that this GPU has none of."""
    warnings: tuple[str, ...] = ()


NEGLIGIBLE: Final = 0.02
"""Of the speed: what is left to gain from a point on, where more is said to give nothing. The models are not that exact
between points, and nobody pays for less."""
SLOWER: Final = 0.001
"""Of the time: what more of a figure may add before it is named."""


def find_knees(axes: Sequence[SweepAxis], points: Sequence[SweepPoint]) -> tuple[Knee, ...]:
    """Return the knee of each line along the first axis, where its values are numbers."""
    if isinstance(axes[0].values[0], str):
        return ()
    lines: list[int | None] = [None] if len(axes) == 1 else list(range(len(axes[1].values)))
    return tuple(_knee(line, [point for point in points if line is None or point.at[1] == line]) for line in lines)


def _knee(line: int | None, points: Sequence[SweepPoint]) -> Knee:
    best = max(point.speedup for point in points)
    at = next(at for at, point in enumerate(points) if point.speedup >= best / (1 + NEGLIGIBLE))
    return Knee(
        line=line, point=points[at], gain_beyond=best / points[at].speedup - 1, is_saturated=at < len(points) - 1
    )


def explain_slower(axes: Sequence[SweepAxis], points: Sequence[SweepPoint]) -> Iterator[str]:
    """Yield a sentence for each figure of which the models say that more of it is slower."""
    for number, axis in enumerate(axes):
        if axis.kind is not AxisKind.FIGURE or not axis.more_is_better:
            continue
        worst, at = _worst_step(points, number)
        if worst > SLOWER:
            value = axis.values[at]
            yield (
                f"from {axis.name} {value:.4g} on, more of it makes the iteration up to {worst:.1%} slower, say the "
                "models: no GPU is slower for it, so take that as their error"
            )


def _worst_step(points: Sequence[SweepPoint], number: int) -> tuple[float, int]:
    """Return by how much a point is slower than the best one with less of a figure, and where that one is."""
    worst, where = 0.0, 0
    others = {tuple(place for at, place in enumerate(point.at) if at != number) for point in points}
    for other in others:
        line = [point for point in points if tuple(p for at, p in enumerate(point.at) if at != number) == other]
        line.sort(key=lambda point: point.at[number])
        best = line[0]
        for _, point in pairwise(line):
            slower = point.iteration_ns / max(best.iteration_ns, 1.0) - 1
            if slower > worst:
                worst, where = slower, best.at[number]
            best = min(best, point, key=lambda item: item.iteration_ns)
    return worst, where
