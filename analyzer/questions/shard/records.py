"""Plans of embedding tables as JSON and as tables; the layout is public and documented in docs/shard.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ...page.encoding import encode_json
from ...page.energy import energy_cells, energy_fields, energy_record
from ...page.table import Field, FieldTable, build_fields, fields_of, table_of
from .plan import plan_document
from .problem import PlanPhase
from .report import SHARD_FORMAT, SHARD_VERSION, PlanRow, ShardLoad, ShardReport
from .tables import EmbeddingTable

_PLAN = ("name", "iteration_ns", "iteration_low_ns", "iteration_high_ns", "memory_bytes", "fits")
_TABLE = ("name", "rows", "width", "dtype", "lookups", "outputs", "is_bag", "is_sparse", "size_bytes")


def draw_sharding_json(report: ShardReport) -> str:
    """Write plans as JSON: times in ns, sizes in bytes; `plan` is the proposed one, as `--plan` takes it."""
    return encode_json(
        {
            "format": SHARD_FORMAT,
            "version": SHARD_VERSION,
            "trace": asdict(report.trace),
            "gpu": report.gpu,
            "node": report.node,
            "gpu_count": report.gpu_count,
            "global_batch": report.global_batch,
            "recorded_batch": report.recorded_batch,
            "is_training": report.is_training,
            "limit_bytes": report.limit_bytes,
            "dense_bytes": report.dense_bytes,
            "state_ratio": report.state_ratio,
            "is_fastest": report.is_fastest,
            "plan": plan_document(report.plans[0].placements, report.gpu_count),
            "embedding_tables": [{key: getattr(table, key) for key in _TABLE} for table in report.tables],
            "plans": [_plan(report, plan) for plan in report.plans],
            "torchrec": report.torchrec,
            "warnings": list(report.warnings),
            "electricity": None if report.electricity is None else asdict(report.electricity),
        }
    )


def plans_table(report: ShardReport) -> FieldTable:
    """Return a row per plan."""
    phases = build_fields([_phase_name(phase) for phase in PlanPhase], float)
    header = (*fields_of(PlanRow, _PLAN), *phases, *energy_fields())
    rows = tuple(
        (
            *(getattr(plan, name) for name in _PLAN),
            *(plan.phases_ns[phase] for phase in PlanPhase),
            *energy_cells(plan.energy),
        )
        for plan in report.plans
    )
    return FieldTable(fields=header, rows=rows)


def rank_table(report: ShardReport) -> FieldTable:
    """Return a row per GPU of the proposed plan."""
    return table_of(report.plans[0].ranks, ShardLoad)


def placement_table(report: ShardReport) -> FieldTable:
    """Return a row per table: what it is, and where the proposed plan puts it."""
    header = (*fields_of(EmbeddingTable, _TABLE), Field(name="sharding", kind=str), Field(name="ranks", kind=str))
    rows = tuple(
        (*(getattr(table, name) for name in _TABLE), item.sharding.value, " ".join(map(str, item.ranks)))
        for table, item in zip(report.tables, report.plans[0].placements, strict=True)
    )
    return FieldTable(fields=header, rows=rows)


def _plan(report: ShardReport, plan: PlanRow) -> dict[str, Any]:
    return {
        **{name: getattr(plan, name) for name in _PLAN},
        "phases_ns": {phase.name.lower(): plan.phases_ns[phase] for phase in PlanPhase},
        "energy": energy_record(plan.energy),
        "ranks": [asdict(rank) for rank in plan.ranks],
        "tables": plan_document(plan.placements, report.gpu_count)["tables"],
    }


def _phase_name(phase: PlanPhase) -> str:
    return f"{phase.name.lower()}_ns"
