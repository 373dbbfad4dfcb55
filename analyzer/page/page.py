"""A report before it has a look: lines and sheets in order of reading.

Each report is described once, as a `Page`; `terminal`, `markdown` and `html` draw any page. Another drawer is a file
beside these and a row of `formats.PAGE_FORMATS`: it draws every line by its tone and label, every sheet with its title,
and every chart where it can show pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from ...formats.trace.printable import clean_lines, clean_text
from ...records import dataclass, field, fields, replace
from .sheet import Sheet, SheetColumn


class Tone(Enum):
    """How a line is meant."""

    PLAIN = "plain"
    TITLE = "title"
    """Says what the page is about, and stands out."""
    NOTE = "note"
    """Small print: how the figures are to be read."""
    WARNING = "warning"
    MARKDOWN = "markdown"
    """Written as Markdown, with headings, lists, code and links: for pages that are published as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Hold a sentence or a few; with a label, which names what the text says, it is a fact."""

    text: str
    label: str = ""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Hold lines that stand together."""

    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """Hold one picture; only what draws pictures shows it (HTML), terminals and Markdown leave it out.

    `spec` is a Vega-Lite specification without `data`, `width`, `config` and `$schema`, which the drawer adds, so that
    all pictures of a page look alike: as wide as the page, of the `height` that it says, in the colours of `vega.py`
    (those that begin with `var` change with the page between light and dark). It names fields of `rows`; switches are
    `params` bound to a `select` or `radio` input. It is one view, layers of one, or a `vconcat` of such: facets and
    views beside one another have no width of their own. See https://vega.github.io/vega-lite/docs/.
    """

    title: str
    description: str
    """What the picture shows, in a sentence or two, for those who cannot see it."""
    spec: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    """Numbers, texts, booleans and None by field; texts may come out of files."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What readers of the data call its fields, in order; of others nothing is said there. Empty: all, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Hold one row of a tree, with those below it."""

    name: str
    cells: tuple[str, ...]
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Hold rows within rows, each folded until asked for; shown where pictures are."""

    title: str
    description: str
    columns: tuple[str, ...]
    """Titles of the branches' cells."""
    branches: tuple[Branch, ...]


Block = Passage | Sheet | Chart | Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Hold what is drawn, in order of reading; blocks stand apart from each other."""

    blocks: tuple[Block, ...]


def build_page(*blocks: Block) -> Page:
    """Return a page of the blocks, without passages that say nothing.

    >>> len(build_page(facts([("batch", "4")]), facts([])).blocks)
    1
    """
    return Page(blocks=tuple(block for block in blocks if not isinstance(block, Passage) or block.lines))


def without_charts(page: Page) -> Iterator[Passage | Sheet]:
    """Yield the blocks that can be written."""
    for block in page.blocks:
        if isinstance(block, Passage | Sheet):
            yield block


def facts(labelled: Iterable[tuple[str, str]]) -> Passage:
    """Return facts, each given by label and text, as a passage.

    >>> [line.label for line in facts([("batch", "4"), ("mode", "training")]).lines]
    ['batch', 'mode']
    """
    return Passage(lines=tuple(Line(text=text, label=label) for label, text in labelled))


def opening(sentences: Iterable[str]) -> Passage:
    """Return the sentences that open a page: the first says what it is about."""
    first, *rest = sentences
    return Passage(lines=(Line(text=first, tone=Tone.TITLE), *(Line(text=text) for text in rest)))


def passage(sentences: Iterable[str]) -> Passage:
    """Return sentences as a passage."""
    return Passage(lines=tuple(Line(text=text) for text in sentences))


def notes(sentences: Iterable[str]) -> Passage:
    """Return notes as a passage."""
    return Passage(lines=tuple(Line(text=text, tone=Tone.NOTE) for text in sentences))


def warnings(sentences: Iterable[str]) -> Passage:
    """Return warnings, which may name what files hold, as a passage."""
    return Passage(lines=tuple(Line(text=clean_text(text), tone=Tone.WARNING) for text in sentences))


def clean_page(page: Page) -> Page:
    """Return the page without control characters, whatever its texts were made of; drawers draw this one."""
    return replace(page, blocks=_clean(page.blocks))


def _clean(item: Any) -> Any:
    """Return an item with all its texts clean: titles of columns and Markdown keep their line breaks.

    A chart's specification is left to who draws it.
    """
    if isinstance(item, str):
        return clean_text(item)
    if isinstance(item, list | tuple):
        return tuple(map(_clean, item))
    if isinstance(item, Mapping):
        return {name: _clean(value) for name, value in item.items()}
    if not is_dataclass(item) or isinstance(item, type):
        return item
    known = {part.name: getattr(item, part.name) for part in fields(item) if part.name != "spec"}
    changed = {name: _clean(value) for name, value in known.items()}
    if isinstance(item, SheetColumn):
        changed["title"] = clean_lines(item.title)
    elif isinstance(item, Line) and item.tone is Tone.MARKDOWN:
        changed["text"] = clean_lines(item.text)
    return replace(item, **changed)


def join_passages(*passages: Passage) -> Passage:
    """Return one passage of several."""
    return Passage(lines=tuple(line for passage in passages for line in passage.lines))
