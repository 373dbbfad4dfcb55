"""What counting lookups costs the one iteration that is counted: by op that is looked at, and by lookup.

Run: python -m benchmarks.speed.lookup_counting [ROUNDS]

Prints the least of interleaved rounds, with and without the count, of a thousand small ops and of a bag over a million
indices on the CPU (the indices of a GPU are copied to the host besides).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from wavecast.tracer.measured.lookups import count_lookups

OPS = 1_000
LOOKUPS = 1 << 20


def main() -> None:
    """Print both costs."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    x = torch.ones(4)
    bag = nn.EmbeddingBag(1_000_000, 8, mode="sum")
    ranks = torch.rand(LOOKUPS).pow(4)  # a few rows get most lookups
    indices = (ranks * 1_000_000).long().clamp_(max=999_999).view(-1, 64)

    def many() -> None:
        for _ in range(OPS):
            torch.relu(x)

    with torch.no_grad():
        plain, counted = least(many, rounds)
        print(f"an op that is looked at: {1e6 * (counted - plain) / OPS:.1f} µs")
        plain, counted = least(lambda: bag(indices), rounds)
        print(f"a million lookups that are counted: {1e3 * (counted - plain) * 1e6 / LOOKUPS:.0f} ms")


def least(step: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the least seconds of a step, without and with the count."""
    plain, counted = [], []
    for _ in range(rounds):
        plain.append(timed(step))
        with count_lookups():
            counted.append(timed(step))
    return min(plain), min(counted)


def timed(step: Callable[[], object]) -> float:
    """Return the seconds that a step takes."""
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
