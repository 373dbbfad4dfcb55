"""The report on many GPUs: which plan takes how long on which GPUs, what it costs and what limits it."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from ....records import dataclass, field
from ...iteration.decision.amounts import COST, ENERGY, TIME
from ...iteration.decision.electricity import Electricity, JobEnergy
from ...iteration.report import Source, TraceSummary
from .parts import LINKS, PlanPart

COMPUTE_BOUND_RATIO: Final = 2 / 3
"""Of the step in kernels and the optimizer: from here on, compute is what limits a plan."""


class PlanLimit(StrEnum):
    """Name what limits a plan: memory where it does not fit; compute where that takes two thirds of the step, else what
    takes most of the rest."""

    COMPUTE = "compute"
    LINK = "link"
    BUBBLE = "bubble"
    HOST = "host"
    MEMORY = "memory"


class Spent(StrEnum):
    """Group the parts of a step as a table shows them."""

    COMPUTE = "compute"
    LINK = "link"
    BUBBLE = "bubble"
    HOST = "host"
    OPTIMIZER = "optimizer"
    STRAGGLERS = "stragglers"


PARTS_OF: Final = {spent: LINKS if spent is Spent.LINK else (PlanPart[spent.name],) for spent in Spent}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrediction:
    """Predict an iteration of one plan on a number of GPUs of one type. Unknown is None."""

    gpu: str
    vendor: str
    node: str
    """The machine that the GPUs stand in."""
    node_gpu_count: int
    gpu_count: int
    plan: str
    """As `--plan` takes it; what is as usual is left out."""
    global_batch: int
    micro_batch: int
    micro_batches: int
    """Of each replica and iteration."""
    iteration_ns: float
    iteration_low_ns: float | None
    iteration_high_ns: float | None
    parts_ns: Mapping[PlanPart, float]
    """They add up to the iteration."""
    limit: PlanLimit
    fits: bool | None
    is_tight: bool
    memory_needed_bytes: int | None
    """On the rank that needs most."""
    memory_usable_bytes: int | None
    samples_per_s: float
    tokens_per_s_per_gpu: float | None
    mfu: float | None
    """Products and attention of the recorded iteration at the GPUs' peak rates, over the step."""
    efficiency: float | None
    """Samples per second and GPU over those of the best plan on fewest GPUs of this type; None: no fewer were asked."""
    price_usd_per_gpu_hour: float | None
    price_date: str | None
    price_kind: str | None
    """`own`, `on-demand`, `reserved` or `spot`; None without a price."""
    price_source: str | None
    """Who says the price: clouds, file, option or machine."""
    usd_per_iteration: float | None
    rank_by_time: int
    """Among the plans of this report, by samples per second; those that do not fit come last."""
    rank_by_cost: int | None
    rank_by_memory: int | None
    untested: str | None = None
    """Why nothing that was measured tells how good this is."""
    rank_by_energy: int | None = None
    """By what is paid for of each sample's energy."""
    energy: JobEnergy | None = None
    """Of an iteration on all GPUs; None: not known."""

    def share(self, spent: Spent) -> float:
        """Return the share of the iteration that goes to something."""
        return sum(self.parts_ns.get(part, 0.0) for part in PARTS_OF[spent]) / max(self.iteration_ns, 1.0)

    @property
    def usd_per_million_samples(self) -> float | None:
        """Return what a million samples cost: comparable where batches differ."""
        if self.usd_per_iteration is None:
            return None
        return self.usd_per_iteration / self.global_batch * 1e6


MEMORY: Final = "memory"
RANK_BY: Final[dict[str, Callable[[PlanPrediction], int | None]]] = {
    TIME: lambda row: row.rank_by_time,
    COST: lambda row: row.rank_by_cost,
    MEMORY: lambda row: row.rank_by_memory,
    ENERGY: lambda row: row.rank_by_energy,
}
"""What plans can be listed by: their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """Count the plans that a search looked at, for one number of GPUs."""

    gpu_count: int
    considered: int
    too_large: int
    """That fit none of the GPUs, by estimate."""
    outpaced: int
    """That an estimate found slower than those that were predicted."""
    predicted: int
    failed: Mapping[str, int] = field(default_factory=dict)
    """Reason → plans that could not be predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReport:
    """Hold all that `scale` found; `predictions` is ranked: first by `sort`, what does not fit last."""

    trace: TraceSummary
    source: Source
    measured_step_ns: float | None = None
    """What the user measured of one GPU, which all plans are scaled by; None: nothing was said."""
    gpu_counts: tuple[int, ...]
    global_batch: int | None
    """As asked; None: the recorded batch for every GPU, of inference for every replica."""
    sequence_length: int | None
    predictions: tuple[PlanPrediction, ...]
    searches: tuple[SearchSummary, ...] = ()
    warnings: tuple[str, ...] = ()
    sort: str | None = None
    """What `predictions` are ordered by, one of `RANK_BY`; None: time."""
    electricity: Electricity | None = None
    """What electricity costs, and what is counted beside boards and links; None where nobody said."""

    @property
    def asks_for_energy(self) -> bool:
        """Say whether energy was asked about."""
        return self.electricity is not None or self.sort == ENERGY

    @property
    def fastest(self) -> PlanPrediction:
        """Return the plan of most samples per second, of those that fit where any does."""
        return min(self.predictions, key=lambda row: row.rank_by_time)

    def best(self, gpu: str, gpu_count: int) -> PlanPrediction | None:
        """Return the first plan for some GPUs, by samples per second unless asked otherwise, of those that fit."""
        rows = (row for row in self.predictions if (row.gpu, row.gpu_count) == (gpu, gpu_count))
        return next(rows, None)

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """Return each GPU type and count that was asked, best first."""
        return tuple(dict.fromkeys((row.gpu, row.gpu_count) for row in self.predictions))
