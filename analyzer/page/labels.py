"""Names beside points of a chart: only those that have room, each where it covers the fewest points."""

from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import Final

from .plot import Spec, names

_SPAN: Final = {"wide": 0.18, "narrow": 0.7}
"""What a name takes of the plot's width in a wide and in a narrow window; names that would meet are left out."""
_HEIGHT: Final = 0.06
_EDGE: Final = 0.7
"""Of the width: names of what stands further right go to the left."""
_NARROW_PX: Final = 560
NO_LABEL: Final[Mapping[str, bool]] = dict.fromkeys((*_SPAN, "is_left", "is_below"), False)
"""Fields of a point whose name has no room."""


def place_labels(
    points: Mapping[str, tuple[float, float]], telling: Iterable[str], *, is_log: bool
) -> dict[str, dict[str, bool]]:
    """Return, for each point whose name has room, in which windows it has, and on which side it stands.

    `points` are x and y by name, on axes of one kind; names that are `telling` come first, others have none.

    >>> place_labels({"A": (1.0, 1.0), "B": (1.1, 1.0), "C": (2.0, 9.0)}, ["A", "B", "C"], is_log=False)["A"]["wide"]
    True
    """
    ends = [(min(values), max(values)) for values in zip(*points.values(), strict=True)]
    at = {
        name: (_place(x, *ends[0], is_log=is_log), _place(y, *ends[1], is_log=is_log))
        for name, (x, y) in points.items()
    }
    placed = dict[str, dict[str, bool]]()
    boxes: dict[str, list[tuple[float, float]]] = {window: [] for window in _SPAN}
    for name in dict.fromkeys(telling):
        is_left, is_below = side = _emptiest(at[name], list(at.values()))
        room = dict[str, bool]()
        for window, span in _SPAN.items():
            x, y = _corner(at[name], side, span)
            room[window] = all(abs(x - other[0]) > span or abs(y - other[1]) > _HEIGHT for other in boxes[window])
            if room[window]:
                boxes[window].append((x, y))
        if any(room.values()):
            placed[name] = {**room, "is_left": is_left, "is_below": is_below}
    return placed


def label_layers(encoding: Spec, *, where: str = "true") -> list[Spec]:
    """Return the layers that write the field `label` of points with the fields that `place_labels` gives."""
    return names(
        {**encoding, "text": {"field": "label"}},
        where=f"{where} && (width < {_NARROW_PX} ? datum.narrow : datum.wide)",
        align={"expr": "datum.is_left ? 'right' : 'left'"},
        dx={"expr": "datum.is_left ? -9 : 9"},
        dy={"expr": "datum.is_below ? 13 : -9"},
        limit={"expr": "max(90, width * 0.7)"},
        fontWeight=600,
    )


def _emptiest(here: tuple[float, float], points: Sequence[tuple[float, float]]) -> tuple[bool, bool]:
    """Return whether a name stands to the left and below: where it covers the fewest points."""

    def covered(side: tuple[bool, bool]) -> int:
        x, y = _corner(here, side, _SPAN["wide"])
        return sum(x <= at[0] <= x + _SPAN["wide"] and y <= at[1] <= y + _HEIGHT for at in points if at != here)

    return min(((here[0] > _EDGE, is_below) for is_below in (False, here[1] > _HEIGHT)), key=covered)


def _corner(here: tuple[float, float], side: tuple[bool, bool], span: float) -> tuple[float, float]:
    """Return the lower left corner of a name."""
    return here[0] - span * side[0], here[1] - _HEIGHT * side[1]


def _place(value: float, low: float, high: float, *, is_log: bool) -> float:
    """Return where a value stands between the least and the greatest, 0 to 1, on the axis that is drawn."""
    if high <= low or low <= 0:
        return 0.5
    return log(value / low) / log(high / low) if is_log else (value - low) / (high - low)
