"""Measures what reading one iteration of a large profiler file takes: CPU time, wall time and memory at its peak.

Run: python benchmarks/check/large_files.py long.json long.json.gz      (of benchmarks/make/long_profile.py)
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Read each file in a process of its own and print a row."""
    if sys.argv[1] == "--one":
        _read(sys.argv[2])
        return
    for path in sys.argv[1:]:
        found = subprocess.run([sys.executable, __file__, "--one", path], check=True, capture_output=True, text=True)
        row = json.loads(found.stdout)
        print(
            f"{Path(path).name}: {Path(path).stat().st_size / 1e9:.2f} GB, {row['ops']} ops, {row['kernels']} kernels"
            f" kept, {row['left_out']} iterations left out; {row['wall_s']:.1f} s, {row['cpu_s']:.1f} s of CPU,"
            f" {row['peak_bytes'] / 1e6:.0f} MB"
        )


def _read(path: str) -> None:
    from wavecast.formats.files.open import load_trace

    begin = time.perf_counter()
    trace = load_trace(path, iteration="median")
    wall_s = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_SELF)
    row = {
        "ops": len(trace.ops.name),
        "kernels": len(trace.kernels.name),
        "left_out": trace.quality.iterations_left_out,
        "wall_s": wall_s,
        "cpu_s": sum(os.times()[:2]),
        "peak_bytes": used.ru_maxrss * 1024,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
