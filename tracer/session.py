"""The recording session: one call records one iteration, whatever the device, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from .. import __version__
from ..errors import CaptureError, InputError
from ..formats.trace import Phase, Trace, Workload
from .measured.device import describe_framework, describe_precision, describe_versions

MODES = ("training", "inference")
_recording = threading.Lock()


def trace_iteration(
    step: Callable[[], object],
    *,
    warmup: int = 3,
    repeats: int = 5,
    device: str | torch.device | None = None,
    name: str | None = None,
    mode: str | None = None,
    batch_size: int | None = None,
    samples_per_iteration: int | None = None,
) -> Trace:
    """Record one iteration: `step` is called without arguments and runs exactly one.

    `device` is `cuda` (the default where there is one), `cpu`, or `meta` for shapes alone. Every run is real:
    weights are updated and random numbers drawn, warmup + repeats + 2 times (at most twice on meta).
    `name`, `mode`, `batch_size` and `samples_per_iteration` describe the workload; a `mode` that is not
    given is read off the recorded ops. Exceptions of `step` pass through unchanged.
    Raises InputError for bad arguments and CaptureError when no recording can be made.
    """
    _check(step, warmup, repeats)
    workload = Workload(name=name, mode=mode, batch_size=batch_size, samples_per_iteration=samples_per_iteration)
    check_workload(workload)
    target = _resolve_device(device)
    with only_recording():
        if target.type == "meta":
            from .meta.recorder import record_shapes

            trace = record_shapes(step, warmup=warmup)
        else:
            from .measured.profiled import record_profiled

            trace = record_profiled(step, device=target, warmup=warmup, repeats=repeats)
    return describe_trace(trace, target.type, replace(workload, mode=mode or mode_of(trace)))


def check_workload(workload: Workload) -> None:
    """Raise InputError where a workload's mode or counts are not possible."""
    if workload.mode is not None and workload.mode not in MODES:
        raise InputError(f"mode: expected one of {', '.join(MODES)}, got {workload.mode!r}")
    for name in ("batch_size", "samples_per_iteration"):
        count = getattr(workload, name)
        if count is not None and count < 1:
            raise InputError(f"{name}: expected 1 or more, got {count}")


def _check(step: object, warmup: int, repeats: int) -> None:
    if not callable(step):
        raise InputError(f"step: expected a function without arguments that runs one iteration, got {step!r}")
    for name, value in (("warmup", warmup), ("repeats", repeats)):
        if value < 0:
            raise InputError(f"{name}: expected 0 or more, got {value}")


def _resolve_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device: expected cuda, cuda:N, cpu or meta, got {device!r}") from error
    if target.type not in ("cuda", "cpu", "meta"):
        raise InputError(f"device: expected cuda, cuda:N, cpu or meta, got {str(device)!r}")
    if target.type == "cuda":
        if not torch.cuda.is_available():
            raise CaptureError("no CUDA device is available here: record shapes with device='meta', or on a GPU")
        if (target.index or 0) >= torch.cuda.device_count():
            raise CaptureError(f"{target} does not exist: this process sees {torch.cuda.device_count()} CUDA devices")
    return target


@contextmanager
def only_recording() -> Iterator[None]:
    """Refuse a recording inside another: both would change the same hooks."""
    if not _recording.acquire(blocking=False):
        raise CaptureError("another recording is running in this process: recordings cannot be nested")
    try:
        yield
    finally:
        _recording.release()


def mode_of(trace: Trace) -> str:
    """Return `training` where the trace holds a backward pass or an optimizer, else `inference`."""
    is_training = np.isin(trace.ops.phase, (Phase.BACKWARD, Phase.OPTIMIZER)).any()
    return MODES[0] if is_training else MODES[1]


def describe_trace(trace: Trace, device_type: str, workload: Workload) -> Trace:
    """Return the trace with what is known here of who recorded it, on what software, and the workload."""
    capture = {"cuda": "measured", "cpu": "cpu", "meta": "shapes"}[device_type]
    meta = replace(
        trace.meta,
        producer=f"wavecast {__version__}",
        source_format="wavecast",
        capture=capture,
        framework=describe_framework(),
        has_shapes=trace.meta.has_shapes or device_type == "meta",
        workload=workload,
    )
    if device_type == "cuda":
        meta = describe_versions(meta)
    if device_type == "meta":
        meta = replace(meta, precision=describe_precision(meta.precision.autocast_dtype))
    return replace(trace, meta=meta)
