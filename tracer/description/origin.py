"""Describes where a trace comes from: who recorded it, on what software, and of which workload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...errors import InputError
from ...formats.trace.privacy import hide_private
from ...formats.trace.tables import Phase, Trace, Workload
from ...version import __version__
from .device import describe_framework, describe_precision, describe_versions

MODES = ("training", "inference")


def check_workload(workload: Workload) -> None:
    """Raise InputError where a workload's mode or counts are not possible."""
    if workload.mode is not None and workload.mode not in MODES:
        raise InputError(f"mode: expected one of {', '.join(MODES)}, got {workload.mode!r}")
    for name in ("batch_size", "samples_per_iteration"):
        count = getattr(workload, name)
        if count is not None and count < 1:
            raise InputError(f"{name}: expected 1 or more, got {count}")


def mode_of(trace: Trace) -> str:
    """Return `training` where the trace holds a backward pass or an optimizer, else `inference`."""
    is_training = np.isin(trace.ops.phase, (Phase.BACKWARD, Phase.OPTIMIZER)).any()
    return MODES[0] if is_training else MODES[1]


def describe_trace(trace: Trace, device_type: str, workload: Workload) -> Trace:
    """Return the trace with what is known here of who recorded it, on what software, and the workload.

    `device_type` is torch's, or `host` where a GPU was used whose kernels are not in the trace.
    """
    capture = {"cuda": "measured", "host": "host", "cpu": "cpu", "meta": "shapes"}[device_type]
    meta = replace(
        trace.meta,
        producer=f"wavecast {__version__}",
        source_format="wavecast",
        capture=capture,
        accelerator=trace.meta.accelerator if device_type == "host" else None,
        framework=describe_framework(),
        has_shapes=trace.meta.has_shapes or device_type == "meta",
        workload=replace(workload, name=None if workload.name is None else hide_private(workload.name)),
    )
    if device_type == "cuda":
        meta = describe_versions(meta)
    if device_type == "meta":
        meta = replace(meta, precision=describe_precision(meta.precision.autocast_dtype))
    return replace(trace, meta=meta)
