"""What one plan comes to on m GPU types, whoever computed it: the columns that a report of plans is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ....arrays import Floats
from ...memory.fit import Fit
from ...memory.use import MemoryCategory
from ...whatif.parallel.plan import ParallelPlan
from ...whatif.parallel.plan_file import PlanDocument
from .forecast import PlanForecast
from .parts import PlanPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Say how the samples of an iteration are parted."""

    global_batch: int
    micro_batch: int
    micro_batches: int
    """Of each replica and iteration."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanOutcome:
    """Hold what a plan comes to on m GPU types."""

    plan: ParallelPlan
    batches: Batches
    step_ns: Floats
    """[m]"""
    low_ns: Floats
    """Ends of the 90 % interval, [m]; NaN: not known."""
    high_ns: Floats
    parts_ns: Mapping[PlanPart, Floats]
    """[m] each; they add up to the step."""
    fits: tuple[Fit, ...]
    """Of the rank that holds most, m of them."""
    held: Mapping[MemoryCategory, int] | None = None
    """What that rank holds at its peak, bytes; None: not known."""
    forecast: PlanForecast | None = None
    """With its pieces, for a timeline; None: there is none."""


Predictor = Callable[[PlanDocument, Batches], PlanOutcome]
"""Predicts one plan on all GPU types. Raises InputError for a plan that the trace cannot run under."""
