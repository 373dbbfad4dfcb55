"""The charts of reports: they compile without a warning, show what the report says, and keep names as text."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from inspect import getmembers, isfunction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wavecast
from wavecast.analyzer import page, questions
from wavecast.analyzer.page.html import draw_html
from wavecast.analyzer.page.page import Chart, Page, Passage, clean_page
from wavecast.analyzer.page.vega import chart_document
from wavecast.analyzer.questions.batch.charts import MOST_GPUS, MOST_TRACES, illustrate_batch
from wavecast.analyzer.questions.batch.fleet import FleetTimes, summarize_fleet
from wavecast.analyzer.questions.batch.inputs import BatchInput
from wavecast.analyzer.questions.batch.page import describe_batch
from wavecast.analyzer.questions.batch.report import BatchReport, FleetAnswer, GpuCount, GpuMix
from wavecast.analyzer.questions.scale.report import Spent

vl_convert = pytest.importorskip("vl_convert", reason="needs vl-convert-python")

ROOT = Path(wavecast.__file__).resolve().parent
PAIR = [str(ROOT / f"samples/vit_small-inference-bf16-b4-{gpu}.json.gz") for gpu in ("h100", "mi300x")]
SMALL = str(ROOT / "samples/dcgan-training-bf16-b64-shapes.json.gz")
HOSTILE = "</script><img src=x onerror=alert(1)>\"'];\\\x1b[31m"
ILLUSTRATED = {
    "illustrate",
    "illustrate_batch",
    "illustrate_scale",
}
"""Each is held to `compiled`, here or in the tests of its report."""


def fleet_times(traces: int = 3, gpus: int = 4) -> FleetTimes:
    """Return times that grow with the trace and shrink with the GPU; the last GPU does not fit the first trace."""
    time = 1e9 * np.outer(np.arange(1, traces + 1), 1.0 / np.arange(1, gpus + 1))
    fits = np.ones(time.shape, dtype=bool)
    fits[0, -1] = False
    return FleetTimes(
        what_if="as recorded",
        traces=tuple(
            BatchInput(name=f"{HOSTILE}{at}.json.gz", location="", trace_id=str(at), in_archive=False)
            for at in range(traces)
        ),
        workloads=tuple(f"work {at}" for at in range(traces)),
        runs=np.ones(traces),
        gpus=tuple(f"GPU {at}" for at in range(gpus)),
        time_ns=time,
        low_ns=0.9 * time,
        high_ns=1.2 * time,
        energy_j=1e-6 * time,
        fits=fits,
        price_usd_per_hour=np.arange(1.0, gpus + 1.0) ** 1.5,
    )


def batch_page(times: FleetTimes) -> Page:
    mix = GpuMix(
        gpus=(GpuCount(gpu="GPU 1", count=3, busy_ratio=0.5, trace_count=2),), usd_per_day=9.0, least_usd_per_day=8.0
    )
    fleet = FleetAnswer(summary=summarize_fleet(times), mix=mix)
    report = BatchReport(trace_count=len(times.traces), row_count=times.time_ns.size, fleets=(fleet,), failures=())
    return illustrate_batch(describe_batch(report, output="x.html"), [times])


@cache
def scaled() -> Any:
    return wavecast.scale(SMALL, to=["h100 sxm", "l40s"], gpus=[8, 16], plan=["dp=*", "fsdp=*"])


PAGES: Mapping[str, Callable[[], Page]] = {
    "scale": lambda: scaled().illustrated_page(),
    "replay": lambda: wavecast.replay(PAIR[0]).illustrated_page(),
    "overview": lambda: wavecast.overview(PAIR[1], top=2).illustrated_page(),
    "batch": lambda: batch_page(fleet_times()),
}


@cache
def page_of(name: str) -> Page:
    return PAGES[name]()


def charts_of(page: Page) -> list[Chart]:
    return [block for block in page.blocks if isinstance(block, Chart)]


def chart_named(page: Page, title: str) -> Chart:
    return next(chart for chart in charts_of(page) if chart.title.startswith(title))


def encoded_fields(spec: Any) -> Iterator[str]:
    """Yield the fields that a view reads of the chart's own rows."""
    if isinstance(spec, list):
        for item in spec:
            yield from encoded_fields(item)
    elif isinstance(spec, dict) and "data" not in spec:
        if isinstance(spec.get("field"), str):
            yield spec["field"]
        for item in spec.values():
            yield from encoded_fields(item)


def compiled(chart: Chart, capfd: pytest.CaptureFixture[str]) -> None:
    """Hold a chart to what the drawer and its readers need."""
    document = chart_document(chart)
    fields = document["data"]["fields"]
    assert set(encoded_fields(chart.spec)) <= set(fields), chart.title
    assert set(chart.labels) <= set(fields), chart.title
    assert chart.labels
    assert chart.description.endswith(".")
    rows = [dict(zip(fields, row, strict=True)) for row in document["data"]["rows"]]
    spec = {**document["spec"], "width": 800, "data": {"values": rows}}
    capfd.readouterr()
    vega = vl_convert.vegalite_to_vega(
        json.loads(json.dumps(spec, allow_nan=False)), vl_version="6.4", show_warnings=True
    )
    said = capfd.readouterr()
    assert said.out + said.err == "", chart.title
    assert "undefined" not in vl_convert.vega_to_svg(vega)


def test_every_illustrated_page_is_held() -> None:
    walked = (pkgutil.walk_packages(room.__path__, f"{room.__name__}.") for room in (page, questions))
    names = [module.name for module in chain.from_iterable(walked)]
    modules = [importlib.import_module(name) for name in names if name.split(".")[-1] == "charts"]
    assert {
        name
        for module in modules
        for name, function in getmembers(module, isfunction)
        if function.__module__ == module.__name__
        and function.__annotations__.get("return") in (Page, "Page")
        and not name.startswith("_")
    } == ILLUSTRATED


@pytest.mark.parametrize("name", PAGES)
def test_charts_compile_and_show_fields_that_there_are(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    charts = charts_of(clean_page(page_of(name)))
    assert charts
    for chart in charts:
        compiled(chart, capfd)
    titles = [block.title for block in page_of(name).blocks if isinstance(block, Chart)]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_small_and_hold_names_as_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wavecast.analyzer.page.html.chart_library", str)
    text = draw_html(page_of(name))
    assert len(text) < 4_000_000
    assert "<img" not in text
    assert "\x1b" not in text


def test_parts_of_a_plan_add_up_to_its_iteration() -> None:
    report = scaled().report
    chart = chart_named(page_of("scale"), "Where the time of an iteration goes: the best plan for each")
    drawn = {label: sum(row["part_ms"] for row in chart.rows if row["label"] == label) for label in
             dict.fromkeys(row["label"] for row in chart.rows)}  # fmt: skip
    best = [report.best(gpu, count) for gpu, count in report.groups]
    assert list(drawn.values()) == pytest.approx([row.iteration_ns / 1e6 for row in best])
    shares = [sum(row.share(spent) for spent in Spent) for row in best]
    assert shares == pytest.approx([1.0] * len(best))


def test_times_of_a_batch_are_relative_to_the_best_that_fits() -> None:
    chart = chart_named(page_of("batch"), "Traces on GPUs")
    rows = [row for row in chart.rows if row["trace"] == chart.rows[-1]["trace"]]
    assert {row["gpu"]: (row["ratio"], row["fits"]) for row in rows} == {
        "GPU 0": (pytest.approx(3.0), "fits"),
        "GPU 1": (pytest.approx(1.5), "fits"),
        "GPU 2": (1.0, "fits"),
        "GPU 3": (pytest.approx(0.75), "does not fit"),
    }


def test_a_batch_opens_with_its_answer() -> None:
    first = page_of("batch").blocks[0]
    assert isinstance(first, Passage)
    assert [line.text for line in first.lines][1:] == [
        "Cheapest for all: GPU 0, $1.67 per 1,000.",
        "Fastest: GPU 2, 2.00 s.",
    ]


def test_a_large_batch_is_cut_and_says_so() -> None:
    chart = chart_named(batch_page(fleet_times(traces=MOST_TRACES + 7, gpus=MOST_GPUS + 3)), "Traces on GPUs")
    assert len({row["trace"] for row in chart.rows}) == MOST_TRACES
    assert len({row["gpu"] for row in chart.rows}) == MOST_GPUS
    assert f"The first {MOST_TRACES} of {MOST_TRACES + 7}" in chart.description
    assert f"The first {MOST_GPUS} of {MOST_GPUS + 3} GPUs" in chart.description


def test_a_replay_has_both_timelines() -> None:
    rows = chart_named(page_of("replay"), "Recorded and replayed").rows
    assert {row["lane"].split(" · ")[0] for row in rows} == {"recorded", "by rules alone"}
