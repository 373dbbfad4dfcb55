"""What each storage is for, judged by the phases that use it."""

from typing import Final

import numpy as np

from ...arrays import Rows
from ...formats.trace.column import row_count
from ...formats.trace.signature import TensorSpec
from ...formats.trace.tables import Phase, Trace
from .lifetimes import Mask, Storages, Uses
from .use import MemoryCategory

CATEGORIES: Final = tuple(MemoryCategory)
_CODE: Final = {category: code for code, category in enumerate(CATEGORIES)}
_WEIGHT_FIRST: Final = frozenset({"aten::t", "aten::embedding", "aten::embedding_bag", "aten::_embedding_bag"})
"""Ops whose first tensor is a weight, wherever it existed before the iteration."""
_BIAS_FIRST: Final = frozenset({"aten::addmm", "aten::baddbmm", "aten::addmv"})
_NARROW_WEIGHTS: Final = frozenset({"int4", "uint4", "int8"})
"""Integers of so few bits are quantised weights, not lists of ids."""


def find_roles(trace: Trace, window_ops: Rows, storages: Storages) -> Rows:
    """Return the category of each storage as an index into `CATEGORIES`.

    What existed before: used by the optimizer alone is its state; by forward and optimizer, a parameter; by backward
    but not forward, an accumulated gradient. Without an optimizer a batch is told from weights by where it stands in
    the calls and by its dtype. What the iteration creates belongs to the phase that creates it; what backward
    creates and the optimizer reads is a gradient.
    """
    uses, count = storages.uses, len(storages.first)
    forward, backward, optimizer = (_used_in(uses, phase, count) for phase in _PHASES)
    trains = bool((uses.phase == Phase.OPTIMIZER).any())
    is_input = _look_like_inputs(trace, window_ops, storages) & ~optimizer
    old = np.select(
        [optimizer & ~forward & ~backward, backward & ~forward, is_input],
        [_CODE[MemoryCategory.OPTIMIZER_STATE], _CODE[MemoryCategory.GRADIENTS], _CODE[MemoryCategory.INPUTS]],
        _CODE[MemoryCategory.PARAMETERS],
    )
    made_in = uses.phase[storages.first] if len(uses.phase) else np.zeros(count, dtype=np.int8)
    outlives = storages.last == max(len(window_ops) - 1, 0)
    is_gradient = (made_in == Phase.BACKWARD) & (optimizer | (outlives & ~np.bool_(trains)))
    new = np.select(
        [storages.is_kept, is_gradient, made_in == Phase.FORWARD, made_in == Phase.OTHER],
        [
            _CODE[MemoryCategory.OPTIMIZER_STATE],
            _CODE[MemoryCategory.GRADIENTS],
            _CODE[MemoryCategory.ACTIVATIONS],
            _CODE[MemoryCategory.OTHER],
        ],
        _CODE[MemoryCategory.TEMPORARIES],
    )
    return np.where(storages.is_new, new, old)


_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def _used_in(uses: Uses, phase: Phase, count: int) -> Mask:
    used = np.zeros(count, dtype=bool)
    used[uses.storage[uses.phase[uses.op] == phase]] = True
    return used


def _look_like_inputs(trace: Trace, window_ops: Rows, storages: Storages) -> Mask:
    """Say which storages stood, at their first use, where an op takes data, with the batch as their first dimension.

    Integers are inputs wherever they stand. Of what the iteration creates nothing is said.
    """
    uses, count = storages.uses, len(storages.first)
    found = np.zeros(count, dtype=bool)
    # Which storages hold lists of integers; a single one is a counter of a module.
    tensors, integers = trace.tensors, np.zeros(count, dtype=bool)
    if row_count(tensors):
        is_integer = np.array(["int" in name and name not in _NARROW_WEIGHTS for name in trace.strings], dtype=bool)
        integers[tensors.storage[is_integer[tensors.dtype] & (tensors.element_count > 1)]] = True
    batch_size = trace.meta.workload.batch_size
    seen, first = np.unique(uses.storage, return_index=True)
    rows = first[~storages.is_new[seen]]
    # Of an op's uses, the first row is its first tensor argument.
    for row in rows[rows == np.searchsorted(uses.op, uses.op[rows])].tolist():
        op = int(window_ops[uses.op[row]])
        leading = _leading_size(trace, op)
        takes_data = trace.strings[trace.ops.name[op]] not in _WEIGHT_FIRST | _BIAS_FIRST
        found[uses.storage[row]] = takes_data and (batch_size is None or leading is None or leading == batch_size)
    return found | (integers & ~storages.is_new)


def _leading_size(trace: Trace, op: int) -> int | None:
    """Return the first dimension of the first tensor argument of an op; None where it is not recorded."""
    signature = int(trace.ops.signature[op])
    if signature < 0:
        return None
    for argument in trace.signatures[signature].arguments:
        for item in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(item, TensorSpec):
                return item.shape[0] if item.shape else None
    return None
