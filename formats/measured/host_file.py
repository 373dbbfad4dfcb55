"""Reads and writes what `wavecast measure --host` measured, and says how fast one host is beside another."""

import re
from collections.abc import Mapping
from math import exp, log
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeGuard

import orjson

from ...errors import TraceError
from ...records import dataclass, field, fields
from ..files.open import pack_gzip, read_bytes, write_atomic
from ..trace.fields import check_record, decode_record, encode_record
from ..trace.meta import HostTimes

HOST_FORMAT: Final = "wavecast.host"
HOST_VERSION: Final = "1.0"
HOST_KINDS: Final = tuple(item.name for item in fields(HostTimes) if item.name.endswith("_ns"))
"""The kinds of host work, as the fields of `HostTimes` that hold their times."""
_MAX_BYTES: Final = 1 << 16
_RANGE_NS: Final = (1e-3, 1e9)
"""A piece of work takes microseconds; what lies outside was not measured."""
MOST_SPREAD: Final = 3.0
"""Natural log: rounds that lie further apart, a factor of 20 either way, measure nothing."""
_VERSION: Final = re.compile(r"([0-9]{1,9})\.[0-9]{1,9}")
_NEXT: Final = "write one with 'wavecast measure --host -o FILE'"
REFERENCE_HOST: Final = HostTimes(
    python_version="3.11", processor="AMD EPYC", python_ns=5310.0, dispatch_ns=1120.0, autograd_ns=2920.0,
    module_ns=597.0, optimizer_ns=18300.0, allocation_ns=571.0,
)  # fmt: skip
"""What counts as a speed of 1: one virtual core of an AMD EPYC of family 26 (Zen 5), Python 3.11.7 and torch 2.13.0,
least of six turns of host_ratios.py at f56f3bcf on 2026-11-23. It has no GPU, so launches have no speed."""
KIND_WEIGHTS: Final[Mapping[str, float]] = MappingProxyType({
    "python_ns": 0.22, "dispatch_ns": 0.25, "autograd_ns": 0.18, "module_ns": 0.07, "optimizer_ns": 0.02,
    "allocation_ns": 0.06, "launch_ns": 0.20,
})  # fmt: skip
"""What an eager iteration's host spends on each: mean over the 34 shipped recordings of shapes on the synthetic host,
half of them training. Of what passes before forward ops a quarter is taken to be module calls, of what passes in ops a
fifth to be allocation, as in the networks of that program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """Hold a measured host, and what measured it: no name of a machine or a person."""

    producer: str = "unknown"
    """e.g. `wavecast 0.1.0`."""
    date: str | None = None
    """Day of the measurement, e.g. `2026-11-23`."""
    framework: str | None = None
    """e.g. `torch 2.13.0`."""
    host: HostTimes = field(default_factory=HostTimes)


def read_host(path: str | Path) -> HostTimes:
    """Return the times of the host that a file of `wavecast measure --host` describes.

    At least one kind of work is there, and each takes from 1 ps to 1 s.
    Raises InputError or TraceError, which begin with the file's name.

    >>> save_host(folder / "host.json", HostFile(host=HostTimes(python_ns=2100.0, dispatch_ns=880.0)))
    >>> read_host(folder / "host.json").dispatch_ns
    880.0
    """
    return read_host_file(path).host


def read_host_file(path: str | Path) -> HostFile:
    """Return all that such a file says, as `read_host` does."""
    data = read_bytes(path, max_bytes=_MAX_BYTES)
    try:
        return _decode(data)
    except TraceError as error:
        raise TraceError(f"{path}: {error}; {_NEXT}") from None


def save_host(path: str | Path, found: HostFile) -> None:
    """Write a measured host; `-` writes to standard output. Raises OutputError where the file cannot be written."""
    content = {"format": HOST_FORMAT, "version": HOST_VERSION, **encode_record(found)}
    data = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_atomic(path, pack_gzip(data) if str(path).endswith(".gz") else data)


def check_host(times: HostTimes, place: str = "$.host") -> None:
    """Raise TraceError where a time is none that a host can take, or no kind of work was measured."""
    check_record(times, HostTimes, place)
    found = {name: getattr(times, name) for name in HOST_KINDS if getattr(times, name) is not None}
    if not found:
        raise TraceError(f"{place}: expected one of {', '.join(HOST_KINDS)} at least, found none")
    low, high = _RANGE_NS
    for name, time_ns in found.items():
        if not is_host_time(time_ns):
            raise TraceError(f"{place}.{name}: expected {low:g} to {high:g} ns, found {time_ns:g}")
    if times.spread is not None and times.spread > MOST_SPREAD:
        raise TraceError(f"{place}.spread: expected up to {MOST_SPREAD:g}, found {times.spread:g}")


def is_host_time(time_ns: float | None) -> TypeGuard[float]:
    """Say whether a piece of work can take so long: 1 ps to 1 s. A trace may hold anything from 0 on.

    >>> is_host_time(5280.0), is_host_time(1e300), is_host_time(None)
    (True, False, False)
    """
    return time_ns is not None and _RANGE_NS[0] <= time_ns <= _RANGE_NS[1]


def _decode(data: bytes) -> HostFile:
    try:
        content: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"no file of a measured host: not JSON ({error})") from None
    form = content.get("format") if isinstance(content, dict) else None
    if form != HOST_FORMAT:
        shown = repr(form)[:40] if isinstance(form, str) else "none"
        raise TraceError(f"no file of a measured host: expected the format {HOST_FORMAT!r}, found {shown}")
    version = content.get("version")
    known = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if known is None:
        raise TraceError(f"$.version: expected a version like {HOST_VERSION!r}, found {repr(version)[:40]}")
    if known[1] != HOST_VERSION.partition(".")[0]:
        raise TraceError(f"$.version: {version} is newer than this wavecast reads ({HOST_VERSION}): update it")
    found: HostFile = decode_record(HostFile, content, "$")
    check_record(found, HostFile, "$")
    check_host(found.host)
    return found


def host_ratios(host: HostTimes, base: HostTimes = REFERENCE_HOST) -> dict[str, float]:
    """Return how fast a host is relative to another, by kind of work that both were measured in; 2 is twice as fast.

    >>> host_ratios(HostTimes(python_ns=1000.0, module_ns=500.0), HostTimes(python_ns=2000.0))
    {'python_ns': 2.0}
    """
    found = {}
    for kind in HOST_KINDS:
        mine, other = getattr(host, kind), getattr(base, kind)
        if is_host_time(mine) and is_host_time(other):
            found[kind] = other / mine
    return found


def host_speed(host: HostTimes, base: HostTimes = REFERENCE_HOST) -> float | None:
    """Return how fast a host is in all: the weighted geometric mean over the kinds; None where none are common.

    >>> host_speed(HostTimes(python_ns=1000.0), HostTimes(python_ns=2000.0))
    2.0
    """
    ratios = host_ratios(host, base)
    weight = sum(KIND_WEIGHTS[kind] for kind in ratios)
    if not weight:
        return None
    return exp(sum(KIND_WEIGHTS[kind] * log(ratio) for kind, ratio in ratios.items()) / weight)
