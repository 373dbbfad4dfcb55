"""Times what a user waits for: prediction, replay, import, start and reports. Exit status 1 where a bar is missed.

Run: python -m benchmarks.speed.times                      # all
     … predict replay --trace TRACE                        # some; a recording to replay, or to import

predict   5,000 distinct ops on every catalogued GPU after loading, and all that is said of them: the worst case, as
          equal ops are predicted once
replay    op graph and its replay with other kernel times on every GPU: of a million events, and of TRACE
import    a profiler file beside `orjson.loads`, TRACE or one of 40 MB: time, memory, and reading our own file
gigabyte  the import of a profiler file of 1 GB
million   `analyze` of a million ops and kernels
start     `--help`, and `analyze` of a sample, beside bare Python that imports numpy
html      the report of the largest sample, once the prediction is there
archive   10,000 small traces, TRACE or a sample under names of their own: adding them, then commands on all of them

Times are of the processor (user and system), in ms, the least of several turns where it says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import orjson
import wavecast
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.iteration.analyze import analyze_trace
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.predict import predict_measured
from wavecast.analyzer.prediction.workload import measured_workload
from wavecast.analyzer.recorded.recording import take_recording
from wavecast.analyzer.replay.engine import Timing, replay
from wavecast.analyzer.replay.iterations import iteration_spans
from wavecast.formats.archive import init_archive, open_archive
from wavecast.formats.files.open import load_trace, read_bytes, save_trace
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.match import match_device

from .synthetic import build_trace, write_profile

TURNS: Final = 5
DISTINCT_OPS: Final = 5_000
DISTINCT_KERNELS: Final = 500
SAMPLES: Final = Path(__file__).parents[2] / "samples"
ARCHIVED: Final = 10_000
SMALL_SAMPLE: Final = SAMPLES / "dlrm-inference-fp32-b2048-shapes.json.gz"
LARGEST_SAMPLE: Final = SAMPLES / "bert_base-training-fp32-b16-shapes.json.gz"
STARTS: Final = {
    "python with numpy": ["-c", "import numpy"],
    "import wavecast": ["-c", "import wavecast"],
    "wavecast --help": ["-m", "wavecast", "--help"],
    "wavecast analyze --help": ["-m", "wavecast", "analyze", "--help"],
    "wavecast analyze SAMPLE": [
        "-m",
        "wavecast",
        "analyze",
        str(SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz"),
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Hold what was measured, and the most that it may be."""

    name: str
    value: float
    unit: str
    bar: float | None = None


def time_prediction(_: Path | None, __: Path) -> Iterator[Figure]:
    catalog, library = load_catalog(), load_library()
    recorded = take_recording(build_trace(DISTINCT_OPS, DISTINCT_OPS), catalog)
    trace, source, gpus = recorded.trace, recorded.gpu or catalog.gpus[0], catalog.gpus
    workload = measured_workload(trace, recorded.window)
    predicted = least_ms(lambda: predict_measured(trace, workload, build_fleet([source]), build_fleet(gpus), library))
    yield Figure(name=f"{DISTINCT_OPS:,} ops on {len(gpus)} GPUs", value=predicted, unit="ms", bar=300)
    yield Figure(name="… from trace to report", value=least_ms(lambda: analyze_trace(trace, catalog)), unit="ms")


def time_replay(path: Path | None, _: Path) -> Iterator[Figure]:
    if path:
        trace = load_trace(path)
        device = trace.devices[0]
        gpu = match_device(load_catalog(), device.name, sm_count=device.sm_count, memory_bytes=device.memory_bytes)
        yield from _replay_parts(path.name.split(".")[0], trace, gpu.architecture if gpu else None)
    yield from _replay_parts("a million events", build_trace(333_333), "Ampere")


def _replay_parts(name: str, trace: Trace, architecture: str | None) -> Iterator[Figure]:
    gpu_count, generator = len(load_catalog().gpus), np.random.default_rng(1)
    moments = [time.process_time()]
    graph = build_graph(trace, architecture=architecture)
    moments.append(time.process_time())
    timing = Timing(
        base_ns=graph.nodes.cost_ns,
        factor=generator.uniform(0.2, 3.0, (DISTINCT_KERNELS, gpu_count)),
        factor_row=generator.integers(0, DISTINCT_KERNELS, len(graph.nodes.row)),
        latency_ns=np.repeat(graph.latency_ns[:, None], gpu_count, axis=1),
        host_ratio=np.ones(gpu_count),
        residual_ns=graph.residual_ns,
    )
    end = replay(graph, timing)
    moments.append(time.process_time())
    iteration_spans(trace, graph, end)
    moments.append(time.process_time())
    for part, taken in zip(("graph", f"replay on {gpu_count} GPUs", "iterations"), np.diff(moments), strict=True):
        yield Figure(name=f"{name}, {len(graph.nodes.row):,} nodes: {part}", value=taken * 1e3, unit="ms")


def time_import(path: Path | None, folder: Path) -> Iterator[Figure]:
    if path is None:
        path = folder / "profile.json"
        write_profile(path, 40_000_000)
    plain = folder / "plain.json"
    plain.write_bytes(read_bytes(path))
    data = plain.read_bytes()
    trace = import_kineto(data)
    own = encode(trace)
    imported, parsed, read = (
        least_ms(work) for work in (lambda: import_kineto(data), lambda: orjson.loads(data), lambda: decode(own))
    )
    kineto = "from wavecast.formats.kineto import import_kineto as read"
    peaks = [_peak_beside_text(plain, how) for how in (kineto, "from orjson import loads as read")]
    yield Figure(name=f"importing {path.name}, {len(data) / 1e6:.0f} MB", value=imported, unit="ms")
    yield Figure(name="… over orjson.loads", value=imported / parsed, unit="x", bar=2.5)
    yield Figure(name="… peak of memory over that of orjson.loads", value=peaks[0] / max(peaks[1], 1), unit="x", bar=1)
    yield Figure(name="reading our own file, over importing", value=read / imported, unit="x", bar=0.1)


def _peak_beside_text(path: Path, how: str) -> int:
    """Return by how much reading a file raises the peak of a process that holds its text, KiB."""
    code = f"""
import resource, sys
{how}
data = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = read(data)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    return int(subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True).stdout)


def time_gigabyte(_: Path | None, folder: Path) -> Iterator[Figure]:
    write_profile(folder / "profile.json", 1_000_000_000)
    words = ["-m", "wavecast", "convert", str(folder / "profile.json"), str(folder / "imported.json")]
    yield from _command("import of 1 GB", words, bar_ms=25_000, bar_gb=1.5)


def time_million(_: Path | None, folder: Path) -> Iterator[Figure]:
    save_trace(build_trace(1_000_000), folder / "trace.json")
    words = ["-m", "wavecast", "analyze", str(folder / "trace.json"), "--to", "H100"]
    yield from _command("analyze of a million ops", words, bar_ms=15_000, bar_gb=1.0)


def _command(name: str, words: Sequence[str], *, bar_ms: float, bar_gb: float) -> Iterator[Figure]:
    cpu_ms, peak_gb = used_by(words)
    yield Figure(name=name, value=cpu_ms, unit="ms", bar=bar_ms)
    yield Figure(name="… peak of memory", value=peak_gb, unit="GB", bar=bar_gb)


def time_start(_: Path | None, __: Path) -> Iterator[Figure]:
    for name, words in STARTS.items():
        yield Figure(name=name, value=min(used_by(words)[0] for _ in range(TURNS)), unit="ms")


def time_html(path: Path | None, folder: Path) -> Iterator[Figure]:
    report, out = wavecast.analyze(path or LARGEST_SAMPLE), folder / "report.html"
    yield Figure(name="writing an HTML report", value=least_ms(lambda: report.save(out)), unit="ms", bar=3_000)
    yield Figure(name="… its size", value=out.stat().st_size / 1e6, unit="MB", bar=5)


def time_archive(path: Path | None, folder: Path) -> Iterator[Figure]:
    seed, place = load_trace(path or SMALL_SAMPLE), folder / "archive"
    init_archive(place)
    with open_archive(place) as archive:
        begin = time.process_time()
        for number in range(ARCHIVED):
            workload = replace(seed.meta.workload, name=f"network-{number}", batch_size=1 + number % 64)
            trace = replace(seed, meta=replace(seed.meta, workload=workload))
            archive.add(trace, tags=["nightly"] if number % 10 == 0 else [])
        added_ms = (time.process_time() - begin) * 1e3
    yield Figure(name="adding a trace to an archive", value=added_ms / ARCHIVED, unit="ms")
    for command, bar in (("list", 500), ("find", 1_000), ("stats", 1_000)):
        query = ["tag=nightly batch>=8"] if command == "find" else []
        cpu_ms, _ = used_by(["-m", "wavecast", "archive", command, str(place), *query])
        yield Figure(name=f"archive {command} of {ARCHIVED:,} traces", value=cpu_ms, unit="ms", bar=bar)
    cpu_ms, _ = used_by(["-m", "wavecast", "archive", "verify", str(place)])
    yield Figure(name="archive verify, per trace", value=cpu_ms / ARCHIVED, unit="ms")


def least_ms(work: Callable[[], object]) -> float:
    """Return the least processor time of several turns."""
    taken = []
    for _ in range(TURNS):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken) * 1e3


def used_by(words: Sequence[str]) -> tuple[float, float]:
    """Return the processor time, ms, and the peak of memory, GB, of a Python process."""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1e3, used.ru_maxrss * 1024 / 1e9


CASES: Final[dict[str, Callable[[Path | None, Path], Iterator[Figure]]]] = {
    "predict": time_prediction,
    "replay": time_replay,
    "import": time_import,
    "gigabyte": time_gigabyte,
    "million": time_million,
    "start": time_start,
    "html": time_html,
    "archive": time_archive,
}


def main() -> None:
    """Print a line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--trace", type=Path)
    options = parser.parse_args()
    missed = 0
    for case in options.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            for item in CASES[case](options.trace, Path(folder)):
                bar = "" if item.bar is None else f"   bar {item.bar:,g}{'' if item.value <= item.bar else ', MISSED'}"
                missed += item.bar is not None and item.value > item.bar
                print(f"{item.name:<56}{item.value:>12,.2f} {item.unit}{bar}", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
