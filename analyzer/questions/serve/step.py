"""The time of an engine's step: tables of a model on GPUs, interpolated in logarithms.

    t = tok(T) + dec(B, K) + pre(n, q, p) + head(B + n),  T = B + n q
    q = sqrt(mean of q_i^2),  p = sum of q_i p_i / sum of q_i

and of it by the `slowest_share` of ranks more.

B sequences decode on K tokens each; n prompts have chunks of q_i new tokens after p_i cached ones: a ragged batch is
the even one of root mean square. All runs in CUDA graphs: no host between kernels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ....records import dataclass, field
from ....specs.fleet import build_fleet
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from ...iteration.decision.electricity import PowerDraw
from ...iteration.energy import power_half_width
from ...models.frame.energy import board_power
from ...models.library import Library
from ...whatif.parallel.plan import slowest_share
from .engines import Engine, EngineStack
from .kept import KeptTimes
from .ops import PARTS, OpBook, ServePlan, StepPart, add_attention, add_head, add_token_ops, places
from .sizes import ModelSizes

TOKENS: Final = (
    *(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024),
    *(1280, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
)
SEQUENCES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTEXTS: Final = (64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 98304, 131072)
PROMPTS: Final = (1, 2, 4, 16)
CHUNKS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CACHED: Final = (0, 1024, 4096, 16384, 65536, 131072)
ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 2048)
CACHED_SCALE: Final = 512.0
"""Cached tokens are interpolated by log(1 + p / this)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTables:
    """Hold a model's times on m GPUs that run alike: ns by part, [parts, places, m]; and what a GPU draws."""

    gpus: tuple[Gpu, ...]
    sizes: ModelSizes
    plan: ServePlan
    stack: EngineStack
    time_ns: Floats
    width: Floats
    """Time times the half-width of its interval, natural log."""
    joules: Floats
    """What a GPU switches beside what idles, [places, m]."""
    draws: tuple[PowerDraw, ...]
    """Boards at no work, [m]."""
    clocks: dict[tuple[int, int, float], StepClock] = field(default_factory=dict)
    """By GPU, drafted tokens and ratio, with what they looked up: loads ask for the same steps."""

    def clock(self, column: int, engine: Engine | None = None) -> StepClock:
        """Return what tells the time of an engine's kernels on one of the GPUs; None: one that changes none."""
        key = (column, engine.drafted, engine.ratio) if engine else (column, 0, 1.0)
        if key not in self.clocks:
            self.clocks[key] = self._clock(self._in_step(self.time_ns, column, engine).sum(axis=0), key[1])
        return self.clocks[key]

    def joule_clock(self, column: int, engine: Engine) -> StepClock:
        """Return what tells the nJ that one of the GPUs switches in a step."""
        return self._clock(self.joules[:, column] * 1e9, engine.drafted)

    def _in_step(self, values: Floats, column: int, engine: Engine | None) -> Floats:
        """Return one GPU's column of values, with products as they are in an engine's steps, [parts, places]."""
        found = values[:, :, column].copy()
        if engine:
            found[PARTS.index(StepPart.PRODUCTS), : len(TOKENS)] *= engine.products_ratio(np.array(TOKENS))
        return found

    def _clock(self, values: Floats, drafted: int) -> StepClock:
        log_ns = np.log(np.maximum(values, 1e-3))
        tok, dec, pre = _PARTED
        shape = (len(PROMPTS), len(CHUNKS), len(CACHED))
        return StepClock(
            tok=log_ns[:tok].tolist(),
            dec=log_ns[tok:dec].reshape(len(SEQUENCES), len(CONTEXTS)),
            pre=log_ns[dec:pre].reshape(shape),
            head=log_ns[pre:].tolist(),
            drafted=drafted,
            draft_share=1.0 / self.sizes.layers,
        )

    def parts(
        self, column: int, sequences: float, context: float, engine: Engine | None = None
    ) -> tuple[Floats, Floats]:
        """Return what a decode step takes by part, ns, and the half-width of each part's interval, [parts]."""
        tok, dec, pre = _PARTED
        drafted = engine.drafted if engine else 0
        rows = np.stack([self._in_step(values, column, engine) for values in (self.time_ns, self.width)])
        at, key = np.log([max(sequences, 1.0), max(context, 64.0)])
        curves = rows[:, :, tok:dec].reshape(*rows.shape[:2], len(SEQUENCES), len(CONTEXTS))
        attention = _row_at(_LOG_SEQUENCES, _row_at(_LOG_CONTEXTS, curves, key), at)

        def beside(at: float) -> tuple[Floats, Floats]:
            return _row_at(_LOG_TOKENS, rows[:, :, :tok], at), _row_at(_LOG_ROWS, rows[:, :, pre:], at)

        tokens, head = beside(at)
        draft = drafted * ((tokens + attention) / self.sizes.layers + head)
        tokens, head = beside(at + log(1 + drafted))
        time, width = tokens + head + attention + draft
        return time, width / np.maximum(time, 1e-3)


_PARTED: Final = tuple(
    int(count)
    for count in np.cumsum((len(TOKENS), len(SEQUENCES) * len(CONTEXTS), len(PROMPTS) * len(CHUNKS) * len(CACHED)))
)
_COUNT: Final = _PARTED[-1] + len(ROWS)
_LOG_TOKENS: Final = [log(count) for count in TOKENS]
_LOG_SEQUENCES: Final = [log(count) for count in SEQUENCES]
_LOG_CONTEXTS: Final = [log(count) for count in CONTEXTS]
_LOG_PROMPTS: Final = [log(count) for count in PROMPTS]
_LOG_CHUNKS: Final = [log(count) for count in CHUNKS]
_LOG_CACHED: Final = [log(1.0 + count / CACHED_SCALE) for count in CACHED]
_LOG_ROWS: Final = [log(count) for count in ROWS]


def step_tables(
    sizes: ModelSizes,
    plan: ServePlan,
    stack: EngineStack,
    gpus: Sequence[Gpu],
    library: Library,
    *,
    cache_bytes: float = 2.0,
    nodes: Sequence[Node] | None = None,
    kept: KeptTimes | None = None,
) -> StepTables:
    """Return the tables of a model on GPUs that run it in one way; `cache_bytes`: per cached element.

    `kept` holds what other plans of the same GPUs have in common with this one.

    >>> from .engines import stack_of
    >>> from .sizes import read_model
    >>> stack = stack_of(h100, "bf16", "vllm")
    >>> clock = step_tables(read_model("llama-3-8b"), ServePlan(), stack, [h100], library).clock(0)
    >>> 5e6 < clock.step_ns(1, 1000) < 9e6
    True
    """
    book = OpBook(sizes=sizes, plan=plan, stack=stack, cache_bytes=cache_bytes, kept={} if kept is None else kept)
    tok, dec, _ = _PARTED
    add_token_ops(book, places(0, tok), np.array(TOKENS, dtype=np.float64))
    sequences, contexts = (part.ravel() for part in np.meshgrid(SEQUENCES, CONTEXTS, indexing="ij"))
    add_attention(
        book,
        places(tok, dec - tok),
        *(np.asarray(part, dtype=np.float64) for part in (sequences, np.ones(dec - tok), contexts)),
    )
    grid = np.meshgrid(PROMPTS, CHUNKS, CACHED, indexing="ij")
    prompts, chunks, cached = (np.asarray(part.ravel(), dtype=np.float64) for part in grid)
    add_attention(book, places(dec, len(prompts)), prompts, chunks, cached + chunks)
    add_head(book, places(_PARTED[-1], len(ROWS)), np.array(ROWS, dtype=np.float64))
    fleet = build_fleet(gpus, nodes)
    power = board_power(fleet, library.values("matmul", fleet))
    time_ns, width, joules = book.tables(library, fleet, power, _COUNT)
    waited = 1.0 + slowest_share(plan.gpus)
    boards = np.stack([power.idle_w, power.idle_w + power.switching_w, power_half_width(fleet)], axis=1).tolist()
    return StepTables(
        gpus=tuple(gpus),
        sizes=sizes,
        plan=plan,
        stack=stack,
        time_ns=time_ns * waited,
        width=width * waited,
        joules=joules,
        draws=tuple(
            PowerDraw(idle_w=idle, work_j=0.0, limit_w=limit, half_width=half_width)
            for idle, limit, half_width in boards
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """Hold steps as columns [s]."""

    decoding: Floats
    """Sequences that decode."""
    context: Floats
    """Tokens that each of them has cached."""
    chunks: Floats
    """Of prompts."""
    fresh: Floats
    """Tokens of all chunks."""
    square: Floats
    """Their root mean square."""
    before: Floats
    """Tokens cached before a chunk, in the mean over fresh ones."""
    repeats: Floats
    """StepColumns that are alike."""
    places: dict[tuple[str, int], tuple[Rows, Floats]] = field(default_factory=dict)
    """Where they lie in each grid of a clock, by drafted tokens: the same on all GPUs."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepClock:
    """Tell the time of steps on one GPU: logarithms of ns at the places of the tables, interpolated.

    A simulation asks tens of thousands of times, hence lists and bisection instead of arrays, and what a number of
    sequences takes at all contexts is kept.
    """

    tok: list[float]
    dec: Floats
    pre: Floats
    head: list[float]
    drafted: int = 0
    """Tokens that are checked for each sequence that decodes, beside its own."""
    draft_share: float = 0.0
    """Of a model's layers, what drafts a token: one."""
    _tokens: dict[int, float] = field(default_factory=dict)
    _heads: dict[int, float] = field(default_factory=dict)
    _curves: dict[int, list[float]] = field(default_factory=dict)
    _prompts: dict[int, list[list[float]]] = field(default_factory=dict)

    def tokens_ns(self, count: int) -> float:
        """Return what T tokens take in all layers beside attention."""
        if count not in self._tokens:
            self._tokens[count] = exp(_at(_LOG_TOKENS, self.tok, log(max(count, 1))))
        return self._tokens[count]

    def head_ns(self, count: int) -> float:
        """Return what the last tokens of so many sequences take."""
        if count not in self._heads:
            self._heads[count] = exp(_at(_LOG_ROWS, self.head, log(max(count, 1))))
        return self._heads[count]

    def attention_ns(self, sequences: int, context: float) -> float:
        """Return what attention takes of sequences that decode."""
        if sequences not in self._curves:
            low, share = _between(_LOG_SEQUENCES, log(sequences))
            self._curves[sequences] = (self.dec[low] + share * (self.dec[low + 1] - self.dec[low])).tolist()
        return exp(_at(_LOG_CONTEXTS, self._curves[sequences], log(max(context, 1.0))))

    def prompts_ns(self, count: int, tokens: float, cached: float) -> float:
        """Return what attention takes of chunks of prompts, alike."""
        if count not in self._prompts:
            low, share = _between(_LOG_PROMPTS, log(count))
            self._prompts[count] = (self.pre[low] + share * (self.pre[low + 1] - self.pre[low])).tolist()
        low, share = _between(_LOG_CHUNKS, log(max(tokens, 1.0)))
        at, part = _between(_LOG_CACHED, log(1.0 + cached / CACHED_SCALE))
        short, long = (curve[at] + part * (curve[at + 1] - curve[at]) for curve in self._prompts[count][low : low + 2])
        return exp(short + share * (long - short))

    def step_ns(
        self, decoding: int, context: float, chunks: int = 0, fresh: int = 0, square: float = 0.0, before: float = 0.0
    ) -> float:
        """Return a step; the arguments are those of `StepColumns`."""
        rows, attention = decoding * (1 + self.drafted), self.attention_ns(decoding, context) if decoding else 0.0
        total = self.tokens_ns(rows + fresh) + self.head_ns(rows + chunks) + attention
        if self.drafted and decoding:
            layer = (self.tokens_ns(decoding) + attention) * self.draft_share
            total += self.drafted * (layer + self.head_ns(decoding))
        return total + (self.prompts_ns(chunks, square, before) if chunks else 0.0)

    def steps_ns(self, steps: StepColumns) -> Floats:
        """Return many steps at once, each one time, [s]."""
        decoding, chunks, rows = steps.decoding, steps.chunks, steps.decoding * (1 + self.drafted)

        def grid(name: str, values: Floats, *places: tuple[list[float], Floats]) -> Floats:
            if (name, self.drafted) not in steps.places:
                steps.places[name, self.drafted] = _corners(*places)
            at, share = steps.places[name, self.drafted]
            return np.asarray(np.exp(np.einsum("cs,cs->s", values.ravel()[at], share)))

        tok, head = np.array(self.tok), np.array(self.head)
        attention = grid("attention", self.dec, (_LOG_SEQUENCES, decoding), (_LOG_CONTEXTS, steps.context))
        attention = np.where(decoding > 0, attention, 0.0)
        cached = 1.0 + steps.before / CACHED_SCALE
        sizes = (_LOG_PROMPTS, chunks), (_LOG_CHUNKS, steps.square), (_LOG_CACHED, cached)
        total = grid("tokens", tok, (_LOG_TOKENS, rows + steps.fresh)) + attention
        total += grid("head", head, (_LOG_ROWS, rows + chunks))
        if self.drafted:
            layer = (grid("drafts", tok, (_LOG_TOKENS, decoding)) + attention) * self.draft_share
            last = grid("draft heads", head, (_LOG_ROWS, decoding))
            total += np.where(decoding > 0, self.drafted * (layer + last), 0.0)
        return np.asarray(total + np.where(chunks > 0, grid("prompts", self.pre, *sizes), 0.0))


def _between(axis: list[float], value: float) -> tuple[int, float]:
    """Return the place before a value, and how far it is from there to the next; beyond the ends the line goes on."""
    low = bisect_right(axis, value, 1, len(axis) - 1) - 1
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


def _corners(*places: tuple[list[float], Floats]) -> tuple[Rows, Floats]:
    """Return which values of a flat grid surround places, and the share of each, [corners, s].

    Linear in the logarithms along each axis, beyond its ends too.
    """
    at, share = np.zeros((1, len(places[0][1])), dtype=np.int64), np.ones((1, len(places[0][1])))
    for axis, asked in places:
        steps, value = np.array(axis), np.log(np.maximum(asked, 1.0))
        low = np.clip(np.searchsorted(steps, value, side="right") - 1, 0, len(axis) - 2)
        upper = (value - steps[low]) / (steps[low + 1] - steps[low])
        at = np.concatenate([at * len(axis) + low, at * len(axis) + low + 1])
        share = np.concatenate([share * (1.0 - upper), share * upper])
    return at, share


def _row_at(axis: list[float], values: Floats, value: float) -> Floats:
    """Return values at a place of their last axis, held at its ends."""
    low, share = _between(axis, min(max(value, axis[0]), axis[-1]))
    return np.asarray(values[..., low] + share * (values[..., low + 1] - values[..., low]))


def _at(axis: list[float], values: list[float], value: float) -> float:
    low, share = _between(axis, value)
    return values[low] + share * (values[low + 1] - values[low])
