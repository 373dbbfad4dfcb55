"""What a recording lacks, in words: why nothing can be predicted from it, and what its reader must know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...arrays import Rows
from ...errors import InputError, parameter
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.cut import list_kinds
from ...formats.trace.iterations import STEPS_OF_PROFILER
from ...formats.trace.tables import Quality, Trace
from .window import Window

HOST_CAPTURE: Final = "host"
"""What a recording is called whose accelerator's kernels are missing."""
_GPU_PLATFORMS: Final = {"cuda": "CUDA", "hip": "ROCm", "gpu": "CUDA or ROCm"}
"""Of the catalogue's GPUs."""
_UNKNOWN_PLATFORM: Final = "unknown"
_ACTIVITIES: Final = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_LAUNCHES_MISSING_SHARE: Final = 0.01
_SHOWN_NAME_COUNT: Final = 3


def check_answerable(trace: Trace, window: Window) -> None:
    """Raise InputError where nothing of the window can be predicted: what the file holds, and what to record.

    >>> check_answerable(trace, window)  # 381 ops with shapes: nothing to say
    """
    if len(window.kernel_rows):
        return
    if trace.meta.capture == HOST_CAPTURE and (trace.meta.accelerator or "gpu") not in _GPU_PLATFORMS:
        raise InputError(_explain_foreign(trace))
    if trace.quality.bytes_lost and not row_count(trace.kernels):
        of_device = f" of {_device(trace)}" if trace.meta.capture == HOST_CAPTURE else " that it may have held"
        raise InputError(
            f"{describe_loss(trace.quality)}, with it every kernel{of_device}: {_contents(trace)} are left, maybe not "
            "all of an iteration; copy or export it again"
        )
    if len(window.op_rows) and row_count(trace.kernels):
        raise InputError(
            f"the iteration to predict holds {_count_ops(trace, window.op_rows)} and no kernel, while the kernels of "
            f"the file, {row_count(trace.kernels):,}, lie outside of it: record whole iterations, or choose another "
            f"one with {parameter('iteration')}{_lost_end(trace)}"
        )
    if not len(window.op_rows) and row_count(trace.ops):
        raise InputError(
            f"the iteration to predict holds no op and no kernel, and the file no more than {_contents(trace)} outside "
            f"of it: {_advice(trace)}"
        )


def check_rescalable(trace: Trace, window: Window) -> None:
    """Raise InputError where another size has no shapes to change: the same times would be called its.

    >>> check_rescalable(trace, window)
    """
    if not (trace.ops.signature[window.op_rows] != MISSING).any():
        raise InputError(
            f"{parameter('batch')} changes the shapes of ops, as {parameter('sequence_length')} and "
            f"{parameter('cached_tokens')} do, and the iteration holds {_count_ops(trace, window.op_rows)}, none with "
            f"recorded shapes: record with {_ACTIVITIES} and record_shapes=True"
        )


def explain_nothing(trace: Trace, window: Window) -> str:
    """Say why none of the window's ops has any GPU time, and what to record."""
    rows = window.op_rows
    unshaped = int((trace.ops.signature[rows] == MISSING).sum())
    missing = f" (no shapes are recorded of {unshaped:,})" if unshaped else ""
    subject = f"the recording of {_device(trace)}" if trace.meta.capture == HOST_CAPTURE else "the iteration"
    held = f"{subject} holds {_count_ops(trace, rows)}{_missing_kernels(trace)}"
    return f"nothing to predict: {held}, and no op tells any GPU time{missing}: {_advice(trace)}"


def describe_gaps(trace: Trace, window: Window) -> Iterator[str]:
    """Yield a sentence for each part of the recording that is missing: events, kernels, or ops.

    >>> list(describe_gaps(trace, window))
    []
    """
    quality = trace.quality
    yield from _describe_iterations(trace, window)
    if quality.durations_cut:
        yield (
            f"{_count(quality.durations_cut, 'activity', 'activities')} recorded as running on over later ones of the "
            "same stream, which runs them in order: they end where those begin"
        )
    if trace.meta.left_out is not None:
        yield (
            f"the file holds several processes: one is read, without {trace.meta.left_out}; 'wavecast ranks' takes a "
            "file of each"
        )
    if quality.events_dropped:
        yield f"{quality.events_dropped:,} events without usable times were left out: times may be too short"
    if trace.meta.capture == HOST_CAPTURE:
        yield (
            f"the file is of {_device(trace)} and holds {_count_ops(trace, window.op_rows)} of its host"
            f"{_missing_kernels(trace)}: all times come from shapes alone; record with {_ACTIVITIES} to measure it"
        )
    # The calls that launch kernels; those of drivers inside those of the runtime count, too.
    is_launch = np.array(["Launch" in name and "HostFunc" not in name for name in trace.strings], dtype=bool)
    launches = int(is_launch[trace.calls.name].sum()) if len(is_launch) else 0
    if len(window.kernel_rows) and quality.launches_without_kernel > _LAUNCHES_MISSING_SHARE * launches:
        yield (
            f"{quality.launches_without_kernel:,} of the file's {launches:,} launches have no kernel: they were "
            "captured into a graph, or their kernels were not recorded"
        )
    if len(window.kernel_rows) and not len(window.op_rows):
        yield (
            "the iteration holds kernels and no ops: without their names, shapes and phases, kernels are moved by "
            f"ratios of the GPUs alone, memory is not known, and {parameter('batch')}, {parameter('precision')} and "
            f"{parameter('fuse_elementwise')} have nothing to change; record with {_ACTIVITIES} and record_shapes=True"
        )


def _describe_iterations(trace: Trace, window: Window) -> Iterator[str]:
    """Yield by what iterations are told where the profiler's steps do not mark them, and what belongs to none."""
    table, by = trace.iterations, trace.meta.iterations_by
    rows = np.flatnonzero(table.profiled)
    if by not in (None, STEPS_OF_PROFILER) and len(rows) > 1:
        kinds = list_kinds(table).partition("holds ")[2]
        yield (
            f"{len(rows):,} iterations by {by}{f' ({kinds})' if kinds else ''}: number {window.index} is predicted; "
            f"another one with {parameter('iteration')}"
        )
    if trace.meta.repetitions is not None and (by is not None or len(rows) == 1):
        usual_ms = float(np.median((table.end_ns - table.start_ns)[rows])) / 1e6 / trace.meta.repetitions
        what = f"nothing marks iterations, and the same kernels come {trace.meta.repetitions:,} times in a row: layers"
        if by is not None:
            what = f"an iteration holds {trace.meta.repetitions:,} optimizer steps with work between them: optimizers"
        yield (
            f"{what}, or as many iterations in one; if so, give the span of one with {parameter('window')}, "
            f"some {usual_ms:.3g} ms"
        )


def _explain_foreign(trace: Trace) -> str:
    """Say why the host of another kind of accelerator tells no GPU's time."""
    unread = trace.quality.device_events_unread
    work = f" and {_count(unread, 'event')} of the device in a form that is not read" if unread else ""
    return (
        f"the file is of {_device(trace)}, no GPU of NVIDIA or AMD: it holds {_count_ops(trace)} of its host{work}, "
        "which tell no GPU's time; record the model on a GPU, or its shapes with `wavecast record --shapes-only`"
    )


def describe_loss(quality: Quality) -> str:
    """Say how much of a file that ends early is unreadable; how much it never held, nothing tells."""
    whole = quality.bytes_lost + quality.bytes_read
    share = quality.bytes_lost / whole
    words = "less than 0.1%" if share < 0.001 else f"{share:.1%}"
    part = f"of its {whole:,} bytes ({words})" if quality.bytes_read else "bytes"
    return f"the file ends early: {quality.bytes_lost:,} {part} are unreadable, and what followed them is missing"


def _lost_end(trace: Trace) -> str:
    """Say that the end of the file is lost, where it is."""
    return f"; {describe_loss(trace.quality)}" if trace.quality.bytes_lost else ""


def _device(trace: Trace) -> str:
    """Name the accelerator that a recording was made on."""
    platform = trace.meta.accelerator or "gpu"
    name = next((f"{item.name!r}, " for item in trace.devices if item.name), "")
    if platform == _UNKNOWN_PLATFORM:
        return f"an accelerator ({name}a kind that is not known)"
    kind = "a GPU" if platform in _GPU_PLATFORMS else "an accelerator"
    return f"{kind} ({name}{_GPU_PLATFORMS.get(platform, platform)})"


def _missing_kernels(trace: Trace) -> str:
    """Say of which launches and counters no kernel was recorded; nothing of a CPU's recording."""
    if trace.meta.capture != HOST_CAPTURE:
        return ""
    quality, counters = trace.quality, trace.quality.device_events_unread
    held = [
        f" and {_count(quality.launches_without_kernel, 'launch', 'es')}" if quality.launches_without_kernel else "",
        f", {_count(counters, 'event')} with counters in place of times" if counters else "",
        " but no kernel",
    ]
    return "".join(held)


def _advice(trace: Trace) -> str:
    """Say what to record, or that a part of the file is lost."""
    if trace.quality.bytes_lost:
        return f"{describe_loss(trace.quality)}: copy or export it again"
    shapes = "" if trace.meta.has_shapes else "record_shapes=True"
    if trace.meta.capture != HOST_CAPTURE:
        return "record at least one whole iteration" + (f", with {shapes}" if shapes else "")
    counters = ", without profiling counters" if trace.quality.device_events_unread else ""
    return f"record with {_ACTIVITIES}{' and ' if shapes else ''}{shapes}{counters}"


def _contents(trace: Trace) -> str:
    """Name what a file holds."""
    calls, kernels = row_count(trace.calls), row_count(trace.kernels)
    counts = [_count(calls, "call") if calls else "", _count(kernels, "kernel") if kernels else ""]
    return ", ".join(part for part in (_count_ops(trace), *counts) if part)


def _count_ops(trace: Trace, rows: Rows | None = None) -> str:
    """Count ops, and say which they are where that is soon said: `4 ops (aten::empty)`."""
    names = trace.ops.name if rows is None else trace.ops.name[rows]
    known = [trace.strings[name] for name in np.unique(names).tolist()]
    shown = f" ({', '.join(known)})" if 0 < len(known) <= _SHOWN_NAME_COUNT else ""
    return f"{_count(len(names), 'op')}{shown}"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number != 1 else ''}"
