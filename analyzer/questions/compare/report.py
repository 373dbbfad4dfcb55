"""What a comparison of two traces says, as plain records."""

from enum import StrEnum
from typing import Final

from ....records import dataclass
from ...iteration.decision.electricity import Electricity, JobEnergy

LEAST_CHANGE: Final = 0.0005
"""Iterations that differ by less are as fast as each other."""


class ChangeKind(StrEnum):
    """Say what kind of change a group of ops is."""

    MODE = "mode"
    COMPILED = "compiled"
    RECOMPUTED = "recomputed"
    REPEATED = "repeated"
    MODULE_ADDED = "module added"
    MODULE_REMOVED = "module removed"
    OPTIMIZER = "optimizer"
    PARAMETERS = "parameters"
    TIED = "weights tied"
    FROZEN = "frozen"
    ATTENTION = "attention"
    REPLACED = "replaced"
    ADDED = "added"
    REMOVED = "removed"
    PRECISION = "precision"
    SIZE = "size"
    LAYOUT = "layout"
    ARGUMENTS = "arguments"
    KERNEL = "kernel"
    ORDER = "order"


class Verdict(StrEnum):
    """Say how a change of time stands to the threshold."""

    PASSED = "passed"
    UNCERTAIN = "uncertain"
    """Above it, but within the interval."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeGroup:
    """Hold ops that changed for one reason; times are of their kernels on each GPU, in order of `Comparison.gpus`."""

    kind: ChangeKind
    cause: str
    old_count: int
    new_count: int
    modules: tuple[str, ...]
    old_ns: tuple[float, ...]
    new_ns: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChange:
    """Say what the iteration takes on one GPU before and after."""

    gpu: str
    old_measured: bool
    new_measured: bool
    old_ns: float
    new_ns: float
    change_low: float | None
    """Ends of the 90 % interval of new over old, less one; None where too much has no interval."""
    change_high: float | None
    same_old_ns: float
    """Kernel time of the ops that did not change."""
    same_new_ns: float
    rest_ns: float
    """Of the difference: not kernel time; waits for the host, latencies and overlap."""
    old_fits: bool | None
    new_fits: bool | None
    is_tight: bool
    old_energy: JobEnergy
    """Of an iteration on the GPU, with its own time."""
    new_energy: JobEnergy

    @property
    def energy_change(self) -> float | None:
        """Return what is paid for of the new energy over the old one, less one; None where that is nothing."""
        return self.new_energy.billed_j / self.old_energy.billed_j - 1.0 if self.old_energy.billed_j > 0 else None

    @property
    def change(self) -> float:
        """Return new over old, less one."""
        return self.new_ns / self.old_ns - 1.0 if self.old_ns > 0 else 0.0

    @property
    def may_be_none(self) -> bool:
        """Say whether no change lies inside the interval, or nothing says where it ends."""
        return self.change_low is None or self.change_high is None or self.change_low <= 0.0 <= self.change_high

    @property
    def no_longer_fits(self) -> bool:
        """Say whether the old iteration fitted and the new one does not."""
        return self.old_fits is True and self.new_fits is False

    def verdict(self, limit: float) -> Verdict:
        """Return how the slowdown stands to a limit, a ratio."""
        if self.change <= limit:
            return Verdict.PASSED
        is_sure = self.change_low is not None and self.change_low > limit
        return Verdict.FAILED if is_sure else Verdict.UNCERTAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Hold all that `wavecast compare` found; groups by effect on time on the first GPU, largest first."""

    old_name: str | None
    new_name: str | None
    gpus: tuple[GpuChange, ...]
    groups: tuple[ChangeGroup, ...]
    same_count: int
    old_count: int
    new_count: int
    old_peak_bytes: int | None
    new_peak_bytes: int | None
    old_batch: int | None
    new_batch: int | None
    warnings: tuple[str, ...] = ()
    electricity: Electricity | None = None
    """What electricity costs, and what is counted beside boards and links; None where nobody said."""

    @property
    def memory_growth(self) -> float | None:
        """Return the new peak over the old one, less one; None where one is not known."""
        if not self.old_peak_bytes or self.new_peak_bytes is None:
            return None
        return self.new_peak_bytes / self.old_peak_bytes - 1.0
