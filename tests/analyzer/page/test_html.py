"""HTML: one whole file that opens offline, in sections, where texts out of files stay texts."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
from wavecast.analyzer.page.html import CHART_ROWS, FIRST_ROWS, LONGEST_CELL, POLICY, draw_html
from wavecast.analyzer.page.page import Chart, Line, Page, Passage, Tone, build_page, facts, notes, opening, warnings
from wavecast.analyzer.page.sheet import Sheet, SheetColumn
from wavecast.analyzer.page.vega import LONGEST_TEXT, chart_library
from wavecast.errors import InputError

HOSTILE = "</script><script>alert(1)</script><!--\"'&\u2028\u202e<img src=x onerror=alert(2)>\x1b"
VOID = {"meta", "link", "input", "br", "img", "hr"}


class Reader(HTMLParser):
    """Reads a file as a browser would: which elements stand in it, each closed where it must be."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append((tag, known))
        self.ids += [known["id"]] if known.get("id") else []  # type: ignore[list-item]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def build_chart(**changes: Any) -> Chart:
    values: dict[str, Any] = {
        "title": "Times",
        "description": "Each GPU by its time.",
        "spec": {"height": 200, "mark": "bar", "encoding": {"x": {"field": "time"}, "y": {"field": "gpu"}}},
        "rows": [{"gpu": "H100", "time": 1.5}, {"gpu": "A100", "time": float("nan")}],
    }
    return Chart(**(values | changes))


def build_sheet(count: int, **changes: Any) -> Sheet:
    columns = (
        SheetColumn(title="GPU\nname", cells=tuple(f"gpu {row}" for row in range(count)), is_text=True),
        SheetColumn(title="time", cells=tuple(f"{row} ms" for row in range(count))),
    )
    return Sheet(**({"title": "All", "columns": columns} | changes))


@pytest.fixture
def page() -> Page:
    return build_page(
        opening(["net: training, batch 4", "Measured somewhere."]),
        Passage(lines=(Line(label="Fastest", text="H100 · 1.5 ms", tone=Tone.TITLE),)),
        build_chart(),
        build_sheet(3, marked_rows=frozenset({1})),
        facts([("trace", "a.json"), ("made by", "hand")]),
        notes(["Small print."]),
        warnings(["hot", "cold"]),
    )


def charts_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_page_is_one_whole_document(page: Page) -> None:
    reader = read(draw_html(page))
    assert len(reader.ids) == len(set(reader.ids))
    for tag in ("html", "head", "body", "header", "main", "nav", "h1"):
        assert len(reader.named(tag)) == 1, tag
    assert reader.named("html") == [{"lang": "en"}]
    policies = [item["content"] for item in reader.named("meta") if item.get("http-equiv")]
    assert policies == [POLICY]
    assert "connect-src" not in POLICY
    assert POLICY.startswith("default-src 'none'")
    assert "unsafe-eval" not in POLICY


def test_links_lead_to_sections(page: Page) -> None:
    reader = read(draw_html(page))
    links = [item["href"] for item in reader.named("a")]
    assert links == ["#content", "#s1", "#s2", "#s3"]
    assert {link[1:] for link in links if link} <= set(reader.ids)
    for section in reader.named("section"):
        assert section["aria-labelledby"] in reader.ids


def test_nothing_is_fetched(page: Page) -> None:
    """Beside the bundle, which names XML namespaces and pages to read, no address stands in the file."""
    text = draw_html(page)
    own = text.replace(chart_library(), "")
    assert len(own) < 40_000
    assert re.findall(r"(?:https?:|//[a-z]|@import|url\()", own.replace("</", "")) == []
    assert all("src" not in attributes for _, attributes in read(text).tags)
    addresses = re.findall(r"https?://[^\s\"'`)]+", chart_library())
    assert {address.split("/")[2] for address in addresses} <= {"www.w3.org", "vega.github.io", "github.com"}


def test_key_figures_facts_and_warnings_have_their_form(page: Page) -> None:
    text = draw_html(page)
    assert '<h1>net</h1><p class="subtitle">training, batch 4</p>' in text
    assert "<dt>Fastest</dt><dd><strong>H100</strong><small>1.5 ms</small></dd>" in text
    assert text.count("<dl") == 2
    assert "<dt>trace</dt><dd>a.json</dd>\n<dt>made by</dt><dd>hand</dd>" in text
    assert ">Warnings (2)</h2>\n<ul>\n<li>hot</li>\n<li>cold</li>\n</ul>" in text


def test_tables_say_what_their_cells_are(page: Page) -> None:
    text = draw_html(page)
    assert '<th scope="col" class="text">GPU\nname</th><th scope="col">time</th>' in text
    assert '<tr class="marked"><th scope="row" class="text">gpu 1</th><td>1 ms</td></tr>' in text
    assert "<caption>All</caption>" in text


def test_long_tables_show_their_first_rows_until_asked() -> None:
    text = draw_html(build_page(build_sheet(200)))
    first, more = text.split('<tbody class="more">')
    assert first.count("<tr") == FIRST_ROWS + 1
    assert more.count("<tr") == 200 - FIRST_ROWS
    assert 'type="checkbox" id="rows0-all"' in first
    assert '<label class="switch" for="rows0-all">Show all 200 rows</label>' in first
    assert "checkbox" not in draw_html(build_page(build_sheet(FIRST_ROWS + 1)))


def test_folded_blocks_are_details() -> None:
    text = draw_html(build_page(build_sheet(2, folded=True), facts([("a", "b")])))
    assert re.search(r"<details><summary><h2[^>]*>All</h2></summary>\n<div class=\"wide\"", text)
    assert text.index("</details>") < text.index("<dt>a</dt>")


def test_charts_have_words_and_a_table(page: Page) -> None:
    text = draw_html(page)
    assert "<figcaption>Each GPU by its time.</figcaption>" in text
    assert '<td class="text">A100</td><td>–</td>' in text
    (drawn,) = charts_of(text).values()
    assert drawn["description"] == "Each GPU by its time."
    assert drawn["data"] == {"fields": ["gpu", "time"], "rows": [["H100", 1.5], ["A100", None]]}
    many = build_chart(rows=[{"gpu": str(row), "time": row} for row in range(500)], labels={"time": "time, ms"})
    text = draw_html(build_page(many)).split("<script")[0]
    assert f"Data as a table, the first {CHART_ROWS} of 500 rows" in text
    assert text.count("<tr>") == CHART_ROWS + 1
    assert '<th scope="col">time, ms</th></tr>' in text


def test_hostile_texts_stay_texts() -> None:
    text = HOSTILE
    blocks = build_page(
        opening([text, text]),
        facts([(text, text)]),
        build_chart(title=text, description=text, rows=[{"gpu": text, "time": 1}], labels={"gpu": text}),
        Sheet(title=text, columns=(SheetColumn(title=text, cells=(text,), is_text=True),), folded=True),
        warnings([text]),
    )
    drawn = draw_html(blocks)
    reader = read(drawn)
    assert len(reader.named("script")) == 4
    assert reader.named("img") == []
    own = drawn.replace(chart_library(), "")
    assert not set(own) & set("\u2028\u202e\x1b")
    assert "<script>alert" not in own
    (chart,) = charts_of(drawn).values()
    assert chart["data"]["rows"][0][0].startswith("</script><script>alert(1)</script>")


def test_texts_of_any_length_make_a_small_file() -> None:
    name = "n" * 1_000_000
    sheet = Sheet(title="", columns=(SheetColumn(title="a", cells=(name,), is_text=True),))
    drawn = draw_html(build_page(sheet, build_chart(rows=[{"gpu": name}])))
    assert len(drawn) < len(chart_library()) + 50_000
    assert len(charts_of(drawn)["chart1"]["data"]["rows"][0][0]) == LONGEST_TEXT
    assert f">{'n' * 1000}" in drawn
    assert LONGEST_CELL < 5_000


def test_without_charts_no_script_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert "<script" not in draw_html(build_page(build_sheet(3)))
    with pytest.raises(InputError, match=r"pip install 'wavecast\[html\]'"):
        chart_library.__wrapped__()


def test_the_same_page_makes_the_same_file(page: Page) -> None:
    assert draw_html(page) == draw_html(page)
