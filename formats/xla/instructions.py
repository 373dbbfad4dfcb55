"""Gives kernels of XLA the op, inputs and module that their HLO instruction and JAX's named scopes tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ..recording.assemble import add_ops
from ..recording.builder import Names
from ..trace.column import MAX_SCALAR, MISSING, Interner, build_table, is_countable, row_count
from ..trace.signature import Signature, TensorSpec
from ..trace.tables import OpTable, Phase, Trace
from .profile import XlaEvent

_LONGEST_TEXT: Final = 1 << 16
_SUFFIX: Final = re.compile(r"(?:\.\d+)+$")
_WRAPPED: Final = re.compile(r"[\w.]+\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
"""A scope inside a transformation: `transpose(jvp(Net))`."""
_DEEPEST_WRAPPING: Final = 8
_LONGEST_SCOPE: Final = 500
_PROGRAMS: Final = ("jit(", "pjit(", "pmap(", "xla_")
_PLAIN: Final = re.compile(r"\w+")
_BACKWARD: Final = "transpose("
Key = tuple[str, str, str, str]
_DTYPES: Final = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "s32": "int32",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
_MOST_CHARACTERS: Final = 1 << 16
_SHAPE: Final = re.compile(r"\b([a-z]+[0-9]+(?:e[0-9]+m[0-9]+\w*)?)\[([0-9,]{0,200})\]")
_PRODUCT: Final = re.compile(
    r"=\s*(?P<result>\(?[a-z][^=]*?)\s(?:dot|custom-call)\((?P<operands>[^()]*)\)(?P<rest>.*)", re.DOTALL
)
_GEMM_TARGET: Final = re.compile(r'custom_call_target="__cublas\$(?:lt\$)?(?:gemm|matmul)(?:\$f8)?"')
_SIDES: Final = ("lhs", "rhs")
_Tensor = tuple[str, tuple[int, ...]]
Call = tuple[str, Signature]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instruction:
    """Say what an instruction is: the op, what it is called with where that is clear, where it is, in which pass."""

    op: str
    signature: Signature | None
    module: str
    is_backward: bool


class Instructions:
    """Own which instruction each kernel belongs to."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._keys = Interner[Key]()
        self._rows: list[int] = []
        self._numbers: list[int] = []

    def note(self, events: Sequence[XlaEvent], first: int) -> None:
        """Keep the instructions of kernels, of which `first` came before these."""
        for row, event in enumerate(events):
            told = event.told
            if told.get("hlo_op") or told.get("tf_op"):
                parts = (told.get(name, "")[:_LONGEST_TEXT] for name in ("hlo_module", "hlo_op", "tf_op", "long_name"))
                module, op, scope, text = parts
                self._rows.append(row + first)
                self._numbers.append(self._keys[module, op, scope, text])

    def explain(self, trace: Trace, kernel_row_of: Rows) -> Trace:
        """Return the trace with an op for each run of kernels of one instruction on a stream.

        They take no time on the host, at the instant of their launch, or at the kernel's start where none is known.
        """
        key = np.full(row_count(trace.kernels), MISSING, dtype=np.int64)
        rows = kernel_row_of[np.array(self._rows, dtype=np.int64)]
        key[rows[rows != MISSING]] = np.array(self._numbers, dtype=np.int64)[rows != MISSING]
        known = np.flatnonzero(key != MISSING)
        if not len(known):
            return trace
        found = [_read(*item) for item in self._keys]
        signatures = list(dict.fromkeys(item.signature for item in found if item.signature is not None))
        kernels = trace.kernels
        order = known[np.lexsort((kernels.start_ns[known], kernels.stream[known], kernels.device[known]))]
        begins = _begins(trace, order, key)
        op = kernels.op.astype(np.int64)
        op[order] = row_count(trace.ops) + np.cumsum(begins) - 1
        first = order[begins]
        table = self._table(trace, first, [found[number] for number in key[first].tolist()], signatures)
        return add_ops(replace(trace, signatures=tuple(signatures)), [table], op)

    def _table(
        self, trace: Trace, first: Rows, found: Sequence[_Instruction], signatures: Sequence[Signature]
    ) -> OpTable:
        call = trace.kernels.call[first]
        number = {signature: at for at, signature in enumerate(signatures)}
        launch = at_rows(trace.calls.start_ns, call, 0)
        return build_table(
            OpTable,
            len(first),
            name=[self._names[item.op] for item in found],
            signature=[MISSING if item.signature is None else number[item.signature] for item in found],
            thread=at_rows(trace.calls.thread, call, 0),
            start_ns=np.where(call == MISSING, trace.kernels.start_ns[first], launch),
            duration_ns=np.zeros(len(first)),
            phase=[Phase.BACKWARD if item.is_backward else Phase.FORWARD for item in found],
            module=[self._names[item.module] if item.module else MISSING for item in found],
        )


def _begins(trace: Trace, order: Rows, key: Rows) -> Mask:
    """Say which kernels, ordered by stream and start, begin an instruction: it runs each of its kernels once."""
    kernels = trace.kernels
    begins = np.zeros(len(order), dtype=bool)
    seen: set[tuple[int, int]] = set()
    previous = None
    for at, row in enumerate(order.tolist()):
        place = (int(kernels.device[row]), int(kernels.stream[row]), int(key[row]), int(kernels.call[row]) >= 0)
        kernel = (int(kernels.name[row]), int(kernels.grid[row, 0]))
        if place != previous or kernel in seen:
            begins[at], seen, previous = True, set(), place
        seen.add(kernel)
    return begins


def _read(module: str, op: str, scope: str, text: str) -> _Instruction:
    product = read_product(text) if text else None
    scopes, primitive = _scopes(scope)
    plain = _SUFFIX.sub("", op.removeprefix("%")) or primitive or "unknown"
    return _Instruction(
        op=product[0] if product else plain,
        signature=product[1] if product else None,
        module=".".join(scopes) or (module if _PLAIN.fullmatch(module) else ""),
        is_backward=_BACKWARD in scope,
    )


def _scopes(scope: str) -> tuple[list[str], str]:
    """Return the named scopes around an op of JAX, outermost first, and the primitive that it is."""
    parts = scope.removesuffix(":").split("/")
    inside = []
    for part in parts[:-1]:
        if part.startswith(_PROGRAMS):
            continue
        name = part[:_LONGEST_SCOPE]
        for _ in range(_DEEPEST_WRAPPING):
            match = _WRAPPED.fullmatch(name)
            name = match[1] if match else name
        if _PLAIN.fullmatch(name):
            inside.append(name)
    primitive = parts[-1].partition("[")[0]
    return inside[:100], primitive if _PLAIN.fullmatch(primitive) else ""


def read_product(text: str) -> Call | None:
    """Return the op and inputs of a `dot`, or of a call of cuBLAS for one; None for other instructions.

    Operands are taken as contiguous with their contracted dimension inside, which is what XLA's layouts amount to.

    >>> read_product("%dot.1 = f32[8,4]{1,0} dot(f32[8,2]{1,0} %a, f32[2,4]{1,0} %b), "
    ...              "lhs_contracting_dims={1}, rhs_contracting_dims={0}")[0]
    'aten::mm'
    """
    match = _PRODUCT.search(text) if len(text) <= _MOST_CHARACTERS else None
    if match is None or (" dot(" not in text and not _GEMM_TARGET.search(match["rest"])):
        return None
    tensors = _tensors(match["operands"])
    if len(tensors) < 2:
        return None
    left, right = (_part(tensor, match["rest"], side) for tensor, side in zip(tensors, _SIDES, strict=False))
    if left is None or right is None:
        return None
    (batch, rows, depth), (other_batch, columns, other_depth) = left, right
    results = _tensors(match["result"])
    if batch != other_batch or depth != other_depth or not results or prod(results[0][1]) != batch * rows * columns:
        return None
    shapes = ((rows, depth), (depth, columns)) if batch == 1 else ((batch, rows, depth), (batch, depth, columns))
    if not all(is_countable(shape) for shape in shapes):
        return None
    inputs = tuple(TensorSpec(tensor[0], shape) for tensor, shape in zip(tensors, shapes, strict=False))
    return ("aten::mm" if batch == 1 else "aten::bmm"), Signature(inputs)


def _tensors(text: str) -> list[_Tensor]:
    """Return the tensors that a text names whose dtypes are known; none where one is not."""
    found = []
    for name, sizes in _SHAPE.findall(text):
        shape = tuple(int(size) for size in sizes.split(",") if size)
        if name not in _DTYPES or any(size > MAX_SCALAR for size in shape):
            return []
        found.append((_DTYPES[name], shape))
    return found


def _part(tensor: _Tensor, rest: str, side: str) -> tuple[int, int, int] | None:
    """Return batch, free and contracted sizes of an operand; None where the text does not tell."""
    shape = tensor[1]
    contracted, batch = _dimensions(rest, side, "contracting"), _dimensions(rest, side, "batch") or ()
    if (
        not contracted
        or max((*contracted, *batch)) >= len(shape)
        or len({*contracted, *batch}) < len((*contracted, *batch))
    ):
        return None
    free = [size for at, size in enumerate(shape) if at not in contracted and at not in batch]
    return prod(shape[at] for at in batch), prod(free), prod(shape[at] for at in contracted)


def _dimensions(rest: str, side: str, kind: str) -> tuple[int, ...] | None:
    """Return the numbers of an operand's dimensions, as HLO or as the backend's configuration writes them."""
    match = re.search(rf'{side}_{kind}_dim(?:s=\{{|ensions":\s*\[)([0-9," ]{{0,100}})[}}\]]', rest)
    return tuple(map(int, re.findall(r"[0-9]{1,3}", match[1]))) if match else None
