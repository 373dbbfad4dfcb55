"""Measured loads beside their predictions, and what is decided by them: which is better, which keeps a limit."""

from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import Final

import numpy as np

from ....arrays import group_by
from ....records import dataclass, field
from ..serve.forecast import FIRST, PER_TOKEN
from .report import DecisionRow

LATENCY: Final = "latency"
CASE: Final = ("source", "model", "precision", "isl", "osl")
"""What rows that can be chosen from have in common."""
LEAST_APART: Final = log(1.1)
"""Natural log of two rates, one of which is better."""
LIMITS_NS: Final = (10e6, 20e6, 30e6, 50e6, 100e6)
"""Of TPOT, as users ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """Hold a measured load beside its prediction; times in ns."""

    row: Mapping[str, str]
    """Of the table; of a log its source, GPU and engine."""
    measured: Mapping[str, float]
    """By what was measured: ttft, tpot, e2e, latency, of one batch prefill and decode step; cached tokens, a count."""
    predicted: Mapping[str, float]
    ends: Mapping[str, tuple[float, float]]
    roofline_ns: Mapping[str, float] = field(default_factory=dict)
    """A token's and a prompt's time by the roofline, where the load is given."""


def decide_loads(points: Sequence[ServingPoint]) -> Iterator[DecisionRow]:
    """Yield how often the better of two measured loads was named, and how often the best under a limit kept it.

    Better is more written tokens/s per GPU, by 10 % at least. Recommended is what writes most of one GPU type's and
    engine's rows, among those whose TPOT is within the limit at the upper end of its interval.
    """
    each_type = _groups([point for point in points if PER_TOKEN in point.ends], *CASE, "gpu", "engine")
    found = {
        "more tokens/s per GPU": [_right(group) for group in _groups(points, *CASE)],
        "the same, of as many users": [_right(group) for group in _groups(points, *CASE, "concurrency")],
        "the most within a limit of TPOT keeps it": [_kept(group, limit) for group in each_type for limit in LIMITS_NS],
    }
    for criterion, right in found.items():
        pairs = [one for group in right for one in group]
        if pairs:
            yield DecisionRow(
                table="serving",
                criterion=criterion,
                workloads=sum(map(bool, right)),
                pairs=len(pairs),
                right=float(np.mean(pairs)),
                kendall_tau=None,
                baselines={},
            )


def _groups(points: Sequence[ServingPoint], *names: str) -> list[list[ServingPoint]]:
    return list(group_by(points, lambda point: tuple(point.row[name] for name in names)).values())


def _right(group: Sequence[ServingPoint]) -> list[bool]:
    """Return of each pair whose rates differ whether the better one was named."""
    rates = np.log([[_rate(point.row, times) for times in (point.measured, point.predicted)] for point in group])
    first, second = np.triu_indices(len(group), 1)
    measured, predicted = (rates[first] - rates[second]).T
    return list(((measured > 0) == (predicted > 0))[np.abs(measured) > LEAST_APART])


def _kept(group: Sequence[ServingPoint], limit_ns: float) -> list[bool]:
    held = [point for point in group if point.ends[PER_TOKEN][1] <= limit_ns]
    best = max(held, key=lambda point: _rate(point.row, point.predicted), default=None)
    return [] if best is None else [best.measured[PER_TOKEN] <= limit_ns]


def _rate(row: Mapping[str, str], times_ns: Mapping[str, float]) -> float:
    """Return tokens per ns and GPU: the tokens of all users over the time from request to last token."""
    tokens = int(row["osl"])
    whole = times_ns.get(LATENCY) or times_ns[FIRST] + times_ns[PER_TOKEN] * (tokens - 1)
    return int(row["concurrency"]) * tokens / whole / int(row["gpus"])
