"""Compares reading our own file with importing the profiler file that it came from: CPU time in one process.

Usage: python -m benchmarks.speed.read_speed FILE   (a PyTorch-profiler file, .json or .json.gz)
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
from wavecast.formats.files.open import pack_gzip, read_bytes
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.codec import decode, encode

ROUNDS = 5
RATIO_BAR = 10.0


def best_cpu_seconds(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least CPU time of each job; the jobs take turns, so that a busy machine hits all alike."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            gc.collect()
            start = time.process_time()
            result = work()
            best[name] = min(best[name], time.process_time() - start)
            del result
    return best


def main(path: Path) -> int:
    source = read_bytes(path)
    trace = import_kineto(source)
    own = encode(trace)
    if decode(own) != trace:
        raise SystemExit("what was read back differs from what was written")
    seconds = best_cpu_seconds(
        {
            "import": lambda: import_kineto(source),
            "write": lambda: encode(trace),
            "read": lambda: decode(own),
            "orjson": lambda: orjson.loads(own),
        }
    )
    ratio = seconds["import"] / seconds["read"]
    packed = len(pack_gzip(own))
    print(f"{path.name}: {len(source) / 1e6:.1f} MB; ours {len(own) / 1e6:.1f} MB (gzip {packed / 1e6:.2f} MB)")
    for name, label in {
        "import": "importing the profiler file",
        "write": "writing our file",
        "read": "reading our file",
        "orjson": "orjson.loads alone on our file",
    }.items():
        print(f"  {label:32} {seconds[name] * 1e3:8.1f} ms")
    print(f"  reading ours is {ratio:.1f} times faster than importing (bar: {RATIO_BAR:.0f})")
    return 0 if ratio >= RATIO_BAR else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(Path(sys.argv[1])))
