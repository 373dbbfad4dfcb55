"""A page as one HTML file that opens offline: the words, the sheets, and the charts, drawn by an inlined Vega-Lite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any, Final

from ....errors import InputError
from .chart import Chart
from .page import Line, Page, Passage, Tone, clean_page
from .sheet import Sheet, flat_title

if TYPE_CHECKING:
    from .terminal import Screen

VEGA_LITE: Final = "6.4"
"""The version whose JavaScript is inlined."""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What the file may do: nothing beyond itself, and nothing that evaluates text."""
STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 76rem; margin: 0 auto; padding: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th.text, td.text { text-align: left; }
tr.marked { font-weight: 600; }
.wide { overflow-x: auto; }
.note { opacity: .75; font-size: .875rem; }
"""
_TAGS: Final = {Tone.TITLE: "h1", Tone.NOTE: 'p class="note"', Tone.WARNING: 'p class="warning" role="note"'}


def draw_html(page: Page, _screen: Screen | None = None) -> str:
    """Write a page; without charts it needs no script.

    Raises InputError where it holds charts and the part that draws them is not installed.

    >>> from wavecast.analyzer.rendering.page.page import build_page, facts
    >>> "<dt>batch</dt><dd>4</dd>" in draw_html(build_page(facts([("batch", "4")])))
    True
    """
    clean = clean_page(page)
    charts = [block for block in clean.blocks if isinstance(block, Chart)]
    head = [
        "<!doctype html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{escape(_title(clean))}</title>",
        f"<style>{STYLE}</style>",
    ]
    body = [part for number, block in enumerate(clean.blocks) for part in _parts(block, number)]
    return "\n".join([*head, "<main>", *body, "</main>", *(_script(clean) if charts else ())]) + "\n"


def _title(page: Page) -> str:
    lines = (line for block in page.blocks if isinstance(block, Passage) for line in block.lines)
    return next((line.text for line in lines if line.tone is Tone.TITLE), "wavecast")


def _parts(block: Passage | Sheet | Chart, number: int) -> Iterator[str]:
    if isinstance(block, Chart):
        caption = f"<figcaption>{escape(block.title)}</figcaption>"
        yield f'<figure>{caption}<div id="chart{number}" class="chart"></div></figure>'
    elif isinstance(block, Sheet):
        yield from _table(block)
    else:
        yield from map(_line, block.lines)


def _line(line: Line) -> str:
    if line.label:
        return f"<dl><dt>{escape(line.label)}</dt><dd>{escape(line.text)}</dd></dl>"
    tag = _TAGS.get(line.tone, "p")
    return f"<{tag}>{escape(line.text)}</{tag.split()[0]}>"


def _table(sheet: Sheet) -> Iterator[str]:
    kinds = ['class="text"' if item.is_text else "" for item in sheet.columns]
    yield '<div class="wide"><table>'
    if sheet.title:
        yield f"<caption>{escape(sheet.title)}</caption>"
    titles = (f"<th {kind}>{escape(flat_title(item))}</th>" for kind, item in zip(kinds, sheet.columns, strict=True))
    yield f"<tr>{''.join(titles)}</tr>"
    for index in range(sheet.row_count):
        cells = (
            f"<td {kind}>{escape(item.cells[index])}</td>" for kind, item in zip(kinds, sheet.columns, strict=True)
        )
        mark = ' class="marked"' if index in sheet.marked_rows else ""
        yield f"<tr{mark}>{''.join(cells)}</tr>"
    yield "</table></div>"


def _script(page: Page) -> Iterator[str]:
    specs = {f"chart{number}": _whole(block) for number, block in enumerate(page.blocks) if isinstance(block, Chart)}
    yield f"<script>{_bundle()}</script>"
    yield f'<script type="application/json" id="specs">{_inert(specs)}</script>'
    yield (
        '<script>for (const [id, spec] of Object.entries(JSON.parse(document.getElementById("specs").textContent)))'
        ' vegaEmbed("#" + id, spec, {ast: true, actions: false, renderer: "svg"});</script>'
    )


def _whole(chart: Chart) -> dict[str, Any]:
    """Return the specification with its data."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": chart.description,
        "width": "container",
        "data": {"values": list(chart.rows)},
        **chart.spec,
    }


def _inert(document: Any) -> str:
    """Write JSON that ends no script element, whatever its texts hold."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _bundle() -> str:
    """Return the JavaScript that draws charts."""
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise InputError("charts need vl-convert-python: pip install 'wavecast[html]'") from None
    return str(javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)).replace(
        "</script", "<\\/script"
    )
