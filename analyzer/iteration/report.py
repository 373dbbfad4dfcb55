"""The report: what `analyze` says about one trace, as plain records that every renderer reads."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ...records import dataclass, field
from ..graph.critical import PathSummary
from ..measurements.correction import Correction, RateCorrection
from ..memory.use import MemoryUse
from ..prediction.prediction import Method
from ..recorded.compiled import CompiledCode
from ..replay.causes import IdleCause
from ..whatif.scenario import Scenario
from .decision.amounts import Selection
from .decision.electricity import Electricity, JobEnergy, PowerDraw
from .decision.goal import RunLength

REPORT_FORMAT = "wavecast.prediction"
REPORT_VERSION = "1.0"
LAUNCH_BOUND_RATIO: Final = 0.1
"""Of the iteration spent waiting for launches: from here on the host is worth a sentence."""
LEAST_GAIN: Final = 1.03
"""Speed-ups below are not offered: the replay itself is not that exact."""
FASTER_KERNELS: Final = "kernels twice as fast"
FASTER_HOST: Final = "a host twice as fast"
"""What a faster GPU would gain, beside what is offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """Say which recording the predictions rest on."""

    name: str | None
    """Workload name where the recording has one."""
    source_format: str
    capture: str
    framework: str | None
    mode: str | None
    batch_size: int | None
    samples_per_iteration: int | None
    iteration_count: int
    """Measured iterations whose median is the source's: those timed without the profiler, where the file has any."""
    iteration_index: int | None
    """The one that is predicted, numbered as in `wavecast show`; None: no iteration was marked, or all are as one."""
    op_count: int
    kernel_count: int
    """Ops and kernels within that iteration."""
    iteration_choice: str = "median"
    """The rule that chose it: `median`, `longest`, `all`, or `number`."""
    recorded_iteration_count: int = 1
    """Iterations that there were to choose from."""
    left_out_ns: Mapping[str, int] = field(default_factory=dict)
    """By reason: time of the iteration in which the GPU stood still as the process started; it is not predicted."""
    graph_launch_count: int = 0
    """Launches of CUDA or HIP graphs in the iteration."""
    graph_kernel_count: int = 0
    """Kernels that ran from them."""
    graph_kernels_explained: int = 0
    """Those whose op the recording of the graph's capture tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Describe the GPU that was measured; every field is None for a trace without GPU timings."""

    gpu: str | None = None
    iteration_ns: float | None = None
    gpu_busy_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """Say which batches fit one GPU, of those that were tried; None where none does.

    The low end of the largest surely fits, the high end may. The best is the smallest one that processes within 1 % of
    the most samples per second. Intervals of rates are those of the iteration.
    """

    largest_batch: int | None = None
    largest_batch_low: int | None = None
    largest_batch_high: int | None = None
    largest_samples_per_s: float | None = None
    largest_samples_per_s_low: float | None = None
    largest_samples_per_s_high: float | None = None
    best_batch: int | None = None
    best_samples_per_s: float | None = None
    best_samples_per_s_low: float | None = None
    best_samples_per_s_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedBatch:
    """Say what a batch that fits comes to on one GPU."""

    batch: int
    samples_per_s: float
    memory_needed_bytes: int


class Certainty(StrEnum):
    """Say whether a limit is kept, by the 90 % interval of what it limits."""

    SURELY = "surely"
    """The whole interval lies within it."""
    LIKELY = "likely"
    """The prediction does; where there is no interval, that is all that is known."""
    HARDLY = "hardly"
    """The low end does, the prediction does not."""
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotal:
    """Hold what a run takes on one GPU; intervals are those of the iteration."""

    time_ns: float
    time_low_ns: float | None
    time_high_ns: float | None
    cost_usd: float | None
    """None without a price."""
    cost_low_usd: float | None
    cost_high_usd: float | None
    in_time: Certainty | None = None
    """Whether it finishes by the deadline; None without one."""
    in_budget: Certainty | None = None
    """None without a budget or without a price."""
    energy_kwh: float | None = None
    """What is paid for: the board's, and as asked its share of the host's and the site's."""
    energy_low_kwh: float | None = None
    energy_high_kwh: float | None = None
    electricity_usd: float | None = None
    """None where nobody says what a kWh costs."""
    co2_kg: float | None = None
    """None where nobody says what a kWh emits."""

    @property
    def keeps_limits(self) -> bool:
        """Say whether deadline and budget are likely to be kept; a budget needs a price."""
        return all(item in (None, Certainty.SURELY, Certainty.LIKELY) for item in (self.in_time, self.in_budget))

    @property
    def surely_keeps_limits(self) -> bool:
        """Say whether deadline and budget hold over the whole interval."""
        return all(item in (None, Certainty.SURELY) for item in (self.in_time, self.in_budget))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPrediction:
    """Predict the iteration on one GPU.

    `iteration_ns` is the replay of the op graph with the kernels' predicted times; a trace without timings is replayed
    on the timeline of a usual host. `gpu_busy_ns` and `idle_ns` add up to it. The interval is meant to hold in 90 % of
    cases and covers the kernels' times and the host's; where too much of the GPU time has no interval, its ends are
    None, or the low one the sum of physical lower bounds in a trace without timings. `methods` gives each method's
    share of the kernels' time.
    """

    gpu: str
    vendor: str
    is_source: bool
    iteration_ns: float
    iteration_low_ns: float | None
    iteration_high_ns: float | None
    gpu_busy_ns: float
    """At least one kernel, copy, fill or collective runs."""
    communication_ns: float
    """The part of `gpu_busy_ns` in which only collectives run."""
    idle_ns: Mapping[IdleCause, float]
    methods: Mapping[Method, float]
    fits: bool | None
    """Whether the iteration fits the GPU's memory; None where that is not known."""
    is_tight: bool
    """Whether that is within the uncertainty."""
    memory_allocated_bytes: int | None
    """What torch counts as allocated at most, workspaces of the matrix library included."""
    memory_reserved_bytes: int | None
    """What its allocator takes from the driver."""
    memory_needed_bytes: int | None
    memory_usable_bytes: int | None
    speedup: float | None
    """Source iteration over this iteration, at equal batch; None without a measured source."""
    samples_per_s: float | None
    price_usd_per_hour: float | None
    price_date: str | None
    """ISO date of the middle one of the listings in the price; None where none is dated."""
    untested: str | None = None
    """Why nothing that was measured tells how good this is, which has the widest interval then."""
    batches: BatchChoice | None = None
    """None where nothing was asked about other batches."""
    price_kind: str | None = None
    """`own`, `on-demand`, `reserved` or `spot`; None without a price."""
    price_source: str | None = None
    """Who says the price: the clouds, the file or the option."""
    tokens_per_s: float | None = None
    """None where the trace is not of text."""
    total: RunTotal | None = None
    """What the whole run takes; None where no goal was given."""
    is_reference: bool = False
    """Whether it is the source, kept beside the GPUs that were asked about, of which it is none."""
    chance_fastest: float | None = None
    """Of the GPUs of the report; None where the iteration does not fit, or there is no other GPU."""
    chance_cheapest: float | None = None
    """Of those with a price, per iteration; None for those without."""
    is_observed: bool = False
    """The user measured the iteration there."""
    power: PowerDraw | None = None
    """What an iteration draws there; None where nothing tells."""
    electricity: Electricity = field(default_factory=Electricity)
    """What energy is counted for beside the board, and what it costs."""
    loop_ns: float | None = None
    """What an iteration takes in a loop that does not wait for each one's end; None where the recording did not
    either, or does not tell. Its interval is relatively as wide as the iteration's; the source's is not known."""

    @property
    def loop_low_ns(self) -> float | None:
        """Return the low end of the loop's 90 % interval; None without one."""
        return self._loop_end(self.iteration_low_ns)

    @property
    def loop_high_ns(self) -> float | None:
        """Return the high end of the loop's 90 % interval; None without one."""
        return self._loop_end(self.iteration_high_ns)

    def _loop_end(self, end_ns: float | None) -> float | None:
        return self.loop_ns * end_ns / self.iteration_ns if self.loop_ns and end_ns and not self.is_source else None

    @property
    def host_limited_ratio(self) -> float:
        """Return the part of the iteration in which the GPU waits for the host to launch."""
        return self.idle_ns.get(IdleCause.HOST, 0.0) / self.iteration_ns if self.iteration_ns > 0 else 0.0

    @property
    def usd_per_1000_iterations(self) -> float | None:
        """Return the cost of 1,000 iterations."""
        if self.price_usd_per_hour is None:
            return None
        return self.price_usd_per_hour * self.iteration_ns * 1000 / 3.6e12

    @property
    def energy(self) -> JobEnergy | None:
        """Return what an iteration takes in energy; None where nothing tells."""
        if self.power is None:
            return None
        return JobEnergy(
            power=self.power,
            time_ns=self.iteration_ns,
            low_ns=self.iteration_low_ns,
            high_ns=self.iteration_high_ns,
            electricity=self.electricity,
        )

    @property
    def energy_j(self) -> float | None:
        """Return what the board takes for an iteration, the time in which it waits included."""
        return None if (energy := self.energy) is None else energy.energy_j

    @property
    def energy_low_j(self) -> float | None:
        """Return the low end of the energy's 90 % interval."""
        return None if (energy := self.energy) is None else energy.energy_low_j

    @property
    def energy_high_j(self) -> float | None:
        """Return the high end of the energy's 90 % interval."""
        return None if (energy := self.energy) is None else energy.energy_high_j

    @property
    def mean_power_w(self) -> float | None:
        """Return the board's power on average over an iteration."""
        energy = self.energy
        return None if energy is None or self.iteration_ns <= 0 else energy.mean_power_w

    @property
    def billed_j(self) -> float | None:
        """Return what is paid for: the board's energy, and as asked its share of the host's and the site's."""
        return None if (energy := self.energy) is None else energy.billed_j

    @property
    def samples_per_j(self) -> float | None:
        """Return the samples that a joule of the board pays for."""
        return self._per_joule(self.samples_per_s)

    @property
    def tokens_per_j(self) -> float | None:
        """Return the tokens that a joule of the board pays for."""
        return self._per_joule(self.tokens_per_s)

    def _per_joule(self, rate_per_s: float | None) -> float | None:
        watts = self.mean_power_w
        return rate_per_s / watts if rate_per_s is not None and watts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPrediction:
    """Predict all calls of one op with one signature on one GPU."""

    op: str
    """Op name, or the kernel's name where no op launched it."""
    shapes: str
    """The tensors' shapes, e.g. `float16[8,128] float16[128,64]`; empty where not recorded."""
    module: str | None
    """Module path of the first call."""
    family: str | None
    count: int
    """Kernels (or ops, in a trace without timings)."""
    source_ns: float | None
    """Measured GPU time on the source, overlap shared out."""
    predicted_ns: float
    predicted_low_ns: float | None
    predicted_high_ns: float | None
    """Ends of the 90 % interval; None where no model gives one."""
    bound_ns: float | None
    """Physical lower bound; None without shapes."""
    bound_by: str | None
    """`compute`, `memory` or `launch`."""
    method: Method
    """The method that predicts most of this op's time."""
    reason: str
    share: float
    """Of the GPU-busy time on this GPU."""
    energy_j: float | None = None
    """Of the board in that time: what the calls switch, and what idles meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Say how much faster samples would be processed on one GPU with one more change, as a replay shows it."""

    change: str
    option: str | None
    """What asks for it; None where nothing does."""
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPair:
    """Say how likely one GPU beats another."""

    first: str
    second: str
    ratio_low: float
    """Ends of the 90 % interval of the first one's time over the second's; what both share does not widen it."""
    ratio_high: float
    faster: float
    """The chance that the iteration takes less time on the first."""
    cheaper: float | None
    """The chance that it costs less there; None where either has no price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisReport:
    """Hold all that `analyze` found. `predictions` is ranked as `selection` asks; `ops` by predicted time."""

    trace: TraceSummary
    source: Source
    scenario: Scenario = field(default_factory=Scenario)
    memory: MemoryUse | None = None
    """Of the iteration, at its peak; None where the trace does not tell."""
    memory_unknown: str | None = None
    """Why it does not tell."""
    predictions: tuple[GpuPrediction, ...]
    ops_gpu: str
    """The GPU that `ops` is about: the source, else the first target."""
    ops: tuple[OpPrediction, ...]
    critical_path: PathSummary | None = None
    """On `ops_gpu`."""
    compiled: CompiledCode | None = None
    """What was recorded eagerly and is predicted as compiled; None where nothing is."""
    calibration: tuple[Correction, ...] = ()
    """What measurements of the GPUs taught the op models, where any were given."""
    rates: tuple[RateCorrection, ...] = ()
    """What they taught of the GPUs' rates, which all models share."""
    gains: tuple[Gain, ...] = ()
    """What one more change would gain on `ops_gpu`, largest first, faster kernels last; empty where the host does not
    limit it."""
    rank_pairs: tuple[RankPair, ...] = ()
    """GPUs compared two by two: all of up to four, of more those likeliest to be first in time or in cost."""
    warnings: tuple[str, ...] = field(default=())
    selection: Selection = field(default_factory=Selection)
    """Which GPUs were asked about, and in which order."""
    run: RunLength | None = None
    """What is to be run in all; None where no goal was given."""
    electricity: Electricity | None = None
    """What electricity costs, and what is counted beside the board; None where nobody said."""
    tried: Mapping[str, tuple[TriedBatch, ...]] = field(default_factory=dict)
    """By GPU the batches that fit it, smallest first; empty where nothing was asked about other batches."""

    @property
    def iteration_rule(self) -> str:
        """Name how `iteration_ns` comes about on a target."""
        return "replay_on_synthetic_host" if self.source.gpu is None else "replay"
