"""One chart as a picture file: SVG or PNG, drawn by the same library as the charts of HTML pages, on white paper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from ...errors import InputError
from .page import Chart, build_page, clean_page
from .vega import THEME, VEGA_LITE, chart_document

PICTURE_FORMATS: Final = {"svg": ".svg", "png": ".png"}
"""By the endings of their files."""
_SCALE: Final = 2.0
"""Pixels of a PNG per unit of the drawing."""
_WIDTH_PX: Final = 640
_VARIABLE: Final = re.compile(r"var\(--([a-z-]+)\)")
_COLOUR: Final = re.compile(r"--([a-z-]+): (#[0-9a-f]+);")


def draw_picture(chart: Chart, form: str) -> bytes:
    """Draw a chart as `svg` or `png`. Raises InputError where the part that draws is not installed."""
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
        **_in_daylight(document["spec"]),
        "data": {"values": [dict(zip(fields, row, strict=True)) for row in rows]},
        "config": {**_in_daylight(THEME), **look},
    }
    if "vconcat" in spec:
        spec.pop("width", None)
    elif spec.get("width", "container") == "container":
        spec["width"] = _WIDTH_PX
    return spec


def _in_daylight(item: Any) -> Any:
    """Return a specification with colours in place of the page's names for them."""
    if isinstance(item, Mapping):
        return {key: _in_daylight(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_in_daylight(value) for value in item]
    found = _VARIABLE.fullmatch(item) if isinstance(item, str) else None
    return item if found is None else _colours()[found[1]]


@cache
def _colours() -> dict[str, str]:
    """Return the page's colours by name: the first that its style sheet gives each, those of the light page."""
    style = (files(__package__) / "report.css").read_text(encoding="utf-8")
    return dict(reversed(_COLOUR.findall(style)))
