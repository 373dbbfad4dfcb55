"""Times recording: a billion-parameter training step on the meta device, and the profiler's slow-down on the CPU.

Usage: python -m benchmarks.speed.record_speed [--hf]

With --hf instead the command line as users run it, imports included, in a process of its own: one training step of a
Llama with seven billion parameters (32 layers of width 4,096), in bf16, one sequence of 2,048 tokens, AdamW. That
needs transformers.

The model on meta is a decoder of 20 blocks of width 2,048 with AdamW; the one on the CPU a small perceptron.
Resident memory is the process's peak, torch included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import torch
from torch import nn
from wavecast.tracer import trace_iteration


def record_billion() -> None:
    PreNormBlock = import_module("benchmarks.make.models.transformer").PreNormBlock  # noqa: N806  (a class)
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


LLAMA_7B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4_096, "intermediate_size": 11_008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4_096,
    "vocab_size": 32_000, "tie_word_embeddings": False,
}  # fmt: skip
"""Touvron et al., Llama 2, and the config.json published with it."""


def record_seven_billion() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(LLAMA_7B))
        options = ["--precision", "bf16", "--batch-size", "1", "--sequence-length", "2048"]
        command = [sys.executable, "-m", "wavecast", "record", "--shapes-only", "--hf-config", "config.json", *options]
        begin = time.perf_counter()
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(process.stderr.strip())
    print(
        f"wavecast record --hf-config: {seconds:.1f} s, of them {usage.ru_utime + usage.ru_stime:.1f} s on a core, "
        f"{usage.ru_maxrss * 1024 / 1e9:.2f} GB resident at most"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hf", action="store_true", help="the command line on a Llama of seven billion parameters")
    if parser.parse_args().hf:
        record_seven_billion()
    else:
        record_billion()
        record_small()
