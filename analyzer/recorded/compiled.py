"""Finds the compiled regions of a recording of shapes, whose ops a compiler merges and launches by itself."""

from typing import Final

import numpy as np

from ...arrays import Mask, Rows
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.tables import Phase, Trace
from ...records import dataclass

_FORWARD: Final = "Torch-Compiled Region"
_BACKWARD: Final = "CompiledFunctionBackward"
_OLD_FORWARD: Final = "CompiledFunction"
"""Inside the op of the region; alone in older recordings."""
_SHAPES: Final = "shapes"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledOps:
    """Say which of n ops run compiled."""

    region: Rows
    """The op row that stands for the region around each op, [n]; -1: not compiled."""
    is_region: Mask
    """Whether an op stands for a region, [n]."""
    is_backward: Mask
    """Whether it is the backward pass of one, [n]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCode:
    """Count what a prediction takes as compiled."""

    region_count: int
    kernels_merged: int


def find_compiled(trace: Trace) -> CompiledOps:
    """Return the ops that ran eagerly in the recording and run compiled on a GPU: none where kernels were recorded.

    Gradients that are accumulated while a region's backward pass runs are not part of it: they differentiate no op.

    >>> find_compiled(trace).is_region.sum().item()
    0
    """
    ops, count = trace.ops, row_count(trace.ops)
    names = trace.strings if trace.meta.capture == _SHAPES else ("",) * len(trace.strings)
    is_forward = np.array([name.startswith(_FORWARD) for name in names], dtype=bool)
    is_backward = np.array([name == _BACKWARD for name in names], dtype=bool)
    known = (is_forward | is_backward)[ops.name] if count else np.zeros(0, dtype=bool)
    inner = known & (ops.parent >= 0)
    known[inner] &= ~known[ops.parent[inner]]
    region = np.where(ops.parent >= 0, _around(ops.parent.astype(np.int64), known), MISSING)
    region[(ops.phase == Phase.BACKWARD) & (ops.forward == MISSING)] = MISSING
    return CompiledOps(
        region=region, is_region=known, is_backward=known & is_backward[ops.name] if count else known.copy()
    )


def names_tensors(trace: Trace) -> bool:
    """Say whether a recording of shapes names its tensors: then what a compiler would generate for it can be told.

    >>> names_tensors(trace)
    True
    """
    return trace.meta.capture == _SHAPES and row_count(trace.operands) > 0


def region_per_op(trace: Trace, compiled: CompiledOps, *, is_everywhere: bool) -> Rows:
    """Return the compiled region of each op of a recording of shapes (-1: none).

    Everywhere: each phase but the optimizer's is taken as a region, too.

    >>> region = region_per_op(trace, find_compiled(trace), is_everywhere=True)
    >>> len(np.unique(region))  # one forward pass
    1
    """
    region, phase = compiled.region, trace.ops.phase.astype(np.int64)
    if is_everywhere:
        region = np.where((region < 0) & (phase != Phase.OPTIMIZER), len(region) + phase, region)
    return region


def count_regions(trace: Trace, op_rows: Rows) -> int:
    """Return how often the ops at `op_rows` enter compiled code, forward or backward, whatever was recorded."""
    entries = np.array([name.startswith(_FORWARD) or name in (_OLD_FORWARD, _BACKWARD) for name in trace.strings])
    if not entries.any():
        return 0
    is_region = entries[trace.ops.name]
    inside = is_region & (trace.ops.parent >= 0)
    inside[inside] = _around(trace.ops.parent.astype(np.int64), is_region)[inside] >= 0
    return int((is_region & ~inside)[op_rows].sum())


def _around(parents: Rows, is_region: Mask) -> Rows:
    """Return the region around each op, however deep, [n]; -1: none."""
    found = np.full(len(parents), MISSING, dtype=np.int64)
    at = parents.copy()
    while np.any(at >= 0):
        open_rows = np.flatnonzero(at >= 0)
        here = at[open_rows]
        found[open_rows] = np.where(is_region[here], here, found[open_rows])
        at[open_rows] = np.where(is_region[here], MISSING, parents[here])
    return found
