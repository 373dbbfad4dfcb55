"""What the rows of `own/ops.parquet` called: ops and signatures, as a recording of the same call holds them.

One row may be several calls (a masked fill is a comparison, a copy and a fill). Only those of one call train a model.
The table of calls is `own_calls.toml`, in Python's syntax: it is parsed, not executed.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ...formats.trace.signature import Signature, TensorSpec
from ...specs.documents import read_toml

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
