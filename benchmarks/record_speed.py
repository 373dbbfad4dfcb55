"""Times recording: a billion-parameter training step on the meta device, and the profiler's slow-down on the CPU.

Usage: python benchmarks/record_speed.py

The model on meta is a decoder of 20 blocks of width 2,048 with AdamW; the one on the CPU a small perceptron.
Resident memory is the process's peak, torch included.
"""

from __future__ import annotations

import resource
import time
from importlib import import_module

import torch
from torch import nn
from wavecast.tracer import trace_iteration


def record_billion() -> None:
    PreNormBlock = import_module("models.transformer").PreNormBlock  # noqa: N806  (a class)
    with torch.device("meta"):
        blocks = [
            PreNormBlock(2_048, 16, dropout=0.0, causal=True, epsilon=1e-5, approximate="tanh") for _ in range(20)
        ]
        model = nn.Sequential(*blocks, nn.Linear(2_048, 8_192))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.empty(1, 2_048, 2_048)).sum().backward()
        optimizer.step()

    begin = time.perf_counter()
    trace = trace_iteration(step, device="meta")
    seconds = time.perf_counter() - begin
    count = sum(parameter.numel() for parameter in model.parameters())
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(
        f"meta: {count:,} parameters, {len(trace.ops.name):,} ops, {seconds:.1f} s, {peak_gb:.2f} GB resident at most"
    )


def record_small() -> None:
    model = nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(256, 256), nn.ReLU())))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(32, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    ratios, plain_ms = [], []
    for _ in range(5):
        table = trace_iteration(step, device="cpu").iterations
        lengths = (table.end_ns - table.start_ns) / 1e6
        plain = sorted(lengths[~table.profiled])[2]
        ratios.append(lengths[table.profiled][0] / plain)
        plain_ms.append(plain)
    print(f"CPU: a step of {min(plain_ms):.1f} ms takes {min(ratios):.1f} to {max(ratios):.1f} times as long profiled")


if __name__ == "__main__":
    record_billion()
    record_small()
