"""Reads of every event when it ran, to know the steps of a file and where each lies: the first of two passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from ...arrays import Mask, at_rows
from ...records import dataclass, field, replace
from ..files.source import RecordingPart
from ..recording.builder import RecordingBuilder
from ..recording.gpu import LAUNCH_WORDS
from ..recording.ranges import mark_rows
from ..recording.rows import ENGINE, Mark, MarkRows, empty_rows, join_rows, take_rows
from ..recording.steps import Steps, add_spans, marked_steps
from ..trace.cut import choose_part
from ..trace.iterations import (
    NEVER_NS,
    behind_host_ns,
    busy_iterations,
    host_steps,
    iteration_table,
    iterations_with,
    locate_iterations,
    work_by_iteration,
)
from .accelerator import Evidence
from .collect import READERS, is_counter
from .events import Event, LightEvent
from .processes import Owner, owner_of
from .sorting import Spans, read_spans, sort_events
from .values import Integers, read_integers

_LONGEST_NS: Final = 2**51
"""As `settle` has it: what is further from the middle of a recording is a broken clock."""
_FAR_NS: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Say where a chunk lies in the file, and when its host events ran. The last one has no bytes of its own."""

    begin: int
    end: int
    first: int
    low_ns: int
    high_ns: int
    kernel: int
    """How many kernels lie before it, and syncs."""
    sync: int


@dataclass(slots=True)
class _Activity:
    """Gather activities of the GPU, or calls, in file order; what cannot be read has the correlation -1 and no time."""

    start: list[Integers] = field(default_factory=list)
    duration: list[Integers] = field(default_factory=list)
    correlation: list[Integers] = field(default_factory=list)
    count: int = 0

    def add(self, spans: Spans, correlation: Integers, is_valid: Mask) -> None:
        self.start.append(np.where(is_valid, spans.start_ns, _FAR_NS))
        self.duration.append(np.where(is_valid, spans.duration_ns, 0))
        self.correlation.append(np.where(is_valid, correlation, -1))
        self.count += len(correlation)


@dataclass(slots=True)
class _Calls:
    start: list[Integers] = field(default_factory=list)
    end: list[Integers] = field(default_factory=list)
    correlation: list[Integers] = field(default_factory=list)
    launches: list[Mask] = field(default_factory=list)


class Scan:
    """Own what the first pass knows of a file."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.hosts: dict[Owner, None] = {}
        """The processes of ops and calls."""
        self.evidence = Evidence()
        self.is_whole_microseconds = True
        self.has_stacks = False
        self.has_memory = False
        self._kernels = _Activity()
        self._syncs = _Activity()
        self._calls = _Calls()
        self._marks: list[MarkRows] = []
        self._builder = RecordingBuilder()
        self._ops, self._gradients = list[Integers](), list[Integers]()
        self._middles: list[int] = []
        self._earliest: list[int] = []
        self._earliest_work: list[int] = []
        self._latest: list[int] = []

    def add(self, events: Sequence[Event | LightEvent], *, begin: int, end: int, first: int) -> None:
        """Note what the events of one chunk tell."""
        places = sort_events(events)
        self.evidence.note_counts(places.counts, READERS)
        annotations = [events[place] for place in (*places.marks, *places.around)]
        self.evidence.note_annotations([event for event in annotations if event.cat != "python_function"])
        self.has_stacks |= "python_function" in places.counts
        self.has_memory |= bool(places.memory)
        kernels, syncs = self._kernels.count, self._syncs.count
        self.hosts.update({owner_of(events[place].pid): None for place in (*places.ops, *places.calls)})
        ops = self._spans(events, places.ops)
        calls = self._spans(events, places.calls)
        marks = self._spans(events, places.marks)
        momentary = read_spans([events[place] for place in (*places.memory, *places.around)], lasting=False)
        memory = _head(momentary, len(places.memory))
        device = self._add_device(events, places.kernels, self._kernels)
        waits = self._add_device(events, places.syncs, self._syncs)
        self._add_calls([events[place] for place in places.calls], calls)
        self._add_marks([events[place] for place in places.marks], marks)
        is_engine = np.array([(events[place].name or "").startswith(ENGINE) for place in places.ops], dtype=bool)
        self._gradients.append(ops.start_ns[ops.is_valid & is_engine])
        if not self._kernels.count:
            self._ops.append(ops.start_ns[ops.is_valid])
        else:
            self._ops.clear()
        self._note_ends((ops, calls, device), (ops, calls, device, waits, memory, marks))
        low, high = _hull((ops, calls, marks, momentary))
        self.chunks.append(
            Chunk(begin=begin, end=end, first=first, low_ns=low, high_ns=high, kernel=kernels, sync=syncs)
        )

    def finish(self) -> ScanResult | None:
        """Return the steps and what each launched; None where nothing could be read."""
        if not self._middles:
            return None
        middle = int(np.median(self._middles))
        near = [time for time in self._earliest if abs(time - middle) < _LONGEST_NS]
        work = [time for time in self._earliest_work if abs(time - middle) < _LONGEST_NS]
        origin = min(near, default=0)
        kernels, syncs = _settle(self._kernels, origin), _settle(self._syncs, origin)
        return ScanResult(
            origin_ns=origin,
            first_ns=min(work, default=origin) - origin,
            last_ns=max((time for time in self._latest if abs(time - middle) < _LONGEST_NS), default=origin) - origin,
            chunks=self.chunks,
            kernels=kernels,
            syncs=syncs,
            calls=_known_calls(self._calls, origin, np.concatenate((kernels[2], syncs[2]))),
            marks=self._settle_marks(origin),
            ops_ns=np.concatenate([*self._ops, np.zeros(0, dtype=np.int64)]) - origin,
            gradients_ns=np.concatenate([*self._gradients, np.zeros(0, dtype=np.int64)]) - origin,
        )

    def _spans(self, events: Sequence[Event | LightEvent], places: Sequence[int]) -> Spans:
        spans = read_spans([events[place] for place in places])
        if self.is_whole_microseconds:
            times = np.stack((spans.start_ns, spans.duration_ns))[:, spans.is_valid]
            self.is_whole_microseconds = not np.any(times % 1000)
        return spans

    def _add_device(self, events: Sequence[Event | LightEvent], places: Sequence[int], activity: _Activity) -> Spans:
        spans = self._spans(events, places)
        found = [events[place] for place in places]
        is_valid = spans.is_valid & np.array([not is_counter(event) for event in found], dtype=bool)
        activity.add(spans, _correlations(found), is_valid)
        return spans

    def _add_calls(self, calls: Sequence[Event | LightEvent], spans: Spans) -> None:
        correlation = _correlations(calls)
        names = [(event.name or "").lower() for event in calls]
        launches = np.array([any(word in name for word in LAUNCH_WORDS) for name in names], dtype=bool)
        kept = spans.is_valid & (correlation > 0)
        self._calls.start.append(spans.start_ns[kept])
        self._calls.end.append(spans.end_ns[kept])
        self._calls.correlation.append(correlation[kept])
        self._calls.launches.append(launches[kept])

    def _add_marks(self, marks: Sequence[Event | LightEvent], spans: Spans) -> None:
        found = {"start_ns": spans.start_ns, "duration_ns": spans.duration_ns}
        found["thread"] = self._builder.threads.number([(event.pid, event.tid) for event in marks])
        rows = mark_rows(self._builder, [event.name or "" for event in marks], found)
        self._marks.append(take_rows(rows, np.flatnonzero(spans.is_valid)))

    def _settle_marks(self, origin: int) -> MarkRows:
        rows = join_rows([*self._marks, empty_rows(MarkRows)])
        order = np.lexsort((-rows.duration_ns, rows.start_ns))
        near = (np.abs(rows.start_ns[order] - origin) < 2 * _LONGEST_NS) & (rows.duration_ns[order] < _LONGEST_NS)
        rows = take_rows(rows, order[near])
        return replace(rows, start_ns=rows.start_ns - origin)

    def _note_ends(self, work: Sequence[Spans], everything: Sequence[Spans]) -> None:
        starts = np.concatenate([spans.start_ns[spans.is_valid] for spans in everything])
        if not len(starts):
            return
        middle = int(np.median(starts))
        self._middles.append(middle)
        self._earliest.append(int(starts[np.abs(starts - middle) < _LONGEST_NS].min(initial=_FAR_NS)))
        starts = np.concatenate([spans.start_ns[spans.is_valid] for spans in work])
        starts = starts[np.abs(starts - middle) < _LONGEST_NS]
        if len(starts):
            self._earliest_work.append(int(starts.min()))
            self._latest.append(int(starts.max()))


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """Hold the times of a whole file, in ns since it began: its steps, and what the host put on the GPU and when."""

    origin_ns: int
    first_ns: int
    last_ns: int
    """When the first op, call or kernel begins, and the last one."""
    chunks: Sequence[Chunk]
    kernels: tuple[Integers, Integers, Integers]
    """Start, duration and correlation of each, in file order; so are syncs."""
    syncs: tuple[Integers, Integers, Integers]
    calls: tuple[Integers, Integers, Integers]
    """Correlation, rising, and start and end of the call that kernels of it hang on."""
    marks: MarkRows
    ops_ns: Integers
    """Starts of ops, where the file has no kernels; then of what computes gradients."""
    gradients_ns: Integers

    @cached_property
    def steps(self) -> Steps | None:
        """Return the iterations that are marked; None where none is."""
        start, _, correlation = self.kernels
        launch = self._launch(correlation)[0][np.abs(start) < _LONGEST_NS]
        return marked_steps(self.marks, launch if len(start) else self.ops_ns, self.first_ns)

    def choose(self, asked: int | str | None) -> RecordingPart | None:
        """Return the iteration that is asked for, as `cut.find_part` does of the whole trace; None: none is marked."""
        if self.steps is None:
            return None
        start, duration, correlation = self.kernels
        is_near = np.abs(start) < _LONGEST_NS
        if not is_near.all():
            start, duration, correlation = start[is_near], duration[is_near], correlation[is_near]
        launch, launched = self._launch(correlation)
        host = self.steps.start_ns, self.steps.end_ns
        begin = behind_host_ns(*host, launch, launched, start)
        gpu = {"launch_ns": launch, "kernel_end_ns": start + duration}
        table = iteration_table(*host, **gpu, begin_ns=begin, follows=self.steps.follows)
        table = add_spans(replace(table, kind=self.steps.kind.astype(table.kind.dtype)), self.marks)
        if len(start):
            work = work_by_iteration(table, launch_ns=launch, start_ns=start, duration_ns=duration)
        else:
            at = locate_iterations(host_steps(table), self.ops_ns)
            work = np.bincount(at[at >= 0], minlength=len(table.start_ns)).astype(np.float64)
        steps = self.marks.start_ns[(self.marks.name == Mark.OPTIMIZER) & (len(self.gradients_ns) > 0)]
        busy = iterations_with(table, busy_iterations(table, work), np.append(self.gradients_ns, steps))
        return choose_part(table, work, busy, asked, launch_ns=launch, start_ns=start)

    def select(self, part: RecordingPart, *, is_window: bool) -> tuple[Mask, Mask]:
        """Say which kernels and which syncs the host launched in a part, in file order.

        A window lasts until all is done that began in it: what has no recorded launch may belong to it until then.
        """
        start, duration, correlation = self.kernels
        kernels = self._is_launched(start, correlation, part)
        if is_window:
            part = replace(part, end_ns=max(self._last_host_end(part), int((start + duration)[kernels].max(initial=0))))
            kernels = self._is_launched(start, correlation, part)
        return kernels, self._is_launched(self.syncs[0], self.syncs[2], part)

    def around(self, part: RecordingPart) -> tuple[int, int]:
        """Return the span of the steps that a part begins and ends in: forward ops before it tell what backward ops
        in it are."""
        if self.steps is None:
            return part.cpu_start_ns + self.origin_ns, part.cpu_end_ns + self.origin_ns
        start, end = self.steps.start_ns, self.steps.end_ns
        held = np.flatnonzero((start <= part.cpu_end_ns) & (end >= part.cpu_start_ns))
        low, high = int(start[held].min(initial=part.cpu_start_ns)), int(end[held].max(initial=part.cpu_end_ns))
        return low + self.origin_ns, high + self.origin_ns

    def _last_host_end(self, part: RecordingPart) -> int:
        """Return when the host is done, at the latest, with what it began in a part."""
        low, high = part.cpu_start_ns + self.origin_ns, part.cpu_end_ns + self.origin_ns
        ends = (chunk.high_ns for chunk in self.chunks if chunk.low_ns <= high and chunk.high_ns >= low)
        return max(part.end_ns, max(ends, default=self.origin_ns) - self.origin_ns)

    def _is_launched(self, start: Integers, correlation: Integers, part: RecordingPart) -> Mask:
        launch, _ = self._launch(correlation)
        known = launch != NEVER_NS
        host, gpu = part.host_span_ns, part.gpu_span_ns
        inside = (launch >= host[0]) & (launch <= host[1])
        alone = (start >= gpu[0]) & (start <= gpu[1])
        return np.asarray(np.where(known, inside, alone))

    def _launch(self, correlation: Integers) -> tuple[Integers, Integers]:
        """Return when the call began and ended that each correlation belongs to."""
        known, start, end = self.calls
        at = np.searchsorted(known, correlation)
        hit = (at_rows(known, at) == correlation) & (correlation > 0)
        began, ended = (np.where(hit, at_rows(edge, at, NEVER_NS), NEVER_NS) for edge in (start, end))
        return began, ended


def _settle(activity: _Activity, origin: int) -> tuple[Integers, Integers, Integers]:
    start, duration, correlation = _joined(activity.start), _joined(activity.duration), _joined(activity.correlation)
    start -= origin
    return start, duration, correlation


def _joined(parts: list[Integers]) -> Integers:
    """Return the parts as one, and keep them no longer."""
    found = np.concatenate([*parts, np.zeros(0, dtype=np.int64)])
    parts.clear()
    return found


def _known_calls(calls: _Calls, origin: int, used: Integers) -> tuple[Integers, Integers, Integers]:
    """Return each correlation that is used once, with the start and end of its launch, else of its earliest call."""
    used = np.append(np.unique(used), -1)
    for row, part in enumerate(calls.correlation):
        held = used[np.searchsorted(used[:-1], part)] == part
        calls.correlation[row], calls.launches[row] = part[held], calls.launches[row][held]
        calls.start[row], calls.end[row] = calls.start[row][held], calls.end[row][held]
    correlation, start, end = _joined(calls.correlation), _joined(calls.start) - origin, _joined(calls.end) - origin
    launches = np.concatenate([*calls.launches, np.zeros(0, dtype=bool)])
    calls.launches.clear()
    kept = np.flatnonzero(np.abs(start) < _LONGEST_NS)
    order = kept[np.lexsort((start[kept], ~launches[kept], correlation[kept]))]
    known, first = np.unique(correlation[order], return_index=True)
    return known, start[order[first]], end[order[first]]


def _correlations(events: Sequence[Event | LightEvent]) -> Integers:
    return read_integers([None if event.args is None else event.args.correlation for event in events], "correlation")


def _head(spans: Spans, count: int) -> Spans:
    return Spans(
        start_ns=spans.start_ns[:count], duration_ns=spans.duration_ns[:count], is_valid=spans.is_valid[:count]
    )


def _hull(kinds: Sequence[Spans]) -> tuple[int, int]:
    low = min((int(spans.start_ns[spans.is_valid].min(initial=_FAR_NS)) for spans in kinds), default=_FAR_NS)
    high = max((int(spans.end_ns[spans.is_valid].max(initial=-_FAR_NS)) for spans in kinds), default=-_FAR_NS)
    return low, high
