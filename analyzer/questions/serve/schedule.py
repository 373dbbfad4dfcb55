"""What is asked of an engine, and its scheduler, event by event: which requests run in which step.

Steps of the same sequences between two events (one ends, one arrives, the cache is full) are one jump, timed at the
middle of the growing contexts: about two events per request.
"""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import Floats, Rows
from ....errors import InputError
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


WAVES: Final = 4
"""Requests per place of a closed load, the first of which fills the engine and does not count."""
LEAST_REQUESTS: Final = 64
OPEN_REQUESTS: Final = 300
SPREAD: Final = 0.1
"""Lengths are drawn evenly between 1 - this and 1 + this times the given ones."""
SECOND: Final = 1e9
MOST_TOKENS: Final = 10_000_000
"""No model's context is as long."""
ARRIVALS: Final[Mapping[str, float]] = {"arrival_s": 1e9, "queued_s": 1e9, "arrival": 1e9, "timestamp": 1e6}
"""Names of arrivals → ns of their unit; `timestamp` is in ms, as Mooncake's traces have it."""
PROMPTS: Final = ("prompt", "input_tokens", "prompt_tokens", "input_length")
OUTPUTS: Final = ("output", "output_tokens", "completion_tokens", "output_length")


def closed_load(concurrency: int, prompt: int, output: int, seed: int) -> RequestLoad:
    """Return so many requests at all times.

    >>> closed_load(2, 100, 10, seed=0).concurrency
    2
    """
    count = max(WAVES * concurrency, LEAST_REQUESTS)
    prompts, outputs = _lengths(count, prompt, output, np.random.default_rng(seed))
    return RequestLoad(arrival_ns=np.zeros(count), prompts=prompts, outputs=outputs, concurrency=concurrency)


def open_load(rate_per_s: float, prompt: int, output: int, seed: int, count: int = OPEN_REQUESTS) -> RequestLoad:
    """Return requests that come at random (Poisson) at a rate.

    >>> open_load(2.0, 100, 10, seed=0).concurrency
    0
    """
    generator = np.random.default_rng(seed)
    arrival = np.cumsum(generator.exponential(SECOND / rate_per_s, count))
    prompts, outputs = _lengths(count, prompt, output, generator)
    return RequestLoad(arrival_ns=arrival, prompts=prompts, outputs=outputs)


def _lengths(count: int, prompt: int, output: int, generator: np.random.Generator) -> Any:
    drawn = generator.uniform(1.0 - SPREAD, 1.0 + SPREAD, (2, count))
    lengths = np.maximum(np.rint(drawn * np.array([[prompt], [output]])), 1.0)
    return lengths.astype(np.int64)


def read_requests(path: Path) -> RequestLoad:
    """Return the requests of a CSV file, or of one JSON object per line: arrival, prompt, output.

    Raises InputError for a file that lacks one of them, and for lengths that are no whole numbers above 0.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        is_json = path.suffix.casefold() in (".jsonl", ".json")
        lines = text.splitlines()
        rows = [json.loads(line) for line in lines if line.strip()] if is_json else list(csv.DictReader(lines))
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path.name}: expected requests, CSV or a JSON object per line: {error}") from error
    if not rows or not isinstance(rows[0], dict):
        raise InputError(f"{path.name}: holds no requests")
    found = [next((name for name in names if name in rows[0]), "") for names in (tuple(ARRIVALS), PROMPTS, OUTPUTS)]
    if "" in found:
        raise InputError(f"{path.name}: expected columns {next(iter(ARRIVALS))}, {PROMPTS[0]} and {OUTPUTS[0]}")
    values = np.array([[_number(row, name) for name in found] for row in rows])
    lengths = values[:, 1:]
    is_whole = (lengths >= 1) & (lengths < MOST_TOKENS) & (np.rint(lengths) == lengths)
    wrong = np.flatnonzero(~is_whole.all(axis=1) | ~np.isfinite(values[:, 0]) | (values[:, 0] < 0))
    if len(wrong):
        expected = f"an arrival from 0 on, and whole numbers of tokens from 1 to {MOST_TOKENS - 1:,}"
        raise InputError(f"{path.name}: request {wrong[0] + 1}: expected {expected}")
    values = values[np.argsort(values[:, 0], kind="stable")]
    arrival = (values[:, 0] - values[0, 0]) * ARRIVALS[found[0]]
    return RequestLoad(arrival_ns=arrival, prompts=values[:, 1].astype(np.int64), outputs=values[:, 2].astype(np.int64))


def _number(row: object, name: str) -> float:
    """Return a number of a request; NaN for what is none."""
    value = row.get(name) if isinstance(row, dict) else None
    try:
        return float("nan") if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return float("nan")
