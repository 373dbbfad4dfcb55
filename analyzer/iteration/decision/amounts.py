"""What people ask of a report: amounts as they write them (1.28M, 40GB, 24h, $500, 10%), and which GPUs they mean."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from numbers import Integral, Real
from typing import Any, Final

from ....errors import InputError, parameter
from ....records import dataclass

NUMBER: Final = r"(?:(?:[0-9]{1,3}(?:[,_' ][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?"
"""Digits, maybe in groups of three, maybe with decimals and an exponent."""
SCALES: Final = {
    word: scale
    for words, scale in (("k thousand", 1e3), ("m million", 1e6), ("g b billion", 1e9), ("t trillion", 1e12))
    for word in words.split()
}
COUNT: Final = rf"{NUMBER}\s*(?:(?:{'|'.join(sorted(SCALES, key=len, reverse=True))})(?![a-z]))?"
"""A number with what scales it; case is ignored."""
MOST: Final = 1e18
"""More than anyone runs, and little enough that no product with it is infinite."""
TIMES_NS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3, "μs": 1e3}
"""Of what GPUs do. Case is ignored, which makes the micro sign a Greek letter."""
_DURATIONS_NS: Final = {
    word: 1e9 * seconds
    for words, seconds in (
        *(("s sec second", 1), ("min minute", 60), ("h hr hour", 3600)),
        *(("d day", 86400), ("w week", 7 * 86400)),
    )
    for word in words.split()
}
SIZES_BYTES: Final = {
    **dict.fromkeys(("", "gib", "gi"), 2.0**30),
    **dict.fromkeys(("gb", "g"), 1e9),
    **{"mb": 1e6, "mib": 2.0**20, "tb": 1e12, "tib": 2.0**40},
}
_TEXT_LENGTH: Final = 200
"""No amount is longer; what is, is not looked at."""


def find_amount(text: str, units: Mapping[str, float]) -> float | None:
    """Return a number times what its unit stands for, whatever its size; None where a text is no such amount.

    >>> find_amount("1.2 s", TIMES_NS), find_amount("80GB", SIZES_BYTES), find_amount("a lot", SIZES_BYTES)
    (1200000000.0, 80000000000.0, None)
    """
    found = re.fullmatch(rf"({NUMBER})\s*([a-zμ%]*)", _plain(text))
    scale = None if found is None else units.get(found[2])
    return None if found is None or scale is None else _number(found[1]) * scale


def read_count(text: str, what: str) -> float:
    """Return a positive count. `what` says in the error where the text stood.

    >>> read_count("1.28M", "--for"), read_count("90_000", "--for"), read_count("2e9", "--for")
    (1280000.0, 90000.0, 2000000000.0)
    """
    count = find_amount(text, {"": 1.0, **SCALES})
    if count is None:
        raise InputError(f"{what}: {_quoted(text)} is no number; expected such as 90000, 1.28M or 2e9")
    return _checked(count, text, what)


def read_duration_ns(text: str, what: str) -> float:
    """Return a duration in ns: hours, minutes, days, or several of them.

    >>> read_duration_ns("1d 12h", "--deadline") / 3600e9
    36.0
    """
    plain = _plain(text)
    part = rf"\s*({NUMBER})\s*([a-z]+)"
    parts = re.findall(part, plain) if re.fullmatch(rf"(?:{part})+", plain) else []
    lengths = [_DURATIONS_NS.get(unit) or _DURATIONS_NS.get(unit.removesuffix("s")) for _, unit in parts]
    if not parts or None in lengths:
        raise InputError(f"{what}: {_quoted(text)} is no duration; expected such as 90min, 24h or 3d")
    total = sum(_number(number) * (length or 0.0) for (number, _), length in zip(parts, lengths, strict=True))
    return _checked(total, text, what, MOST * 1e3)


def read_bytes(text: str, what: str) -> float:
    """Return a size in bytes; a number alone is in GiB.

    >>> read_bytes("40GB", "--min-memory"), read_bytes("40 GiB", "--min-memory")
    (40000000000.0, 42949672960.0)
    """
    size = find_amount(text, SIZES_BYTES)
    if size is None:
        raise InputError(f"{what}: {_quoted(text)} is no size; expected such as 40GB or 40GiB")
    return _checked(size, text, what)


def read_usd(text: str, what: str) -> float:
    """Return US dollars.

    >>> read_usd("$1,500", "--budget")
    1500.0
    """
    plain = _plain(text).removeprefix("$").removesuffix("usd").removesuffix("$").strip()
    amount = find_amount(plain, {"": 1.0, **SCALES})
    if amount is None:
        raise InputError(f"{what}: {_quoted(text)} is no sum in US dollars; expected such as 500 or $1,500")
    return _checked(amount, text, what)


def read_ratio(text: str, what: str) -> float:
    """Return a percentage of 0 or more as a ratio.

    >>> read_ratio("12.5 %", "--allowance")
    0.125
    """
    percent = find_amount(text, {"%": 1.0})
    if percent is None:
        raise InputError(f"{what}: {_quoted(text)} is no percentage; expected such as 10%")
    if not percent <= 100 * MOST_ALLOWANCE:
        raise InputError(f"{what}: {_quoted(text)} is more than {100 * MOST_ALLOWANCE:,.0f} %")
    return percent / 100


MOST_ALLOWANCE: Final = 10.0
"""A run that spends eleven times as long as its iterations take is none that a trace of one tells about."""


def _plain(text: str) -> str:
    """Return a text without case; nothing where it is too long, of which a part would be another amount."""
    return "" if len(text.strip()) > _TEXT_LENGTH else text.strip().casefold()


def _number(digits: str) -> float:
    return float(re.sub("[,_' ]", "", digits))


def _checked(value: float, text: str, what: str, most: float = MOST) -> float:
    if not isfinite(value) or not 0 < value <= most:
        raise InputError(f"{what}: {_quoted(text)} is out of range; expected more than 0 and at most {most:g}")
    return value


def _quoted(text: str) -> str:
    """Return a text as errors show it: what is far too long is cut."""
    text = text.strip()
    return repr(text if len(text) <= _TEXT_LENGTH else f"{text[:40]}…")


TIME: Final = "time"
COST: Final = "cost"
THROUGHPUT: Final = "throughput"
ENERGY: Final = "energy"
SHOWN_ROWS: Final = 15
ORDERS: Final = (TIME, COST, THROUGHPUT, ENERGY)
"""What rows may be sorted by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Say which GPUs a report is about, what it is sorted by, and how long its table is; the default asks for nothing.

    Filters combine: a GPU has to pass each. `vendors` and `only` are each passed by any one of their entries.
    """

    sort: str | None = None
    """`time`, `cost`, `throughput` or `energy`; None: `throughput` where batches are compared, else `time`."""
    vendors: Sequence[str] = ()
    min_memory: str | float | None = None
    """Nominal memory of a GPU, e.g. `40GB`; a number is in bytes."""
    datacenter: bool = False
    """Whether only GPUs that are sold for servers are meant."""
    priced: bool = False
    """Whether only GPUs with a known price are meant."""
    fits: bool = False
    """Whether only GPUs whose memory the iteration fits are meant."""
    only: Sequence[str] = ()
    """Parts of names, or patterns with `*`; case does not matter."""
    rows: int | None = None
    """Rows of the table; 0: all. None: the best, the source and the cheapest that fits, without what ties."""

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be asked."""
        for name in ("vendors", "only"):  # one name is as good as a list of one
            value = getattr(self, name)
            names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
            if not all(isinstance(item, str) for item in names):
                raise InputError(f"{name}={value!r}: expected names")
            object.__setattr__(self, name, names)
        if self.sort is not None and self.sort not in ORDERS:
            raise InputError(f"sort={self.sort!r}: expected {', '.join(ORDERS)}")
        if self.rows is not None and not _is_number(self.rows, Integral, 0):
            raise InputError(f"rows={self.rows!r}: expected a number of rows; 0 shows all")
        least: Any = self.min_memory
        if not isinstance(least, str | None) and not _is_number(least, Real, 1):
            raise InputError(f"min_memory={least!r}: expected a size such as '40GB', or bytes")
        if any(not part.strip() for part in self.only):
            raise InputError("an empty pattern: expected a part of a GPU's name, or a pattern such as '*SXM*'")

    @property
    def min_memory_bytes(self) -> float | None:
        """Return the least nominal memory that is asked for."""
        least = self.min_memory
        return read_bytes(least, parameter("min_memory")) if isinstance(least, str) else least


def _is_number(value: Any, kind: type[Any], least: float) -> bool:
    return isinstance(value, kind) and bool(value >= least)
