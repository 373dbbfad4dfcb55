"""A recommender's iteration as JSON and as a table; the layout is public and documented in docs/recommenders.md."""

from __future__ import annotations

from ...page.encoding import attributes, encode_json
from ...page.energy import energy_record, energy_table
from ...page.table import FieldTable, join_tables, table_of, table_of_keys
from .forecast import RecommenderPart
from .report import RECOMMENDER_FORMAT, RECOMMENDER_VERSION, RecommenderReport, RecommenderRow

_ROW = (
    "gpu", "node", "gpus_per_node", "step_ns", "step_low_ns", "step_high_ns", "samples_per_s", "table_bytes",
    "gpu_memory_bytes",
)  # fmt: skip
_PARTS = {f"{part.name.lower()}_ns": part for part in RecommenderPart}


def draw_recommender_json(report: RecommenderReport) -> str:
    """Write a recommender's iteration as JSON: times in ns, sizes in bytes."""
    training = attributes(report.training) | {"indices": str(report.training.indices)}
    del training["gpus_per_node"]
    return encode_json(
        {
            "format": RECOMMENDER_FORMAT,
            "version": RECOMMENDER_VERSION,
            "model": report.sizes,
            "training": training,
            "gpus": [
                attributes(row, (*_ROW, "fits"))
                | {"parts_ns": {name: row.parts_ns[part] for name, part in _PARTS.items()}}
                | {"energy": energy_record(row.energy)}
                for row in report.rows
            ],
        }
    )


def recommender_table(report: RecommenderReport) -> FieldTable:
    """Return a row per type of GPU."""
    return join_tables(
        table_of(report.rows, RecommenderRow, _ROW),
        table_of_keys((row.parts_ns for row in report.rows), _PARTS),
        energy_table(row.energy for row in report.rows),
    )
