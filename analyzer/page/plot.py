"""Charts by what they show, and the pieces of Vega-Lite specifications that the charts of all reports share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, floor, log10
from typing import Any, Final

from ...formats.trace.printable import clean_text
from .names import shorten_middle
from .page import Chart, Page, Passage, opening
from .quantity import format_share, format_time
from .sheet import Sheet
from .vega import BLUE, GREY, PAPER, VERMILLION

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
Told = tuple[str, ...]
"""A field that is told of, what it is called, and of a number its format."""
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
DASHES: Final = [5, 4]
_FEW_DECADES: Final = 1e3
"""Ends closer than this factor have marks at 2 and 5, too; ends within a factor of ten at 1.5, 3 and 7 besides."""
_MS: Final = 1e6


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
    told: Mapping[str, str] | Iterable[Told],
) -> Chart:
    """Return a chart; `told` are the fields that its data is read by, and what they are called.

    >>> build_chart("GPUs", "One bar.", {"mark": "bar"}, [{"gpu": "T4"}], [("gpu", "GPU")]).labels
    {'gpu': 'GPU'}
    """
    labels = dict(told) if isinstance(told, Mapping) else {item[0]: item[1] for item in told}
    return Chart(title=title, description=description, spec=spec, rows=rows, labels=labels)


def bars(
    rows: Rows, told: Sequence[Told], *, y: Spec, x: Spec, color: Spec, height: int | None = None, **more: Any
) -> Spec:
    """Return a specification of bars, one per name along `y`; where rows have an `order`, they stand on each other.

    >>> rows = [{"gpu": "T4", "ms": 3.0}]
    >>> bars(rows, [("gpu", "GPU")], y=along("gpu"), x=amount("ms", "ms"), color=coloured("gpu"))["height"]
    44
    """
    stack = {"x": x | {"stack": "zero"}, "order": quantitative("order")} if "order" in rows[0] else {"x": x}
    return {
        "height": height or bars_height(len({row[y["field"]] for row in rows})),
        **more,
        "mark": "bar",
        "encoding": {"y": y, **stack, "color": color, "tooltip": said(*told)},
    }


def marks(kind: str, encoding: Spec, *, where: str = "", values: Rows | None = None, **look: Any) -> Spec:
    """Return a layer: marks of a kind, drawn of the rows for which `where` holds, or of `values` of its own.

    >>> marks("rule", {}, where="datum.is_best", opacity=0.5)["transform"]
    [{'filter': 'datum.is_best'}]
    """
    return {
        **({} if values is None else {"data": {"values": values}}),
        **({"transform": [{"filter": where}]} if where else {}),
        "mark": {"type": kind, **look},
        "encoding": encoding,
    }


def names(encoding: Spec, *, where: str = "", **look: Any) -> list[Spec]:
    """Return two layers: texts, and under them a rim of the paper's colour, so that nothing crosses them.

    >>> [layer["mark"].get("stroke") for layer in names({"text": {"field": "gpu"}})]
    ['var(--paper)', None]
    """
    rim = {**look, "fill": PAPER, "stroke": PAPER, "strokeWidth": 4, "strokeJoin": "round"}
    bare = {key: value for key, value in encoding.items() if key != "color"}
    return [marks("text", bare, where=where, **rim), marks("text", encoding, where=where, **look)]


def when(test: str, value: Any, otherwise: Any) -> Spec:
    """Return the encoding of one of two values, by a test of the row.

    >>> when("datum.is_now", GREY, BLUE)["value"]
    'var(--blue)'
    """
    return {"condition": {"test": test, "value": value}, "value": otherwise}


def quantitative(field: str, title: str | None = None, **more: Any) -> Spec:
    """Return the encoding of a number.

    >>> quantitative("rank")
    {'field': 'rank', 'type': 'quantitative'}
    """
    return {"field": field, "type": "quantitative", **({} if title is None else {"title": title}), **more}


def amount(field: str, title: str, *, is_log: bool = False, from_zero: bool = True, number: str = NUMBER) -> Spec:
    """Return the encoding of a number along an axis.

    >>> amount("time_ms", "time, ms")["scale"]
    {'zero': True}
    """
    scale: Spec = {"type": "log", "nice": False, "padding": 12} if is_log else {"zero": from_zero}
    axis = {"format": number, "tickCount": 6, "labelOverlap": True}
    return quantitative(field, title, scale=scale, axis=axis)


def log_axis(low: float, high: float) -> Spec:
    """Return the encoding's scale and axis for values between two ends, logarithmic, with few round marks.

    >>> log_axis(3.0, 700.0)["axis"]["values"]
    [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]
    """
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = (1, 1.5, 2, 3, 5, 7) if high / low < 10 else (1, 2, 5) if high / low < _FEW_DECADES else (1,)
    values = [float(f"{step}e{decade}") for decade in decades for step in steps]
    return {
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"format": ",~r", "values": [value for value in values if low <= value <= high]},
    }


def choice(name: str, title: str, labels: Sequence[str]) -> Spec:
    """Return a parameter that a list of names sets: to "0" where the first is chosen, the second "1".

    Names out of files thus never stand in an expression.

    >>> choice("chosen", "GPU", ["H100", "A100"])["bind"]["labels"]
    ['H100', 'A100']
    """
    numbers = [str(number) for number in range(len(labels))]
    bind = {"input": "select", "options": numbers, "labels": list(labels), "name": title}
    return {"name": name, "value": "0", "bind": bind}


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
    field: str, title: str | None = None, colours: Mapping[str, str] | None = None, *, among: Rows | None = None
) -> Spec:
    """Return the encoding of kinds by colour, in the order of the rows or of `colours`, which names all kinds.

    With `among` only the kinds that these rows hold are listed.

    >>> coloured("part", colours={"compute": "#000"})["scale"]
    {'domain': ['compute'], 'range': ['#000']}
    """
    found: Spec = {"field": field, "type": "nominal", "title": title, "sort": None, "legend": {"symbolOpacity": 1}}
    if colours is not None:
        present = None if among is None else {row[field] for row in among}
        listed = {name: colour for name, colour in colours.items() if present is None or name in present}
        found["scale"] = {"domain": list(listed), "range": list(listed.values())}
    return found


def said(*told: Told) -> list[Spec]:
    """Return what is told of a mark that is pointed at.

    >>> said(("gpu", "GPU"), ("ms", "time, ms", ".3f"))[1]
    {'field': 'ms', 'type': 'quantitative', 'title': 'time, ms', 'format': '.3f'}
    """
    return [
        quantitative(field, title, format=form[0]) if form else {"field": field, "type": "nominal", "title": title}
        for field, title, *form in told
    ]


def heat(field: str, title: str, domain: Sequence[float] | None = None, *, clamp: bool = False) -> Spec:
    """Return the encoding of a number by colour, from little to much.

    >>> heat("wait_ms", "ms")["scale"]["range"][0]
    '#fdf3dd'
    """
    scale: Spec = {"range": list(HEAT), **({} if domain is None else {"domain": list(domain)})}
    return quantitative(field, title, scale=scale | ({"clamp": True} if clamp else {}))


def division_rows(parts_ns: Mapping[str, float], whole_ns: float | None = None, **common: Any) -> Iterator[Spec]:
    """Yield a row for each part of a time that takes any, in order; with the whole, the part's share is told.

    >>> [row["spent"] for row in division_rows({"busy": 3e6, "idle": 0.0}, 6e6, rank="0")]
    ['3.00 ms, 50 %']
    """
    for order, (part, spent_ns) in enumerate(parts_ns.items()):
        if spent_ns > 0:
            share = "" if whole_ns is None else f", {format_share(spent_ns / max(whole_ns, 1.0))}"
            spent = f"{format_time(spent_ns)}{share}"
            yield {**common, "part": part, "order": order, "part_ms": spent_ns / _MS, "spent": spent}


def scaled(value: float | None, unit: float = _MS) -> float | None:
    """Return a value in a unit, times in ms where none is given; None stays.

    >>> scaled(2e6), scaled(None)
    (2.0, None)
    """
    return None if value is None else value / unit


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
