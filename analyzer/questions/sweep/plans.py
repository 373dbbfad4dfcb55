"""A sweep over the number of GPUs under a plan, and over a figure of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ....errors import InputError, parameter
from ...page.encoding import attributes
from ..scale.parts import PlanPart
from ..scale.report import PARTS_OF, PlanPrediction, ScaleReport, Spent
from ..scale.scale import scale_trace
from .axes import AskedAxis, read_axes
from .imagined import Imagined, imagine, place_variants
from .report import AxisKind, SweepLimit, SweepPoint, SweepReport, explain_slower, find_knees
from .sweep import SweepQuestion

_LIMITS: Final = {
    Spent.COMPUTE: SweepLimit.COMPUTE,
    Spent.LINK: SweepLimit.COMMUNICATION,
    Spent.BUBBLE: SweepLimit.BUBBLE,
    Spent.HOST: SweepLimit.HOST,
    Spent.OPTIMIZER: SweepLimit.OPTIMIZER,
    Spent.STRAGGLERS: SweepLimit.STRAGGLERS,
}
_ALIKE: Final = (
    "gpu", "iteration_ns", "iteration_low_ns", "iteration_high_ns", "samples_per_s", "fits", "is_tight",
    "memory_needed_bytes", "memory_usable_bytes", "energy",
)  # fmt: skip
"""What a row of a plan and a point of a sweep both say."""


def sweep_plans(
    question: SweepQuestion, vary: Mapping[str, str], plan: str, global_batch: int | None = None
) -> SweepReport:
    """Predict a recording of one GPU on many while their number, or also a figure of theirs, varies.

    Numbers of GPUs that the plan cannot take are left out, which a warning says. Speed is samples per second over those
    of the first number on the unvaried GPU. Raises InputError where the number is not among the parameters.
    """
    asked = read_axes(vary, question.gpu, question.trace, question.scenario) if vary else ()
    if all(item.axis.kind is not AxisKind.GPUS for item in asked):
        raise InputError(
            f"{parameter('plan')} says how GPUs share an iteration: say how many with {parameter('vary')} gpus=8..512"
        )
    at = next(number for number, item in enumerate(asked) if item.axis.kind is AxisKind.GPUS)
    imagined = imagine(question.gpu, asked, question.catalog, question.gpu_file)
    counts = [int(value) for value in asked[at].axis.values if not isinstance(value, str)]
    found = scale_trace(
        question.trace,
        question.catalog,
        targets=imagined.gpus,
        gpu_counts=counts,
        plans=[plan],
        global_batch=global_batch,
        source=question.source,
        library=question.library,
        scenario=question.scenario,
        iteration=question.iteration,
        cluster=place_variants(question.cluster, imagined.gpus),
        electricity=question.electricity,
    )
    return _report(question, asked, at, found, imagined)


def _report(
    question: SweepQuestion, asked: Sequence[AskedAxis], at: int, found: ScaleReport, imagined: Imagined
) -> SweepReport:
    rows = {(row.gpu, row.gpu_count): row for row in found.predictions}
    kept = tuple(count for count in asked[at].axis.values if any(key[1] == count for key in rows))
    first = rows[question.gpu.name, int(kept[0])]
    axis = replace(asked[at].axis, values=kept, base=kept[0])
    axes = tuple(axis if number == at else item.axis for number, item in enumerate(asked))
    points = []
    for place, column in imagined.column_of.items():
        for number, count in enumerate(kept):
            row = rows.get((imagined.gpus[column].name, int(count)))
            if row is not None:
                where = (number,) if not place else (number, *place) if at == 0 else (*place, number)
                points.append(_point(where, row, first, imagined, column))
    ordered = tuple(sorted(points, key=lambda point: point.at[::-1]))
    # The plan that all numbers of GPUs have, with the axis that grows left open.
    words = [row.plan.split(",") for row in found.predictions]
    same = [word for word in words[0] if all(word in other for other in words)]
    open_words = [word.partition("=")[0] + "=*" for word in words[0] if word not in same]
    return SweepReport(
        trace=found.trace,
        source=found.source,
        scenario=question.scenario,
        gpu=question.gpu.name,
        plan=",".join((*open_words, *same)),
        axes=axes,
        base=_point((), first, first, imagined, 0),
        points=ordered,
        knees=find_knees(axes, ordered),
        slower_with_more=tuple(explain_slower(axes, ordered)),
        warnings=found.warnings,
        electricity=question.electricity,
    )


def _point(
    at: tuple[int, ...], row: PlanPrediction, first: PlanPrediction, imagined: Imagined, column: int
) -> SweepPoint:
    shares = {limit: row.share(spent) for spent, limit in _LIMITS.items()}
    others = [part for part in PlanPart if all(part not in parts for parts in PARTS_OF.values())]
    shares[SweepLimit.WAITS] = sum(row.parts_ns.get(part, 0.0) for part in others) / max(row.iteration_ns, 1.0)
    return SweepPoint(
        at=at,
        speedup=row.samples_per_s / first.samples_per_s,
        speedup_low=None,
        speedup_high=None,
        shares={limit: share for limit, share in shares.items() if share > 0},
        beyond=imagined.outside[column],
        **attributes(row, _ALIKE),
    )
