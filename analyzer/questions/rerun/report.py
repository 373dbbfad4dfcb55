"""What a re-run says beside recording and prediction, as plain records that every renderer reads."""

from ....formats.measured.rerun import WholePass
from ....records import dataclass
from ...measurements.metrics import Figures
from ..validate.report import Coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunOp:
    """Compare all calls of one op on the same shapes; times are those of all calls together."""

    op: str
    shapes: str
    module: str | None
    """Module path of the first call."""
    family: str | None
    count: int
    recorded_ns: float | None
    """On the GPU (or the CPU) of the recording; None where that has no times of the local kind."""
    predicted_ns: float | None
    """For the local GPU; None without a prediction."""
    predicted_low_ns: float | None
    predicted_high_ns: float | None
    """Ends of the 90 % interval."""
    rerun_ns: float | None
    """One call's time times their number; None where it was not re-run."""
    timing: str
    """How it was timed; empty where it was not."""
    reason: str
    """Why it was not re-run; empty where it was."""

    @property
    def error_ratio(self) -> float | None:
        """Return predicted over re-run, less one."""
        return self.predicted_ns / self.rerun_ns - 1.0 if self.predicted_ns is not None and self.rerun_ns else None

    @property
    def is_covered(self) -> bool | None:
        """Say whether the re-run time lies in the interval; None without one."""
        if self.predicted_low_ns is None or self.predicted_high_ns is None or self.rerun_ns is None:
            return None
        return self.predicted_low_ns <= self.rerun_ns <= self.predicted_high_ns

    @property
    def weight_ns(self) -> float:
        """Return what the op counts: its predicted time, else the recorded one, else the re-run one."""
        known = (item for item in (self.predicted_ns, self.recorded_ns, self.rerun_ns) if item is not None)
        return next(known, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """Compare the ops of one family that were re-run."""

    family: str | None
    """None: everything."""
    op_count: int
    call_count: int
    recorded_ns: float | None
    predicted_ns: float | None
    rerun_ns: float
    figures: Figures | None
    """Of the predictions, each distinct op once; None without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Sum up what was not re-run, by op and reason."""

    op: str
    """The kernel's name where no op launched it."""
    reason: str
    count: int
    """Calls; kernels where no op launched them."""
    time_ns: float
    """Predicted, else recorded, else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Hold what is known of the whole iteration."""

    recorded_ns: float | None
    recorded_kernels_ns: float | None
    """Sum of all kernels' times (of a CPU capture: of its ops)."""
    predicted_ns: float | None
    """By the replay with the local GPU's times, the model's Python included."""
    predicted_kernels_ns: float | None
    whole: WholePass | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunReport:
    """Hold all that is said of a re-run. `ops` and `left_out` are in order of time, longest first."""

    device: str
    is_gpu: bool
    gpu: str | None
    """Its name in the catalogue; None for a CPU and what is not there."""
    framework: str
    source: str | None
    """The GPU of the recording; None where it has no GPU times."""
    capture: str
    is_same_gpu: bool
    """Whether the recording was made on the same type of GPU, so that nothing is predicted."""
    weighed_by: str | None
    """Which time shares are taken of: `predicted` or `recorded`; None: neither is known, calls are counted."""
    call_count: int
    rerun_call_count: int
    rerun_ratio: float
    """Share of that time, or of the calls, whose ops were re-run."""
    iteration: Iteration
    total: FamilyRow
    families: tuple[FamilyRow, ...]
    intervals: Coverage
    ops: tuple[RerunOp, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]

    @property
    def is_comparable(self) -> bool:
        """Say whether recorded and re-run times are of one kind of device."""
        return self.capture == ("measured" if self.is_gpu else "cpu")
