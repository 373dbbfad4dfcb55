"""Pieces of Vega-Lite specifications that the charts of all reports share, and where charts stand on a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ...formats.trace.printable import clean_text
from .chart import Chart
from .names import shorten_middle
from .page import Page, Passage, opening
from .sheet import Sheet
from .vega import BLUE, GREY, VERMILLION

Spec = dict[str, Any]
BAR_STEP_PX: Final = 22
PLOT_HEIGHT_PX: Final = 320
LABEL_WIDTH: Final = 40
"""Longest name beside an axis, in characters."""
_LABEL_PX: Final = 240
NUMBER: Final = ",.4~r"
"""Numbers beside an axis: as many digits as they have, up to four."""
GOOD, BAD, NEUTRAL = BLUE, VERMILLION, GREY
"""Read alike on light and dark, and by those who see no red or no green."""
HEAT: Final = ("#fdf3dd", "#e69f00", "#d55e00")
"""From little to much, in tables of colours."""
HEAT_INK: Final = "#1a1a1a"
"""On each of them."""


def place_charts(
    page: Page, *, headline: str = "", lead: Iterable[Chart | None] = (), details: Iterable[Chart | None] = ()
) -> Page:
    """Return the page with charts: `lead` between the words that open it and its first sheet, `details` after its last.

    What has nothing to show is None and left out. A `headline` stands above a page that opens with facts.

    >>> from wavecast.analyzer.page.page import build_page, facts, notes
    >>> page = build_page(facts([("batch", "4")]), notes(["As recorded."]))
    >>> chart = Chart(title="Batch", description="One bar.", spec={"mark": "bar"}, rows=[])
    >>> [type(block).__name__ for block in place_charts(page, lead=[chart, None]).blocks]
    ['Passage', 'Chart', 'Passage']
    """
    blocks = page.blocks
    first = next((at for at, block in enumerate(blocks) if not isinstance(block, Passage)), min(1, len(blocks)))
    last = max((at + 1 for at, block in enumerate(blocks) if isinstance(block, Sheet)), default=first)
    shown, more = ([chart for chart in charts if chart is not None] for charts in (lead, details))
    head = (opening([headline]),) if headline else ()
    return Page(blocks=(*head, *blocks[:first], *shown, *blocks[first:last], *more, *blocks[last:]))


def build_chart(
    title: str,
    description: str,
    spec: Spec,
    rows: Sequence[Mapping[str, Any]],
    told: Mapping[str, str] | Iterable[tuple[str, str]],
) -> Chart:
    """Return a chart; `told` are the fields that its data is read by, and what they are called.

    >>> build_chart("GPUs", "One bar.", {"mark": "bar"}, [{"gpu": "T4"}], [("gpu", "GPU")]).labels
    {'gpu': 'GPU'}
    """
    return Chart(title=title, description=description, spec=spec, rows=rows, labels=dict(told))


def amount(field: str, title: str, *, is_log: bool = False, from_zero: bool = True, number: str = NUMBER) -> Spec:
    """Return the encoding of a number along an axis.

    >>> amount("time_ms", "time, ms")["scale"]
    {'zero': True}
    """
    scale: Spec = {"type": "log", "nice": False, "padding": 12} if is_log else {"zero": from_zero}
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": {"format": number, "tickCount": 6, "labelOverlap": True},
    }


def along(field: str, title: str | None = None, *, angle: int | None = None) -> Spec:
    """Return the encoding of names along an axis, in the order of the rows.

    >>> along("gpu")["sort"] is None
    True
    """
    axis: Spec = {"labelLimit": _LABEL_PX, "labelOverlap": False}
    if angle is not None:
        axis |= {"labelAngle": angle, "labelOverlap": "greedy" if angle else False}
    return {"field": field, "type": "nominal", "title": title, "sort": None, "axis": axis}


def coloured(
    field: str, title: str | None = None, colours: Mapping[str, str] | None = None, *, is_listed: bool = True
) -> Spec:
    """Return the encoding of kinds by colour, in the order of the rows or of `colours`, which names all kinds.

    >>> coloured("part", colours={"compute": "#000"})["scale"]
    {'domain': ['compute'], 'range': ['#000']}
    """
    found: Spec = {"field": field, "type": "nominal", "title": title, "sort": None, "legend": {"symbolOpacity": 1}}
    if colours is not None:
        found["scale"] = {"domain": list(colours), "range": list(colours.values())}
    if not is_listed:
        found["legend"] = None
    return found


def said(*pairs: tuple[str, str]) -> list[Spec]:
    """Return what is told of a mark that is pointed at: fields that hold texts, and what they are called.

    >>> said(("gpu", "GPU"))
    [{'field': 'gpu', 'type': 'nominal', 'title': 'GPU'}]
    """
    return [{"field": field, "type": "nominal", "title": title} for field, title in pairs]


def rule_at(value: float, axis: str, words: str) -> Spec:
    """Return a layer: a dashed line across the plot at a value of an axis, x or y.

    >>> rule_at(0.9, "y", "nine in ten")["encoding"]["y"]
    {'datum': 0.9, 'type': 'quantitative'}
    """
    inherited = dict.fromkeys(("x", "y", "color", "xOffset", "yOffset"))
    return {
        "data": {"values": [{"words": words}]},
        "mark": {"type": "rule", "strokeDash": [5, 4], "size": 1.5},
        "encoding": {
            **inherited,
            axis: {"datum": value, "type": "quantitative"},
            "tooltip": said(("words", "line")),
        },
    }


def interval_marks(low: str, high: str, *, axis: str = "x", opacity: float = 0.75) -> Spec:
    """Return a layer: a line from one field to the other, the ends of an interval, along an axis.

    >>> interval_marks("low_ms", "high_ms")["encoding"]["x2"]
    {'field': 'high_ms'}
    """
    return {
        "transform": [{"filter": f"isValid(datum.{low}) && isValid(datum.{high})"}],
        "mark": {"type": "rule", "size": 2, "opacity": opacity},
        "encoding": {axis: {"field": low, "type": "quantitative"}, f"{axis}2": {"field": high}},
    }


def labels(names: Iterable[str], width: int = LABEL_WIDTH) -> list[str]:
    """Return names short enough to stand beside an axis, no two alike: what shares one label would be drawn as one.

    >>> labels(["add", "add"])
    ['add', 'add (2)']
    """
    found, seen = list[str](), set[str]()
    for name in names:
        text = shorten_middle(clean_text(name), width)
        label, number = text, 1
        while label in seen:
            number += 1
            label = f"{text} ({number})"
        seen.add(label)
        found.append(label)
    return found


def bars_height(count: int) -> int:
    """Return the height of a plot of so many bars, in px.

    >>> bars_height(10)
    220
    """
    return max(2, count) * BAR_STEP_PX


def cut_words(shown: int, total: int, noun: str) -> str:
    """Say that a chart shows a part, to be added to its description; nothing where it shows all.

    >>> cut_words(20, 131, "ops"), cut_words(3, 3, "ops")
    (' The first 20 of 131 ops are shown.', '')
    """
    return f" The first {shown:,} of {total:,} {noun} are shown." if shown < total else ""


def listed(items: Sequence[str], most: int = 4) -> str:
    """Return some names as words for a description.

    >>> listed(["a", "b", "c", "d", "e"], most=2)
    'a, b and 3 more'
    """
    names = [clean_text(item) for item in items]
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
