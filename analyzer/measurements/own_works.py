"""Own measurements of single ops as problems of the models that cover them: what was called, by the formulas."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...records import dataclass, replace
from ...specs.gpu import Catalog, Rate
from ..models.embedding.problems import with_distinct, with_indices
from ..models.frame.problems import Problems
from ..models.registry import OP_MODELS, model_of, problems_of
from ..work.embedding_dims import DrawnRows
from ..work.indices import Indices
from ..work.registry import work_of
from ..work.row_kernels import RowKernel
from ..work.work import RowDims, Work
from .own_calls import calls_of
from .own_ops import TABLE, own_share, read_own
from .samples import MeasurementTable, Samples, records_of, samples_of

FAMILIES: Final = ("vector", "norm")
"""Of the table, whose rows are calls that formulas know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRow:
    """Hold one row: what was measured, and the works of its calls in order."""

    row: Mapping[str, Any]
    share: float
    works: tuple[Work, ...]


def load_own(data: Path, model: str, trained: float, catalog: Catalog | None = None) -> list[Samples[Any]]:
    """Return the rows whose one call this model covers, as its samples; none where there is no table.

    `trained`: the share of the shapes on which the model trains.
    """
    rows = [
        item
        for item in read_works(data, trained)
        if len(item.works) == 1 and (found := model_of(item.works[0], Rate.FP32)) is not None and found.name == model
    ]
    if not rows:
        return []
    works = [item.works[0] for item in rows]
    problems: Problems = problems_of(OP_MODELS[model], works, [Rate.FP32] * len(works))
    columns = {
        name: np.array([item.row[name] for item in rows], dtype=object) for name in ("gpu", "latency_us", "dtype")
    }
    return [
        samples_of(
            MeasurementTable(data / TABLE, columns),
            model,
            problems,
            catalog,
            family=[family_of_row(item.row) for item in rows],
            share=np.array([item.share for item in rows]),
        )
    ]


def family_of_row(row: Mapping[str, Any]) -> str:
    """Return what the score groups a row by; elementwise ops by where their operands lay.

    >>> family_of_row({"op": "layer_norm", "direction": "backward", "operands": "dram"})
    'layer and RMS norm'
    """
    group = GROUPS.get(row["op"])
    if group is not None:
        return group
    return "elementwise, cold" if row["operands"] == "dram" else "elementwise, in L2"


_GROUPS: Final[Mapping[str, str]] = {
    "batch norm": "batch_norm batch_norm_eval",
    "layer and RMS norm": "layer_norm rms_norm",
    "group norm": "group_norm",
    "copies and casts": "clone cast cat2 layout_copy transpose_copy row_bias pad1",
    "pooling and resampling": "avg_pool2 max_pool3s2 global_avg upsample2 bilinear2",
    "softmax": "softmax log_softmax",
    "reductions": "sum_last sum_first sum_all mean_last max_last amax_first argmax_last norm_last var_last",
    "scans": "cumsum_last",
    "embedding": "embedding",
    "dense gradient of an embedding": "embedding_dense",
    "index ops": "gather index_select index_add scatter_add",
    "sort": "sort",
    "topk": "topk",
}
GROUPS: Final[Mapping[str, str]] = {op: name for name, ops in _GROUPS.items() for op in ops.split()}
"""By op of the table; others are elementwise."""


@lru_cache(maxsize=2)
def read_works(data: Path, trained: float) -> tuple[OwnRow, ...]:
    """Return the rows whose calls are known, with their works; operands of later calls are still in L2."""
    found = []
    for family in FAMILIES:
        table = read_own(data, family)
        shares = own_share(table, trained).tolist() if len(table["op"]) else []
        for row, share in zip(records_of(table), shares, strict=True):
            calls = calls_of(row)
            works = [work_of(name, signature) for name, signature in calls or ()]
            known = [work for work in works if work is not None]
            # A row and its bias are one tensor: both would come faster than the memory gives them.
            is_alone = row["op"] == "row_bias" and row["dims"]["rows"] == 1
            if known and len(known) == len(works) and not is_alone:
                first = np.inf if row["operands"] == "dram" else 0.0
                since = (first, *(0.0 for _ in known[1:]))
                moved = zip(known, since, strict=True)
                kept = tuple(replace(work, moved_since_bytes=float(between)) for work, between in moved)
                if "alpha" in row["dims"]:
                    spread = Indices(exponent=float(row["dims"]["alpha"]))
                    kept = tuple(_drawn(work, spread) for work in kept)
                found.append(OwnRow(row=row, share=share, works=kept))
    return tuple(found)


def _drawn(work: Work, spread: Indices) -> Work:
    """Return a lookup that reads the rows its indices hit, once each; others as `with_indices` has them."""
    dims = work.dims
    if not isinstance(dims, RowDims) or dims.kernel is not RowKernel.GATHER_ROWS:
        return with_indices(work, spread)
    drawn = DrawnRows(table_rows=dims.table_rows, lookups=dims.rows)
    hit = with_distinct(replace(work, read_bytes=work.written_bytes, drawn=drawn), spread).read_bytes
    return replace(work, read_bytes=work.read_bytes + hit - work.written_bytes * min(dims.table_rows / dims.rows, 1.0))
