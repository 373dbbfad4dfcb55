"""Values of parameters, and what limits an iteration, as people read them."""

from typing import Final

from ....page.quantity import ABSENT, format_bytes, format_factor, format_number, format_rate, format_share
from ..report import SweepAxis, SweepLimit, SweepPoint

LIMIT_WORDS: Final = {
    SweepLimit.COMPUTE: "arithmetic",
    SweepLimit.MEMORY: "memory bandwidth",
    SweepLimit.NEITHER: "kernels far from both peaks",
    SweepLimit.SHORT: "kernels that are too short",
    SweepLimit.UNEXPLAINED: "kernels that no formula explains",
    SweepLimit.COMMUNICATION: "communication",
    SweepLimit.HOST: "the host",
    SweepLimit.WAITS: "waits between kernels",
}
_LEAST_SHARE: Final = 0.05
_NAMED_COUNT: Final = 3


def value_words(axis: SweepAxis, index: int) -> str:
    """Write a value of a parameter: 6.7 TB/s, 264, bf16."""
    return any_value(axis.values[index], axis.unit, is_ratio=axis.name == "host")


def any_value(value: float | str | None, unit: str, *, is_ratio: bool = False) -> str:
    """Write a value in its unit."""
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return value
    if is_ratio:
        return format_factor(value)
    if unit == "B":
        return format_bytes(value)
    if unit:
        return format_rate(value, unit)
    return f"{value:,.0f}" if float(value).is_integer() else format_number(value)


def ratio_words(axis: SweepAxis, index: int) -> str:
    """Write a value as a multiple of what it is where nothing is varied."""
    return _plain_factor(axis.ratio(index))


def _plain_factor(ratio: float | None) -> str:
    """Write a factor without zeros that say nothing: 2×, 1.41×."""
    if ratio is None:
        return ABSENT
    return f"{float(f'{ratio:.3g}'):g}×"


def both_words(axis: SweepAxis, index: int) -> str:
    """Write a value with its multiple, where it has one of its own."""
    ratio = axis.ratio(index)
    value = value_words(axis, index)
    return value if ratio is None or axis.name == "host" else f"{_plain_factor(ratio)} ({value})"


def share_words(point: SweepPoint) -> str:
    """Say what takes the most of an iteration: arithmetic 45 %, the host 30 %."""
    named = sorted(point.shares.items(), key=lambda item: -item[1])[:_NAMED_COUNT]
    shown = [f"{LIMIT_WORDS[limit]} {format_share(share)}" for limit, share in named if share >= _LEAST_SHARE]
    return ", ".join(shown)


def interval_words(low: float | None, high: float | None) -> str:
    """Write the interval of a factor: 1.22–1.38; nothing where it is known to be that."""
    if low is not None and low == high:
        return ""
    return ABSENT if low is None or high is None else f"{format_number(low)}–{format_number(high)}"


def faster_words(point: SweepPoint, work: str = "") -> str:
    """Say how much faster a point is: 1.31× faster (1.22–1.38); with `work`, how much more of it is done."""
    low, high = point.speedup_low, point.speedup_high
    if work:
        interval = "" if low is None or high is None or low == high else f" ({interval_words(low, high)})"
        return f"{format_factor(point.speedup)} the {work} per second{interval}"
    if 1 / 1.0005 < point.speedup < 1.0005:
        return "as fast"
    if point.speedup > 1:
        interval = "" if low is None or high is None or low == high else f" ({interval_words(low, high)})"
        return f"{format_factor(point.speedup)} faster{interval}"
    interval = "" if not low or not high or low == high else f" ({interval_words(1 / high, 1 / low)})"
    return f"{format_factor(1 / point.speedup)} slower{interval}"
