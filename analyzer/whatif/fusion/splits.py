"""Into how many parts inductor cuts reductions that have too few results to fill a GPU; a second kernel reduces those.

After torch/_inductor/ir.py (`Reduction.num_splits`) and choices.py (`reduction_split_factor`), for a GPU of 132 SMs. On
others there are more or fewer parts, of hardly other reductions.
"""

from __future__ import annotations

from typing import Final

_SM_COUNT: Final = 132
_THREADS_PER_SM: Final = 2048
_LEAST_PER_THREAD: Final = 32
_MOST_PER_THREAD: Final = 512
_THREADS: Final = 256
"""Of a block, 8 warps."""
_LEAST_ROW: Final = 8192
"""Elements of a row from which on it is cut."""
_COLUMNS_PER_BLOCK: Final = 128
_STEPS: Final = 4
"""Elements of a column that a thread of a block reads at once."""
_DEVICE_THREADS: Final = _SM_COUNT * _THREADS_PER_SM


def split_count(outer: int, reduced: int, *, is_rows: bool) -> int:
    """Return the parts of each of `outer` reductions of `reduced` elements; 1: it is one kernel.

    >>> split_count(1, 1 << 26, is_rows=True), split_count(4096, 1024, is_rows=True)
    (528, 1)
    """
    if outer > 1 and (reduced <= _LEAST_PER_THREAD or outer >= 64 * _SM_COUNT):
        return 1
    if is_rows or outer == 1:
        if outer >= 2 * _SM_COUNT or reduced <= _LEAST_ROW:
            return 1
        blocks = -(-(_DEVICE_THREADS // (2 * _THREADS)) // outer)
        return -(-reduced // (_elements_per_thread(outer * reduced, reduced, _THREADS * blocks) * _THREADS))
    blocks = -(-(_DEVICE_THREADS // _THREADS) // -(-outer // _COLUMNS_PER_BLOCK))
    return -(-reduced // (_elements_per_thread(outer * reduced, reduced, _STEPS * blocks) * _STEPS))


def _elements_per_thread(total: int, reduced: int, threads: int) -> int:
    """Return what a thread of `threads` per result adds up."""
    if total <= _LEAST_PER_THREAD * _DEVICE_THREADS:
        return _LEAST_PER_THREAD
    return -(-reduced // threads) if total < _MOST_PER_THREAD * _DEVICE_THREADS else _MOST_PER_THREAD
