"""What an op costs on the host that was hardly seen, or never: what ops of its kind do."""

from collections import defaultdict
from typing import Final

import numpy as np

from ...analyzer.host.costs import ATEN
from ...analyzer.work import family_of
from ...records import dataclass

PRIOR_CALLS: Final = 10
"""Calls after which an op's own mean counts as much as its family's: the first calls of an op take several times what
later ones do, and what a trace holds three of is little else. Ten was set once, before its errors were
looked at; that rare ops need it was not."""

PRIOR_RECORDINGS: Final = 1
"""Recordings after which what passes between two ops counts as much as what passes before the second one elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanCosts:
    """Hold what an op of a family usually takes, and any op, ns."""

    families: dict[str, float]
    all_ops: float
    custom_ops: float

    def of(self, name: str) -> float:
        """Return what ops like one of a name usually take."""
        if not name.startswith(ATEN):
            return self.custom_ops
        family = family_of(name)
        return self.all_ops if family is None else self.families.get(family.value, self.all_ops)


def mean_costs(own_ns: dict[str, float], counts: dict[str, int]) -> MeanCosts:
    """Return the geometric mean over torch's own ops, in a family and in all, and over those of other libraries.

    Ops count alike, but for those that were hardly seen: what a family's next op takes is asked, not what its most
    frequent one does.
    """
    torchs = [name for name in own_ns if name.startswith(ATEN)]
    families: dict[str, list[str]] = defaultdict(list)
    for name in torchs:
        family = family_of(name)
        if family is not None:
            families[family.value].append(name)
    others = [name for name in own_ns if not name.startswith(ATEN)]
    return MeanCosts(
        families={family: _middle(own_ns, counts, names) for family, names in families.items()},
        all_ops=_middle(own_ns, counts, torchs),
        custom_ops=_middle(own_ns, counts, others or torchs),
    )


def _middle(costs_ns: dict[str, float], counts: dict[str, int], names: list[str]) -> float:
    weights = [counts[name] / (counts[name] + PRIOR_CALLS) for name in names]
    return float(np.exp(np.average(np.log([costs_ns[name] for name in names]), weights=weights)))


def by_pairs(lead_ns: dict[str, float], counts: dict[str, int]) -> dict[str, float]:
    """Return the leads, of which those by op alone are the geometric mean over the ops seen before it.

    They stand in for pairs of ops that nobody has seen. A pair that one recording has two thousand times, a reducer's
    clones one after the other, says no more of another pair than one that it has ten times.
    """
    pairs: dict[str, list[str]] = defaultdict(list)
    for key in lead_ns:
        phase_and_place, pair, second = key.partition(">")
        if pair:
            pairs[f"{phase_and_place.rpartition('/')[0]}/{second}"].append(key)
    return lead_ns | {op: _middle(lead_ns, counts, keys) for op, keys in pairs.items()}


def by_recordings(lead_ns: dict[str, float], recording_count: dict[str, int]) -> dict[str, float]:
    """Return the leads, of which those of a pair of ops are drawn to the op's own, the more the fewer recordings tell.

    What one script does between two ops, two thousand times over, says no more of another one than what it does once.
    """
    found = dict(lead_ns)
    for key, lead in lead_ns.items():
        phase_and_place, pair, second = key.partition(">")
        if pair:
            wider = f"{phase_and_place.rpartition('/')[0]}/{second}"
            found[key] = towards(lead, recording_count[key], lead_ns[wider], PRIOR_RECORDINGS)
    return found


def towards(cost_ns: float, count: int, kind_ns: float, prior_count: int = PRIOR_CALLS) -> float:
    """Return an op's cost, drawn to what its kind takes the more the fewer calls tell it.

    >>> round(towards(40.0, 10, 10.0), 6)
    20.0
    """
    share = count / (count + prior_count)
    return float(cost_ns**share * kind_ns ** (1 - share))
