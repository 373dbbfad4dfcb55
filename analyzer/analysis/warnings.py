"""What a reader of the report should be wary of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...specs.gpu import Gpu
from ..replay.causes import CAUSES, IdleCause
from ..work import Family
from .recorded_warnings import unexplained_graph_ns, warn_recorded
from .result import Analysis

OPAQUE_SHARE = 0.1
"""Of the iteration: beyond this, GPU time without any recorded reason is pointed out."""

STRETCH_SHARE = 0.05
"""How far the replay of the recording may be scaled before it is pointed out."""


def warn(result: Analysis) -> Iterator[str]:
    """Yield one sentence per doubt."""
    yield from result.warnings
    yield from warn_recorded(result)
    if result.origin is not None:
        yield from _warn_measured(result, result.origin)
    else:
        if result.trace.meta.capture == "cpu":
            yield (
                "the ops were recorded on a CPU, which calls some that a GPU does not and copies back what it need "
                "not: record with device='meta' instead"
            )
        yield from _warn_unmodelled(result)
    packages = [gpu.name for gpu in result.prediction.fleet.gpus if gpu.is_package]
    if packages:
        yield f"{', '.join(packages)}: a package of several devices, predicted as if it were one"


def _warn_unmodelled(result: Analysis) -> Iterator[str]:
    trace, workload = result.trace, result.workload
    unmodelled = int(workload.count[~workload.has_work].sum())
    if unmodelled:
        names = sorted({trace.strings[trace.ops.name[row]] for row in workload.op[~workload.has_work].tolist()})
        shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        yield f"{unmodelled} of {int(workload.count.sum())} ops have no formula and count 0: {shown}"


def _warn_measured(result: Analysis, origin: Gpu) -> Iterator[str]:
    workload, window, quality = result.workload, result.window, result.trace.quality
    busy_ns = float(workload.busy_ns.sum())
    is_collective = np.array([family is Family.COLLECTIVE for family in workload.family], dtype=bool)
    collective_ns = float(workload.busy_ns[is_collective].sum())
    if collective_ns > 0.05 * busy_ns:
        yield f"{collective_ns / busy_ns:.0%} of the GPU time is communication, which includes waiting for other ranks"
    is_unshaped = ~workload.has_work & ~is_collective & (workload.kind == 0)
    unshaped_ns = float((workload.busy_ns - unexplained_graph_ns(result))[is_unshaped].sum())
    if unshaped_ns > 0.05 * busy_ns:
        yield (
            f"{unshaped_ns / busy_ns:.0%} of the GPU time is in kernels whose op has no recorded shapes or no "
            "formula: record with record_shapes=True for better predictions"
        )
    yield from _warn_opaque(result, origin)
    stretch = result.slowdown.stretch_ratio
    if abs(stretch - 1) > STRETCH_SHARE:
        how = "longer" if stretch > 1 else "shorter"
        yield (
            f"the measured iteration is {abs(stretch - 1):.0%} {how} than what was recorded of it, and the host's "
            "speed does not explain it: all times are scaled to match"
        )
    if window.other_device_kernel_count:
        yield f"{window.other_device_kernel_count} kernels on other devices of the file are left out"
    if quality.events_dropped or quality.bytes_lost:
        yield (
            f"the recording lost {quality.events_dropped} events and {quality.bytes_lost} bytes: times may be too short"
        )


def _warn_opaque(result: Analysis, origin: Gpu) -> Iterator[str]:
    """Say where the GPU waits without a recorded reason, as around CUDA graphs whose kernels were not recorded."""
    columns = [at for at, gpu in enumerate(result.prediction.fleet.gpus) if gpu.name == origin.name]
    opaque_ns = float(result.forecast.idle_ns[columns[0], CAUSES.index(IdleCause.UNEXPLAINED)])
    share = opaque_ns / max(float(result.forecast.iteration_ns[columns[0]]), 1.0)
    if share > OPAQUE_SHARE:
        yield (
            f"{share:.0%} of the iteration the GPU waits, or works, without anything recorded (kernels inside CUDA "
            "graphs often are not): that time is kept as it is on every GPU"
        )
