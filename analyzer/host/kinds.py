"""Of what kind the host's work in an iteration is, and how fast a host is at each kind: `HostTimes` has the kinds."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from ...arrays import Floats, Rows
from ...formats.measured.host_file import MOST_SPREAD, is_host_time
from ...formats.trace.column import row_count
from ...formats.trace.meta import HostTimes
from ...formats.trace.tables import Phase, Trace
from ...records import dataclass
from ..recorded.recording import choose_recording, untimed
from ..work import Family, family_of
from ..work.lookup import explained_ops
from .costs import LEAD_PLACES, HostCosts, load_host_costs
from .launches import count_launches
from .timeline import leads_of, own_times_of, places_of

KINDS: Final = ("python", "module", "autograd", "optimizer", "dispatch", "allocation", "launch")
"""As the fields of `HostTimes` are named, in the order in which work is told apart."""
_PLAIN_PLACE: Final = "inside"
_ALLOCATING: Final = "aten::empty"
"""What making a tensor costs."""
_MOST_ALLOCATION: Final = 0.5
"""Of an op's own time at most."""
_MOST_RATIO: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpeeds:
    """Say how fast a host is at some kinds of work relative to another."""

    ratios: Mapping[str, float]
    spread: float
    """How far the measurements of the two hosts lay apart in their rounds, natural log."""

    def over(self, times_ns: Mapping[str, float]) -> float:
        """Return how fast it is at a mix of work: kinds that were not measured go at the speed of the others.

        >>> KindSpeeds(ratios={"python": 2.0, "launch": 1.0}, spread=0.0).over({"python": 1.0, "launch": 1.0})
        1.3333333333333333
        """
        known = {kind: time_ns for kind, time_ns in times_ns.items() if kind in self.ratios and time_ns > 0}
        if not known:
            return float(np.exp(np.mean(np.log(list(self.ratios.values())))))
        return sum(known.values()) / sum(time_ns / self.ratios[kind] for kind, time_ns in known.items())


def speeds_between(before: HostTimes, after: HostTimes) -> KindSpeeds | None:
    """Return how fast a second measured host is relative to a first, by kind; None where they share no kind.

    Times that no host takes, which a trace may hold, count as not measured.

    >>> speeds_between(HostTimes(python_ns=1200.0), HostTimes(python_ns=600.0)).ratios
    {'python': 2.0}
    """
    ratios = {}
    for kind in KINDS:
        first, second = getattr(before, f"{kind}_ns"), getattr(after, f"{kind}_ns")
        if is_host_time(first) and is_host_time(second):
            ratios[kind] = float(np.clip(first / second, 1 / _MOST_RATIO, _MOST_RATIO))
    if not ratios:
        return None
    first_spread, second_spread = (min(host.spread or 0.0, MOST_SPREAD) for host in (before, after))
    return KindSpeeds(ratios=ratios, spread=float(np.hypot(first_spread, second_spread)))


def kind_times_ns(trace: Trace, costs: HostCosts | None = None) -> dict[str, float]:
    """Return what the host of `costs` takes over an iteration of a trace, by kind of work, waiting not included.

    A forward op's lead is Python; what it is longer where the op opens another module is that module's call. Leads in
    the backward pass are the autograd engine's, those of the optimizer its loop's. Of an op's own time, making its
    result is allocation and the rest dispatch. Each kernel is a launch.

    >>> sorted(kind_times_ns(trace), key=kind_times_ns(trace).get)[-2:]
    ['dispatch', 'module']
    """
    table = costs or load_host_costs()
    shapes = untimed(choose_recording(trace)).trace
    ops = shapes.ops
    count = row_count(ops)
    found = dict.fromkeys(KINDS, 0.0)
    if not count:
        return found
    lead, own = np.where(ops.parent < 0, leads_of(shapes, table), 0.0), own_times_of(shapes, table)
    launches = count_launches(shapes, explained_ops(shapes), table)
    is_backward, is_optimizer = ops.phase == Phase.BACKWARD, ops.phase == Phase.OPTIMIZER
    is_forward = ~is_backward & ~is_optimizer
    # What of each lead is there because its op opens another module.
    opens = places_of(shapes.ops) == LEAD_PLACES.index("opens")
    plain = table.lead_ns.get(f"forward/{_PLAIN_PLACE}", table.lead_ns["forward"])
    opening = np.where(opens, np.maximum(lead - plain, 0.0), 0.0) * is_forward
    made = np.minimum(table.op_cost_ns(_ALLOCATING) * _makes_tensors(shapes, launches), _MOST_ALLOCATION * own)
    parts = {
        "python": lead * is_forward - opening,
        "module": opening,
        "autograd": lead * is_backward,
        "optimizer": lead * is_optimizer,
        "dispatch": own - made,
        "allocation": made,
        "launch": launches * table.launch_ns,
    }
    return {kind: float(np.sum(parts[kind])) for kind in KINDS}


def _makes_tensors(trace: Trace, launches: Rows) -> Floats:
    """Mark the ops that write a tensor of their own: with work, neither in place nor of the optimizer."""
    plain = [name.split(".")[0] for name in trace.strings]
    makes = np.array(
        [not name.endswith("_") and family_of(name) not in (Family.VIEW, Family.OPTIMIZER) for name in plain],
        dtype=bool,
    )
    return np.asarray(makes[trace.ops.name] & (launches > 0), dtype=np.float64)
