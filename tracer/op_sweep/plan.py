"""What a short sweep measures: sizes of all kinds, or a workload's own calls first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from .cases import Case
from .sweep import FAMILIES, SweepLimits

LEAST_ROWS: Final = 50
"""Calls of a family that is measured for a workload, its own included: what a correction needs to be worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Hold calls that are measured one after another until their limits end them."""

    cases: Iterator[Case]
    limits: SweepLimits


def plan_sizes(families: Sequence[str], dtypes: Sequence[str], limits: SweepLimits) -> dict[str, tuple[Stage, ...]]:
    """Return calls whose every beginning is spread over the sizes, by family."""
    return {family: (Stage(cases=_spread(family, dtypes), limits=limits),) for family in families}


def plan_workload(
    own_cases: Mapping[str, Sequence[Case]],
    families: Sequence[str],
    dtypes: Sequence[str] | None,
    limits: SweepLimits,
    *,
    is_limited: bool,
) -> dict[str, tuple[Stage, ...]]:
    """Return a workload's own calls by family, then other sizes where these are few.

    `dtypes` None: those of its calls. Only with `is_limited` do the limits hold for its own calls too.
    """
    plan = {}
    for family, own in own_cases.items():
        wanted = [case for case in own if dtypes is None or case.row["dtype"] in dtypes]
        if family not in families or not wanted:
            continue
        found = sorted({case.row["dtype"] for case in wanted})
        own_limits = limits if is_limited else replace(limits, flops=inf, elements=inf)
        plan[family] = (
            Stage(cases=iter(wanted), limits=own_limits),
            Stage(cases=_spread(family, found), limits=replace(limits, row_count=max(0, LEAST_ROWS - len(wanted)))),
        )
    return {family: plan[family] for family in families if family in plan}


def _spread(family: str, dtypes: Sequence[str]) -> Iterator[Case]:
    return (case for case in FAMILIES[family](dtypes) if case.table == family)
