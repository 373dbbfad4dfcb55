"""The values that a parameter takes, as a user writes them: 1x..4x, 2TB/s..8TB/s:9, 66,132,264, 8..512x2.

A range has its points in equal steps of the logarithm; `:9` says how many, `x2` or `:x2` by which factor they grow,
`:+16` by how much.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ....errors import InputError, parameter
from ....records import dataclass

MOST_POINTS: Final = 200
"""Of one parameter."""
FARTHEST_RATIO: Final = 1000.0
"""Of a figure to that of the GPU which is varied: beyond, nothing is a question about a GPU."""
RATIO_UNITS: Final = {"x": 1.0, "×": 1.0, "%": 0.01}
_NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:nan|inf(?:inity)?)"
_VALUE: Final = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>[a-z/%×µ]*)")
_END: Final = re.compile(
    rf"(?P<value>(?:{_NUMBER})\s*[a-z/%×µ]*?)(?::(?P<count>[0-9]+)|:?x(?P<factor>[0-9.]+)|:\+(?P<step>[0-9.]+))?"
)
_UNIT: Final = re.compile(r"[a-df-wyz/%×µ]|x(?![0-9.])")
"""Neither an exponent's letter nor the one before a factor."""
_EXAMPLES: Final = "expected a range such as 1x..4x or a list such as 1x,2x"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterQuantity:
    """Say which values a parameter may have."""

    name: str
    scales: Mapping[str, float]
    """Units in lower case, as factors to base units."""
    usual_scale: float
    """Of a number without a unit."""
    base: float | None
    """What `1x` is, in base units; None where nothing is known that could be multiplied."""
    base_name: str
    """What has that value."""
    step: float = 0.0
    """It is a whole number of these; 0: any number."""
    doubles: bool = False
    """Whether a range without a number of points goes in powers of two."""
    is_ratio: bool = False
    """Whether the value itself is a ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Hold what a parameter is to be, ascending, in base units."""

    numbers: tuple[float, ...]
    rounded: bool
    """Whether some were no whole numbers and are now."""


def read_values(quantity: ParameterQuantity, text: str, point_count: int) -> Values:
    """Return the values that a text asks for; a range that does not say has `point_count` points.

    Raises InputError, naming the parameter and what it found, for what is no value of it.
    """
    clean = text.strip().casefold()
    if not clean:
        raise InputError(f"{parameter('vary')} {quantity.name}=: {_EXAMPLES}")
    words = [word.strip() for word in clean.split(",")]
    # A comma that parts no values, but digits: 1,500GB and 2,048 are one number to their writer.
    is_mixed = any(quantity.scales) and any(map(str.isdecimal, words)) and any(map(_UNIT.search, words))
    if is_mixed or any(re.match(r"0\d", word) for word in words[1:]):
        raise InputError(
            f"{parameter('vary')} {quantity.name}={clean}: a comma parts values; write 1500 for 1,500, and give each "
            "value its unit, or none"
        )
    exact: list[float] = []
    between: list[float] = []
    for word in words:
        if ".." in word:
            ends, inner = _read_range(quantity, word, point_count)
            exact += ends
            between += inner
        else:
            exact.append(_read_value(quantity, *_split(quantity, word)))
        if len(exact) + len(between) > MOST_POINTS:
            raise InputError(
                f"{parameter('vary')} {quantity.name}: at most {MOST_POINTS} values are tried: ask for fewer"
            )
    step, rounded = quantity.step, False
    numbers: list[float] = []
    for value in sorted((*exact, *between)):
        near = max(round(value / step), 1) * step if step else value
        rounded = rounded or not math.isclose(near, value, rel_tol=1e-9)
        if not numbers or not math.isclose(numbers[-1], near, rel_tol=1e-6):
            numbers.append(near)
    return Values(numbers=tuple(numbers), rounded=rounded)


def join_values(value: object) -> str:
    """Return values given as a list or a number as the text that means them."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return ",".join(map(str, value))
    return str(value)


def _read_range(quantity: ParameterQuantity, word: str, point_count: int) -> tuple[list[float], list[float]]:
    """Return both ends, and what lies between them."""
    first, _, rest = word.partition("..")
    found = _END.fullmatch(rest.strip())
    if found is None:
        raise InputError(
            f"{parameter('vary')} {quantity.name}={word}: {_EXAMPLES}, or 1x..4x:9 for nine points, 8..64x2 to double"
        )
    (low_number, low_unit), (high_number, high_unit) = _split(quantity, first), _split(quantity, found["value"])
    low = _read_value(quantity, low_number, low_unit or high_unit)
    high = _read_value(quantity, high_number, high_unit or low_unit)
    if not low < high:
        raise InputError(
            f"{parameter('vary')} {quantity.name}={word}: expected the smaller value first, then a larger one"
        )
    unit = low_unit or high_unit
    is_relative = unit in RATIO_UNITS
    scale = RATIO_UNITS[unit] * (quantity.base or 1.0) if is_relative else quantity.scales.get(unit, 1.0)
    return [low, high], _between(
        quantity, word, (low, high), found, scale if unit else quantity.usual_scale, point_count
    )


def _between(
    quantity: ParameterQuantity,
    word: str,
    ends: tuple[float, float],
    found: re.Match[str],
    scale: float,
    point_count: int,
) -> list[float]:
    """Return what lies between the ends of a range; `scale` is the unit that they have, in base units."""
    low, high = ends
    if found["step"] is not None:
        step = _read_number(quantity, found["step"]) * scale
        count = _few(quantity, (high - low) / step)
        return [low + at * step for at in range(1, count + 1) if low + at * step < high]
    if found["factor"] is not None or (quantity.doubles and found["count"] is None):
        factor = _read_number(quantity, found["factor"] or "2")
        if not factor > 1:
            raise InputError(f"{parameter('vary')} {quantity.name}={word}: expected a factor above 1, found {factor:g}")
        count = _few(quantity, math.log(high / low) / math.log(factor))
        return [low * factor**at for at in range(1, count + 1) if low * factor**at < high * (1 - 1e-9)]
    points = int(found["count"][:9]) if found["count"] is not None else point_count
    if points < 2:
        raise InputError(f"{parameter('vary')} {quantity.name}={word}: a range has at least 2 points, found {points}")
    _few(quantity, points)
    inner = [low * (high / low) ** (at / (points - 1)) for at in range(1, points - 1)]
    return inner if found["count"] is not None else [*inner, *_landmarks(quantity, low, high)]


def _landmarks(quantity: ParameterQuantity, low: float, high: float) -> list[float]:
    """Return what is worth a point of its own: as it is, and twice and half of it."""
    if quantity.base is None or quantity.is_ratio:
        return []
    return [value for ratio in (0.5, 1.0, 2.0) if low < (value := quantity.base * ratio) < high]


def _few(quantity: ParameterQuantity, count: float) -> int:
    if not count <= MOST_POINTS:
        raise InputError(
            f"{parameter('vary')} {quantity.name}: at most {MOST_POINTS} values are tried, found {count:,.0f}"
        )
    return math.floor(count + 1e-9)


def _split(quantity: ParameterQuantity, word: str) -> tuple[str, str]:
    found = _VALUE.fullmatch(word.strip())
    if found is None:
        raise InputError(f"{parameter('vary')} {quantity.name}={word.strip()}: {_EXAMPLES}")
    return found["number"], found["unit"]


def _read_number(quantity: ParameterQuantity, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{parameter('vary')} {quantity.name}: expected a number above 0, found {text}")
    return value


def _read_value(quantity: ParameterQuantity, number: str, unit: str) -> float:
    """Return one value in base units."""
    value = _read_number(quantity, number)
    if unit in RATIO_UNITS:
        if quantity.base is None:
            raise InputError(
                f"{parameter('vary')} {quantity.name}={number}{unit}: {quantity.base_name} has none to multiply; say a "
                "value"
            )
        value *= RATIO_UNITS[unit] * quantity.base
    elif unit in quantity.scales or not unit:
        value *= quantity.scales[unit] if unit else quantity.usual_scale
        _check_whole(quantity, value, f"{number}{unit}")
    else:
        known = ", ".join(("x", *(name for name in quantity.scales if name)))
        raise InputError(
            f"{parameter('vary')} {quantity.name}={number}{unit}: unknown unit {unit!r}; expected one of {known}"
        )
    far = value / quantity.base if quantity.base else 1.0
    if not 1 / FARTHEST_RATIO <= far <= FARTHEST_RATIO:
        raise InputError(
            f"{parameter('vary')} {quantity.name}={number}{unit}: that is {far:.3g} times what {quantity.base_name} "
            f"has; expected {1 / FARTHEST_RATIO:g}x to {FARTHEST_RATIO:g}x"
        )
    return value


def _check_whole(quantity: ParameterQuantity, value: float, text: str) -> None:
    if quantity.step and not math.isclose(value / quantity.step, round(value / quantity.step), rel_tol=1e-9):
        unit = "" if quantity.step == 1 else f" of {quantity.step:g} bytes"
        raise InputError(f"{parameter('vary')} {quantity.name}={text}: expected a whole number{unit}")
