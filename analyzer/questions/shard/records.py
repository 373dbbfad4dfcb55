"""Plans of embedding tables as JSON and as tables; the layout is public and documented in docs/shard.md."""

from __future__ import annotations

from ...page.encoding import attributes, encode_json
from ...page.energy import energy_record, energy_table
from ...page.table import FieldTable, build_fields, join_tables, table_of, table_of_keys
from .plan import plan_document
from .problem import PlanPhase
from .report import SHARD_FORMAT, SHARD_VERSION, PlanRow, ShardLoad, ShardReport
from .tables import EmbeddingTable

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
            "format": SHARD_FORMAT,
            "version": SHARD_VERSION,
            **attributes(report, _HEAD),
            "plan": plan_document(report.plans[0].placements, report.gpu_count),
            "embedding_tables": [attributes(table, _TABLE) for table in report.tables],
            "plans": plans,
            **attributes(report, ("torchrec", "warnings", "electricity")),
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


def rank_table(report: ShardReport) -> FieldTable:
    """Return a row per GPU of the proposed plan."""
    return table_of(report.plans[0].ranks, ShardLoad)


def placement_table(report: ShardReport) -> FieldTable:
    """Return a row per table: what it is, and where the proposed plan puts it."""
    places = report.plans[0].placements
    where = tuple((item.sharding.value, " ".join(map(str, item.ranks))) for item in places)
    return join_tables(
        table_of(report.tables, EmbeddingTable, _TABLE),
        FieldTable(fields=build_fields(("sharding", "ranks"), str), rows=where),
    )
