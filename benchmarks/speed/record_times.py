"""Times recording: large steps on the meta device, the profiler's slow-down, and what single hooks cost.

Run: python -m benchmarks.speed.record_times               # all
     … meta profiler hooks lookups llama                   # some

meta      a training step of a billion parameters: a decoder of 20 blocks of width 2,048 with AdamW
profiler  a perceptron's step on the CPU, profiled over not profiled
hooks     an iteration within `record` that no profiler sees, over one outside
lookups   counting the rows that embeddings look up: per op that is looked at, and per million lookups
llama     `wavecast record --hf-config` of seven billion parameters, imports included (needs transformers)
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import torch
from torch import nn
from wavecast.tracer import record, trace_iteration
from wavecast.tracer.measured.lookups import count_lookups

from ..make.models.transformer import PreNormBlock

ROUNDS: Final = 30
LOOKUPS: Final = 1 << 20
LLAMA_7B: Final = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4_096, "intermediate_size": 11_008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4_096,
    "vocab_size": 32_000, "tie_word_embeddings": False,
}  # fmt: skip
"""Touvron et al., Llama 2, and the config.json published with it."""


def training_step(model: nn.Module, batch: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Return a step with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(batch()).sum().backward()
        optimizer.step()

    return step


def perceptron_step(layers: int, width: int, rows: int) -> Callable[[], None]:
    """Return a small step on the CPU."""
    batch = torch.randn(rows, width)
    return training_step(
        nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU()))), lambda: batch
    )


def time_meta() -> None:
    with torch.device("meta"):
        block = {"dropout": 0.0, "causal": True, "epsilon": 1e-5, "approximate": "tanh"}
        blocks = [PreNormBlock(2_048, 16, **block) for _ in range(20)]  # type: ignore[arg-type]
        model = nn.Sequential(*blocks, nn.Linear(2_048, 8_192))
    begin = time.perf_counter()
    trace = trace_iteration(training_step(model, lambda: torch.empty(1, 2_048, 2_048)), device="meta")
    taken, count = time.perf_counter() - begin, sum(parameter.numel() for parameter in model.parameters())
    print(f"meta: {count:,} parameters, {len(trace.ops.name):,} ops, {taken:.1f} s, {_peak_gb(resource.RUSAGE_SELF)}")


def time_profiler() -> None:
    step = perceptron_step(20, 256, 32)
    ratios, plain_ms = [], []
    for _ in range(5):
        table = trace_iteration(step, device="cpu").iterations
        lengths = (table.end_ns - table.start_ns) / 1e6
        plain_ms.append(statistics.median(lengths[~table.profiled].tolist()))
        ratios.append(lengths[table.profiled][0] / plain_ms[-1])
    print(f"CPU: a step of {min(plain_ms):.1f} ms takes {min(ratios):.1f} to {max(ratios):.1f} times as long profiled")


def time_hooks() -> None:
    step = perceptron_step(10, 128, 16)
    warnings.filterwarnings("ignore", message="wavecast: nothing was recorded")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"

        def within() -> AbstractContextManager[object]:
            return record(path, iterations=(600, 601))  # no profiler runs before the first captured iteration

        plain, again, recorded = interleaved(step, (nullcontext, nullcontext, within), repeats=60)
    print(f"an iteration within record: {1e6 * (recorded - plain):+.1f} us ({1e6 * (again - plain):+.1f} is noise)")


def time_lookups() -> None:
    x, bag = torch.ones(4), nn.EmbeddingBag(1_000_000, 8, mode="sum")
    ranks = torch.rand(LOOKUPS).pow(4)  # a few rows get most lookups
    indices = (ranks * 1_000_000).long().clamp_(max=999_999).view(-1, 64)
    with torch.no_grad():
        plain, counted = interleaved(lambda: torch.relu(x), (nullcontext, count_lookups), repeats=1_000)
        print(f"an op that is looked at: {1e6 * (counted - plain):.1f} us")
        plain, counted = interleaved(lambda: bag(indices), (nullcontext, count_lookups), repeats=1)
        print(f"a million lookups that are counted: {1e3 * (counted - plain) * 1e6 / LOOKUPS:.0f} ms")


def interleaved(
    step: Callable[[], object], kinds: Iterable[Callable[[], AbstractContextManager[object]]], *, repeats: int
) -> list[float]:
    """Return the least mean processor time of a step within each context, s; they take turns."""
    contexts = tuple(kinds)
    found: list[list[float]] = [[] for _ in contexts]
    for _ in range(ROUNDS):
        for times, around in zip(found, contexts, strict=True):
            with around():
                begin = time.thread_time()
                for _ in range(repeats):
                    step()
                times.append((time.thread_time() - begin) / repeats)
    return [min(times) for times in found]


def time_llama() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_7B))
        options = ["--precision", "bf16", "--batch-size", "1", "--sequence-length", "2048"]
        command = [sys.executable, "-m", "wavecast", "record", "--shapes-only", "--hf-config", "config.json", *options]
        begin = time.perf_counter()
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
        taken = time.perf_counter() - begin
    print(f"wavecast record --hf-config: {taken:.1f} s, {_peak_gb(resource.RUSAGE_CHILDREN)}")


def _peak_gb(whose: int) -> str:
    return f"{resource.getrusage(whose).ru_maxrss * 1024 / 1e9:.2f} GB resident at most"


CASES: Final = {
    "meta": time_meta, "profiler": time_profiler, "hooks": time_hooks, "lookups": time_lookups, "llama": time_llama,
}  # fmt: skip

if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        CASES[name]()
