"""Charts as a browser and files have them: specifications with their data, one look for all, SVG and PNG pictures."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Final

from ...errors import InputError
from ...formats.trace.printable import clean_text
from .names import shorten_middle
from .page import Chart, build_page, clean_page

VEGA_LITE: Final = "6.4"
"""The version whose JavaScript is inlined."""
LONGEST_TEXT: Final = 160
"""Of a text in a chart's data, in characters: names out of files may be of any length."""
_DIGITS: Final = 7
"""That numbers of charts keep: more than a screen shows."""

BLUE, ORANGE, GREEN, VERMILLION, SKY, PINK, OLIVE, PLUM, GREY, PALE = (
    f"var(--{name})"
    for name in ("blue", "orange", "green", "vermillion", "sky", "pink", "olive", "plum", "grey", "pale")
)
"""Colours as `report.css` has them, brighter in the dark."""
PALETTE: Final = (BLUE, ORANGE, GREEN, VERMILLION, SKY, PINK, OLIVE, PLUM)
"""For up to eight kinds of things: the colours of Okabe and Ito, which colour-blind readers tell apart, with olive for
their yellow, which white paper swallows, and plum for black, which the dark does."""
REST: Final = GREY
"""For what is left when the colours are used up, and for what is unknown."""
INK, MUTED, LINE, GRID, PAPER, ACCENT = (
    f"var(--{name})" for name in ("ink", "muted", "line", "grid", "paper", "accent")
)
"""Colours of the page around the charts, which differ in the dark; for axes, texts and rules, not for encodings."""
_SCALE: Final = 2.0
"""Pixels of a PNG per unit of the drawing."""
_WIDTH_PX: Final = 640
_VARIABLE: Final = re.compile(r"var\(--([a-z-]+)\)")
_COLOUR: Final = re.compile(r"--([a-z-]+): (#[0-9a-f]+);")
THEME: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_name("theme.json").read_text(encoding="utf-8"))
"""The look that all charts share; Vega-Lite's `config`."""


def chart_document(chart: Chart) -> dict[str, Any]:
    """Return what the page's script draws a chart from: its specification, its data by column names, what it says."""
    fields = list(dict.fromkeys(name for row in chart.rows for name in row))
    return {
        "spec": {**({} if "vconcat" in chart.spec else {"width": "container"}), **_with_texts(chart.spec, clean_text)},
        "data": {"fields": fields, "rows": [[_value(row.get(name)) for name in fields] for row in chart.rows]},
        "description": chart.description,
    }


def inert_json(document: Any) -> str:
    """Write JSON that ends no script element, whatever its texts hold.

    >>> inert_json({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def chart_library() -> str:
    """Return the JavaScript that draws charts. Raises InputError where the part that holds it is not installed."""
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise InputError("charts need vl-convert-python: pip install 'wavecast[html]'") from None
    return str(javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)).replace(
        "</script", "<\\/script"
    )


def _with_texts(item: Any, change: Callable[[str], str]) -> Any:
    """Return a specification with its texts changed."""
    if isinstance(item, Mapping):
        return {key: _with_texts(value, change) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_with_texts(value, change) for value in item]
    return change(item) if isinstance(item, str) else item


def _value(value: Any) -> Any:
    """Return a datum as JSON holds it: short texts, few digits, None for what is no number."""
    if isinstance(value, str):
        return shorten_middle(value, LONGEST_TEXT)
    if isinstance(value, bool) or value is None:
        return value
    number = float(value)
    if not isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else float(f"{number:.{_DIGITS}g}")


def draw_picture(chart: Chart, form: str) -> bytes:
    """Draw a chart as `svg` or `png`. Raises InputError where the part that draws is not installed.

    >>> spec = {"mark": "point", "height": 20, "encoding": {"x": {"field": "ms", "type": "quantitative"}}}
    >>> draw_picture(Chart(title="one", description="A point.", spec=spec, rows=[{"ms": 1}]), "svg")[:4]
    b'<svg'
    """
    try:
        import vl_convert
    except ImportError:
        raise InputError("pictures need vl-convert-python: pip install 'wavecast[html]'") from None
    spec = picture_document(chart)
    if form == "svg":
        return str(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])).encode()
    return bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=_SCALE, allowed_base_urls=[]))


def picture_document(chart: Chart) -> dict[str, Any]:
    """Return a whole specification, with its title, its data and the colours of a page in daylight."""
    clean = next(block for block in clean_page(build_page(chart)).blocks if isinstance(block, Chart))
    document = chart_document(clean)
    fields, rows = document["data"]["fields"], document["data"]["rows"]
    look = {"background": "white", "padding": 16, "font": "sans-serif"}
    spec: dict[str, Any] = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": clean.description,
        "title": {"text": clean.title, "offset": 12},
        **_with_texts(document["spec"], _in_daylight),
        "data": {"values": [dict(zip(fields, row, strict=True)) for row in rows]},
        "config": {**_with_texts(THEME, _in_daylight), **look},
    }
    if "vconcat" in spec:
        spec.pop("width", None)
    elif spec.get("width", "container") == "container":
        spec["width"] = _WIDTH_PX
    return spec


def _in_daylight(text: str) -> str:
    """Return a colour in place of the page's name for it."""
    found = _VARIABLE.fullmatch(text)
    return text if found is None else _colours()[found[1]]


@cache
def _colours() -> dict[str, str]:
    """Return the page's colours by name: the first that its style sheet gives each, those of the light page."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return dict(reversed(_COLOUR.findall(style)))
