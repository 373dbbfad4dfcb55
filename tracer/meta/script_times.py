"""What the script's own Python took, of what the clock saw amid a recording."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Rows
from ...formats.trace.column import MISSING
from ...records import dataclass, field, replace

_QUARTER: Final = 25
_NORMAL_90: Final = 1.645
"""Half-width of the 90 % interval of a normal error, in standard deviations."""
TELLING_NS: Final = 200_000
"""Gaps that may be more than a usual script has: less than the analysis asks for, on the fastest processors."""


@dataclass(frozen=True, slots=True)
class ScriptStretch:
    """Hold one stretch of time outside torch, as the clock has it: with what recording adds."""

    time_ns: float
    is_after_op: bool
    """It followed a function in which ops ran: the recorder has pushed the script out of the caches."""
    is_loading: bool = False
    opens_module: bool = False
    """A module was called at its end."""


@dataclass(slots=True)
class ScriptTime:
    """Hold what passed outside torch before one op."""

    stretches: list[ScriptStretch] = field(default_factory=list)
    host_ns: float = 0.0
    """In functions on tensors of the host alone, beside it; and"""
    host_loading_ns: float = 0.0
    """of these while data was loaded."""
    is_untold: bool = False
    """C++ issued the op after others: no Python ran before it."""


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """Say what recording adds to the script's own Python: some time per stretch, and colder caches.

    Between eager ops the same piece of Python takes about three times what it takes in a loop of its own, for torch's
    code takes its place in the caches. The recorder's takes more of it: a known piece takes `cold_ns` after it instead
    of `usual_ns`. Code runs slower the first time, and no slower from then on.
    """

    after_call_ns: float = 0.0
    after_op_ns: float = 0.0
    module_ns: float = 0.0
    """Per call of a module: torch takes a longer way where hooks are set."""
    usual_ns: float = 0.0
    cold_ns: float = 0.0

    def own_ns(self, stretches: Sequence[ScriptStretch]) -> tuple[float, float]:
        """Return what the script's Python takes before an op where nothing is recorded, and what of it loads data.

        >>> cost = RecordingCost(after_op_ns=1.0, usual_ns=10.0, cold_ns=20.0)
        >>> cost.own_ns([ScriptStretch(11.0, True)]), cost.own_ns([ScriptStretch(111.0, True, is_loading=True)])
        ((5.0, 0.0), (100.0, 100.0))
        """
        own = loading = 0.0
        for group in _after_ops(stretches):
            left = [(item.time_ns - self.reached_ns(item), item.is_loading) for item in group]
            whole = sum(time_ns for time_ns, _ in left)
            if whole > 0:
                # Amid eager ops it takes less by a part, at most by the known piece's.
                is_colder = 0 < self.usual_ns < self.cold_ns
                least = whole - (self.cold_ns - self.usual_ns)
                warm = max(whole * self.usual_ns / self.cold_ns, least) if is_colder else whole
                own += warm
                loading += warm * float(np.clip(sum(time_ns for time_ns, loads in left if loads) / whole, 0.0, 1.0))
        return own, loading

    def reached_ns(self, stretch: ScriptStretch) -> float:
        """Return what passes of a stretch before the script goes on and after it asked for something."""
        reached_ns = self.after_op_ns if stretch.is_after_op else self.after_call_ns
        return reached_ns + stretch.opens_module * self.module_ns


@dataclass(slots=True)
class ScriptTimes:
    """Collect an iteration's times, op by op."""

    before_op: list[ScriptTime] = field(default_factory=list)
    cold_ns: list[float] = field(default_factory=list)
    """What the known piece of Python took amid recording."""

    def usual_module_ns(self, cost: RecordingCost) -> float:
        """Return what the call of a module takes here, the recorder's way included, at most what the known piece does.

        Three of four take longer. What a script's usual modules take is in the usual lead.
        """
        found = []
        for group in (group for item in self.before_op for group in _after_ops(item.stretches)):
            count = sum(item.opens_module for item in group)
            if count:
                plain = replace(cost, module_ns=0.0)
                found.append(sum(item.time_ns - plain.reached_ns(item) for item in group) / count)
        return float(np.clip(np.percentile(found, _QUARTER), 0.0, max(cost.usual_ns, cost.cold_ns))) if found else 0.0

    def settled(self, cost: RecordingCost) -> list[tuple[int, int]]:
        """Return the script's own time before each op, and what of it loaded data, ns; MISSING before C++'s own ops."""
        found = []
        for item in self.before_op:
            if item.is_untold and not item.stretches:
                found.append((MISSING, 0))
                continue
            own_ns, loading_ns = cost.own_ns(item.stretches)
            found.append((round(own_ns + item.host_ns), round(loading_ns + item.host_loading_ns)))
        return found


def _after_ops(stretches: Sequence[ScriptStretch]) -> list[list[ScriptStretch]]:
    """Part stretches where the recorder was between them."""
    groups: list[list[ScriptStretch]] = []
    for item in stretches:
        if item.is_after_op or not groups:
            groups.append([])
        groups[-1].append(item)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptWalk:
    """Hold what a script took before each op of one iteration, and what of it loaded data, ns."""

    leads: Sequence[tuple[int, int]]
    round_ns: float
    """What a round of the known piece took beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLeads:
    """Hold what a script takes before each op, ns, by several walks through it."""

    lead_ns: Rows
    loading_ns: Rows
    round_ns: float | None
    """What a round of the known piece takes on a machine on which the script takes that; None: no clock told."""
    spread: float
    """How far the long gaps in all may be off by what walks differ by, 90 %, natural log."""

    @property
    def has_long(self) -> bool:
        """Say whether the script does much between two ops."""
        return bool(np.any(self.lead_ns >= TELLING_NS))


def merge_walks(walks: Sequence[ScriptWalk]) -> ScriptLeads:
    """Return what walks through the same ops tell: the least of short gaps, the lower quarter of long ones.

    Walks on a busy machine are longer, and so is a known piece of Python beside each: all are brought to the speed of
    the fastest. What is left of short gaps only ever adds; of long ones it mostly does.

    >>> slow = ScriptWalk(leads=[(3_000_000, 0), (50, 0)], round_ns=2.0)
    >>> merge_walks([slow, ScriptWalk(leads=[(1_500_000, 0), (60, 0)], round_ns=1.0)]).lead_ns.tolist()
    [1500000, 25]
    """
    rounds = np.array([walk.round_ns for walk in walks])
    fastest = float(rounds.min())
    ratio = fastest / rounds if fastest > 0 else np.ones(len(walks))
    table = np.array([walk.leads for walk in walks], dtype=np.float64).reshape(len(walks), -1, 2) * ratio[:, None, None]
    least = np.argmin(table[..., 0], axis=0)
    found = np.take_along_axis(table, least[None, :, None], axis=0)[0]
    is_long = found[:, 0] >= TELLING_NS
    found[is_long] = np.percentile(table[:, is_long], _QUARTER, axis=0)
    sums = table[:, is_long, 0].sum(axis=1)
    spread = _NORMAL_90 * float(np.std(np.log(sums)) / np.sqrt(len(walks))) if is_long.any() else 0.0
    lead, loading = np.rint(found).astype(np.int64).T
    lead[(table[..., 0] < 0).all(axis=0)] = MISSING
    return ScriptLeads(lead_ns=lead, loading_ns=loading, round_ns=fastest or None, spread=spread)
