"""The op calls of one iteration that put work on the GPU, and what tells that two calls are the same."""

import re
from collections.abc import Hashable
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Rows, at_rows
from ....formats.trace.column import Interner, row_count
from ....formats.trace.signature import TensorSpec
from ....formats.trace.tables import KernelKind, Phase, Trace
from ....records import dataclass, replace
from ....specs.attention_kernels import AttentionKernel
from ...prediction.workload import GpuWorkload
from ...work import canonical_name, work_of
from ...work.work import AttentionDims, Dims, Family, MatmulDims, RowDims, Work

NO_KEY: Final = -1
_VENDOR: Final = re.compile(r"::(cudnn|miopen|mkldnn|native)_")
"""Names of one op by the library that computes it; `native_layer_norm` is what `layer_norm` calls."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpCalls:
    """Hold n op calls in order, and the p kernels (without GPU times: the ops themselves) that they consist of."""

    op: Rows
    """The op that explains the kernels; -1 where no op launched them, [n]."""
    kernel: Rows
    """The first kernel; -1 without GPU times, [n]."""
    phase: npt.NDArray[np.int8]
    key: Rows
    """What is computed on which shapes, whatever a library calls it, [n]."""
    work_key: Rows
    """Family, dtype, FLOPs and bytes alone; NO_KEY where no formula gives them, [n]."""
    enclosing: Rows
    """The outermost op around it whose tensors were recorded; -1: none, [n]."""
    enclosing_key: Rows
    part_call: Rows
    """The call of each part, [p]."""
    part_row: Rows
    """Its row of the workload, [p]."""
    part_item: Rows
    """The kernel, or the op, as a row of the trace's table, [p]."""


def list_calls(trace: Trace, workload: GpuWorkload, kernel_rows: Rows, keys: Interner[Hashable]) -> OpCalls:
    """Return the calls of one iteration; `kernel_rows` are its kernels, none in a trace without GPU times."""
    if len(kernel_rows):
        items, owners = kernel_rows, _owners(trace, workload, kernel_rows)
    else:
        items = np.flatnonzero(workload.row_of >= 0)
        owners = items
    alone = row_count(trace.ops) + np.arange(len(items))
    _, first, part_call = np.unique(np.where(owners >= 0, owners, alone), return_index=True, return_inverse=True)
    op = owners[first]
    kernel = items[first] if len(kernel_rows) else np.full(len(first), -1)
    namer = _Namer(trace, keys)
    around = [namer.enclosing(row) if row >= 0 else -1 for row in op.tolist()]
    pairs = list(zip(op.tolist(), kernel.tolist(), strict=True))
    return OpCalls(
        op=op,
        kernel=kernel,
        phase=at_rows(trace.ops.phase, op, Phase.OTHER).astype(np.int8),
        key=_numbers(namer.key(row) if row >= 0 else namer.kernel_key(first) for row, first in pairs),
        work_key=_numbers(namer.work_key(row) if row >= 0 else NO_KEY for row, _ in pairs),
        enclosing=_numbers(around),
        enclosing_key=_numbers(namer.key(row) if row >= 0 else NO_KEY for row in around),
        part_call=part_call,
        part_row=workload.row_of[items],
        part_item=items,
    )


def _numbers(values: object) -> Rows:
    return np.fromiter(values, dtype=np.int64)  # type: ignore[call-overload, no-any-return]


def _owners(trace: Trace, workload: GpuWorkload, kernels: Rows) -> Rows:
    """Return the op that explains each kernel: around its launch, of the name and signature that its row has."""
    names, signatures, parents = (column.tolist() for column in (trace.ops.name, trace.ops.signature, trace.ops.parent))
    found: dict[tuple[int, int], int] = {}
    explains = workload.op[workload.row_of[kernels]]
    for start, like in set(zip(trace.kernels.op[kernels].tolist(), explains.tolist(), strict=True)):
        row = start
        while row >= 0 and like >= 0 and (names[row], signatures[row]) != (names[like], signatures[like]):
            row = parents[row]
        found[start, like] = row if row >= 0 else start
    return _numbers(found[pair] for pair in zip(trace.kernels.op[kernels].tolist(), explains.tolist(), strict=True))


class _Namer:
    """Number the calls of one trace by what they compute, once per name and signature."""

    def __init__(self, trace: Trace, keys: Interner[Hashable]) -> None:
        self._trace, self._keys = trace, keys
        self._names, self._signatures = trace.ops.name.tolist(), trace.ops.signature.tolist()
        self._parents = trace.ops.parent.tolist()
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def key(self, row: int) -> int:
        """Return the number of what an op computes on which shapes."""
        return self._look_up(row)[0]

    def work_key(self, row: int) -> int:
        """Return the number of an op's bare work."""
        return self._look_up(row)[1]

    def kernel_key(self, row: int) -> int:
        """Return the number of a kernel that no op launched: its name, or what it copies."""
        kernels = self._trace.kernels
        kind = int(kernels.kind[row])
        is_named = kind in (KernelKind.KERNEL, KernelKind.COLLECTIVE)
        what = self._trace.strings[kernels.name[row]] if is_named else int(kernels.size_bytes[row])
        return self._keys[kind, what]

    def enclosing(self, row: int) -> int:
        """Return the outermost op at or around `row` whose tensors were recorded; -1: none."""
        found = -1
        while row >= 0:
            if self._signatures[row] >= 0 and self._trace.signatures[self._signatures[row]].tensors():
                found = row
            row = self._parents[row]
        return found

    def _look_up(self, row: int) -> tuple[int, int]:
        known = (self._names[row], self._signatures[row])
        if known not in self._known:
            self._known[known] = self._number(*known)
        return self._known[known]

    def _number(self, name: int, signature: int) -> tuple[int, int]:
        text = self._trace.strings[name]
        recorded = self._trace.signatures[signature] if signature >= 0 else None
        work = work_of(text, recorded)
        tensors = recorded.tensors() if recorded is not None else ()
        key = self._keys[_identity(text, tensors, work)]
        if work is None or work.family is Family.VIEW or not work.moved_bytes:
            return key, NO_KEY
        return key, self._keys[work.family, work.dtype, work.flops, work.moved_bytes]


def _identity(name: str, tensors: tuple[TensorSpec, ...], work: Work | None) -> Hashable:
    """Return what a call computes: the problem where a formula knows it, else the op's plain name and shapes.

    Libraries, versions and vendors name one problem differently; tensors without dimensions are often not recorded.
    """
    if work is not None and work.dims is not None:
        is_generic = isinstance(work.dims, RowDims) and work.family not in (Family.NORMALIZATION, Family.SOFTMAX)
        return (work.family, work.dtype, _problem(work.dims), canonical_name(name) if is_generic else "")
    shapes = tuple((item.dtype, item.shape) for item in tensors if item.shape)
    return _VENDOR.sub("::", canonical_name(name)), shapes


def _problem(dims: Dims) -> Dims:
    """Return the sizes without what says whose kernel ran, and how its operands lay."""
    match dims:
        case AttentionDims():
            return replace(dims, kernel=AttentionKernel.FLASH2, is_chosen_by_torch=True, prefers_cudnn=False)
        case MatmulDims():
            return replace(dims, is_k_contiguous=None, is_m_contiguous=None)
        case RowDims():
            return RowDims(rows=dims.rows, columns=dims.columns)
    return dims


class MatchRule(IntEnum):
    """Name how two calls were found to be the same; the earlier rule wins."""

    CALL_IN_PHASE = 0
    """The i-th call of the same problem in the same phase."""
    CALL = 1
    """The i-th call of the same problem, in phases that the recordings name differently."""
    ENCLOSING_OP = 2
    """What is left of the i-th enclosing op of the same shapes: one does in two ops what the other does in three."""
    WORK = 3
    """The i-th call of the same family, dtype, FLOPs and bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alignment:
    """Hold p pairs of one or more calls on either side."""

    first: Rows
    """The pair of each call of the first recording; -1: none, [n]."""
    second: Rows
    """The same of the second, [m]."""
    rule: npt.NDArray[np.int8]
    """Of each pair, [p]."""


def align(first: OpCalls, second: OpCalls) -> Alignment:
    """Pair the calls of two recordings. Equal calls are interchangeable but for their order, so the i-th are paired."""
    sides = (first, second)
    pairs = (np.full(len(first.op), -1), np.full(len(second.op), -1))
    rules = list[int]()
    for rule in MatchRule:
        free = [np.flatnonzero(pair < 0) for pair in pairs]
        units = [_units(side, rows, rule) for side, rows in zip(sides, free, strict=True)]
        met = _meet(units[0][1], units[1][1])
        for pair, rows, (unit, codes), chosen in zip(pairs, free, units, met, strict=True):
            number = np.full(len(codes), -1)
            number[chosen] = len(rules) + np.arange(len(chosen))
            pair[rows] = number[unit]
        rules += [int(rule)] * len(met[0])
    return Alignment(first=pairs[0], second=pairs[1], rule=np.array(rules, dtype=np.int8))


def _units(calls: OpCalls, rows: Rows, rule: MatchRule) -> tuple[Rows, Rows]:
    """Return which unit each of some calls belongs to, and each unit's code; units are in order."""
    own = np.arange(len(rows))
    match rule:
        case MatchRule.CALL_IN_PHASE:
            return own, calls.key[rows] * len(Phase) + calls.phase[rows]
        case MatchRule.CALL:
            return own, calls.key[rows]
        case MatchRule.WORK:
            return own, calls.work_key[rows]
        case MatchRule.ENCLOSING_OP:
            _, first, unit = np.unique(calls.enclosing[rows], return_index=True, return_inverse=True)
            return unit, calls.enclosing_key[rows][first]


def _meet(left: Rows, right: Rows) -> tuple[Rows, Rows]:
    """Return the positions of equal codes in both, the i-th of one with the i-th of the other; NO_KEY meets nothing."""
    rows = [np.flatnonzero(codes != NO_KEY) for codes in (left, right)]
    longest = max(len(left), len(right), 1)
    mine, theirs = (codes[kept] * longest + _rank(codes[kept]) for codes, kept in zip((left, right), rows, strict=True))
    _, at_left, at_right = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
    return rows[0][at_left], rows[1][at_right]


def _rank(codes: Rows) -> Rows:
    """Return for each code how many equal ones come before it."""
    order = np.argsort(codes, kind="stable")
    begins = np.append(True, codes[order][1:] != codes[order][:-1])[: len(codes)]
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return rank
