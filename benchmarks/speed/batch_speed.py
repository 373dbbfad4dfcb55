"""Time a batch of many small traces on all GPUs, on one process and on two.

Run: python -m benchmarks.speed.batch_speed [--traces 1000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..check.batch_resume import copy_traces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_traces(folder / "traces", options.traces)
        taken = {jobs: run(folder, jobs) for jobs in (1, 2)}
        same = (folder / "1.parquet").read_bytes() == (folder / "2.parquet").read_bytes()
    for jobs, seconds in taken.items():
        print(f"{jobs} process(es): {seconds:.1f} s, {options.traces / seconds:.1f} traces/s")
    print(f"{taken[1] / taken[2]:.2f} times as fast on two; the same bytes: {same}")


def run(folder: Path, jobs: int) -> float:
    """Return the seconds that a batch takes on so many processes."""
    words = [sys.executable, "-m", "wavecast", "batch", str(folder / "traces"), "--jobs", str(jobs)]
    begin = time.perf_counter()
    subprocess.run([*words, "-o", str(folder / f"{jobs}.parquet")], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
