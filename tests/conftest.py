"""Shared fixtures."""

from __future__ import annotations

import gc
import json
import os
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import (
    CallTable,
    IterationTable,
    KernelKind,
    KernelTable,
    Meta,
    OpTable,
    Phase,
    SyncKind,
    SyncTable,
    Trace,
)
from wavecast.specs import catalog

ROOT = Path(__file__).parent.parent
DAY_OF_PRICES = date(2026, 11, 23)

# The same cases in every run, so that what is green stays so: WAVECAST_EXPLORE=1, as in .ci/full, draws others.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=100 if os.environ.get("WAVECAST_EXPLORE") else 30,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("WAVECAST_EXPLORE"),
)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def root_dir() -> Path:
    """The checkout root."""
    return ROOT


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public measurements and traces; set WAVECAST_DATA where they lie elsewhere."""
    path = Path(os.environ.get("WAVECAST_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("the public data is not here; set WAVECAST_DATA to its directory")
    return path


SLOW = ROOT / "tests" / "slow.txt"
"""What plain `pytest` leaves out: test functions, and files that hold no other; `--rewrite-slow` measures them anew."""
QUICK_TOTAL_S = 70.0
"""Processor time of the tests that plain `pytest` runs: the shortest ones, as many as that suffices for."""
LONG_S = 5.0
"""A file with a test that takes so long is left out whole: its other tests would make the same fixture."""
SHOWN_GPUS = ROOT / "tests" / "shown_gpus.txt"
NEEDS = (b"import torch", b"from torch", b'importorskip("torch', b"selenium")
"""Text of test files that plain `pytest` leaves out: importing torch alone takes seconds, and a browser may lack."""
CPU_S: defaultdict[str, float] = defaultdict(float)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="Write what is printed now to the golden files.")
    parser.addoption("--full", action="store_true", help="Run slow tests too; so does naming a file or folder.")
    parser.addoption("--rewrite-slow", action="store_true", help="With --full: write which tests are slow.")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the quick tests on all cores where nothing is asked for; workers are told by the option."""
    if hasattr(config, "workerinput"):
        return
    config.option.full |= config.args_source is pytest.Config.ArgsSource.ARGS
    if not config.option.full and getattr(config.option, "numprocesses", 0) is None:
        config.option.numprocesses, config.option.dist = "auto", "worksteal"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.full or not collection_path.is_relative_to(ROOT / "tests"):
        return None
    if collection_path.is_dir():
        return True if collection_path == ROOT / "tests" / "tracer" else None
    is_slow = collection_path.relative_to(ROOT).as_posix() in slow_names()
    return True if is_slow or any(text in collection_path.read_bytes() for text in NEEDS) else None


@cache
def slow_names() -> frozenset[str]:
    """What `slow.txt` lists."""
    return frozenset(SLOW.read_text(encoding="utf-8").split())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.full:
        return
    left_out = [item for item in items if item.nodeid.partition("[")[0] in slow_names()]
    config.hook.pytest_deselected(items=left_out)
    kept = {id(item) for item in items} - {id(item) for item in left_out}
    items[:] = [item for item in items if id(item) in kept]


def pytest_collection_finish() -> None:
    """Let the garbage collector walk no more over thousands of collected tests."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell with each report the processor time that the process and its children have taken until then."""
    report = yield
    report.user_properties.append(("cpu_s", sum(os.times()[:4])))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    spent = next((float(str(value)) for name, value in report.user_properties if name == "cpu_s"), 0.0)
    worker = getattr(report, "node", None)
    before = _SPENT.get(worker, spent)
    _SPENT[worker] = spent
    CPU_S[report.nodeid.partition("[")[0]] += spent - before


_SPENT: dict[object, float] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not session.config.option.rewrite_slow or hasattr(session.config, "workerinput"):
        return
    files: defaultdict[str, float] = defaultdict(float)
    for name, spent_s in CPU_S.items():
        files[name.partition("::")[0]] = max(files[name.partition("::")[0]], spent_s)
    long = {name for name, longest_s in files.items() if longest_s >= LONG_S}
    names = sorted((name for name in CPU_S if name.partition("::")[0] not in long), key=lambda name: CPU_S[name])
    names = [name for name in names if not name.startswith("tests/tracer/")]
    count = int((np.cumsum([CPU_S[name] for name in names]) <= QUICK_TOTAL_S).sum())
    quick_files = {name.partition("::")[0] for name in names[:count]}
    listed = {name if name.partition("::")[0] in quick_files else name.partition("::")[0] for name in names[count:]}
    listed |= {name for name in long if not name.startswith("tests/tracer/")}
    SLOW.write_text("\n".join(sorted(listed)) + "\n", encoding="utf-8")


@pytest.fixture
def shown_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out GPUs that came to the catalogue after pages and golden files were written: rankings stay the same.

    `pytest --rewrite-golden` writes pages, golden files and the list of these GPUs.
    """
    known = catalog.load_catalog().gpus
    if request.config.getoption("--rewrite-golden"):
        SHOWN_GPUS.write_text("".join(f"{gpu.name}\n" for gpu in known), encoding="utf-8")
    names = set(SHOWN_GPUS.read_text(encoding="utf-8").splitlines())
    document = dict(catalog._builtin_document())
    document["gpu"] = [entry for entry in document["gpu"] if entry["name"] in names]
    shown = catalog.Catalog(gpus=tuple(gpu for gpu in known if gpu.name in names))
    if len(shown.gpus) < len(known):
        monkeypatch.setattr(catalog, "_builtin_document", lambda: document)
        monkeypatch.setattr(catalog, "_builtin_catalog", lambda: shown)


@pytest.fixture
def check_golden(request: pytest.FixtureRequest, shown_gpus: None) -> Callable[[str, str], None]:
    """Compare text with a file in `golden` beside the test; `pytest --rewrite-golden` accepts what is printed now."""

    def check(name: str, text: str) -> None:
        path = request.path.with_name("golden") / name
        if request.config.getoption("--rewrite-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@dataclass
class Recording:
    """A trace by hand: each method adds a row and returns its number; times in ns."""

    hip_version: str | None = None
    strings: list[str] = field(default_factory=list)
    rows: dict[type, list[dict[str, Any]]] = field(default_factory=dict)

    def op(self, start: int, duration: int, *, thread: int = 0, phase: Phase = Phase.FORWARD, name: str = "op") -> int:
        values = {"name": self._text(name), "thread": thread, "phase": phase}
        return self._add(OpTable, **values, start_ns=start, duration_ns=duration)

    def call(self, name: str, start: int, duration: int, *, thread: int = 0, op: int = -1) -> int:
        values = {"name": self._text(name), "thread": thread, "op": op}
        return self._add(CallTable, **values, start_ns=start, duration_ns=duration)

    def kernel(
        self,
        start: int,
        duration: int,
        *,
        call: int = -1,
        stream: int = 7,
        device: int = 0,
        kind: KernelKind = KernelKind.KERNEL,
    ) -> int:
        values = {"name": self._text("kernel"), "call": call, "stream": stream, "device": device, "kind": kind}
        return self._add(KernelTable, **values, start_ns=start, duration_ns=duration)

    def launch(self, start: int, duration: int, at: int, lasting: int, *, thread: int = 0, **where: Any) -> int:
        """A launch call and its kernel; returns the kernel."""
        return self.kernel(at, lasting, call=self.call("cudaLaunchKernel", start, duration, thread=thread), **where)

    def sync(self, kind: SyncKind, call: int, *, stream: int = -1, waited: int = -1, record: int = -1) -> int:
        values = {"kind": kind, "call": call, "stream": stream, "waited_stream": waited, "record_call": record}
        return self._add(SyncTable, **values, start_ns=0, duration_ns=0)

    def iteration(self, start: int, end: int, cpu_start: int = -1, cpu_end: int = -1, *, profiled: bool = True) -> int:
        values = {"start_ns": start, "end_ns": end, "cpu_start_ns": cpu_start, "cpu_end_ns": cpu_end}
        return self._add(IterationTable, **values, profiled=profiled)

    def trace(self, **changes: Any) -> Trace:
        tables = {
            name: build_table(
                table, len(rows), **{key: [row[key] for row in rows] for key in (rows[0] if rows else {})}
            )
            for name, table in (
                ("ops", OpTable),
                ("calls", CallTable),
                ("kernels", KernelTable),
                ("syncs", SyncTable),
                ("iterations", IterationTable),
            )
            if (rows := self.rows.get(table, []))
        }
        values: dict[str, Any] = {"meta": Meta(hip_version=self.hip_version), "strings": tuple(self.strings)}
        return Trace(**(values | tables | changes))

    def _text(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def _add(self, table: type, **values: Any) -> int:
        self.rows.setdefault(table, []).append(values)
        return len(self.rows[table]) - 1


@pytest.fixture
def recording() -> Recording:
    """An empty recording to add calls and kernels to."""
    return Recording()


GraphWork = tuple[str, list[list[int]], str]
"""An op, the shapes of its inputs, and the kernel that it launches (`copy`: a copy)."""


@dataclass
class GraphFiles:
    """Profiler files of a small model in a graph, as ROCm writes them (`rocm`) or as CUDA does."""

    rocm: bool = True
    events: list[dict[str, Any]] = field(default_factory=list)
    time_us: int = 1_000

    def work(self, batch: int, layers: int = 2) -> list[GraphWork]:
        """Return what the model does: per layer a product, an activation and a copy."""
        layer: list[GraphWork] = [
            ("aten::mm", [[batch, 64], [64, 64]], "Cijk_gemm" if self.rocm else "ampere_sgemm_64x64_nn"),
            ("aten::relu", [[batch, 64]], "void at::native::relu_kernel"),
            ("aten::copy_", [[batch, 64], [batch, 64]], "copy"),
        ]
        return layer * layers

    def capture(self, *models: list[GraphWork], marked: bool = True) -> bytes:
        """Return the file of the capture of each model, with one op before it that runs."""
        self._op("aten::fill_", [[8]], lambda: self._run("void at::native::fill_kernel"))
        for model in models:
            self._mark("StreamBeginCapture", marked)
            for op, shapes, kernel in model:
                self._op(op, shapes, lambda kernel=kernel: self._launch(kernel))
            self._mark("StreamEndCapture", marked)
        return self._file()

    def execution(self, *models: list[GraphWork], inputs: list[int] | None = None, **launch: int) -> bytes:
        """Return the file of one step that copies its inputs and launches a graph per model."""
        self._op("aten::copy_", [inputs or [2], inputs or [2]], lambda: self._run("copy"))
        for model in models:
            number = self._call("GraphLaunch", **launch)
            for _, _, kernel in model:
                self._gpu(kernel, number)
        return self._file()

    def _op(self, name: str, shapes: list[list[int]], inside: Any) -> None:
        start = self.time_us
        self.time_us += 5
        inside()
        inputs = {"Input Dims": shapes, "Input type": ["float"] * len(shapes), "Concrete Inputs": [""] * len(shapes)}
        self._add("cpu_op", name, start, self.time_us - start + 2, **inputs)
        self.time_us += 5

    def _mark(self, name: str, shown: bool) -> None:
        if shown:
            self._call(name)

    def _launch(self, kernel: str) -> int:
        told = {"kernel": kernel, "grid": [9, 1, 1], "block": [256, 1, 1]} if self.rocm and kernel != "copy" else {}
        return self._call("MemcpyAsync" if kernel == "copy" else "LaunchKernel", **told)

    def _run(self, kernel: str) -> None:
        self._gpu(kernel, self._launch(kernel))

    def _call(self, name: str, **told: Any) -> int:
        self.time_us += 3
        number = len(self.events) + 1
        api = "hip" if self.rocm else "cuda"
        self._add("cuda_runtime", api + name, self.time_us, told.pop("lasting", 2), correlation=number, **told)
        self.time_us += 3
        return number

    def _gpu(self, kernel: str, number: int) -> None:
        kind, name = ("gpu_memcpy", "Memcpy DtoD") if kernel == "copy" else ("kernel", kernel)
        grid = {} if self.rocm or kernel == "copy" else {"grid": [4, 1, 1], "block": [128, 1, 1]}
        self._add(kind, name, self.time_us + 20, 10, correlation=number, device=0, stream=7, **grid)
        self.time_us += 12

    def _add(self, cat: str, name: str, start: int, lasting: int, **args: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": lasting, "pid": 1, "tid": 1, "args": args}
        self.events.append(event)

    def _file(self) -> bytes:
        gpu = {"name": "AMD Instinct MI300X", "numSms": 304, "totalGlobalMem": 206_141_652_992}
        if not self.rocm:
            gpu = {"name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "totalGlobalMem": 85_000_000_000}
        document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, **gpu}], "traceEvents": self.events}
        return json.dumps(document).encode()


@pytest.fixture(params=[True, False], ids=["ROCm", "CUDA"])
def graph_files(request: pytest.FixtureRequest) -> Callable[[], GraphFiles]:
    """A builder of profiler files of graphs, of either vendor."""
    return lambda: GraphFiles(rocm=request.param)


@pytest.fixture(autouse=True)
def _day_of_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the shipped prices on a day soon after they were listed: what is said of their age stays the same."""
    monkeypatch.setattr("wavecast.specs.prices.book.today", lambda: DAY_OF_PRICES)
