"""How much is left of the iteration of a file that ends early: ops that always launch kernels tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...errors import InputError
from ...formats.trace.tables import Trace
from ..recorded.gaps import describe_loss
from ..recorded.window import Window
from ..work import Family, family_of

LEAST_LEFT_RATIO: Final = 0.5
"""Of such ops: with fewer of them measured, the answer would be about less than half of the work."""
_WHOLE_RATIO: Final = 0.99
_FULLER_RATIO: Final = 1.02
"""An iteration with so many more kernels than the one that is predicted says that kernels of that are missing."""
_SURE_FAMILIES: Final = (Family.MATMUL, Family.CONVOLUTION, Family.ATTENTION)
"""Whose ops run a kernel whatever their inputs are."""


def check_cut(trace: Trace, window: Window) -> None:
    """Raise InputError where a file lost the kernels of most of its iteration.

    >>> check_cut(measured, recorded.window)  # a whole file: nothing to say
    """
    whole, left = _count_sure_ops(trace, window)
    if left < LEAST_LEFT_RATIO * whole:
        raise InputError(
            f"{describe_loss(trace.quality)}, with it the kernels of {whole - left:,} of the iteration's {whole:,} "
            "matrix products and convolutions: copy or export it again"
        )


def describe_cut(trace: Trace, window: Window) -> Iterator[str]:
    """Yield what a file has lost, and what of that is the iteration's; nothing for a whole file.

    >>> list(describe_cut(measured, recorded.window))
    []
    """
    if not trace.quality.bytes_lost:
        return
    whole, left = _count_sure_ops(trace, window)
    lost = "the iteration may not be whole"
    if left < _WHOLE_RATIO * whole:
        lost = f"{whole - left:,} of the iteration's {whole:,} matrix products and convolutions have no kernels"
    yield f"{describe_loss(trace.quality)}; {lost}{_fuller_iteration(trace, window)}"


def _fuller_iteration(trace: Trace, window: Window) -> str:
    """Say how many kernels the window holds, where another iteration holds more."""
    profiled = np.flatnonzero(trace.iterations.profiled)
    start, end = trace.iterations.start_ns[profiled], trace.iterations.end_ns[profiled]
    began = np.sort(trace.kernels.start_ns)
    most = int((np.searchsorted(began, end) - np.searchsorted(began, start)).max()) if len(profiled) else 0
    kept = len(window.kernel_rows) + window.other_device_kernel_count
    return f": it holds {kept:,} kernels, another iteration {most:,}" if most > _FULLER_RATIO * kept else ""


def _count_sure_ops(trace: Trace, window: Window) -> tuple[int, int]:
    """Count the window's ops that surely launched kernels, and those whose kernels are in the file.

    Only names count of which some op has a kernel: of nested ops it is the innermost that launches. Zero for a file
    that lost nothing.
    """
    if not trace.quality.bytes_lost or not len(window.kernel_rows):
        return 0, 0
    owners = np.unique(trace.kernels.op[trace.kernels.op >= 0])
    is_sure = np.zeros(len(trace.strings), dtype=bool)
    for name in np.unique(trace.ops.name[owners]).tolist():
        is_sure[name] = family_of(trace.strings[name]) in _SURE_FAMILIES
    rows = window.op_rows[is_sure[trace.ops.name[window.op_rows]]]
    return len(rows), int(np.isin(rows, owners).sum())
