"""A large trace that keeps the replay's own rules.

An op, a launch and a kernel at a time on two threads that take turns, one kernel in 16 on one of two side streams
between event waits (every second wait with a synchronisation record), a device synchronisation every 4,000 launches,
iterations of equal length.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import CallTable, IterationTable, KernelTable, OpTable, SyncKind, SyncTable, Trace

STRINGS = (
    "aten::mul", "cudaLaunchKernel", "kernel", "cudaEventRecord", "cudaStreamWaitEvent", "cudaDeviceSynchronize",
)  # fmt: skip
LAUNCH, RECORD, WAIT, SYNC = 1, 3, 4, 5
MAIN, SIDE = 7, (14, 21)
CALL_NS, BETWEEN_NS, KERNEL_NS, LATENCY_NS, GAP_NS, EVENT_NS, RETURN_NS = (
    4_000,
    3_000,
    6_000,
    1_900,
    1_200,
    2_500,
    9_000,
)
SYNC_EVERY, SIDE_EVERY, BURST = 4_000, 16, 500
"""Launches between synchronisations, between kernels on side streams, and between changes of thread."""


@dataclass
class Recorder:
    """Plays the host and the streams, and keeps rows of the trace's tables."""

    now: int = 0
    thread: int = 0
    free: dict[int, int] = field(default_factory=lambda: dict.fromkeys((MAIN, *SIDE), 0))
    held: dict[int, int] = field(default_factory=lambda: dict.fromkeys((MAIN, *SIDE), 0))
    calls: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    kernels: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    ops: list[tuple[int, int, int]] = field(default_factory=list)
    syncs: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)

    def event_count(self) -> int:
        return len(self.ops) + len(self.calls) + len(self.kernels) + len(self.syncs)

    def call(self, name: int, op: int = -1, until: int = 0) -> int:
        duration = max(CALL_NS, until - self.now)
        self.calls.append((name, self.thread, self.now, duration, op))
        self.now += duration
        return len(self.calls) - 1

    def launch(self, stream: int, noise: int) -> None:
        self.now += BETWEEN_NS
        op, start = len(self.ops), self.now
        call = self.call(LAUNCH, op)
        begin = max(self.now + LATENCY_NS, self.free[stream] + GAP_NS, self.held[stream]) + noise
        self.kernels.append((stream, begin, KERNEL_NS + 10 * noise, call, op))
        self.free[stream] = begin + KERNEL_NS + 10 * noise
        self.ops.append((self.thread, start, CALL_NS))

    def wait(self, waiting: int, waited: int, *, recorded: bool) -> None:
        record = self.call(RECORD)
        call = self.call(WAIT)
        self.held[waiting] = self.free[waited] + EVENT_NS
        if recorded:
            start = self.calls[call][2]
            self.syncs.append((SyncKind.STREAM_WAIT_EVENT, call, start, waiting, waited, record))


def synthetic_trace(event_count: int, iteration_count: int) -> Trace:
    recorder, noise = Recorder(), np.random.default_rng(0).integers(0, 400, event_count).tolist()
    steps: list[tuple[int, int]] = []
    launch, begun = 0, 0
    while (events := recorder.event_count()) < event_count:
        recorder.thread = launch // BURST % 2
        if launch % SIDE_EVERY == 0:
            side = SIDE[launch // SIDE_EVERY % 2]
            recorder.wait(side, MAIN, recorded=launch % (2 * SIDE_EVERY) == 0)
            recorder.launch(side, noise[launch])
            recorder.wait(MAIN, side, recorded=launch % (2 * SIDE_EVERY) == 0)
        recorder.launch(MAIN, noise[launch])
        launch += 1
        if launch % SYNC_EVERY == 0:
            recorder.call(SYNC, until=max(recorder.free.values()) + RETURN_NS)
        if events >= event_count * (len(steps) + 1) // iteration_count:
            steps.append((begun, recorder.now))
            begun = recorder.now + 1
    return fill_trace(recorder, steps)


def fill_trace(recorder: Recorder, steps: list[tuple[int, int]]) -> Trace:
    calls, kernels, ops, syncs, step = (
        np.array(rows, dtype=np.int64).T
        for rows in (recorder.calls, recorder.kernels, recorder.ops, recorder.syncs, steps)
    )
    count = len(recorder.kernels)
    return Trace(
        strings=STRINGS,
        iterations=build_table(
            IterationTable, len(steps), start_ns=step[0], end_ns=step[1], cpu_start_ns=step[0], cpu_end_ns=step[1]
        ),
        ops=build_table(
            OpTable,
            len(recorder.ops),
            name=np.zeros(len(recorder.ops)),
            thread=ops[0],
            start_ns=ops[1],
            duration_ns=ops[2],
        ),
        calls=build_table(
            CallTable,
            len(recorder.calls),
            **dict(zip(("name", "thread", "start_ns", "duration_ns", "op"), calls, strict=True)),
        ),
        kernels=build_table(
            KernelTable,
            count,
            name=np.full(count, 2),
            **dict(zip(("stream", "start_ns", "duration_ns", "call", "op"), kernels, strict=True)),
        ),
        syncs=build_table(
            SyncTable,
            len(recorder.syncs),
            duration_ns=np.zeros(len(recorder.syncs)),
            **dict(zip(("kind", "call", "start_ns", "stream", "waited_stream", "record_call"), syncs, strict=True)),
        ),
    )
