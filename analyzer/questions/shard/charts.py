"""The charts of plans of embedding tables: their time, each GPU's load, and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...page.chart import Chart
from ...page.page import Page
from ...page.plot import (
    along,
    amount,
    bars_height,
    build_chart,
    coloured,
    cut_words,
    interval_marks,
    place_charts,
    said,
)
from ...page.quantity import format_bytes, format_time
from ...page.vega import BLUE, GREEN, GREY, INK, OLIVE, ORANGE, PALE, PINK, PLUM, SKY, VERMILLION, choice
from .page import describe_sharding, name_plan
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


def illustrate_sharding(report: ShardReport, *, name: str) -> Page:
    """Put plans into words and charts; `name` stands for a workload that has none."""
    return place_charts(
        describe_sharding(report, name=name),
        lead=[_plan_chart(report), _load_chart(report)],
        details=[_memory_chart(report)],
    )


def _plan_chart(report: ShardReport) -> Chart:
    """Draw the phases of every plan's iteration, with its interval."""
    rows = [row for plan in report.plans for row in _phases(plan)]
    present = {row["part"] for row in rows}
    colours = {word: colour for word, colour in PHASE_WORDS.values() if word in present}
    told = (("plan", "plan"), ("part", "phase"), ("spent", "takes"), ("time", "iteration"), ("fits", "fits"))
    spec = {
        "height": bars_height(len(report.plans)),
        "encoding": {"y": along("plan")},
        "layer": [
            {
                "mark": "bar",
                "encoding": {
                    "x": amount("part_ms", "ms of the iteration") | {"stack": "zero"},
                    "color": coloured("part", "phase", colours),
                    "order": {"field": "order", "type": "quantitative"},
                    "tooltip": said(*told),
                },
            },
            interval_marks("low_ms", "high_ms", opacity=0.9),
        ],
    }
    best, worst = report.plans[0], max(report.plans, key=lambda plan: plan.iteration_ns)
    text = (
        f"The iteration under each plan by phase; the line is its 90 % interval. Proposed: "
        f"{format_time(best.iteration_ns)}; slowest, {name_plan(worst.name)}: {format_time(worst.iteration_ns)}. The "
        "dense part and its error are the same under all: of two plans the order is surer than either time."
    )
    return build_chart("The plans' iterations", text, spec, rows, told)


def _phases(plan: PlanRow) -> Iterator[dict[str, Any]]:
    is_first = True
    for order, (phase, (word, _)) in enumerate(PHASE_WORDS.items()):
        spent_ns = plan.phases_ns[phase]
        if spent_ns > 0:
            yield {
                "plan": name_plan(plan.name),
                "part": word,
                "order": order,
                "part_ms": spent_ns / 1e6,
                "spent": format_time(spent_ns),
                "time": f"{format_time(plan.iteration_ns)} "
                f"({format_time(plan.iteration_low_ns)} to {format_time(plan.iteration_high_ns)})",
                "low_ms": plan.iteration_low_ns / 1e6 if is_first else None,
                "high_ms": plan.iteration_high_ns / 1e6 if is_first else None,
                "fits": "yes" if plan.fits else "no",
            }
            is_first = False


def _load_chart(report: ShardReport) -> Chart:
    """Draw what each GPU does in an iteration beside the dense part, under a plan that the reader chooses."""
    rows = [
        row
        for number, plan in enumerate(report.plans)
        for rank in plan.ranks[:MOST_RANKS]
        for row in _loads(plan, rank, str(number))
    ]
    present = {row["part"] for row in rows}
    words = [*(item for phase, item in PHASE_WORDS.items() if phase is not PlanPhase.DENSE), (_WAITS, PALE)]
    colours = {word: colour for word, colour in words if word in present}
    told = (
        ("plan", "plan"),
        ("rank", "GPU"),
        ("part", "does"),
        ("spent", "for"),
        ("tables", "tables or parts of them"),
    )
    count = len(report.plans[0].ranks)
    spec = {
        "height": bars_height(min(count, MOST_RANKS)),
        "params": [choice("chosen", "Plan", [name_plan(plan.name) for plan in report.plans])],
        "transform": [{"filter": "datum.number === chosen"}],
        "mark": "bar",
        "encoding": {
            "y": along("rank", "GPU"),
            "x": amount("part_ms", "ms of the iteration, without the dense part") | {"stack": "zero"},
            "color": coloured("part", None, colours),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": said(*told),
        },
    }
    best = report.plans[0]
    busy = [rank.lookup_ns + rank.update_ns for rank in best.ranks]
    text = (
        "What each GPU does with the tables in an iteration; collectives take all GPUs as long. Under the proposed "
        f"plan lookups and updates take {format_time(min(busy))} to {format_time(max(busy))} of a GPU."
        f"{cut_words(min(count, MOST_RANKS), count, 'GPUs')}"
    )
    return build_chart("What each GPU has to do", text, spec, rows, told)


def _loads(plan: PlanRow, rank: ShardLoad, number: str) -> Iterator[dict[str, Any]]:
    spent: dict[str, float] = {}
    waits_ns = 0.0
    for phase, (word, _) in PHASE_WORDS.items():
        if phase is not PlanPhase.DENSE:
            own_ns = getattr(rank, _OWN[phase]) if phase in _OWN else plan.phases_ns[phase]
            waits_ns += plan.phases_ns[phase] - own_ns
            spent[word] = own_ns
    spent[_WAITS] = waits_ns
    for order, (word, spent_ns) in enumerate(spent.items()):
        if spent_ns > 0:
            yield {
                "plan": name_plan(plan.name),
                "number": number,
                "rank": str(rank.rank),
                "part": word,
                "order": order,
                "part_ms": spent_ns / 1e6,
                "spent": format_time(spent_ns),
                "tables": f"{rank.tables:,}",
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
    x = amount("held_gib", "GiB of a GPU's memory")
    colours = {"dense part": GREY, "tables": GREEN, "tables, too many": VERMILLION}
    present = {row["part"] for row in rows}
    bars = {
        "mark": "bar",
        "encoding": {
            "x": x | {"stack": "zero"},
            "color": coloured("part", None, {word: colour for word, colour in colours.items() if word in present}),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": said(*told),
        },
    }
    end = {
        "mark": {"type": "tick", "thickness": 3, "size": 18, "color": INK},
        "encoding": {"x": x | {"field": "limit_gib"}},
    }
    best, count = report.plans[0], len(report.plans[0].ranks)
    spec = {
        "height": bars_height(min(count, MOST_RANKS)),
        "params": [choice("chosen", "Plan", [name_plan(plan.name) for plan in report.plans])],
        "transform": [{"filter": "datum.number === chosen"}],
        "encoding": {"y": along("rank", "GPU")},
        "layer": [bars, end] if has_end else [bars],
    }
    text = (
        f"What each GPU holds: its tables with gradients and optimizer state, and the dense part. Under the proposed "
        f"plan at most {format_bytes(best.memory_bytes)} of the {format_bytes(report.limit_bytes)} that it may use"
        f"{', where the mark stands' if has_end else ', far beyond what is drawn'}."
        f"{cut_words(min(count, MOST_RANKS), count, 'GPUs')}"
    )
    return build_chart("Memory of each GPU", text, spec, rows, told)


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
