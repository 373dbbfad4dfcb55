"""Times the iterations that `record(...)` leaves without the profiler against the same loop without any recording.

Usage: python -m benchmarks.speed.record_overhead [ROUNDS]

Within `record`, iterations are counted and timed by hooks on the optimizer; no profiler runs before the first captured
iteration, which is set far away. Two loops: a small perceptron's training step on the CPU, and the step of an optimizer
of one parameter alone, in which little but the hooks is left. Rounds with and without alternate, in an order drawn each
time; a round's time is the processor time of its median iteration. Two kinds of rounds are without: what they differ by
is the machine's noise.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import torch
from torch import nn
from wavecast.tracer import record

_ROUNDS: Final = 60
_ITERATIONS: Final = 60
_SETTLED: Final = 10
"""Iterations at the start of a round that do not count."""
_FAR: Final = 10 * _ITERATIONS
_NS_PER_US: Final = 1e3


def build_training() -> Callable[[], object]:
    """Return a training step of some milliseconds."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(128, 128), nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(16, 128)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def build_optimizer() -> Callable[[], object]:
    """Return the step of an optimizer that has next to nothing to do."""
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.zeros(1)
    return torch.optim.SGD([parameter], lr=1e-3).step


def time_round(step: Callable[[], object], around: AbstractContextManager[object]) -> float:
    """Return the median processor time of an iteration, µs."""
    times_ns: list[int] = []
    with around:
        for _ in range(_ITERATIONS):
            begin_ns = time.thread_time_ns()
            step()
            times_ns.append(time.thread_time_ns() - begin_ns)
    return statistics.median(times_ns[_SETTLED:]) / _NS_PER_US


def compare(name: str, step: Callable[[], object], rounds: int, path: Path) -> None:
    """Print the medians and what `record` costs beside what two equal loops differ by."""
    kinds: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "without": nullcontext,
        "again without": nullcontext,
        "within record": lambda: record(path, iterations=(_FAR, _FAR + 1)),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in random.sample(list(kinds), len(kinds)):
            found[kind].append(time_round(step, kinds[kind]()))
    plain = found["without"]
    print(f"{name}: {statistics.median(plain):.1f} us without, {rounds} rounds of each kind")
    for kind in ("again without", "within record"):
        differences = [mine - base for mine, base in zip(found[kind], plain, strict=True)]
        low, middle, high = statistics.quantiles(differences, n=4)
        print(f"  {kind}: {middle:+.1f} us, half of the rounds {low:+.1f} to {high:+.1f} us")


def main(rounds: int) -> None:
    """Compare both loops."""
    warnings.filterwarnings("ignore", message="wavecast: nothing was recorded")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        compare("a training step", build_training(), rounds, path)
        compare("an optimizer's step alone", build_optimizer(), rounds, path)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else _ROUNDS)
