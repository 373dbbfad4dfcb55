"""How well a replay explains a recording, in words and sheets, and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from ....formats.trace.printable import clean_text
from ...page.columns import number_column, share_column, time_column
from ...page.encoding import FieldTable, attributes, encode_json, join_tables, table_of, table_of_keys
from ...page.page import Page, build_page, facts, notes
from ...page.quantity import common_time_unit, format_change, format_count, format_share, format_time
from ...page.sheet import Sheet, drop_empty_columns
from ...recorded.choice import IterationChoice
from ...replay.causes import CAUSES, IdleCause
from ...replay.fidelity import Fidelity, ReplayedIteration

_TIMES: Final = ("index", "measured_ns", "replayed_ns", "rules_only_ns", "exact_ns", "gpu_busy_ns")
OPAQUE_RATIO: Final = 0.1
"""Of an iteration: beyond this, time for which nothing is recorded makes the rules' error meaningless."""
CAUSE_TITLES: Final = {
    IdleCause.HOST: "waits for\nhost",
    IdleCause.SYNC: "sync",
    IdleCause.COMMUNICATION: "commu-\nnication",
    IdleCause.DEPENDENCY: "between\nkernels",
    IdleCause.UNEXPLAINED: "unex-\nplained",
}
_QUALITY_NOUNS: Final = {
    "kernels_without_launch": ("GPU activity without a recorded launch", "GPU activities without a recorded launch"),
    "waits_named": ("recorded wait between streams", "recorded waits between streams"),
    "waits_inferred": ("inferred wait between streams", "inferred waits between streams"),
    "waits_rejected": ("possible wait that the times contradict", "possible waits that the times contradict"),
    "kernels_before_launch": ("kernel before its launch (clock skew)", "kernels before their launch (clock skew)"),
    "edges_cut": ("edge cut from a cycle", "edges cut from cycles"),
}


def draw_replay_json(fidelity: Fidelity, choice: IterationChoice | None = None) -> str:
    """Write it as JSON: times in ns, shares as ratios. `choice` says which iteration was asked for; None: each one."""
    ratios = {f"{near:.0f}_ns": share for near, share in fidelity.starts_within_ratio.items()}
    return encode_json(
        {
            "format": "wavecast.replay",
            "version": "1.0",
            "gpu": fidelity.gpu,
            "iteration_choice": None if choice is None else choice.rule,
            "recorded_iteration_count": len(fidelity.iterations) if choice is None else choice.count,
            "iterations": [attributes(item, (*_TIMES, "idle_ns", "opaque_ratio")) for item in fidelity.iterations],
            **attributes(fidelity, ("node_count", "edge_count", "start_count", "opaque_start_count")),
            "starts_within_ratio": ratios,
            "latency_ns": {term.name.lower(): value for term, value in fidelity.latency_ns.items()},
            "quality": fidelity.quality,
        }
    )


def iteration_table(fidelity: Fidelity) -> FieldTable:
    """Return one row per iteration."""
    return join_tables(
        table_of(fidelity.iterations, ReplayedIteration, (*_TIMES, "opaque_ratio")),
        table_of_keys(
            (item.idle_ns for item in fidelity.iterations), {f"idle_{item.value}_ns": item for item in CAUSES}
        ),
    )


def describe_replay(fidelity: Fidelity, *, name: str) -> Page:
    """Put it into words: facts, then a row per iteration. `name` is that of the trace's file."""
    return build_page(facts(_facts(fidelity, name)), _sheet(fidelity), notes(_notes(fidelity)))


def _facts(fidelity: Fidelity, name: str) -> Iterator[tuple[str, str]]:
    yield "trace", f"{clean_text(name)}, recorded on {clean_text(fidelity.gpu or 'a GPU that is not catalogued')}"
    yield (
        "graph",
        f"{format_count(fidelity.node_count, 'node')}, {format_count(fidelity.edge_count, 'edge')} between lanes",
    )
    near = ", ".join(
        f"{format_share(share)} within {distance / 1000:.0f} µs"
        for distance, share in fidelity.starts_within_ratio.items()
    )
    opaque = fidelity.opaque_start_count
    late = f"; {opaque:,} others more than 20 µs late for no recorded reason" if opaque else ""
    yield (
        "starts by rule",
        f"of {format_count(fidelity.start_count - opaque, 'GPU activity', 'GPU activities')} {near}{late}",
    )
    yield (
        "latencies",
        ", ".join(
            f"{term.name.lower().replace('_', ' ')} {format_time(value)}" for term, value in fidelity.latency_ns.items()
        ),
    )
    gaps = [format_count(count, *_QUALITY_NOUNS[key]) for key, count in asdict(fidelity.quality).items() if count]
    yield "gaps", ", ".join(gaps) or "none known"


def _sheet(fidelity: Fidelity) -> Sheet:
    rows = fidelity.iterations
    unit = common_time_unit(item.measured_ns for item in rows)
    columns = (
        number_column("#", (str(item.index) for item in rows)),
        time_column("measured", (item.measured_ns for item in rows), unit),
        time_column("replayed", (item.replayed_ns for item in rows), unit),
        number_column("error", (_error(item.replayed_ns, item) for item in rows)),
        number_column("error of\nrules only", (_error(item.rules_only_ns, item) for item in rows)),
        share_column("GPU busy", (_share(item.gpu_busy_ns, item) for item in rows), rank=1),
        *(share_column(CAUSE_TITLES[cause], (_idle_share(item, cause) for item in rows), rank=2) for cause in CAUSES),
    )
    return drop_empty_columns(Sheet(title="", columns=columns))


def _error(replayed_ns: float, item: ReplayedIteration) -> str:
    return format_change(replayed_ns / item.measured_ns - 1 if item.measured_ns > 0 else None, decimals=2)


def _idle_share(item: ReplayedIteration, cause: IdleCause) -> float | None:
    return _share(item.idle_ns[cause], item) if item.idle_ns[cause] > 0 else None


def _share(time_ns: float, item: ReplayedIteration) -> float | None:
    """Return the part of the iteration; None of one that has no length."""
    return time_ns / item.measured_ns if item.measured_ns > 0 else None


def _notes(fidelity: Fidelity) -> Iterator[str]:
    yield (
        "Rules only: measured kernel durations and host times, every start by rule. Replayed: delays of more than "
        "20 µs that no rule explains carried over as well."
    )
    opaque = [item.opaque_ratio for item in fidelity.iterations if item.opaque_ratio > OPAQUE_RATIO]
    if opaque:
        yield (
            f"Up to {format_share(max(opaque))} of an iteration nothing is recorded although the GPU goes on (kernels "
            "inside CUDA graphs often are not recorded): rules alone cannot know that time."
        )
