"""Quantities as people read them: three to four significant digits and a unit."""

from collections.abc import Iterable
from math import floor, isfinite, log10
from statistics import median
from typing import Final

from ...records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUnit:
    """Hold a unit in which times are written."""

    name: str
    length_ns: float


DAYS: Final = TimeUnit(name="days", length_ns=86400e9)
HOURS: Final = TimeUnit(name="hours", length_ns=3600e9)
MINUTES: Final = TimeUnit(name="minutes", length_ns=60e9)
"""The three are for whole runs."""
SECONDS: Final = TimeUnit(name="s", length_ns=1e9)
MILLISECONDS: Final = TimeUnit(name="ms", length_ns=1e6)
MICROSECONDS: Final = TimeUnit(name="µs", length_ns=1e3)
NANOSECONDS: Final = TimeUnit(name="ns", length_ns=1.0)
TIME_UNITS: Final = (SECONDS, MILLISECONDS, MICROSECONDS, NANOSECONDS)
"""Largest first."""
BINARY_UNITS: Final = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
DECIMAL_PREFIXES: Final = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
LEAST_IN_UNIT: Final = 1e-3
"""Of a unit: times below are written with one digit."""
WIDE_RATIO: Final = 1.1
"""Between an interval's ends: within a wider one the fourth digit of a value says nothing."""
WHOLE_USD: Final = 99.995
ABSENT: Final = "–"
"""Stands in a column that has data for other rows only."""


def format_number(value: float | None, digits: int = 4) -> str:
    """Write a number with three significant digits, four from ten on: 0.0123, 1.23, 12.34, 123.4, 1,234.

    With `digits` 3 it is three throughout: 12.3, 123, 1,230.
    """
    if value is None or not isfinite(value):
        return ABSENT
    value = float(f"{value:.{digits}g}")
    magnitude = abs(value)
    if magnitude == 0:
        return "0"
    decimals = max(0, min(2, digits - 1 - floor(log10(magnitude)))) if magnitude >= 1 else 2 - floor(log10(magnitude))
    return f"{value:,.{decimals}f}"


def digits_within(low: float | None, high: float | None) -> int:
    """Return how many significant digits an interval leaves a meaning: four where its ends are within a tenth, else 3.

    >>> format_number(16.02, digits_within(8.02, 40.06)), format_number(16.02, digits_within(15.9, 16.2))
    ('16.0', '16.02')
    """
    if low is None or high is None or low <= 0:
        return 4
    return 3 if high > WIDE_RATIO * low else 4


def common_time_unit(values_ns: Iterable[float | None]) -> TimeUnit:
    """Return the unit that suits the median of the values, so that a column can be compared at a glance."""
    present = [value for value in values_ns if value is not None and isfinite(value) and value > 0]
    return _unit_for(median(present)) if present else MILLISECONDS


def format_time(value_ns: float | None, unit: TimeUnit | None = None) -> str:
    """Write a time in its own unit, or in `unit` where the value has a sensible size in it.

    >>> format_time(12_345.6)
    '12.35 µs'
    """
    if value_ns is None or not isfinite(value_ns):
        return ABSENT
    if value_ns == 0:
        return "0"
    chosen = unit or _unit_for(value_ns)
    scaled = value_ns / chosen.length_ns
    if unit is not None and not 0.1 <= abs(scaled) < 100_000:
        return format_time(value_ns)
    return f"{format_number(scaled)} {chosen.name}"


def format_time_in(value_ns: float | None, unit: TimeUnit) -> str:
    """Write a time in one unit whatever its size; what is tiny in it with one digit.

    >>> format_time_in(12_345.6, MILLISECONDS), format_time_in(123.0, MILLISECONDS)
    ('0.0123 ms', '0.0001 ms')
    """
    if value_ns is None or not isfinite(value_ns):
        return ABSENT
    scaled = value_ns / unit.length_ns
    if scaled == 0:
        return "0"
    if abs(scaled) < LEAST_IN_UNIT:
        return f"{scaled:.{-floor(log10(abs(scaled)))}f} {unit.name}"
    return f"{format_number(scaled)} {unit.name}"


def format_time_range(low_ns: float | None, high_ns: float | None, unit: TimeUnit) -> str:
    """Write an interval as two numbers and one unit; with one end known, as a limit."""
    if low_ns is None or high_ns is None:
        limits = (("≥", low_ns), ("≤", high_ns))
        return next((f"{sign} {format_time(end, unit)}" for sign, end in limits if end is not None), ABSENT)
    low, high = (format_number(end / unit.length_ns) for end in (low_ns, high_ns))
    return f"{low}–{high} {unit.name}"


def format_time_within(value_ns: float, low_ns: float | None, high_ns: float | None) -> str:
    """Write a time with its interval, alone where that is not known or nothing wide.

    >>> format_time_within(2e6, 1.5e6, 3e6), format_time_within(2e6, None, None)
    ('2.00 ms (1.50–3.00 ms)', '2.00 ms')
    """
    if low_ns is None or high_ns is None or low_ns == high_ns:
        return format_time(value_ns)
    return f"{format_time(value_ns)} ({format_time_range(low_ns, high_ns, _unit_for(value_ns))})"


def signed_time(value_ns: float) -> str:
    """Write a difference of times with its sign.

    >>> signed_time(-1_500.0)
    '−1.50 µs'
    """
    return f"{'+' if value_ns >= 0 else '−'}{format_time(abs(value_ns))}"


def format_share(ratio: float | None) -> str:
    """Write a share as a whole percentage; what is present but under half a percent reads `<1 %`."""
    if ratio is None or not isfinite(ratio):
        return ABSENT
    if 0 < ratio < 0.005:
        return "<1 %"
    return f"{100 * ratio:.0f} %"


def format_error(ratio: float | None) -> str:
    """Write how large an error is: in %, one decimal."""
    return ABSENT if ratio is None or not isfinite(ratio) else f"{100 * ratio:.1f} %"


def format_change(ratio: float | None, decimals: int = 1) -> str:
    """Write a difference in %, with its sign."""
    return ABSENT if ratio is None or not isfinite(ratio) else f"{100 * ratio:+.{decimals}f} %"


def format_factor(ratio: float | None) -> str:
    """Write a speed-up, e.g. 1.32×."""
    return ABSENT if ratio is None or not isfinite(ratio) else f"{format_number(ratio)}×"


def format_money(value_usd: float | None) -> str:
    """Write US dollars, whole ones from a hundred on.

    >>> format_money(0.00252), format_money(26.784), format_money(441.71)
    ('$0.00252', '$26.78', '$442')
    """
    if value_usd is None or not isfinite(value_usd):
        return ABSENT
    return f"${format_number(value_usd)}" if abs(value_usd) < WHOLE_USD else f"${float(f'{value_usd:.4g}'):,.0f}"


def format_amount(value_usd: float | None) -> str:
    """Write US dollars in a column whose title says so.

    >>> format_amount(26.784)
    '26.78'
    """
    return format_money(value_usd).removeprefix("$")


def format_bytes(value_bytes: float | None) -> str:
    """Write a memory size in binary units, without decimals where it is a whole number of them.

    >>> format_bytes(80 * 2**30)
    '80 GiB'
    """
    if value_bytes is None or not isfinite(value_bytes):
        return ABSENT
    for name, scale in BINARY_UNITS:
        if value_bytes >= scale:
            scaled = value_bytes / scale
            return f"{scaled:,.0f} {name}" if scaled.is_integer() else f"{format_number(scaled)} {name}"
    return f"{value_bytes:.0f} B"


def format_rate(value_per_s: float | None, unit: str) -> str:
    """Write a rate in decimal units, e.g. 3.35 TB/s or 989.4 TFLOP/s."""
    if value_per_s is None or not isfinite(value_per_s):
        return ABSENT
    prefix, scale = next((item for item in DECIMAL_PREFIXES if value_per_s >= item[1]), ("", 1.0))
    scaled = value_per_s / scale
    text = f"{scaled:,.0f}" if scaled.is_integer() else format_number(scaled)
    return f"{text} {prefix}{unit}"


def format_count(count: int, singular: str, plural: str | None = None) -> str:
    """Write a count with its noun: 1 op, 1,234 ops.

    >>> format_count(1, "op"), format_count(1_234, "op")
    ('1 op', '1,234 ops')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def percent(ratio: float | None) -> str:
    """Write a ratio in %, one decimal below 100."""
    if ratio is None or not isfinite(ratio):
        return ABSENT
    return f"{100 * ratio:.1f}" if abs(ratio) < 0.9995 else f"{100 * ratio:.0f}"


def _unit_for(value_ns: float) -> TimeUnit:
    return next((unit for unit in TIME_UNITS if abs(value_ns) >= unit.length_ns), NANOSECONDS)
