"""One chart as a picture file: SVG or PNG, drawn by the same library as the charts of HTML pages."""

from __future__ import annotations

from typing import Any, Final

from ....errors import InputError
from .chart import Chart
from .page import build_page, clean_page
from .vega import VEGA_LITE, in_plain_colours

PICTURE_FORMATS: Final = {"svg": ".svg", "png": ".png"}
"""By the endings of their files."""
_SCALE: Final = 2.0
"""Pixels of a PNG per unit of the drawing."""
_LOOK: Final[dict[str, Any]] = {
    "background": "white",
    "font": "system-ui, sans-serif",
    "title": {"anchor": "start", "fontSize": 14, "subtitleFontSize": 12, "subtitleColor": "#555", "offset": 12},
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "gridColor": "#e4e4e4"},
    "legend": {"labelFontSize": 12, "titleFontSize": 12},
    "view": {"stroke": None},
}


def draw_picture(chart: Chart, form: str) -> bytes:
    """Draw a chart as `svg` or `png`. Raises InputError where the part that draws is not installed."""
    try:
        import vl_convert
    except ImportError:
        raise InputError("pictures need vl-convert-python: pip install 'wavecast[html]'") from None
    clean = next(block for block in clean_page(build_page(chart)).blocks if isinstance(block, Chart))
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": clean.description,
        "title": {"text": clean.title},
        "padding": 16,
        "data": {"values": [dict(row) for row in clean.rows]},
        "config": _LOOK,
        **in_plain_colours(clean.spec),
    }
    if "vconcat" not in spec:
        spec.setdefault("width", 640)
        spec.setdefault("height", 360)
    if form == "svg":
        return str(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)).encode()
    return bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=_SCALE))
