"""Records a step with torch's profiler on CUDA or on the CPU, with unprofiled timings of the same step beside it."""

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from ...errors import CaptureError
from ...formats.files.replacing import Lock, fcntl, take_lock
from ...formats.kineto import import_numbered
from ...formats.trace.column import build_table
from ...formats.trace.tables import Device, IterationTable, Trace
from ..description.device import describe_device, describe_precision
from ..hooks.compilation import Compilations
from ..hooks.modules import ModuleSpans, hooks_unwarned
from ..tensor_ids.tables import add_tensor_ids
from .lookups import CountedCall, add_lookups, count_lookups

Step = Callable[[], object]
_ATTEMPT_COUNT: Final = 3
"""Captures at most: the first run under new hooks may compile, and what it changes may compile once more."""
_MOST_STRETCHED: Final = 3.0
"""How many times an unprofiled run's time the captured one takes: 0.8 to 2.4 in 95 recordings on H100 and H200."""
_SPENT_ONCE_NS: Final = 10_000_000
"""What a captured run may take beside, however short it is: the profiler's own pauses."""


def record_profiled(step: Step, *, device: torch.device, warmup: int, repeats: int) -> Trace:
    """Run `step` warmup + repeats + 2 times and return the last run as a trace, with its devices and precision.

    The `repeats` runs are timed without the profiler, the host waiting for the device after each.
    One run warms the profiler up; the last is captured. Both are run again, up to twice, where torch compiled code in
    the captured one, or where it lasted many times the others. Times of the unprofiled runs are durations: they are
    laid end to end before the capture. Raises CaptureError where no GPU activity was seen, and where torch compiles
    in every run.
    """
    wait: Callable[[], None] = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    for _ in range(warmup):
        step()
    wait()
    durations_ns = [_time_ns(step, wait) for _ in range(repeats)]
    slowest_ns = _MOST_STRETCHED * max(durations_ns) + _SPENT_ONCE_NS if durations_ns else np.inf
    trace, autocast_dtype = _capture(step, wait, device, slowest_ns)
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


def _time_ns(step: Step, wait: Callable[[], None]) -> int:
    start_ns = time.perf_counter_ns()
    step()
    wait()
    return time.perf_counter_ns() - start_ns


def _capture(step: Step, wait: Callable[[], None], device: torch.device, slowest_ns: float) -> tuple[Trace, str | None]:
    """Run `step` twice under the profiler; return the second run as a trace, and the autocast dtype of both.

    The first run lets CUPTI start and allocate its buffers; how embedding ops look up rows is counted in it.
    torch.compile compiles again where hooks came or went, so both runs have the same ones, which none had before.
    A run in which torch compiled is not kept, and one that lasts longer than `slowest_ns` only if no other is shorter.
    """
    kept, autocast_dtype, lookups = None, None, list[CountedCall]()
    for attempt in range(_ATTEMPT_COUNT):
        captured: list[Trace] = []
        profiler = make_profiler(device.type, 1, partial(_keep, captured))
        with hooks_unwarned(), profiler, ModuleSpans(device.type) as spans, Compilations() as compilations:
            with nullcontext(lookups) if attempt else count_lookups() as lookups:
                step()
                wait()
            profiler.step()
            before_count = compilations.count
            step()
            wait()
            has_compiled = compilations.count > before_count
            profiler.step()
        autocast_dtype = autocast_dtype or spans.autocast_dtype
        if not has_compiled and (kept is None or _captured_ns(captured[0]) < _captured_ns(kept)):
            kept = captured[0]
        if kept is not None and _captured_ns(kept) <= slowest_ns:
            break
    if kept is None:
        raise CaptureError(
            f"torch.compile compiled in each of {_ATTEMPT_COUNT} captured runs, so none shows what a step takes: keep "
            "shapes and guards the same from step to step (TORCH_LOGS=recompiles names what changes)"
        )
    return add_lookups(kept, lookups), autocast_dtype


def _keep(captured: list[Trace], finished: profile) -> None:
    captured.append(read_profiler(finished))


def _captured_ns(trace: Trace) -> int:
    return int((trace.iterations.end_ns - trace.iterations.start_ns).max(initial=0))


def make_profiler(device_type: str, iterations: int, on_trace_ready: Callable[[profile], None] | None) -> profile:
    """Return torch's profiler, set to warm up for one step and to record `iterations` with all that a trace holds."""
    # Which stream waits for which, where Kineto can tell: replaying several streams needs it.
    config: Any = None
    if device_type == "cuda" and torch.version.hip is None:
        config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device_type == "cuda" else [])]
    # Else torch 2.11 warns that a second cycle would drop the events of the first: there is one.
    accumulated: dict[str, Any] = {"acc_events": True} if "acc_events" in signature(profile.__init__).parameters else {}
    return profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=iterations, repeat=1),
        on_trace_ready=on_trace_ready,
        record_shapes=True,
        profile_memory=True,
        experimental_config=config,
        **accumulated,
    )


def read_profiler(finished: profile) -> Trace:
    """Return what a finished profiler recorded, with tensor ids where it watched shapes and memory."""
    with scratch_folder() as folder:
        path = folder / "capture.json"
        finished.export_chrome_trace(str(path))
        data = path.read_bytes()
    trace, external_ids = import_numbered(data)
    return add_tensor_ids(trace, external_ids, finished)


def describe_devices(trace: Trace) -> tuple[Device, ...]:
    """Return the devices that ran kernels: torch's word, and the profiler's where torch has none."""
    reported = {item.index: item for item in trace.devices}
    found = []
    for index in np.unique(trace.kernels.device).tolist():
        ours, told = describe_device(index), reported.get(index)
        names = [item.name for item in fields(ours) if getattr(ours, item.name) is None]
        missing: dict[str, Any] = {name: getattr(told, name, None) for name in names}
        found.append(replace(ours, **missing))
    return tuple(found)


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


_PREFIX: Final = "wavecast-"
_NAME: Final = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
"""What Python calls temporary folders of this prefix."""
_LOCK: Final = "lock"
_PRIVATE: Final = 0o700
"""The permissions that Python gives temporary folders; others were made by somebody else."""
_YOUNG_S: Final = 60
"""A folder younger than this is left alone where its owner may be about to lock it: there is no lock yet, or an empty
one, as earlier versions made it."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Own a folder that is removed at the end, and remove those of processes that were killed while they had one.

    torch writes a recording to a path alone: Kineto creates `path.tmp` beside it and renames that, so neither an
    unlinked file nor one in memory will do. A lock that dies with its process tells a folder in use from one left.
    """
    _remove_left(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        new = folder / f"{_LOCK}.new"
        with new.open("w") as lock:
            lock.write("locked before it was called so\n")
            lock.flush()
            take_lock(lock.fileno())
            if fcntl is not None:
                new.rename(folder / _LOCK)
            yield folder


def _remove_left(parent: Path) -> None:
    if fcntl is None:
        return
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # another process was faster, or it is not ours to remove


def _is_left(folder: Path) -> bool:
    """Say whether a folder is ours, and the process that made it has ended."""
    status, lock = folder.lstat(), folder / _LOCK
    is_young = time.time() - status.st_mtime < _YOUNG_S
    user = os.getuid() if hasattr(os, "getuid") else 0  # Windows has no such numbers: all files are 0's
    if status.st_uid != user or not stat.S_ISDIR(status.st_mode):
        return False
    if not lock.is_file():
        has_begun = _NAME.fullmatch(folder.name) and {path.name for path in folder.iterdir()} <= {f"{_LOCK}.new"}
        return bool(has_begun) and stat.S_IMODE(status.st_mode) == _PRIVATE and not is_young
    with lock.open("r+") as stream:
        was_locked_first = bool(stream.read(1))
        return take_lock(stream.fileno()) is Lock.TAKEN and (was_locked_first or not is_young)
