"""The columns of a batch's table: names, types and meanings; docs/reference/batch.md lists them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ....records import dataclass
from ...prediction.prediction import Method
from ...replay.causes import CAUSES


class ColumnKind(StrEnum):
    """Name what a column holds, as Parquet's types."""

    TEXT = "string"
    WHOLE = "int64"
    NUMBER = "double"
    TRUTH = "bool"


class ColumnPart(StrEnum):
    """Say of what a column tells: it has one value per trace, per what-if of it, or per GPU."""

    TRACE = "trace"
    CHANGE = "what-if"
    GPU = "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumn:
    """Describe a column of the table; its unit stands in its name."""

    name: str
    kind: ColumnKind
    part: ColumnPart
    meaning: str


def _columns(part: ColumnPart, *rows: tuple[str, ColumnKind, str]) -> tuple[BatchColumn, ...]:
    return tuple(BatchColumn(name=name, kind=kind, part=part, meaning=meaning) for name, kind, meaning in rows)


_T, _W, _N, _B = ColumnKind.TEXT, ColumnKind.WHOLE, ColumnKind.NUMBER, ColumnKind.TRUTH
TRACE_COLUMNS: Final = _columns(
    ColumnPart.TRACE,
    ("trace_id", _T, "SHA-256 of the trace's file, or its id in the archive"),
    ("trace", _T, "its path below the folder that was named, or its tag in the archive"),
    ("workload", _T, "name of the workload, where the trace says it"),
    ("mode", _T, "`training` or `inference`, where the trace says it"),
    ("source_format", _T, "what was read: `wavecast`, `kineto`, …"),
    ("source_gpu", _T, "the GPU that was measured; none where only shapes were recorded"),
)
CHANGE_COLUMNS: Final = _columns(
    ColumnPart.CHANGE,
    ("what_if", _T, "all that is changed, in words; `as recorded` where nothing is"),
    ("precision", _T, "the precision asked for; none: as recorded"),
    ("batch", _W, "the batch size asked for; none: as recorded"),
    ("sequence_length", _W, "the tokens per sample asked for; none: as recorded"),
    ("cuda_graph", _B, "whether CUDA graphs launch it"),
    ("fuse_elementwise", _B, "whether pointwise ops are merged"),
    ("cpu_speed", _N, "what `--host` comes to: speed of the host over that of the recorded one; none: as recorded"),
    ("samples_per_iteration", _W, "samples that one iteration processes, with the what-if"),
    ("tokens_per_sample", _W, "where the what-if or the shapes tell it"),
    ("warning_count", _W, "warnings that `analyze` gives of this trace and what-if"),
)
PREDICTION_FIELDS: Final = (
    ("gpu", _T, "the GPU that is predicted"),
    ("vendor", _T, "its vendor"),
    ("is_source", _B, "whether it is the one that was measured"),
    ("iteration_ns", _N, "predicted time of one iteration"),
    ("iteration_low_ns", _N, "low end of its 90 % interval"),
    ("iteration_high_ns", _N, "high end of its 90 % interval"),
    ("gpu_busy_ns", _N, "time in which the GPU runs something"),
    ("communication_ns", _N, "the part of it in which only collectives run"),
    ("fits", _B, "whether it fits the GPU's memory; none where that is not known"),
    ("is_tight", _B, "whether that is within the uncertainty"),
    ("memory_needed_bytes", _W, "memory that the iteration needs on this GPU"),
    ("memory_usable_bytes", _W, "memory that a process can use there"),
    ("speedup", _N, "times faster than measured; none without a measured source"),
    ("samples_per_s", _N, "samples per second"),
    ("energy_j", _N, "energy that the board takes for one iteration, J"),
    ("energy_low_j", _N, "low end of its 90 % interval"),
    ("energy_high_j", _N, "high end of its 90 % interval"),
    ("mean_power_w", _N, "power of the board on average, W"),
)
"""Attributes of a `GpuPrediction`, by the names that `analyze --format csv` has, too."""
GPU_COLUMNS: Final = (
    *_columns(
        ColumnPart.GPU, ("rank", _W, "of this GPU for this trace and what-if, fastest first"), *PREDICTION_FIELDS
    ),
    *_columns(
        ColumnPart.GPU,
        ("tokens_per_s", _N, "tokens per second, where tokens per sample are known"),
        ("price_usd_per_hour", _N, "price of the GPU, of --prices or the catalogue"),
        ("price_date", _T, "date of the middle one of the price's listings; none where none is dated"),
        ("price_kind", _T, "`own`, `on-demand`, `reserved` or `spot`"),
        ("price_source", _T, "who says the price: clouds, file or option"),
        ("usd_per_1000_iterations", _N, "cost of 1,000 iterations"),
        ("usd_per_million_samples", _N, "cost of a million samples"),
        *((f"idle_{cause.value}_ns", _N, f"time in which the GPU waits: {cause.value}") for cause in CAUSES),
        *((f"share_{method.value}", _N, f"part of the kernels' time by `{method.value}`") for method in Method),
    ),
)
COLUMNS: Final = (*TRACE_COLUMNS, *CHANGE_COLUMNS, *GPU_COLUMNS)
