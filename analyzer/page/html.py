"""A page as one HTML file that opens offline, in sections that a list of links leads to; or a part of another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...records import dataclass, replace
from .names import shorten_middle
from .page import Block, Chart, Line, Page, Passage, Tone, Tree, clean_page, without_charts
from .quantity import format_number
from .sheet import Sheet, SheetColumn, flat_title
from .vega import THEME, chart_document, chart_library, inert_json

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

    from .terminal import Screen

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What the file may do: nothing beyond itself, and nothing that evaluates text."""
LONGEST_NAME: Final = 80
"""What stands before a colon in the title is a heading of its own up to this length."""
FIRST_ROWS: Final = 20
"""Of a longer sheet; the rest is shown when asked for."""
_MORE_ROWS: Final = 6
"""So many more are shown at once: a switch for less is not worth it."""
PRINTED_COLUMNS: Final = 12
"""On paper the cells of broader tables are broken."""
CHART_ROWS: Final = 100
"""Of a chart's data, as a table."""
LONGEST_CELL: Final = 2_000
"""In characters: names out of files may be of any length."""
PLACE: Final = "#"
"""The title of a column of places in a ranking, which narrow windows have no room for."""
_FEWEST_LINKS: Final = 3
_LINK_END: Final = re.compile(r", | on | by | over ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Hold blocks that stand under one heading, with their numbers on the page; without a title they have none."""

    title: str
    blocks: tuple[tuple[int, Block], ...]
    is_folded: bool = False

    @property
    def is_warnings(self) -> bool:
        """Say whether it holds the page's warnings, which nothing else stands among."""
        return _is_warnings(self.blocks[0][1])


def draw_html(page: Page, _screen: Screen | None = None) -> str:
    """Write a page; without charts it needs no script.

    Raises InputError where it holds charts and the part that draws them is not installed.

    >>> from wavecast.analyzer.page.page import build_page, facts
    >>> "<dt>batch</dt><dd>4</dd>" in draw_html(build_page(facts([("batch", "4")])))
    True
    """
    clean = clean_page(page)
    lines = (line for block in clean.blocks if isinstance(block, Passage) for line in block.lines)
    title = next((line.text for line in lines if is_heading(line)), "wavecast")
    first = clean.blocks[0] if clean.blocks else None
    opening = first.lines if isinstance(first, Passage) and first.lines and is_heading(first.lines[0]) else ()
    name, colon, subtitle = title.partition(": ")
    has_name = bool(colon) and len(name) <= LONGEST_NAME
    sections = _sections(list(enumerate(clean.blocks))[1 if opening else 0 :])
    links = [(f"s{number}", link) for number, link in enumerate(short_titles(sections)) if link]
    charts = {f"chart{at}": chart_document(item) for at, item in enumerate(clean.blocks) if isinstance(item, Chart)}
    return template("report").render(
        policy=POLICY,
        printed_columns=PRINTED_COLUMNS,
        title=title,
        style=_asset("report.css"),
        opening=opening,
        name=name if has_name else title,
        subtitle=subtitle if has_name else "",
        links=links if len(links) >= _FEWEST_LINKS else (),
        sections=sections,
        charts=inert_json(charts) if charts else "",
        library=chart_library() if charts else "",
        theme=inert_json(THEME),
        script=_asset("report.js"),
    )


def short_titles(sections: Sequence[Section]) -> list[str]:
    """Return what links to sections are called: the beginning of their titles, where that tells them apart."""
    short = [_LINK_END.split(item.title)[0] for item in sections]
    return [name if short.count(name) == 1 else item.title for name, item in zip(short, sections, strict=True)]


@cache
def template(name: str) -> Template:
    """Return the template of this name, whose texts are escaped.

    >>> template("fragment").name
    'fragment.html.j2'
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    filters = (by_kind, cell, chart_sheet, css, first_rows, flat_title, is_heading, kind_of)
    environment.filters |= {function.__name__: function for function in filters}
    return environment.get_template(f"{name}.html.j2")


def _asset(name: str) -> str:
    """Return what stands in a file beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def css(names: str | None) -> Markup:
    """Return the attribute that gives an element classes; nothing for none."""
    from markupsafe import Markup

    return Markup(' class="{}"').format(names) if names else Markup("")


def is_heading(line: Line) -> bool:
    """Say whether a line heads what follows it; with a label it is a key figure."""
    return line.tone is Tone.TITLE and not line.label


def by_kind(lines: Sequence[Line]) -> Iterator[tuple[str, Iterable[Line]]]:
    """Yield lines that belong in one list: warnings, words, key figures, facts."""

    def kind(line: Line) -> str:
        if line.tone is Tone.WARNING:
            return "warnings"
        return "words" if not line.label else "figures" if line.tone is Tone.TITLE else "facts"

    yield from groupby(lines, kind)


def first_rows(sheet: Sheet) -> int:
    """Return how many rows of a sheet are shown at once."""
    return sheet.row_count if sheet.folded or sheet.row_count <= FIRST_ROWS + _MORE_ROWS else FIRST_ROWS


def kind_of(column: SheetColumn) -> str:
    """Return the classes of a column's cells."""
    return " ".join(
        filter(
            None,
            ("text" * column.is_text, "wraps" * column.wraps, "minor" * (column.rank > 0 or column.title == PLACE)),
        )
    )


def cell(text: str) -> str:
    """Return a cell's text as long as a page bears it."""
    return shorten_middle(text, LONGEST_CELL)


def chart_sheet(chart: Chart) -> Sheet:
    """Return what a chart shows as a table that is folded away."""
    fields = dict(chart.labels) or {name: name for row in chart.rows for name in row}
    columns = []
    for name, title in fields.items():
        values = [row.get(name) for row in chart.rows[:CHART_ROWS]]
        is_text = any(isinstance(value, str) for value in values)
        columns.append(SheetColumn(title=title, cells=tuple(map(_datum, values)), is_text=is_text))
    return Sheet(title=f"Data: {chart.title}", columns=tuple(columns), folded=True)


def _datum(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else format_number(float(value))


def _sections(blocks: Sequence[tuple[int, Block]]) -> list[Section]:
    """Divide blocks into sections: what has a title opens one, other words and sheets go on in the one before.

    After a chart, after warnings and after what is folded a new one begins.
    """
    sections = list[Section]()
    for number, block in blocks:
        for part in _split_warnings(block):
            title = _block_title(part)
            last = sections[-1].blocks[-1][1] if sections else None
            if title or last is None or sections[-1].is_folded or isinstance(last, Chart | Tree) or _is_warnings(last):
                folded = isinstance(part, Sheet) and part.folded
                sections.append(Section(title=title, blocks=((number, part),), is_folded=folded))
            else:
                sections[-1] = replace(sections[-1], blocks=(*sections[-1].blocks, (number, part)))
    return sections


def _split_warnings(block: Block) -> Iterator[Block]:
    """Yield a passage's warnings apart from its other lines."""
    if isinstance(block, Passage):
        for _, lines in groupby(block.lines, lambda line: line.tone is Tone.WARNING):
            yield Passage(lines=tuple(lines))
    else:
        yield block


def _is_warnings(block: Block) -> bool:
    return isinstance(block, Passage) and bool(block.lines) and block.lines[0].tone is Tone.WARNING


def _block_title(block: Block) -> str:
    if not isinstance(block, Passage):
        return block.title
    if _is_warnings(block):
        return f"Warnings ({len(block.lines)})" if len(block.lines) > 1 else "Warning"
    return block.lines[0].text if block.lines and is_heading(block.lines[0]) else ""


MOST_ROWS: Final = 200
"""Of a table; more are counted."""
STYLE: Final = """
.wavecast-report .wavecast-title { font-weight: 600; font-size: 1.1em; }
.wavecast-report .wavecast-note { opacity: .75; font-size: .9em; }
.wavecast-report .wavecast-warning { border-left: 3px solid #c80; padding-left: .5em; }
.wavecast-report table { color: inherit; }
.wavecast-report .wavecast-table { max-height: 32em; overflow: auto; margin: .5em 0; }
.wavecast-report .wavecast-marked { font-weight: 600; }
"""
"""Rules of its own classes alone, and no colour of text or ground: the notebook has both, light or dark."""
SIDES: Final = {True: "text-align:left", False: "text-align:right;white-space:nowrap"}
"""Of columns that hold texts, and of others."""


def draw_fragment(page: Page) -> str:
    """Write a page without its charts.

    >>> from wavecast.analyzer.page.page import build_page, facts
    >>> "<b>batch</b> 4 &lt;" in draw_fragment(build_page(facts([("batch", "4 <")])))
    True
    """
    tones = (Tone.TITLE, Tone.NOTE, Tone.WARNING)
    return template("fragment").render(
        style=STYLE,
        blocks=tuple(without_charts(clean_page(page))),
        sides=SIDES,
        classes={tone.value: f"wavecast-{tone.value}" for tone in tones},
        most_rows=MOST_ROWS,
    )
