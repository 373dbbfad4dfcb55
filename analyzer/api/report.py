"""What every answer can do: be shown, saved in any format, and handed on as a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import InputError
from ..rendering.formats import DEFAULT_FORMAT, PAGE_FORMATS, REPORT_FORMATS, SUFFIXES, render

if TYPE_CHECKING:
    from ..rendering.page.page import Page
    from ..rendering.page.terminal import Screen

MARKDOWN: Final = "markdown"
HTML: Final = "html"


class Report(ABC):
    """Hold an answer. What it rests on is in the attributes of each kind of report."""

    @abstractmethod
    def page(self) -> Page:
        """Return the report in words and sheets."""

    def illustrated_page(self) -> Page:
        """Return it with charts, where it has any."""
        return self.page()

    @abstractmethod
    def to_json(self) -> str:
        """Return the report as JSON, with all digits."""

    @abstractmethod
    def to_csv(self) -> str:
        """Return its main table as CSV, with all digits."""

    def draw(self, form: str = DEFAULT_FORMAT, screen: Screen | None = None) -> str:
        """Return the report in a format: table, json, csv, markdown or html; `screen` is what a table is drawn for."""
        from ..rendering.page.terminal import Screen as AnyScreen

        if form not in REPORT_FORMATS:
            raise InputError(f"format {form!r}: expected {', '.join(REPORT_FORMATS)}")
        return render(
            form,
            screen or AnyScreen(),
            page=self.page,
            json=self.to_json,
            csv=self.to_csv,
            illustrated=self.illustrated_page,
        )

    def save(self, path: str | Path) -> None:
        """Write the report, whole or not at all, in the format that the ending says (.txt, .md, .html, .json, .csv)."""
        from ...formats.files import write_atomic

        suffix = Path(path).suffix.lower()
        form = next((name for name, ending in SUFFIXES.items() if ending == suffix), None)
        if form is None:
            raise InputError(f"{path}: expected a name that ends in {', '.join(SUFFIXES.values())}")
        write_atomic(Path(path), self.draw(form).encode())

    def _repr_html_(self) -> str:
        """Show the words and sheets in a notebook."""
        return next(item for item in PAGE_FORMATS if item.name == HTML).draw(self.page(), _any_screen())


def _any_screen() -> Screen:
    from ..rendering.page.terminal import Screen

    return Screen()


def as_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


def trace_name(trace: Any) -> str:
    """Return what a trace is called in a report, where its workload has no name."""
    return "trace" if not isinstance(trace, str | Path) else Path(trace).name
