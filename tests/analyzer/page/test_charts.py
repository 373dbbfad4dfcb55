"""The charts of reports: they compile without a warning, show what the report says, and keep names as text."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
from wavecast.analyzer.questions.compare.charts import illustrate_comparison
from wavecast.analyzer.questions.ranks.activity import RankActivity, RankState
from wavecast.analyzer.questions.ranks.charts import illustrate_ranks
from wavecast.analyzer.questions.ranks.page import describe_ranks
from wavecast.analyzer.questions.ranks.report import JobRow, RankRow, RanksReport
from wavecast.analyzer.questions.rerun.charts import illustrate_rerun
from wavecast.analyzer.questions.rerun.page import describe_rerun
from wavecast.analyzer.questions.rerun.report import FamilyRow, Iteration, RerunOp, RerunReport
from wavecast.analyzer.questions.scale.report import Spent
from wavecast.analyzer.questions.score.api import ScoreReport
from wavecast.analyzer.questions.score.page.charts import illustrate_score
from wavecast.analyzer.questions.shard.problem import PlanPhase
from wavecast.analyzer.questions.validate.charts import illustrate_validation
from wavecast.analyzer.questions.validate.report import Coverage
from wavecast.benchmarks.make.accuracy import read_score

vl_convert = pytest.importorskip("vl_convert", reason="needs vl-convert-python")

ROOT = Path(wavecast.__file__).resolve().parent
PAIR = [str(ROOT / f"samples/vit_small-inference-bf16-b4-{gpu}.json.gz") for gpu in ("h100", "mi300x")]
SMALL = str(ROOT / "samples/dcgan-training-bf16-b64-shapes.json.gz")
HOSTILE = "</script><img src=x onerror=alert(1)>\"'];\\\x1b[31m"
ILLUSTRATED = {
    "illustrate",
    "illustrate_batch",
    "illustrate_overview",
    "illustrate_ranks",
    "illustrate_replay",
    "illustrate_comparison",
    "illustrate_scale",
    "illustrate_rerun",
    "illustrate_score",
    "illustrate_sharding",
    "illustrate_validation",
}
"""Each is held to `compiled`, here or in the tests of its report."""
ACTIVITY = RankActivity(
    ranks=(0, 3),
    iteration=2,
    begin_ns=np.array([0.0, 2e3]),
    rank=np.array([0, 1, 0, 1, 0]),
    state=np.array([RankState.COMPUTES, RankState.COMPUTES, RankState.SENDS, RankState.SENDS, RankState.WAITS]),
    start_ns=np.array([0.0, 2e3, 7.5e6, 7.5e6, 6e6]),
    end_ns=np.array([6e6, 7.5e6, 8.5e6, 8.5e6, 7.5e6]),
    waited_for=np.array([-1, -1, -1, -1, 1]),
    waiting_ns=np.array([[0.0, 1.5e6], [0.0, 0.0]]),
    collective=np.array([-1, -1, 0, 0, 0]),
    stream=np.full(5, 7),
    name=np.array([0, 0, 1, 1, 1]),
    names=("gemm", "allreduce"),
    iteration_end_ns=np.array([9e6, 9e6]),
)


def ranks_report() -> RanksReport:
    rank = RankRow(
        rank=0, gpu="A100 SXM4 80GB", iteration_ns=9e6, start_ns=0, compute_ns=6e6, transfer_ns=1e6, waiting_ns=1.5e6,
        unseen_ns=0, undivided_ns=0, idle_ns=0.5e6, loading_ns=None, kernel_count=12, last_count=1, caused_ns=0,
    )  # fmt: skip
    job = JobRow(
        gpu=HOSTILE, iteration_ns=5e6, low_ns=4e6, high_ns=6e6, slowest_rank=3, waiting_share=0.1, is_source=False
    )
    return RanksReport(
        world_size=8, missing_rank_count=6, iteration=2, iteration_ns=9e6, replay_error=0.001, clock_error_ns=800.0,
        ranks=(rank, replace(rank, rank=3, compute_ns=7.5e6, waiting_ns=0.0, caused_ns=1.5e6)), stragglers=(),
        more_straggler_count=0, collectives=(), waits=(), is_on_hosts=False, warnings=(),
        jobs=(job, replace(job, gpu="L40S", low_ns=None, high_ns=None)),
    )  # fmt: skip


def rerun_family(family: str | None) -> FamilyRow:
    return FamilyRow(
        family=family, op_count=2, call_count=9, recorded_ns=None, predicted_ns=9e5, rerun_ns=8e5, figures=None
    )


def rerun_op(op: str, rerun_us: float | None) -> RerunOp:
    return RerunOp(
        op=op, shapes="float32[8]", module=None, family="matmul", count=2, recorded_ns=None, predicted_ns=4e5,
        predicted_low_ns=3e5, predicted_high_ns=5e5, rerun_ns=None if rerun_us is None else 1e3 * rerun_us,
        timing="event", reason="",
    )  # fmt: skip


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
        fits=fits,
        price_usd_per_hour=np.arange(1.0, gpus + 1.0) ** 1.5,
    )


def batch_page(times: FleetTimes) -> Page:
    mix = GpuMix(
        gpus=(GpuCount(gpu="GPU 1", count=3, busy_ratio=0.5, trace_count=2),), usd_per_day=9.0, least_usd_per_day=8.0
    )
    fleet = FleetAnswer(summary=summarize_fleet(times), mix=mix)
    report = BatchReport(trace_count=len(times.traces), row_count=times.time_ns.size, fleets=(fleet,), failures=())
    return illustrate_batch(describe_batch(report, output="x.html"), report, [times])


def rerun_page() -> Page:
    report = RerunReport(
        device=HOSTILE, is_gpu=True, gpu="L40S", framework="torch 2.6.0", source="H100 SXM5 80GB", capture="measured",
        is_same_gpu=False, weighed_by="predicted", call_count=61, rerun_call_count=50, rerun_ratio=0.8,
        total=rerun_family(None), families=(rerun_family("matmul"),),
        intervals=Coverage(op_count=2, covered_op_count=1, measured_ns=7e5, covered_ns=1e5),
        ops=(rerun_op("aten::addmm", 420.0), rerun_op(HOSTILE, 70.0), rerun_op("aten::mul", None)), left_out=(),
        iteration=Iteration(
            recorded_ns=None, predicted_ns=4e6, recorded_kernels_ns=None, predicted_kernels_ns=3e6, whole=None,
        ),
        warnings=(),
    )  # fmt: skip
    return illustrate_rerun(describe_rerun(report, name="x.json.gz", op_limit=3), report, name="x.json.gz")


@cache
def scaled() -> Any:
    return wavecast.scale(SMALL, to=["h100 sxm", "l40s"], gpus=[8, 16], plan=["dp=*", "fsdp=*"])


@cache
def compared() -> Any:
    pair = [str(ROOT / f"samples/vit_b16-inference-{precision}-b32-shapes.json.gz") for precision in ("fp32", "bf16")]
    return wavecast.compare(*pair, on=["h100 sxm", "l40s"], max_slowdown="3%")


@cache
def sharded() -> Any:
    return wavecast.shard(str(ROOT / "samples/dlrm-training-fp32-b2048-shapes.json.gz"), to="H100 SXM", gpus=8)


PAGES: Mapping[str, Callable[[], Page]] = {
    "scale": lambda: scaled().illustrated_page(),
    "validate": lambda: wavecast.validate(*PAIR).illustrated_page(),
    "replay": lambda: wavecast.replay(PAIR[0]).illustrated_page(),
    "overview": lambda: wavecast.overview(PAIR[1], top=2).illustrated_page(),
    "score": lambda: ScoreReport(report=read_score(ROOT / "docs/evidence/accuracy.json.gz")).illustrated_page(),
    "compare": lambda: compared().illustrated_page(),
    "ranks": lambda: illustrate_ranks(describe_ranks(ranks_report()), ranks_report(), ACTIVITY),
    "ranks alone": lambda: illustrate_ranks(describe_ranks(ranks_report()), ranks_report()),
    "batch": lambda: batch_page(fleet_times()),
    "shard": lambda: sharded().illustrated_page(),
    "rerun": rerun_page,
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
        and function.__annotations__.get("return") == "Page"
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


def test_what_each_gpu_does_adds_up_to_the_iteration_but_for_the_dense_part() -> None:
    plans = sharded().report.plans
    drawn, whole = defaultdict[str, float](float), defaultdict[str, float](float)
    for row in chart_named(page_of("shard"), "What each GPU has to do").rows:
        drawn[row["plan"]] += row["part_ms"] / 8
    for row in chart_named(page_of("shard"), "The plans' iterations").rows:
        whole[row["plan"]] += row["part_ms"]
    assert list(whole.values()) == pytest.approx([plan.iteration_ns / 1e6 for plan in plans])
    assert list(drawn.values()) == pytest.approx(
        [(plan.iteration_ns - plan.phases_ns[PlanPhase.DENSE]) / 1e6 for plan in plans]
    )
    held = [row for row in chart_named(page_of("shard"), "Memory of each GPU").rows if row["number"] == "0"]
    assert sum(row["held_gib"] for row in held) == pytest.approx(
        sum(rank.memory_bytes for rank in plans[0].ranks) / 2**30
    )


def test_parts_of_a_plan_add_up_to_its_iteration() -> None:
    report = scaled().report
    chart = chart_named(page_of("scale"), "Where the time of an iteration goes: the best plan for each")
    drawn = {label: sum(row["part_ms"] for row in chart.rows if row["label"] == label) for label in
             dict.fromkeys(row["label"] for row in chart.rows)}  # fmt: skip
    best = [report.best(gpu, count) for gpu, count in report.groups]
    assert list(drawn.values()) == pytest.approx([row.iteration_ns / 1e6 for row in best])
    shares = [sum(row.share(spent) for spent in Spent) for row in best]
    assert shares == pytest.approx([1.0] * len(best))


def test_the_errors_of_an_iteration_lead_from_measured_to_predicted() -> None:
    report = wavecast.validate(*PAIR).report
    chart = chart_named(page_of("validate"), "Where the iteration's error comes from")
    assert chart.rows[0]["to_ms"] == pytest.approx(report.iteration.measured_ns / 1e6)
    assert chart.rows[1]["from_ms"] == chart.rows[0]["to_ms"]
    assert chart.rows[-2]["to_ms"] == pytest.approx(report.iteration.predicted_ns / 1e6)
    families = chart_named(page_of("validate"), "Error by family")
    total = report.total.predicted_ns - report.total.measured_ns
    assert sum(row["difference_ms"] for row in families.rows) == pytest.approx(total / 1e6)
    assert len(chart_named(page_of("validate"), "Predicted against measured").rows) == report.op_count


def test_ops_without_a_time_or_an_interval_are_no_points() -> None:
    report = wavecast.validate(*PAIR).report
    ops = (replace(report.ops[0], measured_ns=0.0), replace(report.ops[1], predicted_low_ns=None, op=HOSTILE))
    page = illustrate_validation(Page(blocks=()), replace(report, ops=ops))
    (row,) = chart_named(page, "Predicted against measured").rows
    assert (row["low_us"], row["covered"]) == (None, "no interval")


def test_what_changed_adds_up_to_the_difference() -> None:
    report = compared().report
    chart = chart_named(page_of("compare"), "Where the difference comes from")
    gpu = report.gpus[0]
    assert sum(row["change_ms"] for row in chart.rows) == pytest.approx((gpu.new_ns - gpu.old_ns) / 1e6)
    kinds = {row["gpu"]: row["kind"] for row in chart_named(page_of("compare"), "Change on each GPU").rows}
    assert set(kinds.values()) == {"passes"}
    free = illustrate_comparison(Page(blocks=()), report)
    assert {row["kind"] for row in chart_named(free, "Change on each GPU").rows} == {"not slower"}


def test_many_causes_are_shown_as_one() -> None:
    report = compared().report
    many = replace(report, groups=tuple(replace(report.groups[0], cause=f"cause {at}") for at in range(40)))
    rows = chart_named(illustrate_comparison(Page(blocks=()), many), "Where the difference").rows
    assert [row["cause"] for row in rows][-3:-2] == ["15 other causes"]


def test_who_waits_for_whom() -> None:
    chart = chart_named(page_of("ranks"), "Who waits for whom")
    assert {(row["who"], row["whom"]): row["wait_ms"] for row in chart.rows} == {("0", "3"): 1.5, ("3", "0"): 0.0}
    lanes = chart_named(page_of("ranks"), "The ranks' timelines").rows
    waits = [row for row in lanes if row["state"] == "waits for a rank"]
    assert sum(row["end_ms"] - row["start_ms"] for row in waits) == pytest.approx(1.5, rel=0.01)
    assert {row["whom"] for row in waits} == {"rank 3"}


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


def test_starts_by_rule_are_those_of_the_timeline() -> None:
    rows = chart_named(page_of("replay"), "Starts by rule").rows
    assert {row["family"] for row in rows} >= {"matmul", "attention", "normalization"}
    assert all(row["low"] <= row["middle"] <= row["high"] for row in rows)
    lanes = {row["lane"].split(" · ")[0] for row in chart_named(page_of("replay"), "Recorded and replayed").rows}
    assert lanes == {"recorded", "by rules alone"}


def test_families_divide_what_kernels_take() -> None:
    chart = chart_named(page_of("overview"), "Where the GPU time goes, by family")
    whole = wavecast.overview(PAIR[1], top=None).report
    assert sum(row["time_ms"] for row in chart.rows) == pytest.approx(sum(line.gpu_ns for line in whole.kernels) / 1e6)


def test_a_score_says_how_many_measurements_it_rests_on() -> None:
    score = read_score(ROOT / "docs/evidence/accuracy.json.gz")
    rows = chart_named(page_of("score"), "Error by left-out chip").rows
    mine = {row["gpu"]: row["percent"] for row in rows if row["kind"] == "wavecast"}
    found = {row.gpu: 100 * row.mape for row in score.rows if row.table == "all" and row.size == "all"}
    assert mine == {gpu: pytest.approx(found[gpu]) for gpu in mine}
    heat = chart_named(page_of("score"), "Ops: error by family and GPU")
    assert "those of most measurements" in heat.description


def test_nothing_to_show_is_no_chart() -> None:
    score = read_score(ROOT / "docs/evidence/accuracy.json.gz")
    empty = replace(score, rows=(), networks=(), throughput=(), iterations=(), traces=())
    assert charts_of(illustrate_score(Page(blocks=()), empty)) == []
