"""What `import wavecast` offers: its names, its reports and what can be done with each."""

from __future__ import annotations

import copy
import csv
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import wavecast
from wavecast.analyzer.asking import answer as frames
from wavecast.analyzer.page.encoding import Field, FieldTable

SAMPLES = Path(__file__).parents[3] / "samples"
H100 = SAMPLES / "bert_small-inference-bf16-b1-h100.json.gz"
MI300X = SAMPLES / "bert_small-inference-bf16-b1-mi300x.json.gz"
SHAPES = SAMPLES / "gpt2_small-inference-bf16-b4-shapes.json.gz"
TRAINING = SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz"
QUESTIONS: dict[str, Callable[[], wavecast.Report]] = {
    "analyze": lambda: wavecast.analyze(SHAPES, to=["L4", "H100 SXM"]),
    "scale": lambda: wavecast.scale(TRAINING, to="H100 SXM", gpus=8, plan=["dp=8", "fsdp=8"]),
    "validate": lambda: wavecast.validate(H100, MI300X),
    "replay": lambda: wavecast.replay(H100),
    "compare": lambda: wavecast.compare(H100, MI300X, on=["H100 SXM", "MI300X"]),
    "overview": lambda: wavecast.overview(H100),
    "gpus": lambda: wavecast.gpus("a100"),
}
HEADLINES = {
    "analyze": "<IterationReport gpt2_small on 2 GPUs: fastest H100 SXM5 80GB ",
    "scale": "<PlansReport gpt2_small, 2 plans: best ",
    "validate": "<ValidationReport from H100 SXM5 80GB to Instinct MI300X: iteration ",
    "replay": "<ReplayReport of 1 iteration of bert_small-inference-bf16-b1-h100.json.gz: within ",
    "compare": "<ComparisonReport bert_small-inference-bf16-b1-h100.json.gz → ",
    "overview": "<OverviewReport of bert_small-inference-bf16-b1-h100.json.gz: 479 ops, 61 kernels>",
    "gpus": "<GpuList of 4 GPUs>",
}


@pytest.fixture(scope="module", params=QUESTIONS)
def named(request: pytest.FixtureRequest) -> tuple[str, wavecast.Report]:
    """A report of each kind."""
    return request.param, QUESTIONS[request.param]()


@pytest.fixture
def report(named: tuple[str, wavecast.Report]) -> wavecast.Report:
    return named[1]


class Tags(HTMLParser):
    """The elements of a piece of HTML, and whether each that opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_package_lists_its_public_names_alone() -> None:
    code = "import wavecast; wavecast.load_trace; wavecast.gpus('h100'); print(*dir(wavecast))"
    listed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert listed == sorted(wavecast.__all__)
    assert [name for name in listed if name.startswith("_")] == ["__version__"]
    assert {"analyze", "scale", "validate", "replay", "record", "gpus"} < set(listed)


def test_every_public_name_is_at_home_where_it_says() -> None:
    for name in set(wavecast.__all__) - {"__version__"}:
        assert getattr(wavecast, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        wavecast.analyse  # type: ignore[attr-defined]  # noqa: B018


def test_a_report_says_in_a_line_what_it_is(named: tuple[str, wavecast.Report]) -> None:
    kind, report = named
    assert repr(report).startswith(HEADLINES[kind])
    assert "\n" not in repr(report)


def test_a_report_hands_on_its_tables(report: wavecast.Report) -> None:
    rows = report.to_records()
    header, *lines = csv.reader(StringIO(report.to_csv()))
    assert [list(row) for row in rows] == [header] * len(lines)
    for name in report.tables:
        for row in report.to_records(name):
            assert {type(value) for value in row.values()} <= {bool, int, float, str, type(None)}
    with pytest.raises(wavecast.InputError, match=r"table 'all': expected "):
        report.to_records("all")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_have_the_same_types_whatever_they_hold(library: str, report: wavecast.Report) -> None:
    pytest.importorskip(library)
    for name in report.tables:
        frame, rows = report.to_frame(name, library=library), report.to_records(name)
        assert frame.shape[0] == len(rows)
        assert not rows or list(frame.columns) == list(rows[0])
        types = {str(kind).lower() for kind in (frame.dtypes if library == "polars" else frame.dtypes.tolist())}
        assert types <= {"boolean", "int64", "float64", "string"}


def test_absent_values_and_several_texts_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [Field(name="fits", kind=bool), Field(name="bytes", kind=int), Field(name="time_ns", kind=float)]
    table = FieldTable(
        fields=(*fields, Field(name="names", kind=str)), rows=((None, None, float("nan"), ()), (True, 3, 1, ("a", "b")))
    )
    absent = {"fits": None, "bytes": None, "time_ns": None, "names": ""}
    assert frames.build_records(table) == [absent, {"fits": True, "bytes": 3, "time_ns": 1.0, "names": "a; b"}]
    pandas = pytest.importorskip("pandas")
    frame = frames.build_frame(table, None)
    assert isinstance(frame, pandas.DataFrame)
    assert frame.isna().sum().tolist() == [1, 1, 1, 0]
    monkeypatch.setattr(frames, "find_spec", lambda name: None)
    assert frames.build_frame(table, None) == frames.build_records(table)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(wavecast.InputError, match="polars is not installed"):
        frames.build_frame(table, "polars")
    with pytest.raises(wavecast.InputError, match="library='arrow'"):
        frames.build_frame(table, "arrow")


def test_a_report_shows_itself_in_a_notebook(report: wavecast.Report) -> None:
    text = report._repr_html_()
    tags = Tags(text)
    assert tags.open == []
    assert {"div", "table"} <= tags.seen
    assert not tags.seen & {"script", "html", "head", "body", "meta", "link", "iframe"}
    rules = text[text.index("<style>") + 7 : text.index("</style>")].strip().splitlines()
    assert all(rule.startswith(".wavecast-report ") for rule in rules)
    assert not any(word in "".join(rules) for word in ("color: #", "background"))
    assert report._repr_markdown_().count("|") > 10


def test_who_looks_at_a_report_in_python_reads_keywords(capsys: pytest.CaptureFixture[str]) -> None:
    found = wavecast.analyze(H100, to="L4")
    found.show()
    shows = (capsys.readouterr().out, found.draw(), found._repr_html_(), found._repr_markdown_().replace("\\", ""))
    for shown in shows:
        assert "(cuda_graph)" in shown
        assert "--cuda-graph" not in shown


def test_the_charts_of_a_report_are_pictures(report: wavecast.Report, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    for number, picture in enumerate(report.pictures()):
        shown = picture._repr_mimebundle_()
        assert shown["image/svg+xml"].startswith("<svg")
        assert "var(--" not in shown["image/svg+xml"]
        assert shown["text/plain"] == f"{picture.title}: {picture.description}"
        assert picture.to_dict()["data"]["values"]
        picture.save(tmp_path / f"{number}.json")
        assert json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8")) == picture.to_dict()


def test_a_picture_is_saved_in_the_format_of_the_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = wavecast.analyze(SHAPES, to=["L4", "H100 SXM"]).pictures()[0]
    with pytest.raises(wavecast.InputError, match=r"expected a name that ends in \.svg, \.png, \.json"):
        picture.save(tmp_path / "figure.pdf")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vl_convert", None)
        with pytest.raises(wavecast.InputError, match="pip install 'wavecast\\[html\\]'"):
            picture.save(tmp_path / "figure.svg")
    assert list(tmp_path.iterdir()) == []
    pytest.importorskip("vl_convert")
    picture.save(tmp_path / "figure.svg")
    picture.save(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.svg").read_text(encoding="utf-8").startswith("<svg")
    assert repr(picture) == f"<Picture {picture.title}>"


def test_hostile_names_stay_text_in_a_notebook(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\x1b[31m"
    path = tmp_path / "mine.toml"
    path.write_text(f'[[gpu]]\nname = {json.dumps(name)}\nbased_on = "L4"\n', encoding="utf-8")
    found = wavecast.analyze(SHAPES, to="L4", gpu_file=path)
    shown = wavecast.gpus(gpu_file=path)._repr_html_() + wavecast.analyze(SHAPES, gpu_file=path)._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown
    assert "\x1b" not in shown + repr(found)


def test_a_report_can_be_copied_and_pickled(report: wavecast.Report) -> None:
    for again in (copy.copy(report), copy.deepcopy(report), pickle.loads(pickle.dumps(report))):  # noqa: S301
        assert again.to_json() == report.to_json()
        assert repr(again) == repr(report)


def test_a_report_is_saved_in_the_format_of_the_ending(report: wavecast.Report, tmp_path: Path) -> None:
    for ending, text in {".json": report.to_json(), ".csv": report.to_csv(), ".md": report.draw("markdown")}.items():
        report.save(tmp_path / f"report{ending}")
        assert (tmp_path / f"report{ending}").read_text(encoding="utf-8") == text
    assert report.to_dict() == json.loads(report.to_json())
    with pytest.raises(wavecast.InputError, match=r"expected a name that ends in \.txt, \.json, \.csv, \.md, \.html"):
        report.save(tmp_path / "report.pdf")
    with pytest.raises(wavecast.OutputError):
        report.save(tmp_path / "missing" / "report.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.csv", "report.json", "report.md"]


def test_plans_are_drawn_as_a_curve(tmp_path: Path) -> None:
    found = wavecast.scale(TRAINING, to="H100 SXM", gpus=(1, 8), plan="dp=*")
    found.save(tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_report_is_printed_as_wide_as_the_terminal(
    report: wavecast.Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report.show()
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert printed.splitlines()[0].split()[0] in report.draw()


def test_a_report_displays_itself_where_there_is_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    fake: Any = ModuleType("IPython")
    fake.get_ipython = lambda: SimpleNamespace(kernel=object())
    fake.display = SimpleNamespace(display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", fake.display)
    found = wavecast.gpus("l4")
    found.show()
    assert shown == [found]


def test_the_table_of_ops_holds_all_of_them() -> None:
    short, full = wavecast.analyze(SHAPES, to="L4"), wavecast.analyze(SHAPES, to="L4", ops=True)
    assert len(short.report.ops) < len(full.report.ops)
    assert short.to_records("ops") == full.to_records("ops")
    assert {row["gpu"] for row in short.to_records("ops")} == {"L4"}
    validated = wavecast.validate(H100, MI300X)
    assert len(validated.to_records()) > len(validated.to_dict()["ops"]) == 10


def test_the_catalogue_is_a_sequence() -> None:
    found = wavecast.gpus()
    assert len(found) == len(list(found)) == len(found.to_records())
    assert found[0] is next(iter(found))
    assert wavecast.gpus("p4d.24xlarge").machines[0].startswith("AWS p4d.24xlarge has 8 A100 SXM4 40GB")


def test_a_graph_is_one_of_networkx() -> None:
    import networkx as nx

    found = wavecast.graph(H100, critical_path=True)
    assert isinstance(found, nx.DiGraph)
    assert nx.is_directed_acyclic_graph(found)
    assert set(nx.get_node_attributes(found, "on_critical_path").values()) == {False, True}


def test_a_comparison_says_what_goes_beyond_its_limits() -> None:
    slower = wavecast.compare(MI300X, H100, on="MI300X", max_slowdown="0%", strict=True)
    changes = {row["gpu"]: row["change"] for row in slower.to_records()}
    assert bool(slower.complaints) == (changes["Instinct MI300X"] > 0)
    assert wavecast.compare(H100, H100, max_slowdown="0%", max_memory_growth="0%").complaints == ()
    assert {row["gpu"] for row in slower.to_records("changes")} <= {"Instinct MI300X"}


def test_what_a_trace_is_called() -> None:
    trace = wavecast.load_trace(H100)
    assert repr(wavecast.overview(trace)).startswith("<OverviewReport of bert_small")
    assert wavecast.analyze(trace, to="L4").to_json() == wavecast.analyze(H100, to="L4").to_json()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The user's script, run from the checkout."""
    monkeypatch.chdir(SAMPLES.parent)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield import_module("user_script")
    sys.modules.pop("user_script", None)


def test_a_users_script_runs(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = script.main(tmp_path)
    assert all(found.values())
    assert len(found) == 7
    assert (
        "from_sequence_length says what sequence_length rescales: add sequence_length=N L4 True True"
        in capsys.readouterr().out
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "timeline.json.gz"]
