"""An engine's scheduler, event by event: which requests run in which step, and when each has its tokens.

Steps of the same sequences between two events (one ends, one arrives, the cache is full) are one jump, timed at the
middle of the growing contexts. A user whose request ends sends the next while a step runs: it joins the one after.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import ceil
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows
from ....errors import InputError
from ....records import dataclass, field, replace
from .engines import Engine
from .step import StepClock, StepColumns

FAR: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLoad:
    """Hold requests as columns [r]; lengths are whole numbers."""

    arrival_ns: Floats
    """Ascending; of a closed loop all 0."""
    prompts: Rows
    outputs: Rows
    concurrency: int = 0
    """Requests at all times: each that ends makes room for the next; 0: they come when they arrive."""
    first_ns: Floats | None = None
    """When other GPUs wrote the first tokens of prompts that come computed, [r]; None: they are computed here."""

    def part(self, instances: int) -> RequestLoad:
        """Return what one of several instances gets: the requests in turn."""
        turn = slice(None, None, instances)
        return replace(self, arrival_ns=self.arrival_ns[turn], prompts=self.prompts[turn], outputs=self.outputs[turn])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """Hold when requests came, and had their first and last tokens, ns, [r]; and what the engine did."""

    load: RequestLoad
    arrival_ns: Floats
    first_ns: Floats
    last_ns: Floats
    busy_ns: float
    sequence_ns: float
    """Sum over steps of sequences that decode times their time: over the time, the mean number of them."""
    context_ns: float
    """The same of the tokens that are cached."""
    prompt_ns: float
    """In steps that prompts are part of."""
    preempted: int
    full_ns: float
    """In which requests waited for room in the cache."""
    work_j: float
    """What a GPU switches beside what idles; 0 where no clock of joules was given."""

    @property
    def end_ns(self) -> float:
        """Return when the last token came."""
        return float(self.last_ns.max(initial=0.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Hold which steps an engine ran, and after how many of them each request came, began and ended, [r]."""

    load: RequestLoad
    steps: StepColumns
    arrived: Rows
    first: Rows
    last: Rows
    cached: Floats
    """Tokens, by step."""
    is_full: Mask
    """StepColumns in which requests waited for room in the cache."""
    preempted: int
    needed: int
    """Tokens that the cache must hold for the steps to be these."""
    end_ns: Floats | None
    """When steps ended; None where it is not known yet, as nothing depends on it."""

    def served(self, engine: Engine, clock: StepClock, joules: StepClock | None = None) -> Served:
        """Return when requests have their tokens, and what the engine does, on a GPU with these clocks."""
        steps = self.steps
        time = step_times(engine, clock, steps)
        ends = np.concatenate([[0.0], time.cumsum() if self.end_ns is None else self.end_ns])
        return Served(
            load=self.load,
            arrival_ns=ends[self.arrived] if self.end_ns is None else self.load.arrival_ns,
            first_ns=ends[self.first] if self.load.first_ns is None else self.load.first_ns,
            last_ns=ends[self.last],
            busy_ns=float(time.sum()),
            sequence_ns=float(steps.decoding @ time),
            context_ns=float(self.cached @ time),
            prompt_ns=float(time[steps.chunks > 0].sum()),
            preempted=self.preempted,
            full_ns=float(time[self.is_full].sum()),
            work_j=0.0 if joules is None else float(joules.steps_ns(steps) @ steps.repeats) * 1e-9,
        )


def step_times(engine: Engine, clock: StepClock, steps: StepColumns) -> Floats:
    """Return what steps take with what an engine adds, repeated as often as they are, ns, [steps]."""
    ratio = np.where(steps.chunks > 0, engine.prefill_ratio, engine.decode_ratio)
    host = engine.step_ns + engine.sequence_ns * (steps.decoding + steps.chunks)
    return np.asarray((clock.steps_ns(steps) * ratio + host) * steps.repeats)


def serve_load(
    engine: Engine,
    clock: StepClock,
    capacity: int,
    load: RequestLoad,
    *,
    joules: StepClock | None = None,
    known: dict[tuple[object, ...], Schedule] | None = None,
) -> Served:
    """Return how an engine serves a load. Raises InputError where a request can never be cached whole.

    Which steps serve requests at all times depends on no clock: `known` keeps them, for all GPUs with room enough.
    """
    key = (load, engine.budget, engine.max_sequences)
    kept = (known or {}).get(key)
    if kept is None or kept.needed > capacity:
        kept = Scheduler(engine=engine, clock=None if load.concurrency else clock, capacity=capacity).run(load)
        if known is not None and load.concurrency and kept.needed <= capacity:
            known[key] = kept
    return kept.served(engine, clock, joules)


@dataclass(slots=True, eq=False)
class _Sequence:
    """Hold what of a request is still to be done."""

    request: int
    prompt: int
    """Tokens to be computed before the next one: what was generated before a preemption is among them."""
    left: int
    """Tokens to be generated."""
    shared: int
    """Of the prompt, cached once for all."""
    reserved: int
    """Tokens that it is given room for as it starts, where the engine reserves."""
    done: int = 0
    """Of the prompt, computed or shared."""
    ends_at: int = 0
    """Count of decoded tokens at which it has its last one."""
    is_gone: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Scheduler:
    """Run requests through an engine on one replica; one owner, one use."""

    engine: Engine
    clock: StepClock | None
    """None for requests at all times, which wait for each other and not for a time."""
    capacity: int
    """Tokens that can be cached."""
    now_ns: float = 0.0
    decodes: int = 0
    """Tokens that each sequence decoded, ever."""
    cached: int = 0
    """Tokens cached by sequences that decode."""
    held: int = 0
    """Tokens kept for prompts under way."""
    spared: int = 0
    """Tokens of those cached that take no place, as sequences share them."""
    is_computed: bool = False
    """Whether prompts come computed."""
    reserved: int = 0
    """Tokens that those under way have room for, where the engine reserves."""
    owed: float = 0.0
    """Part of a token that drafts gave in steps with prompts."""
    running: list[tuple[int, int, _Sequence]] = field(default_factory=list)
    """Heap by their ends."""
    order: dict[int, _Sequence] = field(default_factory=dict)
    """Those that decode, by the number under which they began, the newest last."""
    begun: int = 0
    prompts: deque[_Sequence] = field(default_factory=deque)
    waiting: deque[_Sequence] = field(default_factory=deque)
    preempted: int = 0
    needed: int = 0
    """Tokens that the cache was asked to hold, at most."""
    each: float = 1.0
    """Tokens that a sequence gets of a step."""
    single: int = 0
    """Entries of the log before which steps are one each: results are under way."""
    log: list[tuple[float, ...]] = field(default_factory=list)
    """What `StepColumns` holds of a step, the tokens cached, whether requests wait for room, and when it ended."""

    def run(self, load: RequestLoad) -> Schedule:
        """Return which steps serve the requests. Raises InputError where one can never be cached whole."""
        shared = np.minimum(np.rint(load.prompts * self.engine.shared_share), load.prompts - 1).astype(np.int64)
        longest, most_shared = int((load.prompts + load.outputs).max(initial=0)), int(shared.max(initial=0))
        if longest > self.capacity:
            raise InputError(f"a request of {longest:,} tokens is larger than the cache of {max(self.capacity, 0):,}")
        self.capacity -= most_shared
        self.each = self.engine.tokens_per_step
        self.is_computed = load.first_ns is not None
        outputs = load.outputs - int(self.is_computed)
        count = len(load.prompts)
        arrived, first, last = (np.zeros(count, dtype=np.int64) for _ in range(3))
        arrival, closed = load.arrival_ns.tolist(), load.concurrency
        sizes = list(zip(*(part.tolist() for part in (load.prompts, outputs, shared)), strict=True))
        next_request = done = 0
        places, is_busy = deque([0] * closed), False
        while done < count:
            now = len(self.log)
            while next_request < count and (
                places and (not is_busy or places[0] < now) if closed else arrival[next_request] <= self.now_ns
            ):
                arrived[next_request] = min(places.popleft(), now) if closed else now
                prompt, output, common = sizes[next_request]
                reserved = prompt + output - common if self.engine.reserves else 0
                self.waiting.append(_Sequence(next_request, prompt, output, common, reserved))
                next_request += 1
            if not (is_busy or self.waiting):
                self.now_ns = arrival[next_request]
                continue
            events = self._step(FAR if closed or next_request >= count else arrival[next_request])
            is_busy = bool(self.waiting or self.prompts or self.order)
            shown = len(self.log) + self.engine.held_steps * is_busy
            self.single = max(self.single, (shown + bool(closed)) * bool(events))
            for sequence, is_first in events:
                if is_first and not first[sequence.request]:
                    first[sequence.request] = shown
                if sequence.left <= 0:
                    last[sequence.request] = shown
                    places.append(shown)
                    done += 1
            if not is_busy:  # What was held comes at once.
                first, last = np.minimum(first, shown), np.minimum(last, shown)
        *steps, cached, is_full, end_ns = np.array(self.log, dtype=np.float64).T
        return Schedule(
            load=load,
            steps=StepColumns(*steps),
            arrived=arrived,
            first=first,
            last=last,
            cached=cached,
            is_full=is_full > 0,
            preempted=self.preempted,
            needed=max(self.needed + most_shared, longest),
            end_ns=None if closed else end_ns,
        )

    def _step(self, upcoming_ns: float) -> list[tuple[_Sequence, bool]]:
        """Run one step, or a jump of them; return sequences that had their first token, or their last."""
        self._make_room()
        chunks = self._take_chunks()
        return self._run_chunks(chunks) if chunks else self._jump(upcoming_ns)

    def _fits(self, tokens: int, reserved: int = 0) -> bool:
        """Say whether the cache has room for so many more, and for so many more to come."""
        needed = max(self.cached - self.spared + self.held + tokens, self.reserved + reserved)
        self.needed = max(self.needed, needed)
        return needed <= self.capacity

    def _make_room(self) -> None:
        """Push out the newest sequences while the next tokens of those that decode have no place."""
        while len(self.order) > 1 and not self._fits(len(self.order) * ceil(self.each)):
            _, sequence = self.order.popitem()
            sequence.is_gone = True
            generated = self.decodes - (sequence.ends_at - sequence.left)
            tokens = sequence.prompt + 1 + generated
            self.cached -= tokens
            self.spared -= sequence.shared
            self.reserved -= sequence.reserved
            left = sequence.left - generated
            self.waiting.appendleft(_Sequence(sequence.request, tokens, left, sequence.shared, sequence.reserved))
            self.preempted += 1

    def _take_chunks(self) -> list[tuple[_Sequence, int, int]]:
        """Return chunks of prompts for the next step, (sequence, new tokens, tokens before): those under way first."""
        decoding = len(self.order) if self.engine.splits_prompts else 0
        budget = self.engine.budget - decoding
        chunks: list[tuple[_Sequence, int, int]] = []
        for sequence in self.prompts:
            size = min(sequence.prompt - sequence.done, budget)
            if size <= 0:
                return chunks
            chunks.append((sequence, size, sequence.done))
            budget -= size
        while self.waiting and budget > 0 and len(self.order) + len(self.prompts) < self.engine.max_sequences:
            sequence = self.waiting[0]
            needed = sequence.prompt - sequence.shared
            is_cut = self.engine.keeps_prompts_whole and budget < needed <= self.engine.budget - decoding
            if is_cut or not self._fits(needed + len(self.order) + 1, sequence.reserved):
                break
            self.waiting.popleft()
            self.reserved += sequence.reserved
            if self.is_computed:
                self._begin(sequence)
                continue
            self.prompts.append(sequence)
            self.held += sequence.prompt - sequence.shared
            sequence.done = sequence.shared
            size = min(sequence.prompt - sequence.done, budget)
            chunks.append((sequence, size, sequence.done))
            budget -= size
        return chunks

    def _run_chunks(self, chunks: list[tuple[_Sequence, int, int]]) -> list[tuple[_Sequence, bool]]:
        decoding = len(self.order) if self.engine.splits_prompts else 0
        context = self.cached / decoding if decoding else 0.0
        fresh = sum(size for _, size, _ in chunks)
        square = sum(size * size for _, size, _ in chunks) / len(chunks)
        before = sum(size * done for _, size, done in chunks) / fresh
        self._pass(decoding, context, len(chunks), fresh, square**0.5, before, 1.0)
        events: list[tuple[_Sequence, bool]] = []
        if decoding:
            self.owed += self.each
            self._advance(int(self.owed))
            self.owed -= int(self.owed)
            events += self._ended()
        for sequence, size, _ in chunks:
            sequence.done += size
            if sequence.done >= sequence.prompt:
                self.prompts.popleft()
                self.held -= sequence.prompt - sequence.shared
                sequence.left -= 1
                events.append((sequence, True))
                if sequence.left > 0:
                    self._begin(sequence)
                else:
                    self.reserved -= sequence.reserved
        return events

    def _begin(self, sequence: _Sequence) -> None:
        sequence.ends_at = self.decodes + sequence.left
        self.cached += sequence.prompt + 1
        self.spared += sequence.shared
        self.begun += 1
        self.order[self.begun] = sequence
        heappush(self.running, (sequence.ends_at, self.begun, sequence))

    def _jump(self, upcoming_ns: float) -> list[tuple[_Sequence, bool]]:
        """Decode until a sequence ends, the next request comes, or the cache is full."""
        count = len(self.order)
        while self.running[0][2].is_gone:
            heappop(self.running)
        steps = self.running[0][0] - self.decodes
        if not self._fits(steps * count):
            steps = max((self.capacity - self.cached + self.spared - self.held) // count, 1)
        if self.clock is not None and upcoming_ns < FAR:
            time = self._step_ns(self.clock, count, self.cached / count, 0, 0, 0.0, 0.0) / self.each
            steps = max(min(steps, int((upcoming_ns - self.now_ns) / time) + 1), 1)
        if len(self.log) < self.single:
            steps = min(steps, ceil(self.each))
        context = self.cached / count + (steps - 1) / 2.0
        self._pass(count, context, 0, 0, 0.0, 0.0, steps / self.each)
        self._advance(steps)
        return self._ended()

    def _step_ns(
        self, clock: StepClock, decoding: int, context: float, chunks: int, fresh: int, square: float, before: float
    ) -> float:
        engine = self.engine
        kernels = clock.step_ns(decoding, context, chunks, fresh, square, before)
        ratio = engine.prefill_ratio if chunks else engine.decode_ratio
        return kernels * ratio + engine.step_ns + engine.sequence_ns * (decoding + chunks)

    def _pass(
        self, decoding: int, context: float, chunks: int, fresh: int, square: float, before: float, repeats: float
    ) -> None:
        """Note steps that are alike, and let their time pass."""
        step = (decoding, context, chunks, fresh, square, before)
        if self.clock is not None:
            self.now_ns += self._step_ns(self.clock, *step) * repeats
        has_places = len(self.order) + len(self.prompts) < self.engine.max_sequences
        is_full = bool(self.waiting) and has_places and not self.prompts
        self.log.append((*step, repeats, self.cached, is_full, self.now_ns))

    def _advance(self, steps: int) -> None:
        self.decodes += steps
        self.cached += len(self.order) * steps

    def _ended(self) -> list[tuple[_Sequence, bool]]:
        events: list[tuple[_Sequence, bool]] = []
        while self.running and (self.running[0][2].is_gone or self.running[0][0] <= self.decodes):
            _, number, sequence = heappop(self.running)
            if sequence.is_gone:
                continue
            # With drafts a step may end after a sequence's last token: what is beyond it is cast away.
            self.cached -= sequence.prompt + 1 + sequence.left + self.decodes - sequence.ends_at
            self.spared -= sequence.shared
            self.reserved -= sequence.reserved
            sequence.left = 0
            del self.order[number]
            events.append((sequence, False))
        return events
