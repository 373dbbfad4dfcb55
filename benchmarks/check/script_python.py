"""Whether a recording of shapes tells how much of an iteration the host spends between ops, in the script's own Python.

Five scripts (benchmarks/check/python_scripts) run for real on the CPU with tiny tensors, under torch's profiler, which
tells the share of time in which no op runs. They are recorded on shapes with a fake GPU as well, and replayed on the
synthetic host without launches, copies and waits: how much is between ops? How fast this machine is between ops and in
them is taken from the first script, `plain`, which that makes right without the script's own time: a kernel that runs
on the CPU is part of its op. The other four are predictions. Each is recorded `--runs` times, and the middle one
counts. Beside it stands what the synthetic host says without the script's own time.

Run: python -m benchmarks.check.script_python [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from wavecast.analyzer.host import load_host_costs, synthesize_timeline
from wavecast.formats.column import build_table, columns, row_count
from wavecast.formats.files import load_trace
from wavecast.formats.trace import OpTable, Trace

SCRIPTS = Path(__file__).parent / "python_scripts"
NAMES = ("plain", "tokenizing", "beam_search", "logging_metrics", "graph_sampling")
MARK = "end of an iteration"


def profile_script(path: Path) -> None:
    """Run a script under the profiler, and print an iteration's length in ns, and the share of it between ops.

    Each op, and each gap before one, counts with its median over the iterations: other people's jobs fall into few.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import ProfilerActivity, profile, record_function

    def mark(*_arguments: object) -> None:
        with record_function(MARK):
            pass

    torch.set_num_threads(1)
    text = path.read_text(encoding="utf-8")
    if "optim" in text:
        register_optimizer_step_post_hook(mark)
    else:
        torch.nn.modules.module.register_module_forward_hook(
            lambda module, *_arguments: mark() if type(module).__name__ == "Writer" else None
        )
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        runpy.run_path(str(path), run_name="__main__")
    events = [
        (item.start_ns(), -item.duration_ns(), item.name())
        for item in profiler.profiler.kineto_results.events()
        if item.name().startswith("aten::") or item.name() == MARK
    ]
    iterations = list(split(sorted(events)))[5:]
    usual = statistics.mode(len(item) for item in iterations)
    table = np.array([item for item in iterations if len(item) == usual], dtype=np.float64)
    gaps, durations = np.median(table, axis=0).sum(axis=0)
    print(json.dumps({"length_ns": gaps + durations, "between": gaps / (gaps + durations)}))


def split(events: list[tuple[int, int, str]]) -> Iterator[list[tuple[int, int]]]:
    """Yield the gaps before, and the lengths of, the outermost ops of each iteration."""
    end, found = None, []
    for start, minus_duration, name in events:
        if end is not None and start < end:
            continue
        if name == MARK:
            yield found
            found = []
        elif end is not None:
            found.append((start - end, -minus_duration))
        end = start - minus_duration


def measure(name: str, runs: int) -> tuple[float, float]:
    found = []
    for _ in range(runs):
        command = [sys.executable, __file__, "--profile", str(SCRIPTS / f"{name}.py")]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(text.splitlines()[-1]))
    return min(item["length_ns"] for item in found), statistics.median(item["between"] for item in found)


def record(name: str, runs: int) -> list[Trace]:
    traces = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            path = Path(folder) / f"{number}.json.gz"
            command = [sys.executable, "-m", "wavecast", "record", "--shapes-only", "-o", str(path)]
            script = str(SCRIPTS / f"{name}.py")
            subprocess.run(
                [*command, script], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True
            )
            traces.append(load_trace(path))
    return traces


@dataclass(frozen=True)
class Speeds:
    """How fast this machine is beside the synthetic reference host: between ops, and in them."""

    leads: float = 1.0
    ops: float = 1.0


def replayed(trace: Trace, speeds: Speeds) -> tuple[float, float]:
    """Return the length of the synthetic host's iteration, ns, and the share of it between ops."""
    costs, leads = (load_host_costs().at_speed(speed) for speed in (speeds.ops, speeds.leads))
    timed = synthesize_timeline(trace, replace(costs, lead_ns=leads.lead_ns, launch_ns=0.0, copy_ns=0.0, sync_ns=0.0))
    outer = timed.ops.parent < 0
    length = float(timed.iterations.end_ns[0])
    return length, 1 - float(timed.ops.duration_ns[outer].sum()) / length


def without_script(trace: Trace) -> Trace:
    kept = {spec.name: getattr(trace.ops, spec.name) for spec in columns(trace.ops)}
    unknown = np.full(row_count(trace.ops), -1)
    return replace(trace, ops=build_table(OpTable, row_count(trace.ops), **(kept | {"lead_ns": unknown})))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profile:
        profile_script(options.profile)
        return
    measured = {name: measure(name, options.runs) for name in NAMES}
    traces = {name: record(name, options.runs) for name in NAMES}
    plain = without_script(traces[NAMES[0]][0])
    (length, share), (taken, between) = replayed(plain, Speeds()), measured[NAMES[0]]
    speed = Speeds(leads=length * share / (taken * between), ops=length * (1 - share) / (taken * (1 - between)))
    print(f"this host beside the synthetic reference host, by {NAMES[0]}: {speed}")
    print(f"{'script':18}{'measured':>12}{'predicted':>11}{'without':>10}{'error':>9}   script's own, loading; lengths")
    errors = []
    for name in NAMES:
        found = sorted((replayed(trace, speed)[1], number) for number, trace in enumerate(traces[name]))
        share, number = found[(len(found) - 1) // 2]
        trace = traces[name][number]
        length, between = measured[name]
        own, loading = (float(column[column > 0].sum()) for column in (trace.ops.lead_ns, trace.ops.loading_ns))
        bare = replayed(without_script(trace), speed)[1]
        errors.append(abs(share - between))
        print(
            f"{name:18}{between:>11.1%}{share:>11.1%}{bare:>10.1%}{100 * (share - between):>+7.1f} points   "
            f"{own / 1e3:.0f}, {loading / 1e3:.0f} us; {length / 1e3:.0f}, {replayed(trace, speed)[0] / 1e3:.0f} us"
        )
    print(f"largest {100 * max(errors):.1f} points, mean {100 * statistics.mean(errors):.1f}")


if __name__ == "__main__":
    main()
