"""Groups the ops of compiled regions as the compiler's scheduler would: each group is computed by one kernel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import numpy as np

from ....arrays import Rows
from ....formats.column import MISSING, row_count
from ....formats.signature import Signature, TensorSpec
from ....formats.trace import Trace
from ...prediction.workload import GpuWorkload
from ...work import Family, Work, family_of
from ..calls import operands_of
from .chains import ROW_OPS, is_pointwise

_COPIES: Final = frozenset(f"aten::{name}" for name in ("_to_copy", "clone", "contiguous", "copy", "copy_"))
_DROPOUTS: Final = frozenset(f"aten::{name}" for name in ("native_dropout", "native_dropout_backward"))
_BACKWARD_ROW_OPS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "native_layer_norm_backward",
        "_fused_rms_norm_backward",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
    )
)
"""Those of weights and biases are kernels of their own."""
_DIMS_AT: Final = {
    **dict.fromkeys((f"aten::{name}" for name in ("sum", "nansum", "prod", "mean", "amax", "amin", "any", "all")), 1),
    **dict.fromkeys((f"aten::{name}" for name in ("max", "min", "var", "std", "var_mean", "std_mean")), 1),
    **dict.fromkeys((f"aten::{name}" for name in ("linalg_vector_norm", "norm")), 2),
}
"""Reductions, with the position of the dimensions that they are over."""


class Fusibility(Enum):
    """Say how an op may be part of a kernel that the compiler generates."""

    NONE = auto()
    """Not generated (products, convolutions, attention), or not known to be merged: what follows it has to wait."""
    ALL = auto()
    """Computed element by element or row by row: what comes before and after may be merged with it."""
    FIRST = auto()
    """Reduces all that it reads, then computes element by element: what comes after may be merged."""
    LAST = auto()
    """Reduces all that it reads: what comes before may be merged, what comes after has to wait."""
    ROWS = auto()
    """Reduces rows, each by itself: what comes before may be merged, and what uses the results on the same rows."""


_GO_ON: Final = frozenset({Fusibility.ALL, Fusibility.FIRST, Fusibility.ROWS})
_JOIN: Final = frozenset({Fusibility.ALL, Fusibility.LAST, Fusibility.ROWS})
_REDUCING: Final = frozenset({Fusibility.LAST, Fusibility.ROWS})


@dataclass(slots=True)
class _Groups:
    """Join ops that become one kernel, per region: ops on the same level, each reading what another wrote.

    An op's level is the most ops on any path to it that what follows has to wait for. Two ops of one
    level have none between them, so that joining them never has a kernel wait for itself.
    """

    leader: dict[int, int] = field(default_factory=dict)
    level: dict[int, int] = field(default_factory=dict)
    writer: dict[int, int] = field(default_factory=dict)
    """By storage: the op that wrote it last."""
    size: dict[int, int] = field(default_factory=dict)
    """By leader: the elements that the kernel loops over."""
    rows: dict[int, int] = field(default_factory=dict)
    """By leader: the rows that it reduces; absent where it reduces none."""

    def find(self, op: int) -> int:
        """Return the first op of the group."""
        while self.leader[op] != op:
            self.leader[op] = op = self.leader[self.leader[op]]
        return op

    def join(self, one: int, other: int) -> None:
        """Make one group of two; its leader is the earlier op."""
        first, second = sorted((self.find(one), self.find(other)))
        self.leader[second] = first
        self.size[first] = max(self.size[first], self.size[second])
        if second in self.rows:
            self.rows.setdefault(first, self.rows[second])

    def members(self) -> Collection[list[int]]:
        """Return the ops of each group, in order."""
        members: dict[int, list[int]] = {}
        for op in self.leader:
            members.setdefault(self.find(op), []).append(op)
        return members.values()

    def fits(self, writer: int, elements: int, size: int) -> bool:
        """Say whether an op over `size` elements can use `elements` that another wrote in the same kernel."""
        leader = self.find(writer)
        return elements == size or (self.size[leader] == size and self.rows.get(leader) == elements)


def group_generated(trace: Trace, workload: GpuWorkload, region: Rows) -> list[list[int]]:
    """Return the groups of at least two ops that one kernel would compute, each in order; `region` is per op.

    An op joins those whose results it reads and that have as many elements, or that reduced its rows. Other sizes,
    sibling ops that read the same tensor, and epilogues of products are left alone, though the compiler merges some of
    them. The trace has to name its tensors, as recordings of shapes do.
    """
    kinds = _fusibilities(trace, workload)
    inputs, outputs = operands_of(trace) if row_count(trace.operands) else ([], [])
    storage, count = trace.tensors.storage.tolist(), trace.tensors.element_count.tolist()
    is_view = np.array([family_of(name) is Family.VIEW for name in trace.strings], dtype=bool)
    found: dict[int, _Groups] = {}
    for op in np.flatnonzero((region != MISSING) & ~is_view[trace.ops.name]).tolist() if inputs else ():
        groups, kind = found.setdefault(int(region[op]), _Groups()), kinds.get(op, Fusibility.NONE)
        written = max((count[item] for item in outputs[op]), default=0)
        size = max((count[item] for item in inputs[op]), default=0) if kind in _REDUCING else written
        read = [(groups.writer[storage[item]], count[item]) for item in inputs[op] if storage[item] in groups.writer]
        before = (groups.level[writer] + (kinds.get(writer) not in _GO_ON) for writer, _ in read)
        groups.level[op] = level = max(before, default=0) + (kind is Fusibility.FIRST)
        groups.leader[op], groups.size[op] = op, size
        if kind is Fusibility.ROWS:
            groups.rows[op] = written
        for writer, elements in read if kind in _JOIN else ():
            if groups.level[writer] == level and kinds.get(writer) in _GO_ON and groups.fits(writer, elements, size):
                groups.join(op, writer)
        groups.writer.update((storage[item], op) for item in outputs[op])
    return [members for groups in found.values() for members in groups.members() if len(members) > 1]


def _fusibilities(trace: Trace, workload: GpuWorkload) -> dict[int, Fusibility]:
    """Return how each op with known work may be fused; the rest is left out."""
    rows = np.flatnonzero(workload.row_of >= 0)
    names = [trace.strings[name].partition(".")[0] for name in trace.ops.name[workload.op].tolist()]
    called = [trace.signatures[item] if item >= 0 else None for item in trace.ops.signature[workload.op].tolist()]
    kinds = [_fusibility(*item) for item in zip(names, workload.works, called, strict=True)]
    return {op: kinds[row] for op, row in zip(rows.tolist(), workload.row_of[rows].tolist(), strict=True)}


def _fusibility(name: str, work: Work | None, signature: Signature | None) -> Fusibility:
    if work is None:
        return Fusibility.NONE
    if is_pointwise(name, work) or name in _COPIES | _DROPOUTS | ROW_OPS | _BACKWARD_ROW_OPS:
        return Fusibility.ALL
    if name in _DIMS_AT:
        return (
            Fusibility.ROWS if signature is not None and _reduces_rows(signature, _DIMS_AT[name]) else Fusibility.LAST
        )
    return Fusibility.FIRST if work.family is Family.NORMALIZATION else Fusibility.NONE


def _reduces_rows(signature: Signature, position: int) -> bool:
    """Say whether a reduction is over the last dimensions of its tensor, and over no others."""
    arguments = signature.arguments
    data, dims = arguments[0], arguments[position] if position < len(arguments) else None
    if not isinstance(data, TensorSpec):
        return False
    chosen = (dims,) if isinstance(dims, int) and not isinstance(dims, bool) else dims
    if not isinstance(chosen, tuple) or not chosen:
        return False
    rank = len(data.shape)
    reduced = sorted(item % rank for item in chosen if isinstance(item, int)) if rank else []
    return len(reduced) == len(chosen) < rank and reduced == list(range(rank - len(reduced), rank))
