"""The charts of plans of embedding tables: their time, each GPU's load, and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...page import plot
from ...page.page import Chart, Page
from ...page.plot import Spec
from ...page.quantity import format_bytes, format_time
from ...page.vega import BLUE, GREEN, GREY, INK, OLIVE, ORANGE, PALE, PINK, PLUM, SKY, VERMILLION
from .page import name_plan
from .problem import PlanPhase
from .report import PlanRow, ShardLoad, ShardReport

MOST_RANKS: Final = 32
PHASE_WORDS: Final = {
    PlanPhase.DENSE: ("dense part", GREY),
    PlanPhase.INDICES: ("indices, all-to-all", PLUM),
    PlanPhase.LOOKUP: ("lookups", BLUE),
    PlanPhase.OUTPUTS: ("vectors, all-to-all", ORANGE),
    PlanPhase.PARTIAL_SUMS: ("partial sums", OLIVE),
    PlanPhase.UPDATE: ("updates", SKY),
    PlanPhase.GRADIENTS: ("gradients, all-reduce", PINK),
}
_WAITS: Final = "waits for the slowest GPU"
_OWN: Final = {PlanPhase.LOOKUP: "lookup_ns", PlanPhase.UPDATE: "update_ns"}
"""Phases of which every GPU has its own share; in others all take part for as long."""
GIB: Final = 2.0**30
_FAR: Final = 4.0
"""Where memory ends, in fullest GPUs, from which on the mark would make bars unreadable."""


def illustrate_sharding(page: Page, report: ShardReport) -> Page:
    """Return the page of plans with charts."""
    lead, details = [_plan_chart(report), _load_chart(report)], [_memory_chart(report)]
    return plot.place_charts(page, lead=lead, details=details)


def _plan_chart(report: ShardReport) -> Chart:
    """Draw the phases of every plan's iteration, with its interval."""
    rows = [row for plan in report.plans for row in _phases(plan)]
    colours = dict(PHASE_WORDS.values())
    told = (("plan", "plan"), ("part", "phase"), ("spent", "takes"), ("time", "iteration"), ("fits", "fits"))
    y, x, colour = (
        plot.along("plan"),
        plot.amount("part_ms", "ms of the iteration"),
        plot.coloured("part", "phase", colours, among=rows),
    )
    layer = plot.bars(rows, told, y=y, x=x, color=colour)
    del layer["height"]
    layers = [layer, plot.interval_marks("low_ms", "high_ms", opacity=0.9)]
    spec = {"height": plot.bars_height(len(report.plans)), "encoding": {"y": y}, "layer": layers}
    best, worst = report.plans[0], max(report.plans, key=lambda plan: plan.iteration_ns)
    text = (
        f"The iteration under each plan by phase; the line is its 90 % interval. Proposed: "
        f"{format_time(best.iteration_ns)}; slowest, {name_plan(worst.name)}: {format_time(worst.iteration_ns)}. The "
        "dense part and its error are the same under all: of two plans the order is surer than either time."
    )
    return plot.build_chart("The plans' iterations", text, spec, rows, told)


def _phases(plan: PlanRow) -> Iterator[dict[str, Any]]:
    ends = f"({format_time(plan.iteration_low_ns)} to {format_time(plan.iteration_high_ns)})"
    time, fits = f"{format_time(plan.iteration_ns)} {ends}", "yes" if plan.fits else "no"
    spent_ns = {word: plan.phases_ns[phase] for phase, (word, _) in PHASE_WORDS.items()}
    parts = list(plot.division_rows(spent_ns, plan=name_plan(plan.name), time=time, fits=fits))
    interval = {"low_ms": plot.scaled(plan.iteration_low_ns), "high_ms": plot.scaled(plan.iteration_high_ns)}
    yield from (row | (dict.fromkeys(interval) if at else interval) for at, row in enumerate(parts))


def _load_chart(report: ShardReport) -> Chart:
    """Draw what each GPU does in an iteration beside the dense part, under a plan that the reader chooses."""
    rows = [
        row
        for number, plan in enumerate(report.plans)
        for rank in plan.ranks[:MOST_RANKS]
        for row in _loads(plan, rank, str(number))
    ]
    told = (
        ("plan", "plan"), ("rank", "GPU"), ("part", "does"), ("spent", "for"), ("tables", "tables or parts of them"),
    )  # fmt: skip
    count = len(report.plans[0].ranks)
    spec = plot.bars(
        rows,
        told,
        y=plot.along("rank", "GPU"),
        x=plot.amount("part_ms", "ms of the iteration, without the dense part"),
        color=plot.coloured("part", None, dict([*PHASE_WORDS.values(), (_WAITS, PALE)]), among=rows),
        **_chosen_plan(report),
    )
    best = report.plans[0]
    busy = [rank.lookup_ns + rank.update_ns for rank in best.ranks]
    text = (
        "What each GPU does with the tables in an iteration; collectives take all GPUs as long. Under the proposed "
        f"plan lookups and updates take {format_time(min(busy))} to {format_time(max(busy))} of a GPU."
        f"{plot.cut_words(min(count, MOST_RANKS), count, 'GPUs')}"
    )
    return plot.build_chart("What each GPU has to do", text, spec, rows, told)


def _loads(plan: PlanRow, rank: ShardLoad, number: str) -> Iterator[dict[str, Any]]:
    spent: dict[str, float] = {}
    waits_ns = 0.0
    for phase, (word, _) in PHASE_WORDS.items():
        if phase is not PlanPhase.DENSE:
            own_ns = getattr(rank, _OWN[phase]) if phase in _OWN else plan.phases_ns[phase]
            waits_ns += plan.phases_ns[phase] - own_ns
            spent[word] = own_ns
    spent[_WAITS] = waits_ns
    names: Spec = {"plan": name_plan(plan.name), "number": number, "rank": str(rank.rank), "tables": f"{rank.tables:,}"}
    yield from plot.division_rows(spent, **names)


def _chosen_plan(report: ShardReport) -> dict[str, Any]:
    """Return what shows the rows of a plan that the reader chooses."""
    return {
        "params": [plot.choice("chosen", "Plan", [name_plan(plan.name) for plan in report.plans])],
        "transform": [{"filter": "datum.number === chosen"}],
    }


def _memory_chart(report: ShardReport) -> Chart:
    """Draw what each GPU holds under a plan that the reader chooses, and where its memory ends."""
    rows = [
        row
        for number, plan in enumerate(report.plans)
        for rank in plan.ranks[:MOST_RANKS]
        for row in _memory(report, plan, rank, str(number))
    ]
    most = max(row["all_gib"] for row in rows)
    limit_gib = report.limit_bytes / GIB
    has_end = limit_gib <= _FAR * most
    told = (("plan", "plan"), ("rank", "GPU"), ("part", "holds"), ("held", "of"), ("all", "in all"), ("fits", "fits"))
    x = plot.amount("held_gib", "GiB of a GPU's memory")
    colours = {"dense part": GREY, "tables": GREEN, "tables, too many": VERMILLION}
    layer = plot.bars(
        rows, told, y=plot.along("rank", "GPU"), x=x, color=plot.coloured("part", None, colours, among=rows)
    )
    height = layer.pop("height")
    end = plot.marks("tick", {"x": x | {"field": "limit_gib"}}, thickness=3, size=18, color=INK)
    best, count = report.plans[0], len(report.plans[0].ranks)
    spec = {
        "height": height,
        **_chosen_plan(report),
        "encoding": {"y": plot.along("rank", "GPU")},
        "layer": [layer, end] if has_end else [layer],
    }
    text = (
        f"What each GPU holds: its tables with gradients and optimizer state, and the dense part. Under the proposed "
        f"plan at most {format_bytes(best.memory_bytes)} of the {format_bytes(report.limit_bytes)} that it may use"
        f"{', where the mark stands' if has_end else ', far beyond what is drawn'}."
        f"{plot.cut_words(min(count, MOST_RANKS), count, 'GPUs')}"
    )
    return plot.build_chart("Memory of each GPU", text, spec, rows, told)


def _memory(report: ShardReport, plan: PlanRow, rank: ShardLoad, number: str) -> Iterator[dict[str, Any]]:
    fits = rank.memory_bytes <= report.limit_bytes
    parts = {"dense part": report.dense_bytes, "tables": rank.memory_bytes - report.dense_bytes}
    for order, (part, held_bytes) in enumerate(parts.items()):
        if held_bytes > 0:
            yield {
                "plan": name_plan(plan.name),
                "number": number,
                "rank": str(rank.rank),
                "part": part if fits or part != "tables" else "tables, too many",
                "order": order,
                "held_gib": held_bytes / GIB,
                "held": format_bytes(held_bytes),
                "all_gib": rank.memory_bytes / GIB,
                "all": format_bytes(rank.memory_bytes),
                "limit_gib": report.limit_bytes / GIB,
                "fits": "yes" if fits else "no",
            }
