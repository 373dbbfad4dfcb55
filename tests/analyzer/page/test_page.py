"""Pages: every report is one, and every drawer draws all of it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from inspect import getmembers, isfunction
from pathlib import Path

import pytest
from wavecast.analyzer import page as page_room, questions
from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.page.page import (
    Line,
    Page,
    Passage,
    Tone,
    build_page,
    facts,
    join_passages,
    notes,
    opening,
    warnings,
)
from wavecast.analyzer.page.sheet import Sheet, SheetColumn
from wavecast.analyzer.page.terminal import Screen, draw_terminal
from wavecast.analyzer.questions.replay.page import describe_replay
from wavecast.analyzer.questions.serve.command import serve
from wavecast.analyzer.questions.serve.page import describe_serving
from wavecast.analyzer.questions.show.page import describe_overview
from wavecast.analyzer.recorded.overview import describe_trace
from wavecast.analyzer.replay.fidelity import check_fidelity
from wavecast.formats.trace.tables import Trace

TraceBuilder = Callable[..., Trace]
CheckWhole = Callable[[Page], None]
DESCRIBED = {
    "describe_report",
    "describe_entries",
    "describe_entry",
    "describe_verification",
    "describe_batch",
    "describe_comparison",
    "describe_gpu",
    "describe_gpus",
    "describe_host",
    "describe_hosts",
    "describe_node",
    "describe_nodes",
    "describe_overview",
    "describe_scale",
    "describe_ranks",
    "describe_recommender",
    "describe_replay",
    "describe_rerun",
    "describe_score",
    "describe_sharding",
    "describe_sensitivity",
    "describe_serving",
    "describe_sweep",
    "describe_validation",
}
"""Each is held to `assert_drawn_whole`, here or in the tests of its report."""


@pytest.fixture
def page() -> Page:
    """A page with everything that one can hold."""
    columns = (
        SheetColumn(title="a\nname", cells=("x|y", ""), is_text=True),
        SheetColumn(title="time", cells=("1 ms", "2 ms")),
    )
    return build_page(
        opening(["First *this*.", "Then that."]),
        facts([("trace", "a_b"), ("gaps", "none")]),
        Sheet(title="Rows [all]", columns=columns, marked_rows=frozenset({1})),
        notes([]),
        join_passages(notes(["As is."]), warnings(["hot\x1b", "cold"])),
        Passage(lines=(Line(text="## Not *escaped*", tone=Tone.MARKDOWN),)),
    )


def test_a_page_on_a_terminal(page: Page) -> None:
    assert draw_terminal(page, Screen()).split("\n") == [
        "First *this*.",
        "Then that.",
        "",
        "trace           a_b",
        "gaps            none",
        "",
        "Rows [all]",
        "a",
        "name  time",
        "──────────",
        "x|y   1 ms",
        "      2 ms",
        "",
        "As is.",
        "Warning: hot�",
        "Warning: cold",
        "",
        "## Not *escaped*",
        "",
    ]


def test_tones_have_styles(page: Page) -> None:
    text = draw_terminal(page, Screen(has_colour=True))
    assert "\x1b[1mFirst *this*.\x1b[0m\nThen that.\n" in text
    assert "\x1b[2mAs is.\x1b[0m\n\x1b[33mWarning: hot�\x1b[0m" in text


def test_facts_are_wrapped_beside_their_label() -> None:
    fact = build_page(facts([("about", "one two three four five six")]))
    assert draw_terminal(fact, Screen(width=36)) == ("about           one two three four\n                five six\n")


def test_a_page_as_markdown(page: Page) -> None:
    assert draw_markdown(page).split("\n\n") == [
        "First \\*this\\*.",
        "Then that.",
        "- **trace**: a\\_b\n- **gaps**: none",
        "**Rows \\[all\\]**",
        "| a name | time |\n| --- | ---: |\n| x\\|y | 1 ms |\n|  | **2 ms** |",
        "As is.",
        "- Warning: hot�\n- Warning: cold",
        "## Not *escaped*\n",
    ]


def test_every_drawing_is_whole(page: Page, assert_drawn_whole: CheckWhole) -> None:
    assert_drawn_whole(page)


def test_a_drawing_that_leaves_something_out_is_found(
    page: Page, assert_drawn_whole: CheckWhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gaps = Page(blocks=(page.blocks[0], *page.blocks[2:]))
    monkeypatch.setattr(
        "wavecast.analyzer.page.terminal.draw_terminal", lambda _, screen: draw_terminal(without_gaps, screen)
    )
    with pytest.raises(AssertionError, match="trace"):
        assert_drawn_whole(page)


def test_every_report_is_described_as_a_page() -> None:
    names = [module.name for module in pkgutil.walk_packages(questions.__path__, f"{questions.__name__}.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    assert {
        name
        for module in modules
        for name, function in getmembers(module, isfunction)
        if function.__module__ == module.__name__
        and function.__annotations__.get("return") in (Page, "Page")
        and name.startswith("describe")
    } == DESCRIBED


def test_one_file_knows_the_terminal_and_one_knows_markdown() -> None:
    folders = [Path(folder) for room in (page_room, questions) for folder in room.__path__]
    files = {path: path.read_text("utf-8") for folder in folders for path in folder.rglob("*.py")}
    assert [path.name for path, text in files.items() if "from rich" in text] == ["terminal.py"]
    assert [path.name for path, text in files.items() if "---:" in text] == ["markdown.py"]


def test_a_replay_is_drawn_whole(toy_trace: TraceBuilder, assert_drawn_whole: CheckWhole) -> None:
    assert_drawn_whole(describe_replay(check_fidelity(toy_trace(), None), name="toy.json"))


def test_served_models_are_drawn_whole(assert_drawn_whole: CheckWhole) -> None:
    assert_drawn_whole(describe_serving(serve("llama-3-8b", to=["2xH100-SXM", "L40S"], concurrency=8).report))


def test_an_overview_is_drawn_whole(toy_trace: TraceBuilder, assert_drawn_whole: CheckWhole) -> None:
    assert_drawn_whole(describe_overview(describe_trace(toy_trace(), limit=9)))
