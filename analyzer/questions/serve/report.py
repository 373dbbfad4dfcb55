"""What is asked of `wavecast serve`, and what it says: a row for the best plan of each GPU type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ....records import dataclass, field
from ....specs.gpu import Gpu
from ...iteration.decision.electricity import JOULE_PER_KWH, Electricity, billed_joule
from .engines import Engine
from .forecast import END_TO_END, PER_TOKEN, Capacity, LoadFigures
from .ops import ServePlan
from .schedule import RequestLoad
from .sizes import ModelSizes

HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Name a GPU, and how many of it serve together; None: as many as one instance takes."""

    gpu: Gpu
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeQuestion:
    """Hold what is asked; times in ns."""

    sizes: ModelSizes
    precisions: tuple[str, ...]
    """What weights may be held in."""
    engine: Engine
    cache_bytes: float
    sequences: tuple[int, ...] = (0,)
    """Of a step at most, each tried; 0: the engine's own."""
    prompt: int
    output: int
    loads: tuple[int, ...] = ()
    """Requests at all times, each answered; empty: a rate or given requests."""
    rate_per_s: float = 0.0
    requests: RequestLoad | None = None
    tp: int | None = None
    pp: int | None = None
    is_separate: bool = False
    """Whether prompts are computed on GPUs of their own."""
    is_computed: bool = False
    """Whether it asks of those that write alone."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """TTFT and TPOT that may not be exceeded, ns."""
    measure: str = "p90"
    """Which of `MEASURES` the limits are of."""
    seed: int = 0
    electricity: Electricity = field(default_factory=Electricity)
    calibration: str = ""
    """What measurements of one's own say of the engine, in words; empty without any."""

    @property
    def too_many(self) -> tuple[int, ...]:
        """Return those of `sequences` that are more than a step's tokens."""
        return tuple(count for count in self.sequences if 0 < self.engine.budget < count)

    @property
    def context(self) -> float:
        """Return the tokens of a sequence in its middle."""
        if self.requests is not None:
            return float(self.requests.prompts.mean() + self.requests.outputs.mean() / 2)
        return self.prompt + self.output / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRow:
    """Hold what a plan on GPUs of one type does."""

    gpu: str
    gpus: int
    """In all."""
    concurrency: int
    """Requests at all times, in all; 0: they come at a rate, or as given."""
    plan: ServePlan
    """Of each instance."""
    instances: int
    precision: str
    max_sequences: int
    """Of a step."""
    note: str
    """What the GPU does instead of a format that it lacks."""
    capacity: Capacity
    figures: LoadFigures
    rate_per_s: float
    """Requests that all instances serve."""
    holds: bool | None
    """Whether the limits hold at the upper end of the interval; None without limits."""
    usd_per_hour: float | None
    prefill: ServeRow | None = None
    """What computes the prompts, where others do; its GPUs are among `gpus`."""

    @property
    def plans(self) -> str:
        """Return the plan, and that of the GPUs that compute prompts."""
        found = self.prefill
        return str(self.plan) if found is None else f"{self.plan} + {found.instances} × {found.plan} for prompts"

    @property
    def output_tokens_per_s(self) -> float:
        """Return what all instances write."""
        return self.figures.output_tokens_per_s * self.instances

    @property
    def tokens_per_s_per_user(self) -> float:
        """Return what each user gets after the first token; of one token alone, in all."""
        per_token, whole = (self.figures.latencies[name].values["mean"] for name in (PER_TOKEN, END_TO_END))
        return 1e9 / (per_token or whole)

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """Return the price of a million tokens that are written; None without a price."""
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour / (self.output_tokens_per_s * HOUR) * 1e6

    def kwh_per_million_output_tokens(self, electricity: Electricity) -> float:
        """Return what is billed for a million tokens that are written."""
        gpu_ns = 1e9 * self.gpus / self.output_tokens_per_s
        return billed_joule(self.figures.joules_per_token[0], gpu_ns, electricity) * 1e6 / JOULE_PER_KWH


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeReport:
    """Hold how a model is served on GPUs, the best first."""

    question: ServeQuestion
    rows: tuple[ServeRow, ...]
    left_out: tuple[tuple[str, str], ...]
    """GPUs that cannot serve it, and why."""
