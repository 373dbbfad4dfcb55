"""The calls that docstrings show: each returns what stands there, and functions that several rooms call show one."""

from __future__ import annotations

import ast
import doctest
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wavecast
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.iteration.analyze import report_on, run_analysis
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.models.registry import assign_models
from wavecast.analyzer.prediction.workload import measured_workload, shape_workload
from wavecast.analyzer.recorded.recording import choose_recording
from wavecast.formats.files.open import load_trace
from wavecast.formats.kineto import import_kineto
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.match import find_gpu

ROOT = Path(__file__).parent.parent
API_PAGE = ROOT / "docs" / "reference" / "api.md"
PAGE_BLOCKS = tuple(
    re.findall(r"^```python\n(.*?)^```", API_PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
)
SAMPLE = ROOT / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz"
FACES = {
    "formats": ("load_trace", "save_trace"),
    "tracer": ("record", "trace_handler", "trace_iteration"),
    "analyzer.questions": (
        "analyze", "compare", "gpus", "graph", "overview", "ranks", "replay", "scale", "score", "validate",
    ),
}  # fmt: skip
"""The functions that `wavecast` and `wavecast.tracer` hand on, by their room."""
FEWEST_ROOMS = 2
"""A function that so many other rooms import is what a newcomer to its room looks for."""

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT))
    structure = import_module("benchmarks.check.structure")
SHOWING = [path for path in structure.find_modules(ROOT) if ">>> " in path.read_text(encoding="utf-8")]


@dataclass(frozen=True)
class Function:
    """A public function or method, `Class.method`, and where it stands."""

    module: str
    name: str
    line: int
    docstring: str

    @property
    def room(self) -> str:
        return str(structure.room_of(self.module))


def find_functions(modules: Iterable[Any]) -> Iterator[Function]:
    for module in modules:
        for node in module.tree.body:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for found in inner:
                if isinstance(found, ast.FunctionDef) and not found.name.startswith("_"):
                    yield Function(module.name, prefix + found.name, found.lineno, ast.get_docstring(found) or "")


@pytest.fixture(scope="module")
def functions() -> tuple[Function, ...]:
    """All of the package."""
    return tuple(find_functions(structure.read_modules(ROOT)))


def shown(functions: Iterable[Function]) -> list[Function]:
    return [function for function in functions if ">>> " in function.docstring]


def imported_names() -> Iterator[tuple[str, str, str]]:
    """Yield room, name, and the room that imports it, of all that a room imports from another."""
    for module in structure.read_modules(ROOT):
        parts = module.name.split(".") if module.name else []
        package = parts if module.is_package else parts[:-1]
        for node in structure.find_imports(module.tree, for_types=True):
            if isinstance(node, ast.ImportFrom) and node.level and node.module:
                source = ".".join([*package[: len(package) - node.level + 1], node.module])
                room = structure.room_of(source)
                yield from ((room, alias.name, module.room) for alias in node.names if room != module.room)


def write_profile() -> bytes:
    """A linear layer and its activation on an A100, as torch.profiler writes them; times in µs."""

    def event(cat: str, name: str, ts: int, dur: int, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    def op(name: str, ts: int, *shapes: list[int]) -> dict[str, Any]:
        types = {"Input Dims": [*shapes], "Input type": ["float"] * len(shapes)}
        return event("cpu_op", name, ts, 60, 1, **types)

    def kernel(name: str, ts: int, dur: int, correlation: int, grid: list[int], block: list[int]) -> dict[str, Any]:
        where = {"device": 0, "stream": 7, "correlation": correlation, "grid": grid, "block": block}
        return event("kernel", name, ts, dur, 7, **where, **{"registers per thread": 122, "shared memory": 32768})

    return json.dumps(
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
            "traceEvents": [
                op("aten::addmm", 0, [1024], [4096, 1024], [1024, 1024]),
                event("cuda_runtime", "cudaLaunchKernel", 40, 5, 1, correlation=1),
                kernel("ampere_sgemm_128x128_tn", 50, 500, 1, [8, 32, 1], [256, 1, 1]),
                op("aten::relu", 70, [4096, 1024]),
                event("cuda_runtime", "cudaLaunchKernel", 100, 5, 1, correlation=2),
                kernel("vectorized_elementwise_kernel", 552, 26, 2, [8192, 1, 1], [128, 1, 1]),
            ],
        }
    ).encode()


def write_job(folder: Path) -> Path:
    """Two A100s that multiply, then reduce together; the second takes 0.7 ms longer. Times in µs."""

    def event(cat: str, name: str, ts: int, dur: int, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    group = {"Collective name": "allreduce", "In msg nelems": 25_000_000, "Out msg nelems": 25_000_000}
    group |= {"dtype": "Float", "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
    where = {"device": 0, "stream": 7, "grid": [64, 1, 1], "block": [256, 1, 1], "registers per thread": 128}
    folder.mkdir()
    for rank, length in enumerate((2000, 2700)):
        events = [
            event("user_annotation", "ProfilerStep#3", 0, 20, 1),
            event("cpu_op", "aten::mm", 1, 3, 1, **shapes),
            event("cuda_runtime", "cudaLaunchKernel", 2, 1, 1, correlation=1),
            event("kernel", "ampere_bf16_s16816gemm", 10, length, 7, correlation=1, **where),
            event("cpu_op", "record_param_comms", 5, 3, 1, **group, Seq=0),
            event("cuda_runtime", "cudaLaunchKernel", 6, 1, 1, correlation=2),
            event("kernel", "ncclDevKernel_AllReduce", 10 + length, 3010 - length, 7, correlation=2, **where, **group),
        ]
        document = {
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "traceEvents": events,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def write_tables(folder: Path) -> Path:
    """Forty matrix products on an L4 at 90 TFLOP/s, as the measurement tables hold them; nothing without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return folder
    path = folder / "ops" / "matmul.parquet"
    path.parent.mkdir(parents=True)
    rows = np.arange(1, 41) * 256
    sizes = {"batch": np.ones_like(rows), "m": rows, "n": np.full_like(rows, 4096), "k": np.full_like(rows, 4096)}
    latency_us = 2 * rows * 4096 * 4096 / 90e6
    same = {"gpu": "L4", "op": "mm", "dtype": "bf16", "suspect": False, "timing": "graph", "kernel": ""}
    columns = sizes | {"latency_us": latency_us} | {name: [value] * len(rows) for name, value in same.items()}
    parquet.write_table(pyarrow.table(columns), path)
    return folder


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What the examples take for granted, as analyzer/README.md says."""
    trace, catalog, profile = load_trace(SAMPLE), load_catalog(), write_profile()
    h100, a100 = (find_gpu(catalog, name) for name in ("h100 sxm", "a100 sxm 80gb"))
    result = run_analysis(trace, catalog, targets=[h100, a100])
    window, library, measured = choose_recording(trace).window, load_library(), import_kineto(profile)
    recorded, workload = choose_recording(measured), shape_workload(trace, window)
    assigned = assign_models(workload.works, workload.work.rate, library.fitted)
    folder = tmp_path_factory.mktemp("examples")
    return {
        "np": np,
        "folder": folder,
        "catalog": catalog,
        "h100": h100,
        "a100": a100,
        "fleet": build_fleet([h100, a100]),
        "library": library,
        "trace": trace,
        "window": window,
        "workload": workload,
        "result": result,
        "report": report_on(result),
        "problems": next(found.problems for found in assigned if found.model == "matmul"),
        "profile": profile,
        "measured": measured,
        "recorded": recorded,
        "kernels": measured_workload(measured, recorded.window),
        "graph": build_graph(measured),
        "tables": write_tables(folder / "tables"),
        "job": write_job(folder / "job"),
    }


@pytest.mark.parametrize("path", SHOWING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_docstring_shows_what_its_call_returns(
    path: Path, names: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for function in shown(find_functions([structure.read_module(path, ROOT)])):
        check_example(function, names)


def check_example(function: Function, names: Mapping[str, Any]) -> None:
    if function.room == "tracer":
        pytest.importorskip("torch")
    known = {**names, **vars(import_module(f"wavecast.{function.module}"))}
    parser = doctest.DocTestParser()
    example = parser.get_doctest(function.docstring, known, function.name, function.module, function.line)
    if any(re.search(r"\btables\b", call.source) for call in example.examples):
        pytest.importorskip("pyarrow")
    if function.name == "draw_picture":
        pytest.importorskip("vl_convert")
    said: list[str] = []
    outcome = doctest.DocTestRunner().run(example, out=said.append)
    assert outcome.attempted
    assert not outcome.failed, "".join(said)


@pytest.mark.parametrize("block", PAGE_BLOCKS, ids=lambda block: " ".join(block.partition("wavecast.")[2].split()[:1]))
def test_an_example_of_the_apis_page_prints_what_it_shows(
    block: str, names: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for library, word in (
        ("torch", "torch"),
        ("pyarrow", "tables, "),
        ("pandas", "to_frame("),
        ("vl_convert", "pictures("),
    ):
        if word in block:
            pytest.importorskip(library)
    known = {name: names[name] for name in ("folder", "job", "tables")}
    example = doctest.DocTestParser().get_doctest(block, known, "api.md", str(API_PAGE), 0)
    monkeypatch.chdir(ROOT)
    said: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert outcome.attempted
    assert not outcome.failed, "".join(said)


def test_the_apis_page_shows_every_function() -> None:
    found = {name for block in PAGE_BLOCKS for name in re.findall(r"wavecast\.([a-z_]+)\(", block)}
    assert found == {name for name in wavecast.__all__ if name.islower() and not name.startswith("_")}


def test_what_several_rooms_call_shows_a_call(functions: tuple[Function, ...]) -> None:
    callers: dict[tuple[str, str], set[str]] = {}
    for room, name, caller in imported_names():
        callers.setdefault((room, name), set()).add(caller)
    wanted = {key for key, rooms in callers.items() if len(rooms - {""}) >= FEWEST_ROOMS}
    wanted |= {(room, name) for room, handed in FACES.items() for name in handed}
    wanted &= {(function.room, function.name) for function in functions}
    assert wanted - {(example.room, example.name) for example in shown(functions)} == set()


def test_every_room_of_the_analyzer_shows_a_call(functions: tuple[Function, ...]) -> None:
    rooms = {module.room for module in structure.read_modules(ROOT) if module.room.startswith("analyzer.")}
    assert rooms - {example.room for example in shown(functions)} == set()


def test_the_page_explains_the_names_of_the_examples(names: Mapping[str, Any]) -> None:
    page = (ROOT / "analyzer" / "README.md").read_text(encoding="utf-8")
    table = page.partition("## Names in the examples")[2].partition("| name | what |")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {word for row in explained for word in re.findall(r"`(\w+)`", row)} == set(names)
