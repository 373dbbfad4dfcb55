"""Gives a trace without times the timeline of a host that launches its kernels: a pure function of the trace.

The script's own Python between ops is that of a recording of shapes, which timed it: what of it counts, and how sure
it is. The usual time before an op holds a usual script's Python, a model's code and the calls of its modules included.
What a recording measures there is small beside what it disturbs: caches are cold, and a busy machine stretches single
gaps tenfold. So a gap counts where it is long enough to be what this script alone does (tokenizing, sampling,
searching, logging): from `_TELLING_NS` on, in whole from twice that on. Recordings that walked through the iteration
once or twice hold gaps of 7 ms that the same script does not have a minute later: of them only longer ones count, and
what is between makes the interval wider.
"""

from math import exp, log1p
from typing import Final

import numpy as np

from ...arrays import Floats, Mask, Rows, at_rows, group_rows
from ...errors import InputError
from ...formats.trace import tables
from ...formats.trace.column import MAX_INTEGER, MISSING, build_table, columns, row_count
from ...formats.trace.meta import HostTimes
from ...formats.trace.tables import Phase, Trace
from ...records import dataclass, replace
from ..recorded.compiled import CompiledOps, find_compiled, region_per_op
from ..work import VARYING_FAMILIES, family_of
from ..work.lookup import WorkLookup, explained_ops
from .costs import LEAD_PLACES, HostCosts
from .launches import STREAM, SYNCING_OPS, StreamPlan, count_launches, plan_streams
from .named import load_anchor, usual_mix

_TELLING_NS: Final = 1e6
"""On the reference host, 50 rounds of the plain Python of `measure --host`: plain training loops, recorded beside up to
eight busy processes on two cores, hold no longer gap in the least of several walks."""
_TELLING_ONCE_NS: Final = 1e7
"""The same where gaps were timed once: eight such recordings of one plain loop hold gaps of up to 7 ms."""
_FEWEST_WALKS: Final = 3
_MOST_SPREAD: Final = 1.0
_SPEEDS: Final = (0.01, 100.0)
"""Beyond them a measurement of a host is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AddedScriptTime:
    """Hold the script's own time on the host of a table of costs, beyond the usual time before each of n ops."""

    added_ns: Floats
    """What counts, [n]."""
    doubt_ns: float
    """How much longer it may be in all: what the measurements differ by, and what was measured too rarely to count."""

    def log_width(self, host_ns: float) -> float:
        """Return how far that moves a host's time that holds it, natural log."""
        return log1p(self.doubt_ns / host_ns) if host_ns > 0 else 0.0


def script_time(trace: Trace, usual_ns: Floats, costs: HostCosts) -> AddedScriptTime:
    """Return what the script's own Python adds to the usual time before each op of a recording of shapes.

    Raises InputError where the recorded times add up to more than a time can be.

    >>> from wavecast.analyzer.host.costs import load_host_costs
    >>> script_time(trace, np.zeros(len(trace.ops.name)), load_host_costs()).doubt_ns  # a step, no script
    0.0
    """
    speed = script_speed_of(trace.meta.host) * costs.speed_ratio
    recorded: Floats = np.where(trace.ops.parent < 0, np.maximum(trace.ops.lead_ns, 0), 0) / speed
    if float(recorded.sum()) > MAX_INTEGER:
        raise InputError("$.ops.lead_ns: the times add up to more than 104 days: record the script again")
    is_sure = (trace.meta.script_walks or 0) >= _FEWEST_WALKS
    beyond = np.maximum(recorded - usual_ns, 0.0)
    told, added = (
        beyond * np.clip(recorded * costs.speed_ratio / least_ns - 1.0, 0.0, 1.0)
        for least_ns in (_TELLING_NS, _TELLING_NS if is_sure else _TELLING_ONCE_NS)
    )
    # Before a series of ops from C++ (DDP's buffers) C++ works, too: only loaded data is the script's for sure.
    is_untold = (trace.ops.parent < 0) & (trace.ops.lead_ns < 0) & (trace.meta.script_walks is not None)
    opens_series = np.append(is_untold[1:], False)[: len(is_untold)] & ~is_untold
    added = np.where(opens_series, np.minimum(added, np.maximum(trace.ops.loading_ns, 0) / speed), added)
    spread = exp(min(trace.meta.script_spread or 0.0, _MOST_SPREAD)) - 1.0
    return AddedScriptTime(added_ns=added, doubt_ns=float((told - added).sum() + spread * added.sum()))


def script_speed_of(host: HostTimes) -> float:
    """Return how fast Python is on the reference host relative to the one that recorded; 1 where that does not say.

    By the one machine of which both are known: how fast its ops are in recordings, and what Python takes there.

    >>> script_speed_of(HostTimes())
    1.0
    """
    anchor = load_anchor()
    if host.python_ns is None or anchor.times.python_ns is None:
        return 1.0
    reference_ns = anchor.times.python_ns * usual_mix(anchor.ops_ratio)["python"]
    return float(np.clip(host.python_ns / reference_ns, *_SPEEDS))


_INSIDE, _OPENS, _ANY = range(len(LEAD_PLACES))
_MAIN_THREAD, _AUTOGRAD_THREAD = 0, 1
_RECORD, _WAIT, _LAUNCH, _COPY, _SYNC = range(5)
_CALL_NAMES: Final = (
    "cudaEventRecord", "cudaStreamWaitEvent", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize",
)  # fmt: skip
_COPY_NAME: Final = "Memcpy DtoH (Device -> Pageable)"
_PARENT_SHARE: Final = 0.1
"""Least share of its own listed time that an op with recorded children keeps for itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Calls:
    """Runtime calls in order of issue, m rows; `kind` indexes `_CALL_NAMES`."""

    op: Rows
    kind: Rows
    start_ns: Floats
    end_ns: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waits:
    """Hold waits of streams for streams, w of them, by the rows of their calls."""

    call: Rows
    record_call: Rows
    stream: Rows
    waited_stream: Rows


def synthesize_timeline(
    trace: tables.Trace, costs: HostCosts, *, is_compiled: bool = False, lookup: WorkLookup | None = None
) -> tables.Trace:
    """Return the trace with host times from `costs`, runtime calls, and a kernel of no length per launch.

    Ops keep their rows and signatures; the backward ones move to the autograd thread, which runs while the main
    thread waits. Kernels follow `explained_ops`: rows of one op share its GPU time. Collectives run on streams of their
    own, one per group (`plan_streams`). Where the recording timed the script's own Python, that counts as well
    (`script_time`). `is_compiled`: all but the optimizer is compiled, whatever was recorded as such. `lookup` knows the
    works of these ops where they were asked for. Raises InputError for a trace that holds kernels already, and for ops
    that come before the op around them.

    >>> from wavecast.analyzer.host.costs import load_host_costs
    >>> len(trace.kernels.name), len(synthesize_timeline(trace, load_host_costs()).kernels.name)
    (0, 126)
    """
    if trace.is_measured:
        raise InputError("the trace holds measured kernels: a synthetic host is for recordings of shapes alone")
    parents = trace.ops.parent.astype(np.int64)
    if np.any(parents >= np.arange(len(parents))):
        row = int(np.flatnonzero(parents >= np.arange(len(parents)))[0])
        raise InputError(f"op {row} at $.ops.parent[{row}] comes before its parent {parents[row]}: order ops by start")
    launches, reads = count_launches(trace, explained_ops(trace, lookup), costs), _host_reads(trace)
    calls_made = launches + reads
    is_led = (trace.ops.parent < 0) & ((trace.ops.lead_ns >= 0) | (trace.meta.script_walks is None))
    leads = np.where(is_led, leads_of(trace, costs), 0.0)
    leads += script_time(trace, leads, costs).added_ns
    times = OpHostTimes(lead_ns=leads, own_ns=own_times_of(trace, costs))
    times = with_compiled_costs(trace, costs, launches, times, is_everywhere=is_compiled)
    before = np.where(calls_made > 0, times.own_ns * costs.before_launch_ratio, times.own_ns)
    between: Floats = np.divide(times.own_ns - before, calls_made, out=np.zeros_like(before), where=calls_made > 0)
    calls_ns = launches * costs.launch_ns + reads * (costs.copy_ns + costs.sync_ns)
    head: Floats = before + calls_ns + between * calls_made
    # Ops come in the order of their starts: before op i stand the leads and own times of all rows before it. An op's
    # own time, its calls included, runs before its children: nothing says how the two interleave.
    passed: Floats = np.cumsum(times.lead_ns + head)
    last, root = _nesting(trace.ops)
    start, end = passed - head, passed[last]
    calls = _lay_out_calls(costs, launches, reads, start + before, between)
    streams = plan_streams(trace, launches)
    calls, waits = _with_waits(calls, streams, start)
    thread = np.where(trace.ops.phase == tables.Phase.BACKWARD, _AUTOGRAD_THREAD, _MAIN_THREAD)[root]
    length_ns = float(passed[-1]) if len(passed) else 0.0
    return _assemble(trace, _timed_ops(trace.ops, start, end, thread), calls, streams, waits, length_ns)


def _lay_out_calls(costs: HostCosts, launches: Rows, reads: Mask, first_ns: Floats, between: Floats) -> _Calls:
    """Lay out each op's launches from `first_ns`, `between` apart, then its copy to the host and the wait for it."""
    call_count = launches + 2 * reads
    op = np.repeat(np.arange(len(launches)), call_count)
    number = np.arange(len(op)) - np.repeat(np.cumsum(call_count) - call_count, call_count)
    after_launches = number - launches[op]
    kind = np.where(after_launches < 0, _LAUNCH, np.where(after_launches == 0, _COPY, _SYNC))
    launched = np.minimum(number, launches[op])
    start = first_ns[op] + launched * (costs.launch_ns + between[op]) + (kind == _SYNC) * costs.copy_ns
    duration = np.array([0.0, 0.0, costs.launch_ns, costs.copy_ns, costs.sync_ns])[kind]
    return _Calls(op=op, kind=kind, start_ns=start, end_ns=start + duration)


def _with_waits(calls: _Calls, streams: StreamPlan, op_start_ns: Floats) -> tuple[_Calls, _Waits]:
    """Return the calls with those that make streams wait for each other, which take no time of their own.

    An event is recorded after the last launch of an op, and waited for before the first one of another.
    """
    sources, of_wait = np.unique(streams.source, return_inverse=True)
    launched = np.flatnonzero(calls.kind == _LAUNCH)
    last = np.searchsorted(calls.op[launched], sources, side="right") - 1
    recorded_ns = calls.end_ns[launched[last]] if len(sources) else np.zeros(0)
    first = np.searchsorted(calls.op[launched], streams.target, side="left")
    at = at_rows(launched, first)
    is_own = at_rows(calls.op, at) == streams.target
    waited_ns = np.where(is_own, at_rows(calls.start_ns, at, 0.0), op_start_ns[streams.target])
    start = np.concatenate((calls.start_ns, recorded_ns, waited_ns))
    kind = np.concatenate((calls.kind, np.full(len(sources), _RECORD), np.full(len(streams.source), _WAIT)))
    order = np.lexsort((np.where(kind < _LAUNCH, kind, _LAUNCH), start))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    end = np.concatenate((calls.end_ns, recorded_ns, waited_ns))
    op = np.concatenate((calls.op, sources, streams.target))
    old, new = len(calls.op), len(calls.op) + len(sources)
    return (
        _Calls(op=op[order], kind=kind[order], start_ns=start[order], end_ns=end[order]),
        _Waits(
            call=place[new:],
            record_call=place[old:new][of_wait],
            stream=streams.on_stream,
            waited_stream=streams.stream[streams.source],
        ),
    )


def _assemble(
    trace: tables.Trace, ops: tables.OpTable, calls: _Calls, streams: StreamPlan, waits: _Waits, length_ns: float
) -> tables.Trace:
    """Return the trace with its calls, and a kernel per launch that is named after its op or, for copies, after one."""
    launched = np.flatnonzero((calls.kind == _LAUNCH) | (calls.kind == _COPY))
    is_copy, op = calls.kind[launched] == _COPY, calls.op[launched]
    kernels = build_table(
        tables.KernelTable,
        len(launched),
        name=np.where(is_copy, len(trace.strings) + len(_CALL_NAMES), trace.ops.name[op]),
        kind=np.where(
            is_copy, tables.KernelKind.MEMCPY, np.where(streams.is_collective[op], tables.KernelKind.COLLECTIVE, 0)
        ),
        stream=np.where(is_copy, STREAM, streams.stream[op]),
        start_ns=np.rint(calls.end_ns[launched]),
        duration_ns=np.zeros(len(launched)),
        call=launched,
        op=op,
    )
    start, end = np.rint(calls.start_ns), np.rint(calls.end_ns)
    call_table = build_table(
        tables.CallTable,
        len(calls.kind),
        name=len(trace.strings) + calls.kind,
        thread=ops.thread[calls.op],
        start_ns=start,
        duration_ns=end - start,
        op=calls.op,
    )
    at_ns = start[waits.call]
    syncs = build_table(
        tables.SyncTable,
        len(waits.call),
        kind=np.full(len(waits.call), tables.SyncKind.STREAM_WAIT_EVENT),
        call=waits.call,
        start_ns=at_ns,
        duration_ns=np.zeros(len(at_ns)),
        stream=waits.stream,
        waited_stream=waits.waited_stream,
        record_call=waits.record_call,
    )
    last = int(np.ceil(length_ns))
    iterations = build_table(
        tables.IterationTable, 1, start_ns=[0], end_ns=[last], profiled=[True], cpu_start_ns=[0], cpu_end_ns=[last]
    )
    strings = (*trace.strings, *_CALL_NAMES, _COPY_NAME)
    return replace(
        trace, strings=strings, ops=ops, calls=call_table, kernels=kernels, syncs=syncs, iterations=iterations
    )


def _timed_ops(ops: tables.OpTable, start_ns: Floats, end_ns: Floats, thread: Rows) -> tables.OpTable:
    """Round instants, not durations, so that what nests stays nested."""
    start, end = np.rint(start_ns), np.rint(end_ns)
    kept = {spec.name: getattr(ops, spec.name) for spec in columns(ops)}
    return build_table(
        tables.OpTable, row_count(ops), **(kept | {"start_ns": start, "duration_ns": end - start, "thread": thread})
    )


def _nesting(ops: tables.OpTable) -> tuple[Rows, Rows]:
    """Return per op the last row inside it (itself without children) and the outermost op around it."""
    parents = ops.parent.tolist()
    last, root = list(range(len(parents))), list(range(len(parents)))
    if max(parents, default=MISSING) >= 0:
        for row, parent in enumerate(parents):
            if parent >= 0:
                root[row] = root[parent]
        for row in range(len(parents) - 1, -1, -1):
            parent = parents[row]
            if parent >= 0 and last[parent] < last[row]:
                last[parent] = last[row]
    return np.array(last, dtype=np.int64), np.array(root, dtype=np.int64)


def own_times_of(trace: tables.Trace, costs: HostCosts) -> Floats:
    """Return each op's own time without its children's, whose cost its listed time includes."""
    ops = trace.ops
    names, position = np.unique(ops.name, return_inverse=True)
    listed = np.array([costs.op_cost_ns(trace.strings[name]) for name in names.tolist()])
    whole = listed[position] if len(names) else np.zeros(0)
    inner = ops.parent >= 0
    children = np.bincount(ops.parent[inner], weights=whole[inner], minlength=len(whole))
    return np.maximum(whole - children, np.where(children > 0, whole * _PARENT_SHARE, whole)).astype(np.float64)


def leads_of(trace: tables.Trace, costs: HostCosts) -> Floats:
    """Return the host time before each op, were it outermost.

    >>> from wavecast.analyzer.host.costs import load_host_costs
    >>> round(float(leads_of(trace, load_host_costs()).sum() / 1e6), 1)  # ms
    2.0
    """
    ops = trace.ops
    outer = np.flatnonzero(ops.parent < 0)
    before: Rows = np.full(row_count(ops), MISSING)
    before[outer[1:]] = ops.name[outer[:-1]]
    keys = [column.astype(np.int64) for column in (before, ops.name, ops.phase, places_of(ops))]
    first, group = group_rows(keys)
    strings = trace.strings
    values = [
        costs.lead_cost_ns("" if earlier < 0 else strings[earlier], strings[name], phase, LEAD_PLACES[place])
        for earlier, name, phase, place in zip(*(key[first].tolist() for key in keys), strict=True)
    ]
    return np.array(values, dtype=np.float64)[group]


def places_of(ops: tables.OpTable) -> Rows:
    """Say per op whether it opens another module than the outermost op before it, in backward another node."""
    outer = np.flatnonzero(ops.parent < 0)
    place = np.full(row_count(ops), _ANY, dtype=np.int64)
    for is_backward, column in ((False, ops.module), (True, ops.sequence)):
        chosen = (ops.phase[outer] == tables.Phase.BACKWARD) == is_backward
        optimizer = ops.phase[outer] == tables.Phase.OPTIMIZER
        if np.any(column[outer][chosen] >= 0):
            opens = np.diff(column[outer], prepend=MISSING - 1) != 0
            place[outer] = np.where(chosen & ~optimizer, np.where(opens, _OPENS, _INSIDE), place[outer])
    return place


def _host_reads(trace: tables.Trace) -> Mask:
    """Mark the innermost ops that copy a result to the host and wait for it."""
    ops = trace.ops
    is_sync = np.array([name.split(".")[0] in SYNCING_OPS for name in trace.strings], dtype=bool)
    reads = is_sync[ops.name] if row_count(ops) else np.zeros(0, dtype=bool)
    inner = reads & (ops.parent >= 0)
    reads[ops.parent[inner]] = False
    return reads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpHostTimes:
    """Hold host times of n ops."""

    lead_ns: Floats
    """Before each."""
    own_ns: Floats
    """In each, without its launch calls and what runs inside."""


def with_compiled_costs(
    trace: tables.Trace, costs: HostCosts, launches: Rows, eager: OpHostTimes, *, is_everywhere: bool = False
) -> OpHostTimes:
    """Return host times with those of compiled ops in place of their `eager` ones; other ops keep theirs.

    Generated kernels cost the same whatever they compute. Products, convolutions and attention are called as torch
    has them, by the compiler's code instead of modules and autograd; views are none of the host's business any more.
    Accumulated gradients that a region's row encloses are eager ops. Everywhere: each phase but the optimizer's is one
    region more, of whose Python what stands before its first op is left.
    """
    compiled = find_compiled(trace)
    if not (is_everywhere or compiled.is_region.any()):
        return eager
    region = region_per_op(trace, compiled, is_everywhere=is_everywhere)
    inside = (region >= 0) & ~compiled.is_region
    is_varying = np.array([family_of(name) in VARYING_FAMILIES for name in trace.strings], dtype=bool)
    generated = inside & ~is_varying[trace.ops.name] if len(inside) else inside
    generated_ns = launches * max(costs.compiled_kernel_ns - costs.launch_ns, 0.0)
    call_ns = np.where(compiled.is_backward, costs.compiled_backward_ns, costs.compiled_call_ns)
    own = np.where(compiled.is_region, call_ns, np.where(generated, generated_ns, eager.own_ns))
    lead = eager.lead_ns.copy()
    around = np.flatnonzero(inside & (compiled.region < 0) & (trace.ops.parent < 0))
    entries = around[np.unique(region[around], return_index=True)[1]]
    entered = lead[entries] + np.where(
        trace.ops.phase[entries] == Phase.BACKWARD, costs.compiled_backward_ns, costs.compiled_call_ns
    )
    lead[around] = 0.0
    lead[entries] = entered
    for row in _accumulated(trace, compiled, inside):
        name = trace.strings[trace.ops.name[row]]
        lead[row] = costs.lead_cost_ns("", name, int(trace.ops.phase[row]), "any")
    return OpHostTimes(lead_ns=lead, own_ns=own.astype(np.float64))


def _accumulated(trace: tables.Trace, compiled: CompiledOps, inside: Mask) -> list[int]:
    """Return the ops that a region's row encloses, but which are not compiled."""
    rows = np.flatnonzero(~inside & (trace.ops.parent >= 0) & ~compiled.is_region)
    return [int(row) for row in rows[compiled.is_region[trace.ops.parent[rows]]]]
