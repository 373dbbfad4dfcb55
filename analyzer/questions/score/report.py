"""What a score says, as plain records that every renderer reads. Ratios throughout: 0.08 is 8 %."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ....records import dataclass, field
from ...models.frame.intervals import GpuClass

SCORE_FORMAT: Final = "wavecast.score"
SCORE_VERSION: Final = "1.0"
EVERYTHING: Final = "all"
"""Stands for a table, family, dtype or GPU in a row that pools them."""
CLASS_LABELS: Final[Mapping[GpuClass, str]] = {
    GpuClass.HBM: "NVIDIA, HBM",
    GpuClass.GDDR: "NVIDIA, GDDR",
    GpuClass.AMD: "AMD",
}
"""Stand for the GPU in a row that pools the GPUs of a class."""
MEAN: Final = "mean"
"""Stands for the GPU in a row whose figures are the unweighted mean over the GPUs' rows."""


class Split(StrEnum):
    """Say whether the predicting weights were trained on measurements of the row's chip."""

    SEEN = "seen"
    UNSEEN = "unseen"


class Size(StrEnum):
    """Part rows by their measured time."""

    ALL = "all"
    UNDER_20_US = "under_20us"
    OVER_20_US = "over_20us"
    OVER_100_US = "over_100us"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """Hold the errors of one family and dtype of one table on one GPU."""

    table: str
    family: str
    dtype: str
    gpu: str
    split: Split
    size: Size
    rows: int
    mape: float
    """Mean of |predicted / measured - 1|."""
    median_ape: float
    p90_ape: float
    bias: float
    """Mean of predicted / measured - 1."""
    coverage_90: float
    """Share of the measurements inside their 90 % interval; NaN where no row has one."""
    width_90: float
    """Mean of (high - low) / predicted; NaN where no row has an interval."""
    median_width_90: float = float("nan")
    """Median of (high - low) / predicted; NaN where no row has an interval, and in scores of before it was kept."""
    median_bias: float = float("nan")
    """Median of predicted / measured - 1; NaN in scores of before it was kept."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """MAPE of simpler predictions on the same rows, those that have one."""
    baseline_rows: Mapping[str, int] = field(default_factory=dict)
    """On how many of the rows each baseline could say anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRow:
    """Name one badly predicted measurement."""

    table: str
    family: str
    dtype: str
    gpu: str
    split: Split
    problem: str
    """The sizes, e.g. `m=64 n=4096 k=4096`."""
    measured_ns: float
    predicted_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRow:
    """Hold the predicted and the measured time of one whole network, predicted from its ops' shapes."""

    table: str
    gpu: str
    model: str
    mode: str
    """`inf` or `train`."""
    sequence_length: int
    batch: int
    dtype: str
    split: Split
    is_suspect: bool
    """Whether the table marks the network's measurement as not to be trusted."""
    measured_ns: float
    predicted_ns: float
    low_ns: float | None
    """None where too little is modelled to give an interval."""
    high_ns: float | None
    unmodelled_nodes: int
    """Nodes that launch kernels which nothing models; they count nothing."""
    baselines_ns: Mapping[str, float]
    """Times by other means: the sum of the measured ops, stored predictions of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRow:
    """Hold the predicted and the measured time of one network's inference, predicted from its shape-only trace."""

    table: str
    gpu: str
    model: str
    family: str
    """The source file of timm that defines the model."""
    layout: str
    """`nchw`, or `nhwc` for channels-last tensors."""
    software: str
    """That was measured, e.g. `torch 2.4.0`."""
    is_compiled: bool
    """Whether torch.compile ran; then the prediction has merged what inductor would."""
    batch: int
    image_size: int
    source: str | None
    """The other GPU whose measurement of the same model, layout and software the ratios start from; None: none has."""
    split: Split
    measured_ns: float
    """Of one batch."""
    predicted_ns: float
    low_ns: float | None
    """None where too little is modelled to give an interval."""
    high_ns: float | None
    baselines_ns: Mapping[str, float]
    """Times by other means: the roofline; from the source's measurement, wavecast's ratio and plain ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationScore:
    """Hold the predicted and the measured time of an iteration on many GPUs, predicted from sizes and plan."""

    table: str
    source: str
    model: str
    task: str
    gpu: str
    gpus: int
    plan: str
    precision: str
    framework: str
    micro_batch: int
    global_batch: int
    seq_len: int
    has_experts: bool
    split: Split
    measured_ns: float
    predicted_ns: float
    low_ns: float | None
    """None where too little is modelled to give an interval."""
    high_ns: float | None
    baselines_ns: Mapping[str, float]
    """Times by other means; `wavecast_anchored` and `wavecast_scaled` are wavecast's own, given another row."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Shares of the predicted time by what it goes to."""
    given_gpus: int = 0
    """On how many GPUs the run was measured that the prediction was given; 0: predicted from sizes and plan alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """Say how often the better of two GPUs, plans or loads was named rightly, or a limit kept."""

    table: str
    criterion: str
    """What is better: `faster`, `cheaper`, or in words."""
    workloads: int
    """With at least two GPUs."""
    pairs: int
    right: float
    """Share of pairs of GPUs, workload by workload, whose better one was named."""
    kendall_tau: float | None
    """Mean over the workloads with at least three GPUs."""
    baselines: Mapping[str, float]
    """Share of right pairs by other means, on the pairs where they say something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFamilyRow:
    """Hold the errors of one family's ops over all our own recordings, predicted from their shapes."""

    family: str
    networks: int
    ops: int
    measured_ns: float
    predicted_ns: float
    error: float
    """Mean of |ln(predicted / measured)| over the ops."""
    bias: float
    """Mean of ln(predicted / measured)."""
    coverage_90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNetworkRow:
    """Hold one of our own recordings: GPU-busy time from shapes, and moved from the other GPU that recorded it."""

    network: str
    gpu: str
    split: Split
    measured_ns: float
    """Of the kernels that the predicted ops launched."""
    predicted_ns: float
    low_ns: float | None
    high_ns: float | None
    unknown_ns: float
    """Of kernels whose op has no formula, or lacks its arguments."""
    moved_ns: float | None
    """GPU-busy time, from the recording on the other GPU; None where there is none."""
    iteration_ns: float
    """Measured by the clock, without a profiler."""
    again_ns: float
    """Another stretch of that loop, by the GPU's events."""
    moved_iteration_ns: float | None
    joules: float | None
    """Of an iteration, by the board's meter."""
    moved_joules: float | None
    moved_low_joules: float | None = None
    moved_high_joules: float | None = None
    moved_low_ns: float | None = None
    """Ends of the moved iteration's 90 % interval; None where there is none."""
    moved_high_ns: float | None = None
    loop_ns: float | None = None
    """The iteration that its own recording, which waited after each, says of a loop on the same GPU."""
    busy_ns: float | None = None
    """GPU-busy time of its recording, in which kernels that overlap count once."""
    roofline_ns: float | None = None
    """Sum of the rooflines of the predicted ops; None in scores of before it was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """Hold the prediction of one GPU's trace from another GPU's trace of the same workload."""

    workload: str
    source: str
    target: str
    predicted_busy_ns: float
    measured_busy_ns: float
    predicted_iteration_ns: float
    measured_iteration_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """Hold how wrong a served model's measured loads were predicted, of one group of them."""

    group: str
    """Source, GPU and engine."""
    measure: str
    """TTFT, TPOT or end to end in the mean; of an offline batch latency, prefill, decode step; cached tokens."""
    rows: int
    mape: float
    median_ape: float
    bias: float
    """Median of predicted over measured, less 1."""
    covered: float
    """Share of rows in their 90 % interval."""
    roofline: float | None = None
    """MAPE of the roofline on the rows that have one; None where none has, and in scores of before it was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Hold all that `score` found."""

    weights: str
    """Which weights predicted, in words."""
    left_out: str = ""
    """What those weights never saw of each measurement: `chips`, `shapes`, or nothing in particular."""
    rows: tuple[ScoreRow, ...]
    worst: tuple[WorstRow, ...] = ()
    networks: tuple[NetworkRow, ...] = ()
    throughput: tuple[ThroughputRow, ...] = ()
    iterations: tuple[IterationScore, ...] = ()
    recommenders: tuple[IterationScore, ...] = ()
    """Their baselines are named for how lookups are spread otherwise."""
    decisions: tuple[DecisionRow, ...] = ()
    traces: tuple[TraceRow, ...] = ()
    serving: tuple[ServingRow, ...] = ()
    own_families: tuple[OwnFamilyRow, ...] = ()
    own_networks: tuple[OwnNetworkRow, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
