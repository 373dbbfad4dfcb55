"""What a validation says, as plain records that every renderer reads."""

from collections.abc import Mapping

from ....records import dataclass, field
from ...measurements.metrics import Figures
from ...prediction.prediction import Method
from ...replay.causes import IdleCause
from ...whatif.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Describe one of the two recordings and how much of its kernels' time has a partner in the other."""

    gpu: str | None
    """None for a recording of shapes alone."""
    framework: str | None
    call_count: int
    """Op calls that put work on the GPU."""
    matched_call_count: int
    kernel_time_ns: float
    """Of the first recording as predicted on the target, of the second as measured; overlap counts twice."""
    matched_ns: float
    iteration_index: int | None = None
    """The one that is compared, numbered as in `wavecast show`; None: no iteration was marked, or all are as one."""
    iteration_choice: str = "median"
    """The rule that chose it: `median`, `longest`, `all`, or `number`."""
    recorded_iteration_count: int = 1
    """Iterations that there were to choose from."""

    @property
    def matched_ratio(self) -> float:
        """Return the share of the kernels' time that is compared."""
        return self.matched_ns / self.kernel_time_ns if self.kernel_time_ns > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """Sum up the calls of one op that only one of the recordings has."""

    is_measured: bool
    """Whether it is the second recording that has them."""
    op: str
    shapes: str
    count: int
    time_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationComparison:
    """Compare the iteration; `kernel_error_ns`, `host_error_ns` and `other_error_ns` add up to its error.

    kernels: what the replay of the first recording changes by when its kernels take what they took on the target.
    host: what it changes by further when its host takes as long as the target's. other: what is left, from latencies,
    unmatched calls, and what the recordings' orders of events differ by.
    """

    predicted_ns: float
    predicted_low_ns: float | None
    predicted_high_ns: float | None
    """Ends of the 90 % interval; None where there is none, as on the very GPU that was measured."""
    measured_ns: float
    predicted_busy_ns: float
    measured_busy_ns: float
    predicted_idle_ns: Mapping[IdleCause, float]
    measured_idle_ns: Mapping[IdleCause, float]
    kernel_error_ns: float
    host_error_ns: float
    other_error_ns: float
    host_speed_ratio: float | None
    """Speed of the target's host relative to the one that the first recording was made on (that is assumed, where it
    was made without times); None where either has no host time."""
    host_speed_by_ops: float | None = None
    """The same by the durations of the recordings' CPU ops alone, which know nothing of the iteration's length; None
    where these tell nothing."""
    host_by_ops_half_width: float | None = None
    """How far that may be off in 90 % of the cases, natural log."""

    @property
    def error_ratio(self) -> float:
        """Return predicted over measured, less one."""
        return self.predicted_ns / self.measured_ns - 1.0

    @property
    def is_covered(self) -> bool | None:
        """Say whether the measured iteration lies in the interval; None without one."""
        if self.predicted_low_ns is None or self.predicted_high_ns is None:
            return None
        return self.predicted_low_ns <= self.measured_ns <= self.predicted_high_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyComparison:
    """Compare the kernels of one family; each distinct op counts once in `figures`."""

    family: str | None
    """None: everything."""
    call_count: int
    predicted_ns: float
    measured_ns: float
    share: float
    """Of the measured time that is compared."""
    figures: Figures
    """Over its ops that took any time on the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Count the ops whose measured time lies in their 90 % interval, among those that have one."""

    op_count: int
    covered_op_count: int
    measured_ns: float
    """Of the ops that have one."""
    covered_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpComparison:
    """Compare all calls of one op on the same shapes."""

    op: str
    """Name in the first recording; the kernel's where no op launched it."""
    target_op: str
    """Name in the second."""
    shapes: str
    module: str | None
    """Module path of the first call, in the first recording."""
    family: str | None
    count: int
    """OpCalls in the first recording."""
    kernel_count: int | None
    """Kernels in the first recording; None where it has no GPU times."""
    target_kernel_count: int
    source_ns: float | None
    """Measured on the first recording's GPU."""
    predicted_ns: float
    predicted_low_ns: float | None
    predicted_high_ns: float | None
    """Ends of the 90 % interval; None where no model gives one."""
    measured_ns: float
    bound_ns: float | None
    """Physical lower bound on the target; None without shapes."""
    bound_by: str | None
    method: Method
    reason: str
    matched_by: str

    @property
    def error_ns(self) -> float:
        """Return predicted less measured."""
        return self.predicted_ns - self.measured_ns

    @property
    def error_ratio(self) -> float | None:
        """Return predicted over measured, less one; None where the target took no time that its clock could see."""
        return self.predicted_ns / self.measured_ns - 1.0 if self.measured_ns > 0 else None

    @property
    def is_covered(self) -> bool | None:
        """Say whether the measured time lies in the interval; None without one."""
        if self.predicted_low_ns is None or self.predicted_high_ns is None:
            return None
        return self.predicted_low_ns <= self.measured_ns <= self.predicted_high_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Hold all that is said of a prediction beside the measurement. `ops` is in order of absolute error, largest
    first, and may be cut; `families` in order of measured time."""

    source: Side
    target: Side
    scenario: Scenario
    iteration: IterationComparison
    total: FamilyComparison
    families: tuple[FamilyComparison, ...]
    intervals: Coverage
    op_count: int
    """Distinct ops compared, also those that `ops` leaves out."""
    ops: tuple[OpComparison, ...]
    unmatched: tuple[Unmatched, ...]
    """In order of time, longest first."""
    warnings: tuple[str, ...] = field(default=())
