"""The calls of one iteration that put work on the GPU, as columns that two traces number alike."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Codes, Floats, Rows, at_rows
from ....formats.trace.column import Interner, row_count
from ....formats.trace.signature import Signature
from ....formats.trace.tables import Phase, Trace
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
    kernel_names: tuple[str, ...]
    """Of each call's kernels, joined; empty without timings."""
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
        kernel_names=names,
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
    name = numbers.names[plain_op_name(text)]
    tensors = signature.tensors() if signature is not None else ()
    shapes = tuple((item.dtype, item.shape, item.stored) for item in tensors if item.shape)
    return name, numbers.calls[(name, shapes)], numbers.exact[(text, signature)]


def plain_op_name(text: str) -> str:
    """Return the name of an op whatever its overload, its library, or whether it works in place."""
    return _VENDOR.sub("::", canonical_name(text))


def _module(trace: Trace, op: int) -> str:
    """Return the path of an op's module, or that of the forward op that it differentiates."""
    ops = trace.ops
    if op < 0:
        return ""
    number = int(ops.module[op])
    if number < 0 and (forward := int(ops.forward[op])) >= 0:
        number = int(ops.module[forward])
    return trace.strings[number] if number >= 0 else ""
