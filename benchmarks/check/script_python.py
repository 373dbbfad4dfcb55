"""Whether a recording of shapes tells how much of an iteration the host spends between ops, in the script's own Python.

Scripts (benchmarks/check/python_scripts) run for real on the CPU with tiny tensors, with and without torch's profiler,
which tells the time in which no op runs. An op is what the table of costs counts as one: what torch's dispatcher sees.
What the profiler adds is what an iteration takes longer with it, in equal parts per event, in its thread's processor
time; half of a profiled iteration is that. Optimizers take the way that they take on a GPU, all parameters at once.

The scripts are recorded on shapes with a fake GPU as well, and replayed on the synthetic host: how much is between
ops? How fast this machine is between ops is taken from the first script, `plain`, which that makes right without the
script's own time. The others are predictions; UNSEEN are scripts that were written when the program was done. What the
ops take here is as it was measured: on the CPU a kernel runs within its op, a convolution or the attention that a GPU
has one kernel for as well, which is no host's work beside a GPU. The last column has them as the synthetic host has,
without launches, copies and waits, and without sending to the GPU, as fast as those of `plain` are here. Each run does
all of that once; medians over the runs count.

Run: python -m benchmarks.check.script_python [--runs 3]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from wavecast.analyzer.host import load_host_costs, synthesize_timeline
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table, columns, row_count
from wavecast.formats.trace.tables import OpTable, Trace

SCRIPTS = Path(__file__).parent / "python_scripts"
NAMES = ("plain", "tokenizing", "beam_search", "logging_metrics", "graph_sampling")
UNSEEN = ("policy_gradient", "augmentation")
MARK = "end of an iteration"
WARM_UP = 5
TURNS = 6
TO_GPU = "aten::_to_copy"


@dataclass(frozen=True)
class Measured:
    """What an iteration takes on the CPU, without the profiler, ns."""

    between_ns: float
    in_ops_ns: float

    @property
    def share(self) -> float:
        return self.between_ns / (self.between_ns + self.in_ops_ns)


def profile_script(path: Path) -> Measured:
    """Run a script without the profiler and with it, in turns; the quickest turn of each counts."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import ProfilerActivity, profile, record_function

    ends: list[int] = []

    def mark(*_arguments: object) -> None:
        ends.append(time.thread_time_ns())
        with record_function(MARK):
            pass

    def run() -> float:
        ends.clear()
        runpy.run_path(str(path), run_name="__main__")
        return float(np.median(np.diff(ends)[WARM_UP:]))

    torch.set_num_threads(1)
    as_on_gpus()
    if "optim" in path.read_text(encoding="utf-8"):
        register_optimizer_step_post_hook(mark)
    else:
        torch.nn.modules.module.register_module_forward_hook(
            lambda module, *_arguments: mark() if type(module).__name__ == "Writer" else None
        )
    bare, profiled, kept = run(), float("inf"), None
    for _ in range(TURNS):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            taken = run()
        if taken < profiled:
            profiled, kept = taken, profiler
        bare = min(bare, run())
    assert kept is not None
    events = [(item.start_ns(), -item.duration_ns(), item.name()) for item in kept.profiler.kineto_results.events()]
    return without_profiler(list(split(sorted(events)))[WARM_UP:], bare, profiled)


def as_on_gpus() -> None:
    """Let optimizers update all parameters at once, as they do by default where these are on a GPU."""
    optimizers = importlib.import_module("torch.optim")
    for found in pkgutil.iter_modules(optimizers.__path__, "torch.optim."):
        module: Any = importlib.import_module(found.name)
        if hasattr(module, "_default_to_fused_or_foreach"):
            module._default_to_fused_or_foreach = lambda *_arguments, **_options: (False, True)


@dataclass
class Iteration:
    """The gaps before an iteration's ops, how long these are, and the events of the profiler inside and outside."""

    gaps: list[int]
    lengths: list[int]
    inside: int = 0
    outside: int = 0


def split(events: list[tuple[int, int, str]]) -> Iterator[Iteration]:
    """Yield the iterations; what runs after the last op of one is its last gap, before an op of no length."""
    end: int | None = None
    found = Iteration([], [])
    for start, minus_duration, name in events:
        if end is not None and start < end:
            found.inside += 1
            continue
        found.outside += 1
        if end is not None and (name == MARK or is_op(name)):
            found.gaps.append(start - end)
            found.lengths.append(0 if name == MARK else -minus_duration)
        if name == MARK:
            yield found
            found = Iteration([], [])
        if name == MARK or is_op(name):
            end = start - minus_duration


@cache
def is_op(name: str) -> bool:
    from wavecast.mlp_weights.train.host_samples import NOISE, is_dispatched

    return is_dispatched(name) and name not in NOISE


def without_profiler(iterations: list[Iteration], bare_ns: float, profiled_ns: float) -> Measured:
    """Take the profiler's part out: each op, and each gap, counts with its median over the iterations first."""
    usual = statistics.mode((len(item.gaps), item.inside) for item in iterations)
    kept = [item for item in iterations if (len(item.gaps), item.inside) == usual]
    gaps, lengths = (
        float(np.median([getattr(item, name) for item in kept], axis=0).sum()) for name in ("gaps", "lengths")
    )
    inside, outside = kept[0].inside, kept[0].outside
    per_event = max(profiled_ns - bare_ns, 0.0) / (inside + outside)
    scale = profiled_ns / (gaps + lengths)
    return Measured(max(gaps * scale - outside * per_event, 0.0), max(lengths * scale - inside * per_event, 1.0))


def measure(name: str) -> Measured:
    command = [sys.executable, "-m", "benchmarks.check.script_python", "--profile", str(SCRIPTS / f"{name}.py")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Measured(*json.loads(text.splitlines()[-1]))


def record(name: str) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shapes.json.gz"
        command = [sys.executable, "-m", "wavecast", "record", "--shapes-only", "-o", str(path)]
        script = str(SCRIPTS / f"{name}.py")
        subprocess.run([*command, script], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
        return load_trace(path)


@dataclass(frozen=True)
class Speeds:
    """How fast this machine is beside the synthetic reference host: between ops, and in them."""

    leads: float = 1.0
    ops: float = 1.0


def replayed(trace: Trace, speeds: Speeds) -> Measured:
    """Return what the synthetic host's iteration takes between ops and in them, ns."""
    costs, leads = (load_host_costs().at_speed(speed) for speed in (speeds.ops, speeds.leads))
    timed = synthesize_timeline(trace, replace(costs, lead_ns=leads.lead_ns, launch_ns=0.0, copy_ns=0.0, sync_ns=0.0))
    outer = timed.ops.parent < 0
    is_sent = timed.ops.name == (trace.strings.index(TO_GPU) if TO_GPU in trace.strings else -1)
    in_all = float(timed.ops.duration_ns[outer].sum())
    return Measured(
        float(timed.iterations.end_ns[0]) - in_all, in_all - float(timed.ops.duration_ns[outer & is_sent].sum())
    )


def without_script(trace: Trace) -> Trace:
    kept = {spec.name: getattr(trace.ops, spec.name) for spec in columns(trace.ops)}
    unknown = np.full(row_count(trace.ops), -1)
    return replace(trace, ops=build_table(OpTable, row_count(trace.ops), **(kept | {"lead_ns": unknown})))


@dataclass(frozen=True)
class Row:
    """One script in one run: shares of time between ops, and what the recording holds of the script's own, us."""

    measured: float
    predicted: float
    without: float
    synthetic: float
    """With the ops of the synthetic host."""
    own_us: float
    between_us: float
    predicted_us: float


def run_all(names: tuple[str, ...]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    speed = Speeds()
    for name in names:
        trace, truth = record(name), measure(name)
        bare = without_script(trace)
        if name == NAMES[0]:
            found = replayed(bare, Speeds())
            speed = Speeds(leads=found.between_ns / truth.between_ns, ops=found.in_ops_ns / truth.in_ops_ns)
            print(f"this host beside the synthetic reference host, by {name}: {speed}; load {os.getloadavg()[0]:.1f}")
        predicted = replayed(trace, speed)
        rows[name] = Row(
            measured=truth.share,
            predicted=replace(predicted, in_ops_ns=truth.in_ops_ns).share,
            without=replace(replayed(bare, speed), in_ops_ns=truth.in_ops_ns).share,
            synthetic=predicted.share,
            own_us=float(trace.ops.lead_ns[trace.ops.lead_ns > 0].sum()) / 1e3,
            between_us=truth.between_ns / 1e3,
            predicted_us=predicted.between_ns / 1e3,
        )
    return rows


def report(names: tuple[str, ...], runs: list[dict[str, Row]]) -> None:
    print(
        f"{'script':18}{'measured':>10}{'predicted':>11}{'without':>10}{'error, points':>16}  {'each run':22}"
        f"{'own, us':>9}{'between, us':>13}{'predicted':>11}{'synthetic ops':>15}"
    )
    errors = []
    for name in names:
        rows = [run[name] for run in runs]
        middle = {field: statistics.median(getattr(row, field) for row in rows) for field in Row.__dataclass_fields__}
        each = [100 * (row.predicted - row.measured) for row in rows]
        errors.append(abs(statistics.median(each)))
        print(
            f"{name:18}{middle['measured']:>10.1%}{middle['predicted']:>11.1%}{middle['without']:>10.1%}"
            f"{statistics.median(each):>+16.1f}  {', '.join(f'{item:+.1f}' for item in each):22}"
            f"{middle['own_us']:>9.0f}{middle['between_us']:>13.0f}{middle['predicted_us']:>11.0f}"
            f"{middle['synthetic']:>15.1%}"
        )
    print(f"largest {max(errors):.1f} points, mean {statistics.mean(errors):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profile:
        found = profile_script(options.profile)
        print(json.dumps([found.between_ns, found.in_ops_ns]))
        return
    runs = [run_all((*NAMES, *UNSEEN)) for _ in range(options.runs)]
    report(NAMES, runs)
    if UNSEEN:
        print("written afterwards:")
        report(UNSEEN, runs)


if __name__ == "__main__":
    main()
