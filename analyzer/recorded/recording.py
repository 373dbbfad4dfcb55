"""The iteration of a recording that is meant, chosen once: its trace, its rows, its GPU, and in words what it lacks."""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from ...arrays import Rows, distinct
from ...errors import InputError, parameter
from ...formats.trace.column import MISSING, build_table, renumber, row_count, take_rows
from ...formats.trace.cut import list_kinds
from ...formats.trace.iterations import STEPS_OF_PROFILER, host_steps
from ...formats.trace.tables import IterationTable, Quality, Trace, as_shapes
from ...records import dataclass, field, replace
from ...specs.gpu import Catalog, Gpu
from .choice import ALL, IterationChoice, choose_iteration
from .devices import explain_identity, source_gpu
from .graphs import GraphUse, refuse_capture
from .no_iteration import Standstill, catch_up, find_pauses, from_zero, leave_out_standstills, one_device
from .unknown import describe_nodes, describe_types, describe_unlaunched
from .window import Window, check_usable, event_span, lengths_log_width, select_window, timed_iterations

HOST_CAPTURE: Final = "host"
"""What a recording is called whose accelerator's kernels are missing."""
_GPU_PLATFORMS: Final = {"cuda": "CUDA", "hip": "ROCm", "gpu": "CUDA or ROCm"}
"""Of the catalogue's GPUs."""
_UNKNOWN_PLATFORM: Final = "unknown"
_ACTIVITIES: Final = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
MOST_APART: Final = 0.4
"""Natural log: how far nine of ten timed iterations lie from their median at most. 92 of 95 recordings on H100 and H200
stay below."""
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
        lost = f"; {describe_loss(trace.quality)}" if trace.quality.bytes_lost else ""
        raise InputError(
            f"the iteration to predict holds {_count_ops(trace, window.op_rows)} and no kernel, while the kernels of "
            f"the file, {row_count(trace.kernels):,}, lie outside of it: record whole iterations, or choose another "
            f"one with {parameter('iteration')}{lost}"
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
    missing += "".join(f"; {what}" for what in describe_types(trace, window))
    subject = f"the recording of {_device(trace)}" if trace.meta.capture == HOST_CAPTURE else "the iteration"
    held = f"{subject} holds {_count_ops(trace, rows)}{_missing_kernels(trace)}"
    return f"nothing to predict: {held}, and no op tells any GPU time{missing}: {_advice(trace)}"


def describe_noise(trace: Trace) -> Iterator[str]:
    """Yield a sentence where iterations timed without the profiler lie far apart.

    >>> list(describe_noise(trace))
    []
    """
    timed = timed_iterations(trace)
    if len(timed) > 1 and lengths_log_width(trace, timed) > MOST_APART:
        lengths_ms = (trace.iterations.end_ns - trace.iterations.start_ns)[timed] / 1e6
        yield (
            f"the iterations timed without the profiler took {lengths_ms.min():.3g} to {lengths_ms.max():.3g} ms: "
            "other work ran there, or batches differ; intervals elsewhere hold that, or record on an idle machine"
        )


def describe_gaps(trace: Trace, window: Window) -> Iterator[str]:
    """Yield a sentence for each part of the recording that is missing: events, kernels, or ops.

    >>> list(describe_gaps(trace, window))
    []
    """
    quality = trace.quality
    yield from describe_noise(trace)
    yield from _describe_iterations(trace, window)
    yield from describe_types(trace, window)
    yield from describe_unlaunched(trace, window)
    yield from describe_nodes(trace, window)
    if quality.durations_cut:
        yield (
            f"{quality.durations_cut:,} activit{'y' if quality.durations_cut == 1 else 'ies'} recorded as running on "
            "over later ones of the same stream, which runs them in order, or past the end of a call that waited for "
            "them: they end there"
        )
    if trace.meta.left_out is not None:
        yield (
            f"the file holds several processes: one is read, without {trace.meta.left_out}; 'wavecast ranks' takes a "
            "file of each"
        )
    if quality.events_dropped:
        yield f"{quality.events_dropped:,} events without usable times, or there twice, are dropped: times may be short"
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
    known = [trace.strings[name] for name in distinct(names).tolist()]
    shown = f" ({', '.join(known)})" if 0 < len(known) <= _SHOWN_NAME_COUNT else ""
    return f"{_count(len(names), 'op')}{shown}"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number != 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedIteration:
    """Hold one iteration of a recording, as all that is predicted from it takes it."""

    trace: Trace
    """Without standstills; with iterations where kernels were measured, else untimed."""
    window: Window
    choice: IterationChoice = field(default_factory=IterationChoice)
    standstills: tuple[Standstill, ...] = ()
    """What was left out."""
    gpu: Gpu | None = None
    """The one that was measured; None where none was."""
    identity: str | None = None
    """By what the GPU is known where its name does not tell, or that a GPU that was named says nothing."""
    graphs: GraphUse = field(default_factory=GraphUse)

    @property
    def index(self) -> int | None:
        """Return the row of the iteration; None where no iteration was marked, or all are taken as one."""
        marked = self.choice.rule == ALL or self.choice.index is not None
        return self.choice.index if marked else self.window.index


def choose_recording(trace: Trace, asked: int | str | None = None) -> RecordedIteration:
    """Return the iteration that is asked for (see `choose_iteration`) as it was recorded, nothing left out.

    >>> len(choose_recording(trace).window.op_rows), len(choose_recording(measured).window.kernel_rows)
    (381, 2)
    """
    chosen, choice = choose_iteration(trace, asked)
    return RecordedIteration(trace=chosen, window=select_window(chosen, choice.index), choice=choice)


def take_recording(
    trace: Trace,
    catalog: Catalog,
    *,
    asked: int | str | None = None,
    source: Gpu | None = None,
    check: Callable[[Trace, Window], None] | None = None,
) -> RecordedIteration:
    """Return the iteration that is asked for as predictions take it: without standstills, with the GPU that it ran on.

    `source` overrides what the trace says of its GPU. `check` is made of the iteration before its GPU is looked for:
    what a file lost is said before that its GPU was lost with it. Raises InputError where nothing can be
    predicted from it, and UnknownGpuError where its GPU is not catalogued.

    >>> take_recording(measured, catalog).gpu.name
    'A100 SXM4 80GB'
    """
    chosen, choice = choose_iteration(trace, asked)
    kept = from_zero(chosen)
    pauses = find_pauses(kept)
    kept, behind = catch_up(kept, choice.index)
    kept, standstills = leave_out_standstills(kept, choice.index)
    whole = select_window(kept, choice.index)
    kept = one_device(kept, whole.device)
    window = _select(kept, choice.index, whole)
    graphs = refuse_capture(kept, window)
    check_answerable(kept, window)
    check_usable(window)
    if check is not None:
        check(kept, window)
    found = RecordedIteration(trace=kept, window=window, choice=choice, standstills=(*pauses, *behind, *standstills))
    if not len(window.kernel_rows):
        return replace(untimed(found), identity=None if source is None else _unused(source))
    gpu = source or source_gpu(kept, catalog, window)
    identity = None if source is not None else explain_identity(kept, catalog, window)
    return marked(replace(found, gpu=gpu, identity=identity, graphs=graphs))


def _unused(source: Gpu) -> str:
    """Say that nothing is compared with a GPU whose times are nowhere."""
    asked = parameter("from", source.name)
    return f"{asked} says nothing here: no time was recorded on it; to compare with it, name it in {parameter('to')}"


def marked(recorded: RecordedIteration) -> RecordedIteration:
    """Return the iteration of a trace that says when its iterations ran, as `with_iterations` has it."""
    trace = with_iterations(recorded.trace)
    return replace(recorded, trace=trace, window=_select(trace, recorded.window.index, recorded.window))


def _select(trace: Trace, index: int | None, whole: Window) -> Window:
    """Return the window of a trace of one device, which still counts what ran on others."""
    return replace(select_window(trace, index), other_device_kernel_count=whole.other_device_kernel_count)


def untimed(recorded: RecordedIteration) -> RecordedIteration:
    """Return the iteration's shapes alone, as `without_times` has them, of no GPU.

    >>> len(untimed(recorded).trace.kernels.name)
    0
    """
    shapes = without_times(recorded.trace, recorded.window)
    return replace(recorded, trace=shapes, window=select_window(shapes), gpu=None, graphs=GraphUse())


def with_iterations(trace: Trace) -> Trace:
    """Return the trace with a profiled iteration: its own, else one from the first event to the last.

    An iteration whose host interval was not recorded is taken to have one that is as long as itself.

    >>> with_iterations(measured).iterations.end_ns
    array([578000])
    """
    table = trace.iterations
    if np.any(table.profiled):
        is_whole = not np.any((table.cpu_end_ns == MISSING) & table.profiled.astype(bool))
        return trace if is_whole else replace(trace, iterations=host_steps(table))
    span = event_span(trace.ops, trace.calls, trace.kernels)
    if span is None:
        return trace
    first, last = span
    added = {"start_ns": first, "end_ns": last, "profiled": 1, "cpu_start_ns": first, "cpu_end_ns": last}
    columns = {name: [*getattr(table, name).tolist(), value] for name, value in added.items()}
    return replace(trace, iterations=build_table(IterationTable, row_count(table) + 1, **columns))


def without_times(trace: Trace, window: Window) -> Trace:
    """Return the ops of the window alone, as a recording of shapes has them; the trace itself where it is one.

    What a CPU took for its own arithmetic says nothing about a host that launches kernels. Rows are renumbered.

    >>> without_times(trace, window) is trace
    True
    """
    is_whole = len(window.op_rows) == row_count(trace.ops)
    if is_whole and not row_count(trace.iterations) and not np.any(trace.ops.duration_ns >= 0):
        return trace
    number = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    number[window.op_rows] = np.arange(len(window.op_rows))
    operands = take_rows(trace.operands, number[trace.operands.op] >= 0)
    shapes = as_shapes(trace)
    return replace(
        shapes,
        ops=renumber(take_rows(shapes.ops, window.op_rows), "ops", number),
        operands=renumber(operands, "ops", number),
        collectives=renumber(trace.collectives, "ops", number),
        memory=renumber(trace.memory, "ops", number),
        lookups=renumber(take_rows(trace.lookups, number[trace.lookups.op] >= 0), "ops", number),
    )
