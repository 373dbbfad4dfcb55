"""A page as one HTML file that opens offline: words, sheets and charts, in sections that a list of links leads to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .chart import Chart
from .html_sheet import draw_chart_data, draw_sheet
from .page import Line, Page, Passage, Tone, clean_page
from .sheet import Sheet
from .vega import THEME, chart_document, chart_library, inert_json

if TYPE_CHECKING:
    from .terminal import Screen

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What the file may do: nothing beyond itself, and nothing that evaluates text."""
LONGEST_NAME: Final = 80
"""What stands before a colon in the title is a heading of its own up to this length."""
_FEWEST_LINKS: Final = 3
_TAGS: Final = {Tone.TITLE: "h2", Tone.NOTE: 'p class="note"', Tone.MARKDOWN: 'p class="prose"'}

Block = Passage | Sheet | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Hold blocks that stand under one heading; without a title they have none."""

    title: str
    blocks: tuple[tuple[int, Block], ...]
    """With their numbers on the page."""
    is_folded: bool = False


def draw_html(page: Page, _screen: Screen | None = None) -> str:
    """Write a page; without charts it needs no script.

    Raises InputError where it holds charts and the part that draws them is not installed.

    >>> from wavecast.analyzer.page.page import build_page, facts
    >>> "<dt>batch</dt><dd>4</dd>" in draw_html(build_page(facts([("batch", "4")])))
    True
    """
    clean = clean_page(page)
    head, sections = _opening(clean), _sections(clean)
    links = [(f"s{number}", item.title) for number, item in enumerate(sections) if item.title]
    charts = {f"chart{number}": item for number, item in enumerate(clean.blocks) if isinstance(item, Chart)}
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(_title(clean))}</title>",
        f"<style>\n{_asset('report.css')}</style>",
        "</head>",
        "<body>",
        '<a class="skip" href="#content">Skip to the content</a>',
        *_header(head),
        '<div class="page">' if len(links) >= _FEWEST_LINKS else "<div>",
        *(_navigation(links) if len(links) >= _FEWEST_LINKS else ()),
        '<main id="content">',
        *(part for number, item in enumerate(sections) for part in _section(item, f"s{number}")),
        "</main>",
        "</div>",
        *(_scripts(charts) if charts else ()),
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _title(page: Page) -> str:
    lines = (line for block in page.blocks if isinstance(block, Passage) for line in block.lines)
    return next((line.text for line in lines if line.tone is Tone.TITLE and not line.label), "wavecast")


def _opening(page: Page) -> Passage | None:
    """Return the passage that opens a page: one that says first what it is about."""
    first = page.blocks[0] if page.blocks else None
    opens = isinstance(first, Passage) and bool(first.lines) and _is_heading(first.lines[0])
    return first if opens and isinstance(first, Passage) else None


def _is_heading(line: Line) -> bool:
    return line.tone is Tone.TITLE and not line.label


def _header(opening: Passage | None) -> Iterator[str]:
    yield "<header>"
    yield '<p class="brand"><b>wavecast</b> report</p>'
    if opening is None:
        yield "</header>"
        return
    name, colon, rest = opening.lines[0].text.partition(": ")
    if colon and len(name) <= LONGEST_NAME:
        yield f'<h1>{escape(name)}</h1><p class="subtitle">{escape(rest)}</p>'
    else:
        yield f"<h1>{escape(opening.lines[0].text)}</h1>"
    if len(opening.lines) > 1:
        yield '<div class="lead">'
        yield from _lines(opening.lines[1:])
        yield "</div>"
    yield "</header>"


def _sections(page: Page) -> list[Section]:
    """Divide what follows the opening: what has a title opens a section, other words and sheets go on in the one before
    unless that is a chart's."""
    sections = list[Section]()
    skipped = _opening(page) is not None
    for number, block in enumerate(page.blocks):
        if number == 0 and skipped:
            continue
        for part in _split_warnings(block):
            title = _block_title(part)
            if title or not sections or _closes(sections[-1]):
                folded = isinstance(part, Sheet | Chart) and part.folded
                sections.append(Section(title=title, blocks=((number, part),), is_folded=folded))
            else:
                sections[-1] = replace(sections[-1], blocks=(*sections[-1].blocks, (number, part)))
    return sections


def _closes(section: Section) -> bool:
    last = section.blocks[-1][1]
    return section.is_folded or isinstance(last, Chart) or _is_warnings(last)


def _split_warnings(block: Block) -> Iterator[Block]:
    """Yield a passage's warnings apart from its other lines."""
    if not isinstance(block, Passage):
        yield block
        return
    for _, lines in groupby(block.lines, lambda line: line.tone is Tone.WARNING):
        yield Passage(lines=tuple(lines))


def _is_warnings(block: Block) -> bool:
    return isinstance(block, Passage) and bool(block.lines) and block.lines[0].tone is Tone.WARNING


def _block_title(block: Block) -> str:
    if not isinstance(block, Passage):
        return block.title
    if _is_warnings(block):
        return f"Warnings ({len(block.lines)})" if len(block.lines) > 1 else "Warning"
    return block.lines[0].text if block.lines and _is_heading(block.lines[0]) else ""


def _navigation(links: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield '<nav aria-label="Sections"><ul>'
    for anchor, title in links:
        yield f'<li><a href="#{anchor}">{escape(title)}</a></li>'
    yield "</ul></nav>"


def _section(section: Section, anchor: str) -> Iterator[str]:
    """Draw a section under its heading, folded away where it is."""
    heading = f'<h2 id="{anchor}-title">{escape(section.title)}</h2>' if section.title else ""
    if not heading:
        yield '<div class="block">'
    elif _is_warnings(section.blocks[0][1]):
        yield f'<section id="{anchor}" aria-labelledby="{anchor}-title"><div class="warnings" role="note">{heading}'
    else:
        yield f'<section id="{anchor}" aria-labelledby="{anchor}-title">'
        yield f"<details><summary>{heading}</summary>" if section.is_folded else heading
    for number, block in section.blocks:
        yield from _block(block, number)
    if not heading:
        yield "</div>"
    elif _is_warnings(section.blocks[0][1]):
        yield "</div></section>"
    else:
        yield "</details></section>" if section.is_folded else "</section>"


def _block(block: Block, number: int) -> Iterator[str]:
    if isinstance(block, Chart):
        yield from _figure(block, f"chart{number}")
    elif isinstance(block, Sheet):
        yield from draw_sheet(block, f"rows{number}")
    else:
        yield from _lines(block.lines[1:] if _is_heading(block.lines[0]) else block.lines)


def _figure(chart: Chart, identity: str) -> Iterator[str]:
    height = chart.spec.get("height")
    room = f' style="min-height:{height}px"' if isinstance(height, int) else ""
    yield "<figure>"
    yield f"<figcaption>{escape(chart.description)}</figcaption>"
    yield f'<div id="{identity}-controls" class="controls"></div>'
    yield f'<div id="{identity}" class="chart"{room}></div>'
    yield "<noscript><p>The chart needs JavaScript; its data can be read below.</p></noscript>"
    yield from draw_chart_data(chart)
    yield "</figure>"


def _lines(lines: Sequence[Line]) -> Iterator[str]:
    """Draw lines, those that belong together in one list: facts, key figures, warnings."""
    for kind, group in groupby(lines, _kind):
        if kind == "warnings":
            yield "<ul>"
            yield from (f"<li>{escape(line.text)}</li>" for line in group)
            yield "</ul>"
        elif kind == "figures":
            yield '<dl class="figures">'
            yield from map(_key_figure, group)
            yield "</dl>"
        elif kind == "facts":
            yield '<dl class="facts">'
            yield from (f"<dt>{escape(line.label)}</dt><dd>{escape(line.text)}</dd>" for line in group)
            yield "</dl>"
        else:
            for line in group:
                tag = _TAGS.get(line.tone, "p")
                yield f"<{tag}>{escape(line.text)}</{tag.split()[0]}>"


def _kind(line: Line) -> str:
    if line.tone is Tone.WARNING:
        return "warnings"
    if not line.label:
        return "words"
    return "figures" if line.tone is Tone.TITLE else "facts"


def _key_figure(line: Line) -> str:
    """Draw a fact that stands out: of its text, what stands before the first dot in large."""
    figure, _, more = line.text.partition(" · ")
    small = f"<small>{escape(more)}</small>" if more else ""
    return f"<div><dt>{escape(line.label)}</dt><dd><strong>{escape(figure)}</strong>{small}</dd></div>"


def _scripts(charts: dict[str, Chart]) -> Iterator[str]:
    documents = {identity: chart_document(chart) for identity, chart in charts.items()}
    yield f"<script>{chart_library()}</script>"
    yield f'<script type="application/json" id="theme">{inert_json(THEME)}</script>'
    yield f'<script type="application/json" id="charts">{inert_json(documents)}</script>'
    yield f"<script>\n{_asset('report.js')}</script>"


def _asset(name: str) -> str:
    """Return what stands in a file beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
