"""The speed of the target's host: a ratio, the name of a host, or a file that tells one."""

import difflib
from pathlib import Path
from typing import Final

import numpy as np

from ...errors import InputError, WavecastError, parameter
from ...formats.trace.meta import HostTimes
from ...formats.trace.tables import Trace
from ...records import dataclass
from .costs import known_host_half_width
from .kinds import KindSpeeds, kind_times_ns, speeds_between
from .named import find_host, host_list, load_anchor, usual_mix
from .recorded_speed import host_speed_of, relative_host_speed

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
