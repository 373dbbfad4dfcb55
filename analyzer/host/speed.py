"""The speed of the target's host, a ratio, a name or a file, at each kind of work (`HostTimes` has the kinds)."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Floats, Rows
from ...errors import InputError, WavecastError, parameter
from ...formats.measured.host_file import MOST_SPREAD, is_host_time
from ...formats.trace.column import row_count
from ...formats.trace.meta import HostTimes
from ...formats.trace.tables import Phase, Trace
from ...records import dataclass
from ..recorded.recording import choose_recording, untimed
from ..work import Family, family_of
from ..work.lookup import explained_ops
from .costs import LEAD_PLACES, known_host_half_width, load_host_costs
from .launches import count_launches
from .named import find_host, host_list, load_anchor, usual_mix
from .recorded_speed import host_speed_of, relative_host_speed
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


def kind_times_ns(trace: Trace) -> dict[str, float]:
    """Return what the reference host takes over an iteration of a trace, by kind of work, waiting not included.

    A forward op's lead is Python; what it is longer where the op opens another module is that module's call. Leads in
    the backward pass are the autograd engine's, those of the optimizer its loop's. Of an op's own time, making its
    result is allocation and the rest dispatch. Each kernel is a launch.

    >>> sorted(kind_times_ns(trace), key=kind_times_ns(trace).get)[-2:]
    ['dispatch', 'module']
    """
    table = load_host_costs()
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


_RANGE: Final = (0.01, 100.0)
MEASURED_HALF_WIDTH: Final = 0.4
"""Natural log: how far the ratio of two measured hosts may be off beside the spread of their measurements. Assumed to
be no narrower than what nine of ten moves between our H100 and H200 machines need with nothing said of the host
(benchmarks/check/own_hosts.py): none of these recordings holds measured host times."""
_NEXT: Final = "'wavecast catalog hosts' lists names, 'wavecast measure --host -o FILE' measures one"
_LONGEST_NAME: Final = 80
_HOST_MARK: Final = b'"wavecast.host"'
_GZIP_MARK: Final = b"\x1f\x8b"
_HEAD_BYTES: Final = 4096
_EXPECTED: Final = "; expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHost:
    """Say how fast the target's host is relative to the one that the replay has."""

    ratio: float
    half_width: float = 0.0
    """How far that may be off in 90 % of the cases, natural log; 0 where a user says the ratio."""


def read_host(text: str, trace: Trace) -> TargetHost:
    """Return how fast the host that `text` names is relative to the one that the trace is replayed on.

    A number is that ratio. A name is one of `wavecast catalog hosts`, or a machine with such a processor; a file is one
    that `wavecast measure --host` wrote, or a measured trace, whose host is meant. A measured trace is replayed on its
    own host: what was recorded of that says how fast it was, else its CPU ops do. A recording of shapes is replayed on
    the reference host. Raises InputError for anything else.

    >>> read_host("1.5", trace).ratio
    1.5
    """
    if _is_number(text):
        return TargetHost(ratio=_read_ratio(text))
    named = find_host(text)
    if named is None:
        return _read_file(text, trace)
    if not trace.is_measured:
        return TargetHost(ratio=named.speed_ratio, half_width=named.half_width)
    own = host_speed_of(trace)
    if own is None:
        raise InputError(
            f"{parameter('host', text)}: the trace holds too few CPU ops to tell how fast its own host was; give a "
            "ratio, e.g. 1.2 for a host that is 20 % faster than the recorded one"
        )
    return _within(named.ops_ratio / own.ratio, float(np.hypot(named.half_width, own.half_width)))


def check_host(text: str) -> None:
    """Raise InputError for what can be no host of any trace.

    >>> check_host("1.5")
    """
    if _is_number(text):
        _read_ratio(text)
    elif find_host(text) is None:
        _load(text)


def _within(ratio: float, half_width: float) -> TargetHost:
    return TargetHost(ratio=float(np.clip(ratio, *_RANGE)), half_width=half_width)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_ratio(text: str) -> float:
    ratio = float(text)
    if not _RANGE[0] <= ratio <= _RANGE[1]:
        raise InputError(f"{parameter('host', text)}: expected a ratio between {_RANGE[0]:g} and {_RANGE[1]:g}")
    return ratio


def _load(text: str) -> HostTimes | Trace:
    """Return what a file tells of a host: measured times, or a trace that was measured on it."""
    path = Path(text)
    if not _is_file(path):
        raise InputError(_unknown(text))
    from ...formats.files.open import load_trace
    from ...formats.measured import host_file

    is_host = _says_host(path)
    try:
        if is_host:
            return host_file.read_host(path)
        trace = load_trace(path)
    except WavecastError as error:
        # What else a trace may be helps nobody who means a host.
        said = str(error) if is_host else f"{str(error).partition(_EXPECTED)[0]} (nor is it a measured host); {_NEXT}"
        raise InputError(f"{parameter('host')} {said}") from None
    if not trace.is_measured:
        raise InputError(
            f"{parameter('host', text)}: a trace without times says nothing of the host that its iteration ran on; "
            f"{_NEXT}"
        )
    return trace


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _says_host(path: Path) -> bool:
    """Say whether a file, packed or not, begins as those of measured hosts do."""
    import zlib

    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(_GZIP_MARK):
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
        return _HOST_MARK in head
    except zlib.error:  # what reads it says what is wrong with it
        return False
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _read_file(text: str, trace: Trace) -> TargetHost:
    found = _load(text)
    if isinstance(found, HostTimes):
        return _of_times(text, found, trace)
    if trace.is_measured:
        speeds = speeds_between(trace.meta.host, found.meta.host)
        if speeds is not None:
            return _of_kinds(speeds, trace)
        told = relative_host_speed(trace, found)
        if told is None:
            raise InputError(
                f"{parameter('host', text)}: too few CPU ops in this trace or in that to tell how fast their hosts were"
            )
        return _within(told.ratio, told.half_width)
    told = host_speed_of(found)
    if told is None:
        raise InputError(f"{parameter('host', text)}: it holds too few CPU ops to tell how fast its host was; {_NEXT}")
    return _within(KindSpeeds(ratios=usual_mix(told.ratio), spread=0.0).over(kind_times_ns(trace)), told.half_width)


def told_between(before: Trace, after: Trace) -> TargetHost | None:
    """Return the host of a measured trace relative to that of another's replay, by CPU ops; None where nothing tells.

    >>> told_between(trace, trace) is None  # shapes alone
    True
    """
    if before.is_measured:
        told = relative_host_speed(before, after)
        return None if told is None else _within(told.ratio, told.half_width)
    told = host_speed_of(after)
    if told is None:
        return None
    return _within(KindSpeeds(ratios=usual_mix(told.ratio), spread=0.0).over(kind_times_ns(before)), told.half_width)


def _of_times(text: str, times: HostTimes, trace: Trace) -> TargetHost:
    """Return a measured host relative to that of a trace."""
    if trace.is_measured:
        speeds = speeds_between(trace.meta.host, times)
        if speeds is not None:
            return _of_kinds(speeds, trace)
    anchor = load_anchor()
    speeds = speeds_between(anchor.times, times)
    if speeds is None:
        raise InputError(
            f"{parameter('host', text)}: none of the kinds of work in it was measured on the reference host"
        )
    mix = usual_mix(anchor.ops_ratio)
    ratios = {kind: ratio * mix[kind] for kind, ratio in speeds.ratios.items()}
    ratio = KindSpeeds(ratios=ratios, spread=speeds.spread).over(kind_times_ns(trace))
    widths = (MEASURED_HALF_WIDTH, speeds.spread, anchor.half_width, known_host_half_width())
    half_width = float(np.sqrt(np.sum(np.square(widths))))
    own = host_speed_of(trace)
    if own is None:
        return _within(ratio, half_width)
    of_trace = KindSpeeds(ratios=usual_mix(own.ratio), spread=0.0).over(kind_times_ns(trace))
    return _within(ratio / of_trace, half_width)


def _of_kinds(speeds: KindSpeeds, trace: Trace) -> TargetHost:
    """Return a host that is measured as the trace's own was: each kind of work by how much of it the iteration has."""
    return _within(speeds.over(kind_times_ns(trace)), float(np.hypot(MEASURED_HALF_WIDTH, speeds.spread)))


def _unknown(text: str) -> str:
    shown = text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"
    near = difflib.get_close_matches(text.casefold()[:_LONGEST_NAME], [item.name for item in host_list()], n=2)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{parameter('host', shown)}: expected a ratio, a host's name or a file, found none of them; {hint}{_NEXT}"
