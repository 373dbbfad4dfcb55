"""The charts of a report as pictures of their own: for a notebook, a slide, or a page of the user's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import InputError

if TYPE_CHECKING:
    from ..page.page import Chart

JSON: Final = "json"
ENDINGS: Final = {".svg": "svg", ".png": "png", ".json": JSON}
"""Of the files that a picture is saved in."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Picture:
    """Hold one chart of a report; a notebook shows it as SVG. Pictures need vl-convert-python, extra `html`."""

    chart: Chart

    @property
    def title(self) -> str:
        """Return what the chart is called."""
        from ...formats.trace.printable import clean_text

        return clean_text(self.chart.title)

    @property
    def description(self) -> str:
        """Return what it shows, in a sentence or two."""
        from ...formats.trace.printable import clean_text

        return clean_text(self.chart.description)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole Vega-Lite specification, data and colours included, as other tools draw it."""
        from ..page.vega import picture_document

        return picture_document(self.chart)

    def to_svg(self) -> str:
        """Return the picture. Raises InputError where vl-convert-python is not installed."""
        from ..page.vega import draw_picture

        return draw_picture(self.chart, "svg").decode()

    def save(self, path: str | Path) -> None:
        """Write the picture (.svg, .png) or its Vega-Lite specification (.json), whole or not at all.

        Raises InputError for another ending, or where vl-convert-python is not installed, and OutputError or WriteError
        where the file cannot be written.
        """
        from ...formats.files.open import write_atomic
        from ..page.vega import draw_picture

        form = ENDINGS.get(Path(path).suffix.lower())
        if form is None:
            raise InputError(f"{path}: expected a name that ends in {', '.join(ENDINGS)}")
        if form == JSON:
            data = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False).encode()
        else:
            data = draw_picture(self.chart, form)
        write_atomic(Path(path), data)

    def _repr_mimebundle_(self, **_asked: Any) -> dict[str, str]:
        """Show it in a notebook."""
        return {"image/svg+xml": self.to_svg(), "text/plain": f"{self.title}: {self.description}"}

    def __repr__(self) -> str:
        """Return one line."""
        return f"<Picture {self.title}>"
