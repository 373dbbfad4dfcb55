"""Reads what nccl-tests and rccl-tests print: which collective, among how many ranks of how many hosts, and its times.

A line begins with size (B), count, type, and, of most versions, reduction and root; then time (us), algorithm and bus
bandwidth (GB/s) and errors, out of place and in place. Comment lines (`#`) name the program and the ranks' devices.
Names of hosts are counted and not kept.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...records import dataclass
from ..work.communication import CollectiveKind
from .collective import KINDS

_MOST_BYTES: Final = 16 << 20
_PROGRAM: Final = re.compile(r"\b(\w+?)_perf\b")
_RANK: Final = re.compile(r"#\s+Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s+(.+?)\s*$")
_ROW: Final = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
_KINDS: Final = {**KINDS, "sendrecv": CollectiveKind.SEND_RECEIVE}
_ELEMENT_BYTES: Final = {
    **dict.fromkeys(("int8", "uint8", "f8e4m3", "f8e5m2"), 1.0),
    **dict.fromkeys(("half", "bfloat16"), 2.0),
    **dict.fromkeys(("int32", "uint32", "float"), 4.0),
    **dict.fromkeys(("int64", "uint64", "double"), 8.0),
}
_COLUMNS_OF_A_HALF: Final = 4
"""Time, two bandwidths, errors."""
_FEWEST_POINTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTimes:
    """Hold n times of one collective."""

    kind: CollectiveKind
    ranks: int
    hosts: int
    device: str | None
    """The GPU as its driver names it; None where the output does not say."""
    element_bytes: float
    message_bytes: Floats
    time_ns: Floats
    """Out of place."""

    @property
    def ranks_per_host(self) -> int:
        """Return how many ranks each host has, rounded up."""
        return -(-self.ranks // self.hosts)


def read_nccl_tests(path: Path) -> CollectiveTimes:
    """Read the output of one program of nccl-tests.

    Raises InputError, naming the file, for text without times, of fewer than two sizes, or of unknown ranks.

    >>> text = "# nGpus 8\\n#  Rank  0 Group  0 Pid  1 on  a device  0 [0x1b] NVIDIA H100 80GB HBM3\\n"
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path.name}: expected the text that nccl-tests prints, found more than 16 MiB")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error
    rows = [line.split() for line in text.splitlines() if _ROW.match(line)]
    times = {int(row[0]): found for row in rows if int(row[0]) > 0 and (found := _time_us(row)) is not None}
    if len(times) < _FEWEST_POINTS:
        raise InputError(
            f"{path.name}: expected lines of nccl-tests (size, count, type, …, time) of two sizes or more, found "
            f"{len(times)}; give it what e.g. `all_reduce_perf -b 1K -e 1G -f 4 -g 8` prints"
        )
    if rows[0][2] not in _ELEMENT_BYTES:
        raise InputError(f"{path.name}: type {rows[0][2][:40]!r} is none of {', '.join(_ELEMENT_BYTES)}")
    found = _kind_of(text, path.name, rows)
    devices = [match.groups() for line in text.splitlines() if (match := _RANK.match(line))]
    ranks = len({rank for rank, _, _ in devices}) or _ranks_from_bandwidth(found, rows)
    if ranks is None:
        raise InputError(
            f"{path.name}: how many ranks took part stands nowhere; keep the lines that begin with '#  Rank'"
        )
    names = Counter(name for _, _, name in devices)
    sizes = np.array(sorted(times), dtype=np.float64)
    return CollectiveTimes(
        kind=found,
        ranks=ranks,
        hosts=max(1, len({host for _, host, _ in devices})),
        device=names.most_common(1)[0][0] if names else None,
        element_bytes=_ELEMENT_BYTES[rows[0][2]],
        message_bytes=sizes,
        time_ns=np.array([times[int(size)] * 1e3 for size in sizes]),
    )


def _time_us(row: list[str]) -> float | None:
    """Return the out-of-place time of a line; None where it has none."""
    for back in (2 * _COLUMNS_OF_A_HALF, _COLUMNS_OF_A_HALF):
        if len(row) >= 3 + back:
            try:
                time = float(row[-back])
            except ValueError:
                continue
            return time if 0 < time < 1e12 else None
    return None


def _kind_of(text: str, name: str, rows: list[list[str]]) -> CollectiveKind:
    """Return which collective it was: by the program's name, else by the file's, else by what a line reduces."""
    for words in (text, name):
        for match in _PROGRAM.finditer(words):
            if match[1] in _KINDS:
                return _KINDS[match[1]]
    plain = name.replace("-", "_").lower()
    for word in sorted(_KINDS, key=len, reverse=True):
        if word in plain or word.replace("_", "") in plain.replace("_", ""):
            return _KINDS[word]
    if rows[0][3] == "none":
        return CollectiveKind.ALL_GATHER
    ratio = _bandwidth_ratio(rows)
    return CollectiveKind.ALL_REDUCE if ratio is None or ratio >= 1 else CollectiveKind.REDUCE_SCATTER


def _bandwidth_ratio(rows: list[list[str]]) -> float | None:
    """Return bus over algorithm bandwidth of the largest message."""
    row = max(rows, key=lambda item: int(item[0]))
    back = 2 * _COLUMNS_OF_A_HALF if len(row) >= 3 + 2 * _COLUMNS_OF_A_HALF else _COLUMNS_OF_A_HALF
    try:
        algorithm, bus = float(row[1 - back]), float(row[2 - back])
    except (ValueError, IndexError):
        return None
    return bus / algorithm if algorithm > 0 else None


def _ranks_from_bandwidth(kind: CollectiveKind, rows: list[list[str]]) -> int | None:
    """Return n from bus over algorithm bandwidth, by nccl-tests' definition: 2 (n - 1) / n of an all-reduce, ..."""
    ratio = _bandwidth_ratio(rows)
    if ratio is None:
        return None
    share = ratio / 2 if kind is CollectiveKind.ALL_REDUCE else ratio
    return round(1 / (1 - share)) if 0.4 < share < 1 else None
