"""A recommender's iteration as JSON and as a table; the layout is public and documented in docs/recommenders.md."""

from __future__ import annotations

from dataclasses import asdict

from ...page.encoding import encode_json
from ...page.energy import energy_cells, energy_fields, energy_record
from ...page.table import FieldTable, build_fields, fields_of
from .forecast import RecommenderPart
from .report import RECOMMENDER_FORMAT, RECOMMENDER_VERSION, RecommenderReport, RecommenderRow

_ROW = (
    "gpu", "node", "gpus_per_node", "step_ns", "step_low_ns", "step_high_ns", "samples_per_s", "table_bytes",
    "gpu_memory_bytes",
)  # fmt: skip


def draw_recommender_json(report: RecommenderReport) -> str:
    """Write a recommender's iteration as JSON: times in ns, sizes in bytes."""
    training = {key: value for key, value in asdict(report.training).items() if key != "gpus_per_node"}
    return encode_json(
        {
            "format": RECOMMENDER_FORMAT,
            "version": RECOMMENDER_VERSION,
            "model": asdict(report.sizes),
            "training": training | {"indices": str(report.training.indices)},
            "gpus": [
                {key: getattr(row, key) for key in _ROW}
                | {"fits": row.fits, "parts_ns": {_name(part): row.parts_ns[part] for part in RecommenderPart}}
                | {"energy": energy_record(row.energy)}
                for row in report.rows
            ],
        }
    )


def recommender_table(report: RecommenderReport) -> FieldTable:
    """Return a row per type of GPU."""
    header = (*fields_of(RecommenderRow, _ROW), *build_fields([_name(part) for part in RecommenderPart], float))
    rows = tuple(
        (
            *(getattr(row, key) for key in _ROW),
            *(row.parts_ns[part] for part in RecommenderPart),
            *energy_cells(row.energy),
        )
        for row in report.rows
    )
    return FieldTable(fields=(*header, *energy_fields()), rows=rows)


def _name(part: RecommenderPart) -> str:
    return f"{part.name.lower()}_ns"
