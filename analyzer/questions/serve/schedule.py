"""An engine's scheduler, event by event: which requests run in which step, and when each has its tokens.

Steps of the same sequences between two events (one ends, one arrives, the cache is full) are one jump, timed at the
middle of the growing contexts: about two events per request.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ....errors import InputError
from ....records import dataclass, field
from .engines import Engine
from .step import StepClock

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """Hold when requests came, and had their first and last tokens, ns, [r]; and what the engine did."""

    load: RequestLoad
    arrival_ns: Floats
    first_ns: Floats
    last_ns: Floats
    steps: int
    decode_steps: int
    busy_ns: float
    sequence_ns: float
    """Sum over steps of sequences that decode times their time: over the time, the mean number of them."""
    context_ns: float
    """The same of the tokens that are cached."""
    prompt_ns: float
    """In steps that prompts are part of."""
    idle_ns: float
    preempted: int
    full_ns: float
    """In which requests waited for room in the cache."""
    work_j: float
    """What a GPU switches beside what idles; 0 where no clock of joules was given."""

    @property
    def end_ns(self) -> float:
        """Return when the last token came."""
        return float(self.last_ns.max(initial=0.0))


@dataclass(slots=True, eq=False)
class _Sequence:
    """Hold what of a request is still to be done."""

    request: int
    prompt: int
    """Tokens to be computed before the next one: what was generated before a preemption is among them."""
    left: int
    """Tokens to be generated."""
    done: int = 0
    """Of the prompt, computed."""
    ends_at: int = 0
    """Count of decode steps at which it has its last token."""
    is_gone: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Scheduler:
    """Run requests through an engine on one replica; one owner, one use."""

    engine: Engine
    clock: StepClock
    capacity: int
    """Tokens that can be cached."""
    joules: StepClock | None = None
    """Tells what a GPU switches in a step, nJ."""
    now_ns: float = 0.0
    decodes: int = 0
    """Steps in which sequences decoded, ever."""
    cached: int = 0
    """Tokens cached by sequences that decode."""
    held: int = 0
    """Tokens kept for prompts under way."""
    running: list[tuple[int, int, _Sequence]] = field(default_factory=list)
    """Heap by their ends."""
    order: dict[int, _Sequence] = field(default_factory=dict)
    """Those that decode, by the number under which they began, the newest last."""
    begun: int = 0
    prompts: deque[_Sequence] = field(default_factory=deque)
    waiting: deque[_Sequence] = field(default_factory=deque)
    counts: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("steps", "sequence_ns", "context_ns", "prompt_ns", "idle_ns", "preempted", "full_ns", "work_nj"), 0.0
        )
    )

    def run(self, load: RequestLoad) -> Served:
        """Return when each request has its tokens. Raises InputError where one can never be cached whole."""
        longest = int((load.prompts + load.outputs).max(initial=0))
        if longest > self.capacity:
            raise InputError(f"a request of {longest:,} tokens is larger than the cache of {max(self.capacity, 0):,}")
        count = len(load.prompts)
        arrival, first, last = load.arrival_ns.astype(np.float64).copy(), np.zeros(count), np.zeros(count)
        prompts, outputs = load.prompts.tolist(), load.outputs.tolist()
        next_request = 0
        done = 0
        closed = load.concurrency
        while done < count:
            while next_request < count and (
                next_request - done < closed if closed else arrival[next_request] <= self.now_ns
            ):
                if closed:
                    arrival[next_request] = self.now_ns
                self.waiting.append(_Sequence(next_request, prompts[next_request], outputs[next_request]))
                next_request += 1
            if not (self.waiting or self.prompts or self.order):
                self.counts["idle_ns"] += float(arrival[next_request]) - self.now_ns
                self.now_ns = float(arrival[next_request])
                continue
            upcoming = FAR if closed or next_request >= count else float(arrival[next_request])
            for sequence, is_first in self._step(upcoming):
                if is_first and not first[sequence.request]:
                    first[sequence.request] = self.now_ns
                if sequence.left <= 0:
                    last[sequence.request] = self.now_ns
                    done += 1
        kept = self.counts
        return Served(
            load=load,
            arrival_ns=arrival,
            first_ns=first,
            last_ns=last,
            steps=int(kept["steps"]),
            decode_steps=self.decodes,
            busy_ns=self.now_ns - kept["idle_ns"],
            sequence_ns=kept["sequence_ns"],
            context_ns=kept["context_ns"],
            prompt_ns=kept["prompt_ns"],
            idle_ns=kept["idle_ns"],
            preempted=int(kept["preempted"]),
            full_ns=kept["full_ns"],
            work_j=kept["work_nj"] * 1e-9,
        )

    def _step(self, upcoming_ns: float) -> list[tuple[_Sequence, bool]]:
        """Run one step, or a jump of them; return sequences that had their first token, or their last."""
        self._make_room()
        chunks = self._take_chunks()
        if chunks:
            return self._run_chunks(chunks)
        return self._jump(upcoming_ns)

    def _make_room(self) -> None:
        """Push out the newest sequences while the next tokens of those that decode have no place."""
        while self.order and self.cached + self.held + len(self.order) > self.capacity and len(self.order) > 1:
            _, sequence = self.order.popitem()
            sequence.is_gone = True
            generated = self.decodes - (sequence.ends_at - sequence.left)
            tokens = sequence.prompt + 1 + generated
            self.cached -= tokens
            self.waiting.appendleft(_Sequence(sequence.request, tokens, sequence.left - generated))
            self.counts["preempted"] += 1

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
            if self.cached + self.held + sequence.prompt + len(self.order) + 1 > self.capacity:
                break
            self.waiting.popleft()
            self.prompts.append(sequence)
            self.held += sequence.prompt
            size = min(sequence.prompt, budget)
            chunks.append((sequence, size, 0))
            budget -= size
        return chunks

    def _run_chunks(self, chunks: list[tuple[_Sequence, int, int]]) -> list[tuple[_Sequence, bool]]:
        decoding = len(self.order) if self.engine.splits_prompts else 0
        context = self.cached / decoding if decoding else 0.0
        sizes = [(size, before) for _, size, before in chunks]
        tokens = decoding + sum(size for size, _ in sizes)
        kernels = self.clock.mixed_ns(decoding, context, sizes) * self.engine.kernel_ratio(tokens)
        time = kernels + self.engine.step_ns + self.engine.sequence_ns * (decoding + len(chunks))
        if self.joules is not None:
            self.counts["work_nj"] += self.joules.mixed_ns(decoding, context, sizes)
        self._pass(time, 1, decoding)
        self.counts["prompt_ns"] += time
        events: list[tuple[_Sequence, bool]] = []
        if decoding:
            self._advance(1)
            events += self._ended()
        for sequence, size, _ in chunks:
            sequence.done += size
            if sequence.done >= sequence.prompt:
                self.prompts.popleft()
                self.held -= sequence.prompt
                sequence.left -= 1
                events.append((sequence, True))
                if sequence.left > 0:
                    self._begin(sequence)
        return events

    def _begin(self, sequence: _Sequence) -> None:
        sequence.ends_at = self.decodes + sequence.left
        self.cached += sequence.prompt + 1
        self.begun += 1
        self.order[self.begun] = sequence
        heappush(self.running, (sequence.ends_at, self.begun, sequence))

    def _jump(self, upcoming_ns: float) -> list[tuple[_Sequence, bool]]:
        """Decode until a sequence ends, the next request comes, or the cache is full."""
        count = len(self.order)
        while self.running[0][2].is_gone:
            heappop(self.running)
        steps = self.running[0][0] - self.decodes
        steps = min(steps, max((self.capacity - self.cached - self.held) // count, 1))
        if upcoming_ns < FAR:
            time = self._decode_ns(count, self.cached)
            steps = max(min(steps, int((upcoming_ns - self.now_ns) / time) + 1), 1)
        middle = self.cached + count * (steps - 1) / 2.0
        time = self._decode_ns(count, middle)
        if self.joules is not None:
            self.counts["work_nj"] += steps * self.joules.decode_ns(count, middle / count)
        self._pass(time * steps, steps, count)
        self._advance(steps)
        return self._ended()

    def _decode_ns(self, count: int, cached: float) -> float:
        kernels = self.clock.decode_ns(count, cached / count) * self.engine.kernel_ratio(count)
        return kernels + self.engine.step_ns + self.engine.sequence_ns * count

    def _pass(self, time_ns: float, steps: int, sequences: int) -> None:
        counts = self.counts
        self.now_ns += time_ns
        counts["steps"] += steps
        counts["sequence_ns"] += sequences * time_ns
        counts["context_ns"] += self.cached * time_ns
        is_full = self.waiting and len(self.order) + len(self.prompts) < self.engine.max_sequences
        if is_full and not self.prompts:
            counts["full_ns"] += time_ns

    def _advance(self, steps: int) -> None:
        self.decodes += steps
        self.cached += len(self.order) * steps

    def _ended(self) -> list[tuple[_Sequence, bool]]:
        events: list[tuple[_Sequence, bool]] = []
        while self.running and (self.running[0][2].is_gone or self.running[0][0] <= self.decodes):
            _, number, sequence = heappop(self.running)
            if sequence.is_gone:
                continue
            self.cached -= sequence.prompt + 1 + sequence.left
            sequence.left = 0
            del self.order[number]
            events.append((sequence, False))
        return events
