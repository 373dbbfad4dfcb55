"""What every answer can do: be shown, saved in any format, drawn as pictures, and handed on as a table."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...errors import InputError
from ...records import dataclass
from ..page.encoding import Field, FieldTable
from ..page.formats import DEFAULT_FORMAT, REPORT_FORMATS, SUFFIXES, render

if TYPE_CHECKING:
    from ..page.page import Chart, Page
    from ..page.terminal import Screen

SVG: Final = "svg"
PNG: Final = "png"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """Say how a report's words, its JSON and its tables are made, each when it is asked for."""

    page: Callable[[], Page]
    json: Callable[[], str]
    tables: Mapping[str, Callable[[], FieldTable]]
    """By name, the main one first."""


class Report(ABC):
    """Hold an answer. What it rests on is in the attributes of each kind of report.

    In a notebook it shows itself; elsewhere `show` prints it. `save` writes it, `to_frame` and `to_records` hand on its
    tables, `to_dict` all of it.
    """

    __slots__ = ()
    formats: ClassVar[tuple[str, ...]] = REPORT_FORMATS
    """What it can be drawn as."""

    @abstractmethod
    def _drawn(self) -> Drawn:
        """Return how it is drawn."""

    def page(self) -> Page:
        """Return the report in words and sheets."""
        return self._drawn().page()

    def illustrated_page(self) -> Page:
        """Return it with charts, where it has any."""
        return self.page()

    def to_json(self) -> str:
        """Return the report as JSON, with all digits; the layout is in docs/reference, on its command's page."""
        return self._drawn().json()

    @abstractmethod
    def _headline(self) -> str:
        """Say in a line what it is about and what it found."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """Return what goes beyond the limits that were given; none: it passes."""
        return ()

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of its tables, the main one first."""
        return tuple(self._drawn().tables)

    def to_csv(self) -> str:
        """Return its main table as CSV, with all digits."""
        return self._table(None).to_csv()

    def to_dict(self) -> dict[str, Any]:
        """Return what its JSON holds."""
        found: dict[str, Any] = json.loads(self.to_json())
        return found

    def to_records(self, table: str | None = None) -> list[dict[str, Any]]:
        """Return a table, the main one where none is named, as a dict per row; absent values are None."""
        return build_records(self._table(table))

    def to_frame(self, table: str | None = None, *, library: str | None = None) -> Any:
        """Return a table, the main one where none is named, as a pandas or polars frame.

        Without `library` that is pandas where it is installed, else polars, else the list of `to_records`. The columns
        have their units in their names and the same types whatever the data.
        """
        return build_frame(self._table(table), library)

    def pictures(self) -> tuple[Picture, ...]:
        """Return its charts, each a picture of its own; none where it has none."""
        from ..page.page import Chart

        return tuple(Picture(block) for block in self.illustrated_page().blocks if isinstance(block, Chart))

    def draw(self, form: str = DEFAULT_FORMAT, screen: Screen | None = None) -> str:
        """Return the report in a format: table, json, csv, markdown or html; `screen` is what a table is drawn for."""
        from ..page.terminal import Screen as AnyScreen

        if form not in self.formats:
            raise InputError(f"format {form!r}: expected {', '.join(self.formats)}")
        return render(
            form,
            screen or AnyScreen(),
            page=self.page,
            json=self.to_json,
            csv=self.to_csv,
            illustrated=self.illustrated_page,
        )

    def save(self, path: str | Path) -> None:
        """Write the report, whole or not at all, in the format that the ending says (.txt, .md, .html, .json, .csv).

        Raises InputError for another ending, and OutputError or WriteError where the file cannot be written.
        """
        from ...formats.files.open import write_atomic

        suffix = Path(path).suffix.lower()
        endings = {SUFFIXES[name]: name for name in self.formats}
        if suffix not in endings:
            raise InputError(f"{path}: expected a name that ends in {', '.join(endings)}")
        write_atomic(Path(path), self.draw(endings[suffix]).encode())

    def show(self) -> None:
        """Show the report: in a notebook as its words and tables, else printed as wide as the terminal."""
        # Whether this is a kernel that shows HTML; IPython in a terminal is none.
        module = sys.modules.get("IPython")
        shell = module.get_ipython() if module is not None else None
        if shell is not None and hasattr(shell, "kernel"):
            from IPython.display import display

            display(self)
            return
        from ..page.terminal import draw_terminal, encodable, stdout_screen

        sys.stdout.write(encodable(draw_terminal(self.page(), stdout_screen())))

    def _table(self, name: str | None) -> FieldTable:
        tables = self._drawn().tables
        if name is None:
            return next(iter(tables.values()))()
        if name not in tables:
            raise InputError(f"table {name!r}: expected {', '.join(tables)}")
        return tables[name]()

    def _repr_html_(self) -> str:
        """Show the words and tables in a notebook."""
        from ..page.html import draw_fragment

        return draw_fragment(self.page())

    def _repr_markdown_(self) -> str:
        """Show them where Markdown alone is understood."""
        from ..page.markdown import draw_markdown

        return draw_markdown(self.page())

    def __repr__(self) -> str:
        """Return one line."""
        from ...formats.trace.printable import clean_text

        return f"<{type(self).__name__} {clean_text(' '.join(self._headline().split()))}>"


class PicturedReport(Report):
    """Hold an answer that is also drawn as one picture."""

    __slots__ = ()
    formats = (*REPORT_FORMATS, SVG)

    @abstractmethod
    def chart(self) -> Chart:
        """Return what its picture shows."""

    def picture(self, form: str = SVG) -> bytes:
        """Return its picture, `svg` or `png`."""
        from ..page.vega import draw_picture

        return draw_picture(self.chart(), form)

    def draw(self, form: str = DEFAULT_FORMAT, screen: Screen | None = None) -> str:
        """Return the report in a format: table, json, csv, markdown, html, or svg: the picture."""
        return self.picture().decode() if form == SVG else Report.draw(self, form, screen)

    def save(self, path: str | Path) -> None:
        """Write the report, whole or not at all; besides what any report offers, as a picture (.svg, .png)."""
        from ...formats.files.open import write_atomic

        if Path(path).suffix.lower() == ".png":
            write_atomic(Path(path), self.picture(PNG))
        else:
            Report.save(self, path)


def as_names(value: str | Path | Sequence[str | Path], name: str = "to") -> tuple[str, ...]:
    """Return one name or several as a tuple. Raises InputError for what is neither."""
    names = (value,) if isinstance(value, str | Path) else value
    if not isinstance(names, Sequence) or not all(isinstance(item, str | Path) for item in names):
        raise InputError(f"{name}={value!r}: expected a name or a list of names")
    return tuple(map(str, names))


def trace_name(trace: Any) -> str:
    """Return what a trace is called in a report, where its workload has no name."""
    if not isinstance(trace, str | Path):
        return str(trace.meta.workload.name or "trace")
    if str(trace).startswith("archive:/"):
        from ...formats.files.reference import name_of_reference

        return name_of_reference(Path(trace))
    return "standard input" if str(trace) == "-" else Path(trace).name


LIBRARIES: Final = ("pandas", "polars")
"""In the order in which they are taken."""
RECORDS: Final = "records"
_PANDAS_TYPES: Final = {bool: "boolean", int: "Int64", float: "float64", str: "string"}
_POLARS_TYPES: Final = {bool: "Boolean", int: "Int64", float: "Float64", str: "String"}


def build_frame(table: FieldTable, library: str | None) -> Any:
    """Return a table as a frame of that library; None: of the first that is installed, else as a list of dicts.

    Raises InputError for a library that is not installed or not known.
    """
    chosen = library or next((name for name in LIBRARIES if find_spec(name) is not None), RECORDS)
    if chosen not in (*LIBRARIES, RECORDS):
        raise InputError(f"library={library!r}: expected {', '.join(LIBRARIES)} or {RECORDS}")
    if chosen == RECORDS:
        return build_records(table)
    try:
        return (_to_pandas if chosen == "pandas" else _to_polars)(table.fields, table.columns())
    except ImportError:
        raise InputError(f"{chosen} is not installed: pip install {chosen}, or take to_records()") from None


def build_records(table: FieldTable) -> list[dict[str, Any]]:
    """Return a dict per row."""
    columns = table.columns()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _to_pandas(fields: Sequence[Field], columns: dict[str, list[Any]]) -> Any:
    import pandas

    series = {item.name: pandas.Series(columns[item.name], dtype=_PANDAS_TYPES[item.kind]) for item in fields}
    return pandas.DataFrame(series)


def _to_polars(fields: Sequence[Field], columns: dict[str, list[Any]]) -> Any:
    import polars

    return polars.DataFrame(columns, schema={item.name: getattr(polars, _POLARS_TYPES[item.kind]) for item in fields})


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
