"""Compares importing a profiler file with merely parsing it: CPU time in one process, peak memory in fresh ones.

Usage: python -m benchmarks.speed.import_speed FILE   (a PyTorch-profiler file, .json or .json.gz)
"""

from __future__ import annotations

import gzip
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson
from wavecast.formats.kineto import import_kineto

ROUNDS = 5
CPU_LIMIT = 2.5
MEMORY_LIMIT = 1.0


def unpack(source: Path, target: Path) -> None:
    """Write the JSON of `source` without holding it: what this process once held would count in its children."""
    with source.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(source) if is_packed else source.open("rb") as packed, target.open("wb") as plain:
        shutil.copyfileobj(packed, plain)


def cpu_seconds(work: Callable[[bytes], object], data: bytes) -> float:
    start = time.process_time()
    result = work(data)
    elapsed = time.process_time() - start
    del result
    return elapsed


def peak_bytes(mode: str, path: Path) -> int:
    """Return how far the peak of a fresh process lies over that of one that only holds the file's text."""
    command = [sys.executable, __file__, str(path), mode]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report_peak(path: Path, mode: str) -> None:
    data = path.read_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = orjson.loads(data) if mode == "orjson" else import_kineto(data)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print((after - before) * 1024)
    del result


def main(source: Path, path: Path) -> int:
    unpack(source, path)
    peaks = {mode: peak_bytes(mode, path) for mode in ("import", "orjson")}
    data = path.read_bytes()
    parse, load = [], []
    for _ in range(ROUNDS):
        parse.append(cpu_seconds(orjson.loads, data))
        load.append(cpu_seconds(import_kineto, data))
    cpu = min(load) / min(parse)
    memory = peaks["import"] / max(1, peaks["orjson"])
    megabytes = {mode: peak / 1e6 for mode, peak in peaks.items()}
    print(f"{source.name}: {len(data) / 1e6:.1f} MB, best of {ROUNDS}")
    print(f"CPU time     import {min(load):.3f} s, orjson.loads {min(parse):.3f} s: {cpu:.2f} x (limit {CPU_LIMIT})")
    print(
        f"Peak memory  import {megabytes['import']:.0f} MB, orjson.loads {megabytes['orjson']:.0f} MB over the text: "
        f"{memory:.2f} x (limit {MEMORY_LIMIT})"
    )
    return int(cpu > CPU_LIMIT or memory > MEMORY_LIMIT)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        report_peak(Path(sys.argv[1]), sys.argv[2])
    elif len(sys.argv) == 2:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(main(Path(sys.argv[1]), Path(folder) / "trace.json"))
    else:
        sys.exit(__doc__)
