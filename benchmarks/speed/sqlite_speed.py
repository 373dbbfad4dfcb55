"""Imports Nsight Systems exports of growing size, and prints rows per second of CPU time and the peak of memory.

Each kernel has its call and the range of an op with sizes, as torch's emit_nvtx writes them: three rows per kernel.

Usage: python -m benchmarks.speed.sqlite_speed [ROWS...]   (default: 30000 300000 1000000)
"""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from wavecast.formats.files.open import load_trace

from ..make.nsys_export import PROCESS, SCHEMA

ROWS: Final = (30_000, 300_000, 1_000_000)
LEAST_ROWS_PER_S: Final = 50_000
MOST_SLOWER: Final = 2.0
"""How much slower per row the largest file may be than the smallest: time is linear in rows."""
NAMES: Final = ("cudaLaunchKernel_v7000", "void gemm<(int)128, float>(float *)", "void add<(int)4>(float *, int)")
_STEP_NS: Final = 10_000
_COLUMNS: Final = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"
    ),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "domainId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "demangledName", "shortName",
        "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory",
        "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal", "gridId",
    ),
}  # fmt: skip


def write(path: Path, row_count: int) -> None:
    """Write an export of that many rows."""
    steps = [(number, number * _STEP_NS) for number in range(1, row_count // 3 + 1)]
    rows = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": ((at + 500, at + 900, 0, PROCESS + 1, n, 1, 0) for n, at in steps),
        "NVTX_EVENTS": (
            (at, at + 1000, 59, f"aten::mm, op_id = {n}, sizes = [[{n % 64 + 1}, 8], [8, 4]]", PROCESS + 1, 0)
            for n, at in steps
        ),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            (at + 2000, at + 9000, 0, 1, 7, n, PROCESS, 2 + n % 2, 2, 32, 64, 1, 1, 128, 1, 1, 0, 1024, 0, 0, n)
            for n, at in steps
        ),
    }
    with sqlite3.connect(path) as database:
        for table, columns in SCHEMA.items():
            database.execute(f"CREATE TABLE {table} ({columns})")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES, 1))
        for table, names in _COLUMNS.items():
            places = ", ".join("?" * len(names))
            statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})"  # noqa: S608 - our own names
            database.executemany(statement, rows[table])
    database.close()


def report(path: Path) -> None:
    """Print CPU seconds and the bytes by which reading raises the peak of this process."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    load_trace(path)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(time.process_time() - begin, (after - before) * 1024)


def main(row_counts: list[int]) -> int:
    rates = []
    with tempfile.TemporaryDirectory() as folder:
        for count in row_counts:
            path = Path(folder) / f"{count}.sqlite"
            write(path, count)
            command = [sys.executable, "-m", "benchmarks.speed.sqlite_speed", str(path)]
            seconds, peak = map(
                float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            )
            rates.append(count / seconds)
            size = path.stat().st_size
            print(
                f"{count:>9,} rows, {size / 1e6:6.1f} MB: {seconds:6.2f} s CPU, {count / seconds:>9,.0f} rows/s, "
                f"peak {peak / 1e6:6.0f} MB ({peak / size:.1f} x the file)",
                flush=True,
            )
    return int(min(rates) < LEAST_ROWS_PER_S or rates[0] > MOST_SLOWER * rates[-1])


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].endswith(".sqlite"):
        report(Path(sys.argv[1]))
    else:
        sys.exit(main([int(argument) for argument in sys.argv[1:]] or list(ROWS)))
