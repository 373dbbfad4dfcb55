"""Records four ranks over gloo, one of them slowed by a sleep before each step: FOLDER BASE_MS SLOW_MS."""

from __future__ import annotations

import importlib
import os
import socket
import sys
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
    """Record both runs: rank 2 slowed, to slow/ in the folder, and none, to even/."""
    folder, base_ms, slow_ms = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    record_job(folder / "slow", 4, slow=2, slow_ms=slow_ms, base_ms=base_ms)
    record_job(folder / "even", 4, slow=None, slow_ms=0.0, base_ms=base_ms)


def record_job(folder: Path, count: int, *, slow: int | None, slow_ms: float, base_ms: float) -> None:
    """Run and profile a job of `count` processes, one file per rank into `folder`."""
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # DistributedDataParallel imports this: seconds, and in each process anew unless its parent has it.
    importlib.import_module("torch._dynamo")
    fork = torch.multiprocessing.get_context("fork")
    each = [(rank, count, port, str(folder), slow, slow_ms, base_ms) for rank in range(count)]
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


def _run_rank(rank: int, count: int, port: int, folder: str, slow: int | None, slow_ms: float, base_ms: float) -> None:
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
        if rank == slow:
            time.sleep(slow_ms / 1e3)
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
