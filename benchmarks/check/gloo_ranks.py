"""Runs ranks over gloo with one slowed on purpose, and holds `wavecast ranks` against a run without the slowing.

Every rank trains a small network with DistributedDataParallel on the CPU and is profiled by torch's profiler. A rank is
slowed by a sleep before its forward pass, or by more work (`--by work`: more batches). Printed are who is named, the
iteration that is predicted without it, and the iteration of a run in which it is not slowed, each rank's slowest. On
fewer cores than ranks, what runs at once slows each other down, and more work for one rank slows the others.

Run: python benchmarks/check/gloo_ranks.py [--ranks 4] [--slow-ms 150] [--base-ms 100] [--by sleep] [--repeats 3]
    [--rounds 3]
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import statistics
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 5
"""The first one is the profiler's own warm-up."""
LONGEST_S = 90.0
"""No job of these takes so long."""


def main() -> None:
    """Record both runs, compare, and print one line per repeat."""
    asked = _read_arguments()
    if asked.record is not None:
        record_job(
            asked.record / "slow", asked.ranks, slow=2, slow_ms=asked.slow_ms, base_ms=asked.base_ms, by=asked.by
        )
        record_job(asked.record / "even", asked.ranks, slow=None, slow_ms=0.0, base_ms=asked.base_ms)
        return
    print(f"{asked.ranks} gloo ranks, each {asked.base_ms:.0f} ms and a training step; slowed by {asked.by}")
    errors, held = [], []
    for repeat in range(asked.repeats):
        slow = repeat % asked.ranks
        with tempfile.TemporaryDirectory() as folder:
            error, is_held = _compare(Path(folder), asked, slow)
        errors.append(error)
        held.append(is_held)
    print(
        f"median error of the time without the straggler: {100 * statistics.median(errors):.1f} %; its 90 % interval "
        f"holds the run in {sum(held)} of {len(held)}"
    )


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slow-ms", type=float, default=150.0)
    parser.add_argument("--base-ms", type=float, default=100.0)
    parser.add_argument("--by", choices=("sleep", "work"), default="sleep")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3, help="Runs of each kind, of which the shortest counts.")
    parser.add_argument("--record", type=Path, help="Only record both runs, rank 2 slowed, to slow/ and even/ in here.")
    return parser.parse_args()


def _compare(folder: Path, asked: argparse.Namespace, slow: int) -> tuple[float, bool]:
    """Record both runs in turn, several times; the ones that other jobs disturbed least are held against each other."""
    from wavecast.analyzer.questions.ranks.api import ranks
    from wavecast.analyzer.questions.ranks.report import RanksReport

    slowed, usual = list[RanksReport](), list[RanksReport]()
    for number in range(asked.rounds):
        for name, who, length, runs in (("slow", slow, asked.slow_ms, slowed), ("even", None, 0.0, usual)):
            place = folder / f"{name}{number}"
            record_job(place, asked.ranks, slow=who, slow_ms=length, base_ms=asked.base_ms, by=asked.by)
            runs.append(ranks(place).report)
    found, even = (min(some, key=lambda run: run.iteration_ns) for some in (slowed, usual))
    worst = found.stragglers[0]
    low_ns, high_ns = worst.without_low_ns or 0.0, worst.without_high_ns or 0.0
    error = abs(worst.without_ns / even.iteration_ns - 1.0)
    print(
        f"slowed: rank {slow}, named: rank {worst.rank} ({worst.causes[0] if worst.causes else 'no cause'}); "
        f"with it {found.iteration_ns / 1e6:.1f} ms, predicted without {worst.without_ns / 1e6:.1f} ms "
        f"({low_ns / 1e6:.1f} to {high_ns / 1e6:.1f}), "
        f"run without {even.iteration_ns / 1e6:.1f} ms: {100 * error:.1f} % off; "
        f"replay as recorded within {100 * found.replay_error:.2f} %"
    )
    return error, low_ns <= even.iteration_ns <= high_ns


def record_job(
    folder: Path, count: int, *, slow: int | None, slow_ms: float, base_ms: float, by: str = "sleep"
) -> None:
    """Run and profile a job of `count` processes, one file per rank into `folder`."""
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # DistributedDataParallel imports this: seconds, and in each process anew unless its parent has it.
    importlib.import_module("torch._dynamo")
    fork = torch.multiprocessing.get_context("fork")
    each = [(rank, count, port, str(folder), slow, slow_ms, base_ms, by) for rank in range(count)]
    processes = [fork.Process(target=_run_rank, args=arguments) for arguments in each]
    for process in processes:
        process.start()
    until = time.monotonic() + LONGEST_S
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()
    if late or any(process.exitcode for process in processes):
        raise SystemExit(f"a rank took longer than {LONGEST_S} s" if late else "a rank failed: see above")


def _run_rank(
    rank: int, count: int, port: int, folder: str, slow: int | None, slow_ms: float, base_ms: float, by: str
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count, timeout=timedelta(seconds=60)
    )
    network = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
    model = DistributedDataParallel(network, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = torch.randn(32, 64)

    def step() -> None:
        time.sleep(base_ms / 1e3)
        if rank == slow and by == "sleep":
            time.sleep(slow_ms / 1e3)
        until = time.perf_counter() + slow_ms / 1e3
        while rank == slow and by == "work" and time.perf_counter() < until:
            network(samples)
        optimizer.zero_grad()
        model(samples).sum().backward()
        optimizer.step()

    step()
    target = Path(folder) / f"rank{rank}.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS - 1, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(target)),
    ) as profiler:
        for _ in range(STEPS):
            step()
            profiler.step()
    with suppress(RuntimeError):  # another rank has left already: all is written
        dist.barrier()
    # What gloo and the reducer tear down in a forked process does not always come to an end.
    os._exit(0)


if __name__ == "__main__":
    main()
