"""Whose attention runs: as it was recorded, as each GPU would choose, or as it is asked for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ...arrays import Mask
from ...errors import parameter
from ...specs.attention_kernels import AttentionKernel
from ...specs.fleet import build_fleet
from ...specs.generations import has_attention
from ...specs.gpu import Gpu
from ..work.work import AttentionDims
from .workload import GpuWorkload

NAMED_COUNT: Final = 3
"""GPUs that a warning names."""


def attention_rows(workload: GpuWorkload) -> Mask:
    """Say which rows are fused attention of known sizes."""
    return np.array([work is not None and isinstance(work.dims, AttentionDims) for work in workload.works], dtype=bool)


def as_recorded(workload: GpuWorkload) -> GpuWorkload:
    """Return the workload with the attention kernels that ran, wherever they are predicted."""
    return _with_attention(workload, None)


def as_asked(workload: GpuWorkload, kernel: AttentionKernel | None) -> GpuWorkload:
    """Return the workload with this attention kernel, where it exists; None: with each GPU's own choice."""
    return workload if kernel is None else _with_attention(workload, kernel)


def explain_attention(workload: GpuWorkload, gpus: Sequence[Gpu], kernel: AttentionKernel | None) -> tuple[str, ...]:
    """Say in one line where the kernel that is asked for does not exist, or that there is nothing to ask it for."""
    if kernel is None:
        return ()
    if not attention_rows(workload).any():
        return (
            f"{parameter('attention_kernel', kernel.name.lower())} changes nothing: no fused attention of known sizes",
        )
    missing = ~has_attention(np.array(kernel), build_fleet(gpus))
    names = [gpu.name for gpu, lacks in zip(gpus, missing.tolist(), strict=True) if lacks]
    if not names:
        return ()
    shown = ", ".join(names[:NAMED_COUNT]) + (f" and {len(names) - NAMED_COUNT} more" if names[NAMED_COUNT:] else "")
    return (
        f"{parameter('attention_kernel', kernel.name.lower())}: does not exist on {shown}; predicted with their "
        "defaults",
    )


def _with_attention(workload: GpuWorkload, kernel: AttentionKernel | None) -> GpuWorkload:
    rows = attention_rows(workload)
    if not rows.any():
        return workload
    works = list(workload.works)
    for row in np.flatnonzero(rows).tolist():
        work = works[row]
        if work is None or not isinstance(work.dims, AttentionDims):
            continue
        chosen = work.dims.kernel if kernel is None else kernel
        dims = replace(work.dims, kernel=chosen, is_chosen_by_torch=False, is_chosen_by_engine=False)
        works[row] = replace(work, dims=dims)
    return replace(workload, works=tuple(works))
