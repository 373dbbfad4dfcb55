"""Plans of embedding tables in words and sheets, as JSON and as tables: plans, GPUs' loads, tables' places."""

from collections.abc import Iterator, Sequence
from typing import Final

from ....formats.trace.printable import clean_text
from ...page.columns import count_column, number_column, text_column, time_column
from ...page.encoding import FieldTable, attributes, build_fields, encode_json, join_tables, table_of, table_of_keys
from ...page.energy import describe_energy, energy_columns, energy_note, energy_record, energy_table
from ...page.page import Page, build_page, notes, opening, warnings
from ...page.quantity import (
    common_time_unit,
    format_bytes,
    format_count,
    format_time,
    format_time_range,
    format_time_within,
)
from ...page.sheet import Sheet
from ..analyze.page.headline import describe_recording
from .problem import PlanPhase
from .report import PlanRow, ShardReport
from .tables import EmbeddingTable, TablePlacement, TableSharding, plan_document

PHASE_TITLES: Final = {
    PlanPhase.DENSE: "dense",
    PlanPhase.INDICES: "indices",
    PlanPhase.LOOKUP: "lookups",
    PlanPhase.OUTPUTS: "vectors",
    PlanPhase.PARTIAL_SUMS: "partial\nsums",
    PlanPhase.UPDATE: "updates",
    PlanPhase.GRADIENTS: "gradients",
}
KIND_WORDS: Final = {
    TableSharding.TABLE_WISE: "table-wise",
    TableSharding.COLUMN_WISE: "column-wise",
    TableSharding.ROW_WISE: "row-wise",
    TableSharding.DATA_PARALLEL: "replicated",
}
_PLAN_WORDS: Final = {**{kind.value: f"all {word}" for kind, word in KIND_WORDS.items()}, "given": "yours"}
_ALIKE: Final = 5e-4
_SHOWN_RANKS: Final = 64
_SHOWN_TABLES: Final = 100
_NOTES: Final = (
    "Phases run one after the other, each as long as its slowest GPU. Dense: everything but tables, the host included. "
    "Vectors: the all-to-all of what lookups found and, in training, of its gradients. Partial sums: of row-wise "
    "tables. Updates: gradients and optimizer of tables. Gradients: the all-reduce of the dense part and of copies.",
    "Rows of a row-wise table are taken to be hashed to its ranks, which wait for the one that has the hottest rows; "
    "a GPU's own line has the mean. Lookups are not batched over tables: each has the op that was recorded.",
)


def describe_sharding(report: ShardReport, *, name: str) -> Page:
    """Put plans of tables into words; `name` stands for a workload that has none."""
    return build_page(
        opening(_headline(report, name)),
        _plans(report),
        _gpus(report),
        _tables(report),
        notes(_notes(report)),
        warnings(report.warnings),
    )


def _notes(report: ShardReport) -> Iterator[str]:
    yield from _NOTES
    if report.electricity is not None:
        yield energy_note(report.electricity)


def _headline(report: ShardReport, name: str) -> Iterator[str]:
    best = report.plans[0]
    yield describe_recording(report.trace, name)
    size = format_bytes(sum(table.size_bytes for table in report.tables))
    yield (
        f"{format_count(len(report.tables), 'table')} of {size} on {report.gpu_count} × {clean_text(report.gpu)} "
        f"({clean_text(report.node)}), {report.global_batch:,} samples in an iteration."
    )
    time = format_time_within(best.iteration_ns, best.iteration_low_ns, best.iteration_high_ns)
    proof = "the fastest of all plans" if report.is_fastest else "the fastest found"
    yield f"Proposed: {time}, {proof}: {_mix(best.placements)}."
    if report.electricity is not None:
        yield f"Its energy: {describe_energy(best.energy)}."
    yield from (_beside(best, plan) for plan in report.plans if plan.name == "given")


def _beside(best: PlanRow, other: PlanRow) -> str:
    fits = "" if other.fits else " It does not fit."
    ratio = other.iteration_ns / best.iteration_ns - 1.0
    if abs(ratio) < _ALIKE:
        return f"The given plan is as fast: {format_time(other.iteration_ns)}.{fits}"
    than = "longer" if ratio > 0 else "less"
    return f"The given plan takes {format_time(other.iteration_ns)}, {100 * abs(ratio):.1f} % {than}.{fits}"


def _mix(placements: Sequence[TablePlacement]) -> str:
    counts = {word: sum(item.sharding is kind for item in placements) for kind, word in KIND_WORDS.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def _plans(report: ShardReport) -> Sheet:
    plans = report.plans
    unit = common_time_unit([plan.iteration_ns for plan in plans])
    phases = [
        time_column(title, [plan.phases_ns[phase] for plan in plans], unit, rank=2)
        for phase, title in PHASE_TITLES.items()
        if any(plan.phases_ns[phase] > 0 for plan in plans)
    ]
    return Sheet(
        title="Plans",
        columns=(
            text_column("plan", [_PLAN_WORDS.get(plan.name, plan.name) for plan in plans]),
            time_column("iteration", [plan.iteration_ns for plan in plans], unit),
            number_column(
                "90 %",
                [format_time_range(plan.iteration_low_ns, plan.iteration_high_ns, unit) for plan in plans],
                rank=1,
            ),
            *(energy_columns([plan.energy for plan in plans]) if report.electricity is not None else ()),
            *phases,
            number_column("memory", [format_bytes(plan.memory_bytes) for plan in plans], rank=1),
            text_column("fits", ["yes" if plan.fits else "no" for plan in plans], rank=3),
        ),
        marked_rows=frozenset((0,)),
    )


def _gpus(report: ShardReport) -> Sheet:
    ranks = report.plans[0].ranks
    shown = ranks[:_SHOWN_RANKS]
    unit = common_time_unit([rank.lookup_ns + rank.update_ns for rank in ranks])
    left = "" if len(ranks) == len(shown) else f", the first {len(shown)} of {len(ranks)}"
    return Sheet(
        title=f"GPUs of the proposed plan{left}",
        columns=(
            count_column("rank", [rank.rank for rank in shown]),
            count_column("tables", [rank.tables for rank in shown]),
            count_column("lookups", [rank.lookups for rank in shown]),
            time_column("lookup", [rank.lookup_ns for rank in shown], unit),
            time_column("update", [rank.update_ns for rank in shown], unit),
            number_column("indices\nin", [format_bytes(rank.index_bytes) for rank in shown], rank=2),
            number_column("vectors\nout", [format_bytes(rank.sent_bytes) for rank in shown], rank=1),
            number_column("memory", [format_bytes(rank.memory_bytes) for rank in shown]),
        ),
    )


def _tables(report: ShardReport) -> Sheet:
    placements = report.plans[0].placements[:_SHOWN_TABLES]
    tables = report.tables[:_SHOWN_TABLES]
    left = "" if len(report.tables) == len(tables) else f", the first {len(tables)} of {len(report.tables)}"
    return Sheet(
        title=f"Tables of the proposed plan{left}",
        columns=(
            text_column("table", [table.name for table in tables], min_width=16),
            count_column("rows", [table.rows for table in tables], rank=1),
            count_column("width", [table.width for table in tables], rank=1),
            number_column("size", [format_bytes(table.size_bytes) for table in tables], rank=2),
            count_column("lookups", [table.lookups for table in tables], rank=2),
            text_column("how", [KIND_WORDS[item.sharding] for item in placements]),
            text_column(
                "ranks",
                ["all" if len(x.ranks) == report.gpu_count else ", ".join(map(str, x.ranks)) for x in placements],
            ),
        ),
        folded=True,
    )


_HEAD = (
    "trace", "gpu", "node", "gpu_count", "global_batch", "recorded_batch", "is_training", "limit_bytes", "dense_bytes",
    "state_ratio", "is_fastest",
)  # fmt: skip
_PLAN = ("name", "iteration_ns", "iteration_low_ns", "iteration_high_ns", "memory_bytes", "fits")
_TABLE = ("name", "rows", "width", "dtype", "lookups", "outputs", "is_bag", "is_sparse", "size_bytes")


def draw_sharding_json(report: ShardReport) -> str:
    """Write plans as JSON: times in ns, sizes in bytes; `plan` is the proposed one, as `--plan` takes it."""
    plans = [
        attributes(plan, _PLAN)
        | {
            "phases_ns": {phase.name.lower(): plan.phases_ns[phase] for phase in PlanPhase},
            "energy": energy_record(plan.energy),
            "ranks": plan.ranks,
            "tables": plan_document(plan.placements, report.gpu_count)["tables"],
        }
        for plan in report.plans
    ]
    return encode_json(
        {
            "format": "wavecast.sharding",
            "version": 1,
            **attributes(report, _HEAD),
            "plan": plan_document(report.plans[0].placements, report.gpu_count),
            "embedding_tables": [attributes(table, _TABLE) for table in report.tables],
            "plans": plans,
            **attributes(report, ("warnings", "electricity")),
        }
    )


def plans_table(report: ShardReport) -> FieldTable:
    """Return a row per plan."""
    return join_tables(
        table_of(report.plans, PlanRow, _PLAN),
        table_of_keys(
            (plan.phases_ns for plan in report.plans), {f"{item.name.lower()}_ns": item for item in PlanPhase}
        ),
        energy_table(plan.energy for plan in report.plans),
    )


def placement_table(report: ShardReport) -> FieldTable:
    """Return a row per table: what it is, and where the proposed plan puts it."""
    places = report.plans[0].placements
    where = tuple((item.sharding.value, " ".join(map(str, item.ranks))) for item in places)
    return join_tables(
        table_of(report.tables, EmbeddingTable, _TABLE),
        FieldTable(fields=build_fields(("sharding", "ranks"), str), rows=where),
    )
