"""The charts of `analyze`: each holds the figures of the report, and leaves itself out where these are not known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import wavecast
from wavecast.analyzer.iteration.gains import Alternative, try_alternatives
from wavecast.analyzer.iteration.report import AnalysisReport
from wavecast.analyzer.page.html import draw_html
from wavecast.analyzer.page.page import Chart, Line, Passage, Tone, Tree
from wavecast.analyzer.page.sheet import Sheet
from wavecast.analyzer.questions.analyze.command import IterationReport
from wavecast.analyzer.questions.analyze.page.front_charts import chart_cost, pareto_front
from wavecast.analyzer.questions.analyze.page.gpu_charts import chart_alternatives


@pytest.fixture(scope="module")
def report(root_dir: Path) -> IterationReport:
    return wavecast.analyze(root_dir / "samples" / "bert_base-training-fp32-b16-shapes.json.gz")


@pytest.fixture(scope="module")
def charts(report: IterationReport) -> dict[str, Chart]:
    return {block.title: block for block in report.illustrated_page().blocks if isinstance(block, Chart)}


def test_the_illustrated_page_says_all_that_the_page_says(report: IterationReport) -> None:
    page, illustrated = report.page(), report.illustrated_page()
    sheets = [block.columns for block in page.blocks if isinstance(block, Sheet)]
    drawn = [block for block in illustrated.blocks if isinstance(block, Sheet)]
    assert [block.columns for block in drawn if not block.folded] == sheets
    assert [block.row_count for block in drawn if block.folded] == [len(report.report.predictions)]
    said = [line for block in page.blocks if isinstance(block, Passage) for line in block.lines]
    told = [line for block in illustrated.blocks if isinstance(block, Passage) for line in block.lines]
    assert {line.text.split(": ")[-1] for line in said if line not in told} == {"--rows all shows them."}
    assert next(line.label for line in told if line.label and line.tone is Tone.TITLE).startswith("Fastest")


def test_of_a_whole_run_the_axes_are_its_own(root_dir: Path) -> None:
    path = root_dir / "samples" / "resnet50-training-bf16-b32-shapes.json.gz"
    report = wavecast.analyze(path, goal="90000 iterations", deadline="8h", budget="40")
    chart = next(block for block in report.illustrated_page().blocks if isinstance(block, Chart))
    totals = {row.gpu: row.total for row in report.report.predictions if row.total is not None}
    for row in chart.rows:
        assert row["time"] == pytest.approx(totals[row["gpu"]].time_ns / 3600e9)
        assert row["cost"] == totals[row["gpu"]].cost_usd
    assert chart.description.endswith("Dashed across the plot: the deadline and the budget.")


def test_charts_name_fields_that_they_hold(charts: dict[str, Chart]) -> None:
    assert len(charts) == 6
    for chart in charts.values():
        fields = {name for row in chart.rows for name in row}
        assert set(chart.labels) <= fields, chart.title
        assert len(chart.description) > 40


def test_parts_add_up_to_the_iteration(charts: dict[str, Chart], report: IterationReport) -> None:
    rows = charts["What the time goes to"].rows
    known = {row.gpu: row.iteration_ns / 1e6 for row in report.report.predictions}
    for view in ("family of ops", "op", "method"):
        for gpu in ("H100 SXM5 80GB", "Tesla T4"):
            total = sum(row["time"] for row in rows if row["gpu"] == gpu and row["view"] == view)
            assert total == pytest.approx(known[gpu], rel=1e-6)


def test_parts_of_one_view_have_colours_of_their_own(root_dir: Path) -> None:
    path = root_dir / "samples" / "resnet50-training-bf16-b32-shapes.json.gz"
    blocks = wavecast.analyze(path, to=["H100 SXM"]).illustrated_page().blocks
    chart = next(block for block in blocks if isinstance(block, Chart) and block.title == "What the time goes to")
    scale = chart.spec["encoding"]["color"]["scale"]
    colours = dict(zip(scale["domain"], scale["range"], strict=True))
    for view in ("family of ops", "op", "method"):
        parts = {row["part"] for row in chart.rows if row["view"] == view}
        assert len({colours[part] for part in parts}) == len(parts), view


def test_no_op_beats_its_roof(charts: dict[str, Chart]) -> None:
    """Arithmetic at the highest clock, and operands out of the cache, may beat what is stated, but not by much."""
    rows = charts["Roofline"].rows
    first = [row for row in rows if row["choice"] == "0"]
    roof = max(row["rate"] for row in first if row["role"] == "roof")
    ops = [row for row in first if row["role"] == "op"]
    assert len(ops) > 20
    assert all(0 < row["rate"] <= 1.1 * roof for row in ops)
    assert sum(row["share"] for row in ops) == pytest.approx(1.0, abs=0.1)


def test_the_timeline_is_small_and_ends_with_the_iteration(charts: dict[str, Chart], report: IterationReport) -> None:
    rows = charts["Timeline"].rows
    assert len(rows) < 6_000
    length = max(row["end"] for row in rows)
    fastest = report.report.predictions[0]
    assert length == pytest.approx(fastest.iteration_ns / 1e6, rel=0.01)


def test_memory_reaches_the_peak(charts: dict[str, Chart], report: IterationReport) -> None:
    chart, use = charts["Memory over the iteration"], report.report.memory
    assert use is not None
    total = dict[float, float]()
    for row in chart.rows:
        total[row["at"]] = total.get(row["at"], 0.0) + row["held"]
    assert max(total.values()) == pytest.approx(use.peak_bytes / 2**30, rel=1e-6)


def test_what_ifs_agree_with_asking_for_them(report: IterationReport, root_dir: Path) -> None:
    gpu = report.report.ops_gpu
    column = [item.name for item in report.analysis.prediction.fleet.gpus].index(gpu)
    tried = {item.option: item for item in try_alternatives(report.analysis, column)}
    asked = wavecast.analyze(root_dir / "samples" / report.name, to=gpu, cuda_graph=True).report.predictions[0]
    assert tried["--cuda-graph"].iteration_ns == pytest.approx(asked.iteration_ns, rel=1e-6)
    assert tried[None].speedup == 1.0
    assert tried["--batch 32"].batch_ratio == 2.0
    assert set(tried) == {None, "--cuda-graph", "--fuse-elementwise", "--precision bf16", "--host 2", "--batch 32"}


def test_of_one_gpu_there_is_no_choice_to_draw(root_dir: Path) -> None:
    one = wavecast.analyze(root_dir / "samples" / "resnet50-inference-bf16-b32-shapes.json.gz", to="H100 SXM5 80GB")
    page = one.illustrated_page()
    titles = [block.title for block in page.blocks if isinstance(block, Chart)]
    assert "Cost against time" not in titles
    assert "What the time goes to" in titles
    changes = [row.get("option") for block in page.blocks if isinstance(block, Chart) for row in block.rows]
    assert "--cuda-graph" in changes
    assert "--precision bf16" not in changes  # it is recorded in bfloat16


def test_the_front_is_what_none_beats(measured_report: AnalysisReport) -> None:
    rows = measured_report.predictions
    assert [row.gpu for row in pareto_front(rows)] == ["B200 SXM (HGX, 180GB)"]
    dear = replace(rows[0], price_usd_per_hour=20.0)
    assert [row.gpu for row in pareto_front([dear, *rows[1:]])] == ["B200 SXM (HGX, 180GB)", "A100 SXM4 80GB"]
    unable = replace(dear, fits=False)
    assert [row.gpu for row in pareto_front([unable, *rows[1:]])] == ["A100 SXM4 80GB"]


def test_cost_needs_two_prices(measured_report: AnalysisReport) -> None:
    chart = chart_cost(measured_report)
    assert chart is not None
    assert [row["gpu"] for row in chart.rows if row["cost"] is None] == ["Instinct MI300X", "Tesla P4"]
    assert "2 GPUs without a price" in chart.description
    unpriced = [replace(row, price_usd_per_hour=None) for row in measured_report.predictions[1:]]
    assert chart_cost(replace(measured_report, predictions=(measured_report.predictions[0], *unpriced))) is None


def test_without_a_change_there_is_nothing_to_compare() -> None:
    now = Alternative(change="as it is", option=None, iteration_ns=1e6, iteration_low_ns=None, iteration_high_ns=None)
    assert chart_alternatives("H100", (now,)) is None
    assert chart_alternatives("H100", ()) is None


def test_provenance_closes_the_page(report: IterationReport) -> None:
    last = report.illustrated_page().blocks[-1]
    assert isinstance(last, Passage)
    assert last.lines[0] == Line(text="Sources", tone=Tone.TITLE)
    assert {line.label for line in last.lines[1:]} >= {"trace", "predicted by", "prices"}


def test_modules_add_up_to_what_holds_them(root_dir: Path) -> None:
    trace = root_dir / "samples" / "gpt2_small-training-bf16-b4-shapes.json.gz"
    page = wavecast.analyze(trace, to="H100 SXM").illustrated_page()
    (tree,) = (block for block in page.blocks if isinstance(block, Tree))
    assert tree.columns == ("forward", "backward", "in all", "share")
    (network,) = tree.branches
    layers = next(branch for branch in network.branches if branch.name == "blocks").branches
    assert [layer.name for layer in layers] == [str(number) for number in range(12)]
    assert len({layer.cells for layer in layers}) == 1
    forward, backward, whole = (float(cell.split()[0]) for cell in network.cells[:3])
    assert forward + backward == pytest.approx(whole, rel=0.01)
    assert "<summary" in draw_html(page)


def test_cards_for_desks_are_left_out_on_request(root_dir: Path) -> None:
    trace = root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz"
    names = {row["gpu"] for row in wavecast.analyze(trace, datacenter=True).to_records()}
    assert {"H100 SXM5 80GB", "RTX PRO 6000 Blackwell Server"} <= names
    assert not {"GeForce RTX 4090", "RTX A6000", "GB10 (DGX Spark)", "RTX PRO 6000 Blackwell Max-Q"} & names
