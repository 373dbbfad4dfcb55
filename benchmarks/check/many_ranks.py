"""Time and memory of `wavecast ranks` by the number of ranks, on copies of one profiler file.

Each copy has a rank number and a clock of its own, and begins each collective up to 0.1 ms later than the original,
drawn at random, which ends as recorded: so that other ranks come last to each. With `--group 8` every second
collective is among eight, and the first of each eight comes far later to it: as many stragglers as groups. Printed are
CPU seconds for reading, for the comparison, for the HTML report's page and for the timeline, the peak of memory, and
both per rank: what is linear stays as it is from one row to the next.

Run: python benchmarks/check/many_ranks.py ../shared/data/traces/v100_dlrm_training_rank0.json.gz [--ranks 16,64,256]
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

MOST_LATE_US = 100.0
LEAST_LEFT = 0.2
"""Of a collective's kernel."""
MEGABYTE = 1e6


def main() -> None:
    """Print a line per number of ranks, each from a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--ranks", default="16,64,256")
    parser.add_argument("--group", type=int, default=0, help="Ranks that communicate; 0: all.")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside is not None:
        measure(asked.inside)
        return
    for count in map(int, asked.ranks.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            write_ranks(asked.file, Path(folder), count, asked.group)
            command = [sys.executable, __file__, str(asked.file), "--inside", folder]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, float] = json.loads(done.stdout)
        steps = ", ".join(
            f"{name} {value:.2f} s" for name, value in found.items() if name not in ("peak", "stragglers")
        )
        whole = sum(value for name, value in found.items() if name not in ("peak", "stragglers"))
        print(
            f"{count} ranks: {steps}; peak {found['peak'] / MEGABYTE:,.0f} MB; {found['stragglers']:.0f} stragglers; "
            f"per rank {1e3 * whole / count:.0f} ms, {found['peak'] / MEGABYTE / count:.1f} MB",
            flush=True,
        )


def write_ranks(source: Path, folder: Path, count: int, group: int) -> None:
    """Write copies of a rank's file: one per rank, with a clock of its own, late to some collectives."""
    opened = gzip.open if source.suffix == ".gz" else open
    with opened(source, "rt") as file:
        document: dict[str, Any] = json.load(file)
    events = document["traceEvents"]
    timed = [event for event in events if "ts" in event]
    began = np.array([float(event["ts"]) for event in timed])
    at = {id(event): place for place, event in enumerate(timed)}
    sends = [event for event in events if "nccl" in str(event.get("name", "")).lower() and event.get("cat") == "kernel"]
    lasted = np.array([float(event["dur"]) for event in sends])
    about = document.get("distributedInfo") or {}
    for rank in range(count):
        source_of = np.random.default_rng(rank)
        clock_us = float(source_of.integers(0, 1_000_000)) if rank else 0.0
        most_us = lasted * (1 - LEAST_LEFT)
        late = np.minimum(source_of.uniform(0, MOST_LATE_US, len(sends)), most_us)
        if group and rank % group == 0:
            late[1::2] = most_us[1::2]
        start = began + clock_us
        for event, duration, delay in zip(sends, lasted.tolist(), late.tolist(), strict=True):
            start[at[id(event)]] += delay
            event["dur"] = duration - delay
        for event, value in zip(timed, start.tolist(), strict=True):
            event["ts"] = round(value, 3)
        document["distributedInfo"] = {**about, "backend": "nccl", "rank": rank, "world_size": count}
        for number, event in enumerate(sends if group else ()):
            first, size = (rank // group * group, group) if number % 2 else (0, count)
            event["args"] |= {
                "Collective name": "allreduce",
                "Group size": size,
                "Process Group Name": f"{size} from {first}",
                "Process Group Ranks": str(list(range(first, first + size))),
            }
        with gzip.open(folder / f"rank{rank}.json.gz", "wt", compresslevel=1) as file:
            json.dump(document, file)


def measure(folder: Path) -> None:
    """Print what the steps take for the files of a folder, as JSON."""
    import wavecast
    from wavecast import load_trace

    found: dict[str, float] = {}
    since = time.process_time()
    traces = [load_trace(path) for path in sorted(folder.iterdir())]
    found["read"] = time.process_time() - since
    since = time.process_time()
    report = wavecast.ranks(traces)
    found["compare"] = time.process_time() - since
    since = time.process_time()
    report.illustrated_page()
    found["page"] = time.process_time() - since
    since = time.process_time()
    report.save_timeline(folder / "timeline.json.gz")
    found["timeline"] = time.process_time() - since
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    found["stragglers"] = len(report.report.stragglers)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
