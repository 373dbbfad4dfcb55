"""The calls of one iteration that put work on the GPU, in columns that two traces number alike; how two differ."""

import re
from collections.abc import Hashable
from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Codes, Floats, Rows, at_rows
from ....formats.trace.column import Interner, row_count
from ....formats.trace.signature import Argument, Signature, TensorSpec
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass
from ...iteration.result import Analysis
from ...work.lookup import WorkLookup
from ...work.registry import canonical_name

_VENDOR: Final = re.compile(r"::(cudnn|miopen|mkldnn)_")
"""Names of one op by the library that computes it."""


class SharedNumbers:
    """Number names, signatures and kernels alike in both traces."""

    def __init__(self) -> None:
        self.names = Interner[str]()
        self.calls = Interner[Hashable]()
        self.exact = Interner[Hashable]()
        self.kernels = Interner[Hashable]()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallColumns:
    """Hold n calls in the order in which the host made them, and their times on m GPUs."""

    trace: Trace
    is_timed: bool
    """Whether kernels were recorded."""
    op: Rows
    """Row of the trace's ops; -1: a kernel that no op launched."""
    name: Codes
    """Of the op, whatever library computes it, [n]."""
    full: Codes
    """Of the op and its tensors' types and sizes, [n]."""
    exact: Codes
    """Of the op as it was named, and all arguments, [n]."""
    kernels: Codes
    """Of the names of the kernels that it launched, [n]."""
    module: tuple[str, ...]
    """Path of each call's module; empty: none."""
    phase: npt.NDArray[np.int8]
    time_ns: Floats
    """Of its kernels, [n, m]."""

    @property
    def count(self) -> int:
        """Return n."""
        return len(self.op)


def list_call_columns(result: Analysis, numbers: SharedNumbers) -> CallColumns:
    """Return the calls of the analysed iteration."""
    trace, kernels = result.trace, result.trace.kernels
    op_count = row_count(trace.ops)
    # [kernels, m]; 0 for kernels that are merged away.
    nodes, timing = result.graph.nodes, result.forecast.timing
    times = np.zeros((row_count(result.trace.kernels), timing.factor.shape[1]))
    gpu = np.flatnonzero(nodes.is_gpu)
    times[nodes.row[gpu]] = timing.node_ns(gpu)
    if result.origin is not None:
        rows = result.window.kernel_rows
        owners = at_rows(WorkLookup(trace).owners(), kernels.op[rows])
        key = np.where(owners >= 0, owners, op_count + rows)
    else:
        rows = np.arange(row_count(kernels))
        key = kernels.op[rows].astype(np.int64)
    listed = np.unique(key) if result.origin is not None else np.flatnonzero(result.workload.row_of >= 0)
    at = np.searchsorted(listed, key)
    known = at_rows(listed, at) == key
    time_ns = np.zeros((len(listed), times.shape[1]))
    np.add.at(time_ns, at[known], times[rows[known]])
    op = np.where(listed < op_count, listed, -1)
    names = _kernel_names(trace, rows, at, len(listed)) if result.origin is not None else ("",) * len(listed)
    keys = [_keys(trace, row, text, numbers) for row, text in zip(op.tolist(), names, strict=True)]
    columns = np.array(keys, dtype=np.int64).reshape(len(listed), 3)
    return CallColumns(
        trace=trace,
        is_timed=result.origin is not None,
        op=op,
        name=columns[:, 0],
        full=columns[:, 1],
        exact=columns[:, 2],
        kernels=numbers.kernels.number(names),
        module=tuple(_module(trace, row) for row in op.tolist()),
        phase=at_rows(trace.ops.phase, op, Phase.OTHER).astype(np.int8),
        time_ns=time_ns,
    )


def signature_of(calls: CallColumns, row: int) -> Signature | None:
    """Return what a call was called with; None where that was not recorded."""
    op = int(calls.op[row])
    number = int(calls.trace.ops.signature[op]) if op >= 0 else -1
    return calls.trace.signatures[number] if number >= 0 else None


def _kernel_names(trace: Trace, rows: Rows, call: Rows, count: int) -> tuple[str, ...]:
    found: list[list[str]] = [[] for _ in range(count)]
    for row, at in zip(rows.tolist(), call.tolist(), strict=True):
        found[at].append(trace.strings[int(trace.kernels.name[row])])
    return tuple(" + ".join(sorted(set(item))) for item in found)


def _keys(trace: Trace, op: int, kernels: str, numbers: SharedNumbers) -> tuple[int, int, int]:
    if op < 0:
        name = numbers.names[kernels]
        return name, numbers.calls[name], numbers.exact[name]
    text, number = trace.strings[int(trace.ops.name[op])], int(trace.ops.signature[op])
    signature = trace.signatures[number] if number >= 0 else None
    name = numbers.names[_VENDOR.sub("::", canonical_name(text))]
    tensors = signature.tensors() if signature is not None else ()
    shapes = tuple((item.dtype, item.shape, item.stored) for item in tensors if item.shape)
    return name, numbers.calls[(name, shapes)], numbers.exact[(text, signature)]


def _module(trace: Trace, op: int) -> str:
    """Return the path of an op's module, or that of the forward op that it differentiates."""
    ops = trace.ops
    if op < 0:
        return ""
    number = int(ops.module[op])
    if number < 0 and (forward := int(ops.forward[op])) >= 0:
        number = int(ops.module[forward])
    return trace.strings[number] if number >= 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """Say that one dimension of a tensor has another length."""

    dim: int
    dim_count: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDifference:
    """Say what differs; empty where nothing that was recorded does."""

    sizes: tuple[SizeChange, ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()
    other_shape: bool = False
    """Tensors of other dimensions, or another number of them."""
    list_before: int = 0
    """Tensors in lists."""
    list_after: int = 0
    layout: bool = False
    channels_last: int = 0
    """1: tensors whose channels now lie last; -1: no longer."""
    arguments: bool = False

    @property
    def changes_shape(self) -> bool:
        """Say whether any tensor has another shape."""
        return bool(self.sizes) or self.other_shape or self.list_before != self.list_after


def compare_signatures(old: Signature | None, new: Signature | None) -> CallDifference:
    """Return what differs between two calls; nothing where one of them was not recorded.

    >>> half, wide = TensorSpec("float16", (8, 64)), TensorSpec("float32", (8, 64))
    >>> compare_signatures(Signature((half,)), Signature((wide,))).dtypes
    (('float16', 'float32'),)
    """
    if old is None or new is None or old == new:
        return CallDifference()
    lists = [
        sum(len(item) for item in call.arguments if isinstance(item, tuple) and _is_list(item)) for call in (old, new)
    ]
    pairs = list(_tensor_pairs(old.arguments, new.arguments))
    same_rank = [(one, other) for one, other in pairs if len(one.shape) == len(other.shape)]
    known = len(pairs) == len(old.tensors()) == len(new.tensors())
    sizes = {
        SizeChange(dim=dim, dim_count=len(one.shape), before=before, after=after)
        for one, other in same_rank
        for dim, (before, after) in enumerate(zip(one.shape, other.shape, strict=True))
        if before != after
    }
    turned = [_turned(one, other) for one, other in same_rank if one.shape == other.shape]
    plain = [tuple(item for item in call.arguments if not _holds_tensors(item)) for call in (old, new)]
    return CallDifference(
        sizes=tuple(sorted(sizes, key=lambda item: (item.dim, item.before))),
        dtypes=tuple(dict.fromkeys((one.dtype, other.dtype) for one, other in pairs if one.dtype != other.dtype)),
        other_shape=lists[0] == lists[1] and (len(same_rank) != len(pairs) or not known),
        list_before=lists[0],
        list_after=lists[1],
        layout=any(_strides_differ(one, other) for one, other in same_rank if one.shape == other.shape),
        channels_last=next((item for item in turned if item), 0),
        arguments=plain[0] != plain[1],
    )


def _is_list(argument: Argument) -> bool:
    return isinstance(argument, tuple) and bool(argument) and isinstance(argument[0], TensorSpec)


def _holds_tensors(argument: Argument) -> bool:
    return isinstance(argument, TensorSpec) or _is_list(argument)


def _tensor_pairs(old: tuple[Argument, ...], new: tuple[Argument, ...]) -> list[tuple[TensorSpec, TensorSpec]]:
    found = list[tuple[TensorSpec, TensorSpec]]()
    for one, other in zip(old, new, strict=False):
        if isinstance(one, TensorSpec) and isinstance(other, TensorSpec):
            found.append((one, other))
        elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            both = zip(one, other, strict=True)
            found += [(a, b) for a, b in both if isinstance(a, TensorSpec) and isinstance(b, TensorSpec)]
    return found


def _strides_differ(one: TensorSpec, other: TensorSpec) -> bool:
    """Say whether elements lie in another order; strides of dimensions of length 1 mean nothing."""
    if one.strides is None or other.strides is None or len(one.strides) != len(other.strides):
        return False
    if len(one.strides) != len(one.shape):
        return False
    return any(a != b for size, a, b in zip(one.shape, one.strides, other.strides, strict=True) if size != 1)


def _turned(one: TensorSpec, other: TensorSpec) -> int:
    if not _strides_differ(one, other):
        return 0
    return _is_channels_last(other) - _is_channels_last(one)


def _is_channels_last(spec: TensorSpec) -> bool:
    return spec.strides is not None and len(spec.shape) in (4, 5) and spec.shape[1] > 1 and spec.strides[1] == 1
