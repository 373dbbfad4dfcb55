"""Records a step with torch's profiler on CUDA or on the CPU, with unprofiled timings of the same step beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile, schedule

from ...errors import CaptureError
from ...formats.kineto import import_numbered
from ...formats.trace.column import build_table
from ...formats.trace.tables import Device, IterationTable, Trace
from ..description.device import describe_device, describe_precision
from ..hooks.modules import ModuleSpans, hooks_unwarned
from ..tensor_ids.tables import add_tensor_ids
from .lookup_table import add_lookups
from .lookups import count_lookups
from .scratch import scratch_folder

Step = Callable[[], object]


def record_profiled(step: Step, *, device: torch.device, warmup: int, repeats: int) -> Trace:
    """Run `step` warmup + repeats + 2 times and return the last run as a trace, with its devices and precision.

    The `repeats` runs are timed without the profiler, the host waiting for the device after each.
    One run warms the profiler up; the last is captured. Times of the unprofiled runs are durations:
    they are laid end to end before the start of capture.
    """
    wait = _waiter(device)
    for _ in range(warmup):
        step()
    wait()
    durations_ns = [_time_ns(step, wait) for _ in range(repeats)]
    trace, autocast_dtype = _capture(step, wait, device)
    if device.type == "cuda" and not trace.is_measured:
        raise CaptureError(
            "the profiler saw no GPU activity: the step ran on the CPU (then pass device='cpu'), "
            "or this process may not use CUPTI (another profiler, or a container without the permission)"
        )
    return replace(
        trace,
        meta=replace(trace.meta, precision=describe_precision(autocast_dtype or trace.meta.precision.autocast_dtype)),
        devices=describe_devices(trace) if device.type == "cuda" else (),
        iterations=prepend_unprofiled(trace.iterations, durations_ns),
    )


def _waiter(device: torch.device) -> Callable[[], None]:
    """Return what makes the host wait until the device is idle."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def _time_ns(step: Step, wait: Callable[[], None]) -> int:
    start_ns = time.perf_counter_ns()
    step()
    wait()
    return time.perf_counter_ns() - start_ns


def _capture(step: Step, wait: Callable[[], None], device: torch.device) -> tuple[Trace, str | None]:
    """Run `step` twice under the profiler; return the second run as a trace, and the autocast dtype of the first.

    The first run lets CUPTI start and allocate its buffers; how embedding ops look up rows is counted in it.
    """
    captured: list[Trace] = []
    profiler = make_profiler(device.type, 1, lambda finished: captured.append(read_profiler(finished)))
    with hooks_unwarned(), profiler:
        with watch_autocast(device.type) as seen, count_lookups() as counted:
            step()
            wait()
        profiler.step()
        with ModuleSpans():
            step()
            wait()
        profiler.step()
    return add_lookups(captured[0], counted), next(iter(seen), None)


def make_profiler(device_type: str, iterations: int, on_trace_ready: Callable[[profile], None] | None) -> profile:
    """Return torch's profiler, set to warm up for one step and to record `iterations` with all that a trace holds."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device_type == "cuda" else [])]
    return profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=iterations, repeat=1),
        on_trace_ready=on_trace_ready,
        record_shapes=True,
        profile_memory=True,
        experimental_config=_sync_events(device_type),
    )


def read_profiler(finished: profile) -> Trace:
    """Return what a finished profiler recorded, with tensor ids where it watched shapes and memory."""
    with scratch_folder() as folder:
        path = folder / "capture.json"
        finished.export_chrome_trace(str(path))
        data = path.read_bytes()
    trace, external_ids = import_numbered(data)
    return add_tensor_ids(trace, external_ids, finished)


def _sync_events(device_type: str) -> Any:
    """Ask Kineto to record which stream waits for which, where it can: replaying several streams needs it."""
    if device_type != "cuda" or torch.version.hip is not None:
        return None
    return torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)


@contextmanager
def watch_autocast(device_type: str) -> Iterator[list[str]]:
    """Collect the autocast dtypes in force when modules run."""
    seen: list[str] = []

    def look(_module: nn.Module, _inputs: Any) -> None:
        if not torch.compiler.is_compiling() and torch.is_autocast_enabled(device_type):
            seen.append(str(torch.get_autocast_dtype(device_type)).removeprefix("torch."))

    handle = register_module_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def describe_devices(trace: Trace) -> tuple[Device, ...]:
    """Return the devices that ran kernels: torch's word, and the profiler's where torch has none."""
    reported = {item.index: item for item in trace.devices}
    used = [int(index) for index in np.unique(trace.kernels.device)]
    return tuple(_merge(describe_device(index), reported.get(index)) for index in used)


def _merge(ours: Device, reported: Device | None) -> Device:
    if reported is None:
        return ours
    missing = {item.name: getattr(reported, item.name) for item in fields(ours) if getattr(ours, item.name) is None}
    return replace(ours, **missing)


def prepend_unprofiled(captured: IterationTable, durations_ns: Sequence[int]) -> IterationTable:
    """Return the captured iterations with the unprofiled ones before them, end to end: only their lengths are known."""
    first_ns = min([0, *captured.start_ns.tolist()])
    bounds_ns = first_ns - np.cumsum([0, *reversed(durations_ns)], dtype=np.int64)[::-1]
    starts_ns = np.concatenate([bounds_ns[:-1], captured.start_ns])
    ends_ns = np.concatenate([bounds_ns[1:], captured.end_ns])
    return build_table(
        IterationTable,
        len(starts_ns),
        start_ns=starts_ns,
        end_ns=ends_ns,
        profiled=np.concatenate([np.zeros(len(durations_ns), dtype=bool), captured.profiled]),
        cpu_start_ns=np.concatenate([starts_ns[: len(durations_ns)], captured.cpu_start_ns]),
        cpu_end_ns=np.concatenate([ends_ns[: len(durations_ns)], captured.cpu_end_ns]),
    )
