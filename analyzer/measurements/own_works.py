"""Own measurements of single ops as problems of the models that cover them: what was called, by the formulas.

What the rows of `own/ops.parquet` called: ops and signatures, as a recording of the same call holds them.

One row may be several calls (a masked fill is a comparison, a copy and a fill). Only those of one call train a model.
The table of calls is `own_calls.toml`, in Python's syntax: it is parsed, not executed.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...formats.trace.signature import Signature, TensorSpec
from ...records import dataclass, replace
from ...specs.documents import read_toml
from ...specs.gpu import Catalog, Rate
from ..models.embedding.problems import with_distinct, with_indices
from ..models.frame.problems import Problems
from ..models.registry import OP_MODELS, model_of, problems_of
from ..work.embedding_dims import DrawnRows
from ..work.indices import Indices
from ..work.registry import work_of
from ..work.row_kernels import RowKernel
from ..work.work import RowDims, Work
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


Call = tuple[str, Signature]
DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def tensor(dtype: str, *shape: int, is_last: bool = False) -> TensorSpec:
    """Return a contiguous tensor; `is_last`: an image whose channels lie last."""
    order = (0, *range(2, len(shape)), 1) if is_last else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    return TensorSpec(dtype, shape, tuple(strides))


def calls_of(row: Mapping[str, Any]) -> tuple[Call, ...] | None:
    """Return what a row called; None where that is not known."""
    # A gather by another kernel than that of whole rows, which takes the index's bytes longer, had one of each element.
    is_each = row["op"] == "gather" and "_scatter_gather_elementwise" in str(row.get("kernels"))
    calls = _calls().get((row["direction"], "gather_each" if is_each else row["op"]))
    if calls is None:
        return None
    dtype = DTYPES[row["dtype"]]
    dtypes = {"x": dtype, "other": "float32" if dtype == "bfloat16" else "bfloat16"}

    def value(node: Any) -> Any:
        found: Any
        match node:
            case ast.Constant():
                found = node.value
            case ast.Name():
                found = row["dims"][node.id]
            case ast.Tuple():
                found = tuple(map(value, node.elts))
            case ast.UnaryOp():
                found = -value(node.operand)
            case ast.BinOp():
                found = _OPERATORS[type(node.op)](value(node.left), value(node.right))
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice(lower=sizes, upper=strides)):
                steps = value(strides)
                steps = steps.strides if isinstance(steps, TensorSpec) else steps
                found = TensorSpec(dtypes.get(name, name), value(sizes), steps)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr=layout), slice=sizes):
                is_last = (row["layout"] == "NHWC") is (layout == "laid")
                found = tensor(dtypes.get(name, name), *value(sizes), is_last=is_last)
            case ast.Subscript(value=ast.Name(id=name), slice=sizes):
                shape = value(sizes)
                found = tensor(dtypes.get(name, name), *(shape if isinstance(shape, tuple) else (shape,)))
            case _:
                raise TypeError(ast.dump(node))
        return found

    return tuple(
        (f"aten::{name}", Signature(tuple(map(value, given)), tuple(map(value, results))))
        for name, given, results in calls
    )


@lru_cache(maxsize=1)
def _calls() -> dict[tuple[str, str], list[tuple[str, list[ast.expr], list[ast.expr]]]]:
    """Return name, arguments and results of each call, by direction and op."""
    found = {}
    for direction, ops in read_toml(Path(__file__).with_name("own_calls.toml")).items():
        for op, text in ops.items():
            parsed: Any = ast.parse(text).body
            found[direction, op] = [
                (call.value.func.id, call.value.args, getattr(call.targets[0], "elts", call.targets)) for call in parsed
            ]
    return found
