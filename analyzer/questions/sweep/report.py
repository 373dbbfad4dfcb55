"""What a sweep found, as plain records that every renderer reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ...iteration.decision.electricity import Electricity, JobEnergy
from ...iteration.report import Source, TraceSummary
from ...whatif.scenario import Scenario

SWEEP_FORMAT: Final = "wavecast.sweep"
SWEEP_VERSION: Final = "1.0"


class AxisKind(StrEnum):
    """Say what a parameter belongs to."""

    FIGURE = "figure"
    """Of the GPU's datasheet."""
    ITERATION = "iteration"
    """Of the iteration, or of its host."""
    GPUS = "gpus"
    """How many GPUs share it."""


class SweepLimit(StrEnum):
    """Name what time goes to; the shares of an iteration add up to 1."""

    COMPUTE = "compute"
    """Kernels that arithmetic at its peak bounds longer than memory does, at half of that peak or more."""
    MEMORY = "memory"
    """Kernels that memory bounds longer, at half of its bandwidth or more."""
    NEITHER = "far from both peaks"
    """Kernels at less than half of either: caches, latencies, the issue of instructions, tiles that do not fill."""
    SHORT = "short kernels"
    """Kernels whose work takes less than a kernel takes beside its work."""
    UNEXPLAINED = "kernels without a formula"
    COMMUNICATION = "communication"
    HOST = "host"
    """Waits for launches, and synchronisations."""
    WAITS = "other waits"
    BUBBLE = "bubble"
    OPTIMIZER = "optimizer"
    STRAGGLERS = "slowest rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAxis:
    """Describe one parameter and the values that it takes."""

    name: str
    words: str
    kind: AxisKind
    unit: str
    """Base unit of the values; empty for counts and ratios."""
    values: tuple[float | str, ...]
    """Ascending, in base units; names for precisions."""
    base: float | str | None
    """What it is where nothing is varied; None where that is not known."""
    more_is_better: bool = True
    """Whether more of it should make nothing slower."""

    def ratio(self, index: int) -> float | None:
        """Return a value over what it is where nothing is varied."""
        value = self.values[index]
        if isinstance(value, str) or isinstance(self.base, str) or not self.base:
            return None
        return value / self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """Predict the iteration at one value of each parameter. Unknown is None."""

    at: tuple[int, ...]
    """Which value of each axis; empty for the one where nothing is varied."""
    gpu: str
    iteration_ns: float
    iteration_low_ns: float | None
    iteration_high_ns: float | None
    speedup: float
    """How much faster work is done than where nothing is varied."""
    speedup_low: float | None
    """Ends of its 90 % interval: what both have in common cancels."""
    speedup_high: float | None
    samples_per_s: float | None
    fits: bool | None
    is_tight: bool
    memory_needed_bytes: int | None
    memory_usable_bytes: int | None
    shares: Mapping[SweepLimit, float]
    beyond: tuple[str, ...] = ()
    """Figures that no GPU of the catalogue comes near: the models were never asked such a thing."""
    energy: JobEnergy | None = None
    """Of an iteration on all GPUs; None: not known."""

    @property
    def limit(self) -> SweepLimit:
        """Return what most of the time goes to."""
        return max(self.shares, key=lambda name: self.shares[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Say where more of the first parameter stops to help, at one value of the second."""

    line: int | None
    """Which value of the second axis; None where there is one axis."""
    point: SweepPoint
    """The first that is as good as any, but for `NEGLIGIBLE`."""
    gain_beyond: float
    """What more would still give, as a ratio less 1."""
    is_saturated: bool
    """Whether it lies before the end of what was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """Hold an iteration predicted while parameters vary; `points` go along the first axis, line by line of the
    second."""

    trace: TraceSummary
    source: Source
    scenario: Scenario = field(default_factory=Scenario)
    """What is asked beside the parameters."""
    gpu: str
    """The GPU that is varied, or that the iteration is predicted on."""
    plan: str | None = None
    """Of many GPUs."""
    axes: tuple[SweepAxis, ...]
    base: SweepPoint
    """Where nothing is varied."""
    points: tuple[SweepPoint, ...]
    knees: tuple[Knee, ...]
    slower_with_more: tuple[str, ...] = ()
    """Where the models say that more of a figure is slower, which no GPU is: one sentence each."""
    warnings: tuple[str, ...] = ()
    electricity: Electricity | None = None
    """What electricity costs, and what is counted beside boards and links; None where nobody said."""

    @property
    def work(self) -> str:
        """Return what is counted where iterations differ in how much they do; empty where their times compare."""
        names = {axis.name for axis in self.axes}
        if "sequence-length" in names:
            return "tokens"
        return "samples" if names & {"batch", "gpus"} else ""

    def line(self, second: int | None = None) -> tuple[SweepPoint, ...]:
        """Return the points at one value of the second axis, or all where there is one axis."""
        return tuple(point for point in self.points if second is None or point.at[1] == second)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureElasticity:
    """Say what one per cent more of a figure does to the time."""

    name: str
    words: str
    unit: str
    base: float
    elasticity: float
    """d ln(time) / d ln(figure): -0.4 means that 1 % more of it takes 0.4 % off."""
    low: float
    """The least and the most that steps of other sizes give."""
    high: float
    busy_elasticity: float
    """The same of the time in which the GPU works: what the host hides is in it."""
    slower_with_more: float
    """By how much the iteration gets longer with more of it, as a ratio less 1, over the steps tried; 0: it does
    not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityReport:
    """Hold what one per cent more of each figure would buy, most first."""

    trace: TraceSummary
    source: Source
    scenario: Scenario = field(default_factory=Scenario)
    gpu: str
    base: SweepPoint
    figures: tuple[FigureElasticity, ...]
    absent: tuple[str, ...]
    """Figures that this GPU has none of."""
    warnings: tuple[str, ...] = ()
