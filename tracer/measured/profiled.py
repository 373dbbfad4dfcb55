"""Records a step with torch's profiler on CUDA or on the CPU, with unprofiled timings of the same step beside it.

Adds to a measured trace which tensors its ops read and returned, as torch's profiler saw them.
"""

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
from typing import Any, Final, TypeGuard

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from ...arrays import at_rows
from ...errors import CaptureError
from ...formats.files.importers import collection_paused
from ...formats.files.replacing import Lock, fcntl, take_lock
from ...formats.kineto import import_numbered
from ...formats.trace.column import MISSING, Column, Interner, build_table
from ...formats.trace.signature import Argument, Signature, TensorSpec
from ...formats.trace.tables import Device, IterationTable, OperandTable, TensorTable, Trace
from ..description.device import describe_device, describe_precision, device_number
from ..hooks.compilation import Compilations
from ..hooks.modules import ModuleSpans, hooks_unwarned
from ..tensor_ids.events import Allocation, OpEvent, TensorKey, read_events
from ..tensor_ids.outputs import find_outputs
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


def add_tensor_ids(trace: Trace, external_ids: Column, finished: profile) -> Trace:
    """Return the trace with tables of tensors and operands, and with the results of ops that are certain.

    `external_ids` are the profiler's numbers of the trace's ops, [ops]. The trace itself where the profiler did not
    watch shapes and memory, where this version of torch keeps no tree of events, or where the two do not agree on
    every op.
    """
    with collection_paused():
        try:
            row_of = {number: row for row, number in enumerate(external_ids.tolist()) if number != MISSING}
            ops, allocations = read_events(_event_tree(finished), row_of)
        except AttributeError:
            return trace  # the tree is torch's own affair: another version may name its parts otherwise
        names, rows = trace.ops.name.tolist(), {op.row for op in ops}
        # Each event is to be found in the trace under its name, and each at most once.
        agree = len(rows) == len(ops) and all(trace.strings[names[op.row]] == op.name for op in ops)
        return _with_operands(trace, ops, allocations) if ops and agree else trace


def _event_tree(finished: profile) -> Sequence[Any]:
    """Return the roots of the profiler's events; empty where they name no tensors."""
    if not (finished.record_shapes and finished.profile_memory):
        return ()
    inner: Any = finished.profiler
    roots: Sequence[Any] = inner.kineto_results.experimental_event_tree()
    return roots


def _with_operands(trace: Trace, ops: Sequence[OpEvent], allocations: Sequence[Allocation]) -> Trace:
    numbers, known = trace.ops.signature.tolist(), [*trace.signatures, None]  # the last one is for MISSING
    outputs = find_outputs(ops, allocations, [known[numbers[op.row]] for op in ops])
    tensors: dict[TensorKey, int] = {}
    uses = [
        (op.row, tensors.setdefault(tensor, len(tensors)), is_output)
        for op, returned in zip(ops, outputs, strict=True)
        for is_output, given in ((0, op.tensors), (1, returned))
        for tensor in given
    ]
    strings = Interner[str]()
    strings.number(trace.strings)
    keys = tuple(tensors)
    storages = Interner[int]()
    dtypes = strings.number([str(key.dtype).removeprefix("torch.") for key in keys])
    columns = np.array(uses, dtype=np.int64).reshape(-1, 3)
    traced = replace(
        trace,
        strings=tuple(strings),
        tensors=build_table(
            TensorTable,
            len(keys),
            storage=storages.number([key.storage for key in keys]),
            dtype=dtypes,
            element_count=[key.element_count for key in keys],
            device=[device_number(key.device) for key in keys],
        ),
        operands=build_table(
            OperandTable, len(columns), op=columns[:, 0], tensor=columns[:, 1], is_output=columns[:, 2]
        ),
    )
    return complete_signatures(_with_collective_dtypes(traced), ops, outputs)


def _with_collective_dtypes(trace: Trace) -> Trace:
    """Return the trace with the dtypes of collectives on lists of tensors, which the profiler's file does not have."""
    table, operands = trace.collectives, trace.operands
    first = np.searchsorted(operands.op, table.op)
    has_tensor = at_rows(operands.op, first) == table.op
    of_first = at_rows(trace.tensors.dtype[operands.tensor], first)
    dtype = np.where((table.dtype == MISSING) & (table.op != MISSING) & has_tensor, of_first, table.dtype)
    return replace(trace, collectives=replace(table, dtype=dtype.astype(table.dtype.dtype)))


Call = tuple[int, int, tuple[str, ...]]
"""Name, signature, and the dtypes of the tensors in lists: the profiler's file does not have those."""


def complete_signatures(trace: Trace, ops: Sequence[OpEvent], outputs: Sequence[tuple[TensorKey, ...]]) -> Trace:
    """Return the trace with the dtypes of listed tensors, and the result of every call that returns one tensor.

    The same call returns a tensor of the same form each time; where two were seen, neither is kept.
    """
    names, numbers = trace.ops.name.tolist(), trace.ops.signature.tolist()
    calls: list[Call] = [(name, number, ()) for name, number in zip(names, numbers, strict=True)]
    seen: dict[Call, TensorKey | None] = {}
    for op, returned in zip(ops, outputs, strict=True):
        if numbers[op.row] == MISSING:
            continue
        call = calls[op.row] = (names[op.row], numbers[op.row], _listed_dtypes(op))
        if len(returned) == 1:
            form = returned[0]
            known = seen.setdefault(call, form)
            if known is not None and known is not form and _spec(known) != _spec(form):
                seen[call] = None
    signatures = Interner[Signature]()
    told = {}
    for call in dict.fromkeys(calls):
        if call[1] != MISSING:
            typed, result = _typed(trace.signatures[call[1]], call[2]), seen.get(call)
            told[call] = signatures[typed if result is None else replace(typed, results=(_spec(result),))]
    column = np.array([told.get(call, MISSING) for call in calls], dtype=trace.ops.signature.dtype)
    return replace(trace, signatures=tuple(signatures), ops=replace(trace.ops, signature=column))


def _listed_dtypes(op: OpEvent) -> tuple[str, ...]:
    """Return the dtypes of the tensors in lists; most ops have none."""
    listed = [tensor for at in op.lists for tensor in op.inputs[at]]
    return tuple([str(tensor.dtype).removeprefix("torch.") for tensor in listed])


def _typed(signature: Signature, dtypes: tuple[str, ...]) -> Signature:
    """Return the signature with the dtypes of its listed tensors, where there are as many."""
    listed = [value for value in signature.arguments if _is_list(value)]
    if not dtypes or sum(map(len, listed)) != len(dtypes):
        return signature
    rest = iter(dtypes)
    return replace(
        signature,
        arguments=tuple(
            tuple(replace(item, dtype=next(rest)) for item in value) if _is_list(value) else value
            for value in signature.arguments
        ),
    )


def _spec(tensor: TensorKey) -> TensorSpec:
    return TensorSpec(str(tensor.dtype).removeprefix("torch."), tensor.sizes, tensor.strides)


def _is_list(value: Argument) -> TypeGuard[tuple[TensorSpec, ...]]:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, TensorSpec) for item in value)
