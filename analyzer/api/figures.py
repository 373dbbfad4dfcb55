"""The charts of a report as pictures of their own: for a notebook, a slide, or a page of the user's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import InputError

if TYPE_CHECKING:
    from ..rendering.page.chart import Chart

WIDTH: Final = 720
"""Of a picture, in pixels."""
SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
ENDINGS: Final = (".svg", ".png", ".json")
_NAMED_COLOUR: Final = re.compile(r"--([a-z]+): (#[0-9a-f]{3,8});")
_USE: Final = re.compile(r"var\(--([a-z]+)\)")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Figure:
    """Hold one chart of a report; a notebook shows it as SVG. Pictures need vl-convert-python, extra `html`."""

    chart: Chart

    @property
    def title(self) -> str:
        """Return what the chart is called."""
        from ...formats.printable import clean_text

        return clean_text(self.chart.title)

    @property
    def description(self) -> str:
        """Return what it shows, in a sentence or two."""
        from ...formats.printable import clean_text

        return clean_text(self.chart.description)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole Vega-Lite specification, data and colours included, as other tools draw it."""
        from ..rendering.page.vega import THEME, chart_document

        document = chart_document(self.chart)
        fields = document["data"]["fields"]
        rows = [dict(zip(fields, row, strict=True)) for row in document["data"]["rows"]]
        whole = {
            "$schema": SCHEMA,
            "title": self.title,
            "description": self.description,
            **document["spec"],
            "width": WIDTH,
            "data": {"values": rows},
            "config": {**THEME, "background": "var(--paper)"},
        }
        coloured: dict[str, Any] = _coloured(whole, _colours())
        return coloured

    def to_svg(self) -> str:
        """Return the picture. Raises InputError where vl-convert-python is not installed."""
        return str(_converter().vegalite_to_svg(json.dumps(self.to_dict()), **_options()))

    def save(self, path: str | Path) -> None:
        """Write the picture (.svg, .png) or its Vega-Lite specification (.json), whole or not at all.

        Raises InputError for another ending, or where vl-convert-python is not installed, and OutputError or WriteError
        where the file cannot be written.
        """
        from ...formats.files import write_atomic

        suffix = Path(path).suffix.lower()
        if suffix not in ENDINGS:
            raise InputError(f"{path}: expected a name that ends in {', '.join(ENDINGS)}")
        if suffix == ".json":
            data = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False).encode()
        elif suffix == ".svg":
            data = self.to_svg().encode()
        else:
            data = bytes(_converter().vegalite_to_png(json.dumps(self.to_dict()), scale=2, **_options()))
        write_atomic(Path(path), data)

    def _repr_mimebundle_(self, **_asked: Any) -> dict[str, str]:
        """Show it in a notebook."""
        return {"image/svg+xml": self.to_svg(), "text/plain": f"{self.title}: {self.description}"}

    def __repr__(self) -> str:
        """Return one line."""
        return f"<Figure {self.title}>"


@cache
def _colours() -> Mapping[str, str]:
    """Return the colours that the page of a report has in the light."""
    from ..rendering.page import html

    text = Path(html.__file__).with_name("report.css").read_text(encoding="utf-8")
    colours: dict[str, str] = {}
    for name, value in _NAMED_COLOUR.findall(text):
        colours.setdefault(name, value)
    return colours


def _coloured(item: Any, colours: Mapping[str, str]) -> Any:
    """Return a specification with colours in place of their names."""
    if isinstance(item, Mapping):
        return {key: value if key == "data" else _coloured(value, colours) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_coloured(value, colours) for value in item]
    return _USE.sub(lambda found: colours.get(found[1], found[0]), item) if isinstance(item, str) else item


def _options() -> dict[str, Any]:
    """Return what keeps the drawing to what the specification holds: no address is read."""
    from ..rendering.page.vega import VEGA_LITE

    return {"vl_version": VEGA_LITE, "allowed_base_urls": []}


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise InputError("charts need vl-convert-python: pip install 'wavecast[html]'") from None
    return vl_convert
