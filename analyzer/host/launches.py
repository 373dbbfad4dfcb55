"""How many kernels an op launches."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Rows, group_rows
from ...formats.trace.column import row_count
from ...formats.trace.signature import Argument, Signature, TensorSpec
from ...formats.trace.tables import Trace
from ..work import work_of
from .communication import WAITING_OPS
from .costs import HostCosts, spellings

_TENSORS_PER_LAUNCH: Final = (110, 64, 48, 36, 30)
"""Tensors that one multi-tensor kernel takes, by number of lists: `depth_to_max_tensors` of torch's
aten/src/ATen/native/cuda/MultiTensorApply.cuh."""
_BLOCKS_PER_LAUNCH: Final = 320
_CHUNK_ELEMENTS: Final = 65_536
"""`depth_to_max_blocks` and `kChunkSize` there."""
SYNCING_OPS: Final = frozenset(
    f"aten::{name}"
    for name in ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "_unique2", "equal")
)
"""Ops whose result the host reads: a copy to the host and a wait for its stream."""
_ONLY_COPYING: Final = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"})


def count_launches(trace: Trace, rows: Rows, costs: HostCosts) -> npt.NDArray[np.int64]:
    """Return the kernels that each op launches, per row of the trace's ops: 0 but for `rows`, 1 or more with work.

    Copies to the host are not counted. Multi-tensor ops (`_foreach_*`, `_fused_*`) launch by the size of their lists.
    """
    ops = trace.ops
    first, group = group_rows([ops.name[rows].astype(np.int64), ops.signature[rows].astype(np.int64)])
    counts = [
        _launches(trace.strings[name], trace.signatures[signature] if signature >= 0 else None, costs)
        for name, signature in zip(ops.name[rows[first]].tolist(), ops.signature[rows[first]].tolist(), strict=True)
    ]
    result = np.zeros(row_count(ops), dtype=np.int64)
    result[rows] = np.array(counts, dtype=np.int64)[group]
    return result


def _launches(name: str, signature: Signature | None, costs: HostCosts) -> int:
    plain = name.split(".", maxsplit=1)[0]
    if plain in _ONLY_COPYING or plain in WAITING_OPS:
        return 0
    if plain.startswith(("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")) and signature is not None:
        found = multi_tensor_launches(signature, is_in_place=plain.endswith("_"))
        if found:
            return found
    mean = next((costs.kernel_count[item] for item in spellings(name) if item in costs.kernel_count), 1.0)
    return max(round(mean), int(work_of(name, signature) is not None))


def multi_tensor_launches(signature: Signature, *, is_in_place: bool) -> int:
    """Count the launches of torch's multi_tensor_apply over the lists of a call; 0 where it has none.

    A launch is full when it holds its most tensors, or its most chunks; the tensor in hand goes on in the next.
    """
    lists = [item for item in signature.arguments if _is_tensor_list(item)]
    if not lists:
        return 0
    depth = min(len(lists) + (not is_in_place), len(_TENSORS_PER_LAUNCH))
    most_tensors, launches, tensors, blocks = _TENSORS_PER_LAUNCH[depth - 1], 0, 0, 0
    for tensor in lists[0]:  # type: ignore[union-attr]
        chunks = -(-tensor.element_count // _CHUNK_ELEMENTS)  # type: ignore[union-attr]
        if not chunks:
            continue
        tensors += 1
        full, blocks = divmod(blocks + chunks, _BLOCKS_PER_LAUNCH)
        launches += full
        if full:
            tensors = 1 if blocks else 0
        if tensors == most_tensors:
            launches, tensors, blocks = launches + 1, 0, 0
    return launches + (tensors > 0)


def _is_tensor_list(item: Argument) -> bool:
    return isinstance(item, tuple) and bool(item) and all(isinstance(entry, TensorSpec) for entry in item)
