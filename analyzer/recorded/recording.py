"""The iteration of a recording that is meant, chosen once: its trace, its rows, what is left out, its GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...formats.trace.column import MISSING, Column, build_table, renumber, row_count, take_rows
from ...formats.trace.iterations import host_steps
from ...formats.trace.tables import CallTable, IterationTable, KernelTable, SyncTable, Trace
from ...records import dataclass, field, replace
from ...specs.gpu import Catalog, Gpu
from .choice import ALL, IterationChoice, choose_iteration
from .devices import explain_identity, source_gpu
from .gaps import check_answerable
from .graphs import GraphUse, refuse_capture
from .no_iteration import catch_up, find_pauses, from_zero, one_device
from .standstill import Standstill, leave_out_standstills
from .window import Window, check_usable, event_span, select_window


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
    """By what the GPU is known, where its name does not tell."""
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
        return untimed(found)
    gpu = source or source_gpu(kept, catalog, window)
    identity = None if source is not None else explain_identity(kept, catalog, window)
    return marked(replace(found, gpu=gpu, identity=identity, graphs=graphs))


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
    ops = renumber(take_rows(trace.ops, window.op_rows), "ops", number)
    operands = take_rows(trace.operands, number[trace.operands.op] >= 0)
    missing: Column = np.full(row_count(ops), MISSING, dtype=np.int64)
    return replace(
        trace,
        iterations=build_table(IterationTable, 0),
        ops=replace(ops, start_ns=missing, duration_ns=missing),
        operands=renumber(operands, "ops", number),
        calls=build_table(CallTable, 0),
        kernels=build_table(KernelTable, 0),
        syncs=build_table(SyncTable, 0),
        collectives=renumber(trace.collectives, "ops", number),
        memory=renumber(trace.memory, "ops", number),
        lookups=renumber(take_rows(trace.lookups, number[trace.lookups.op] >= 0), "ops", number),
    )
