"""Compare the memory of derived ranks with what torch's trackers count: python -m benchmarks.check.rank_memory

A small Llama-like model trains on the CPU with torch's `fully_shard` or `parallelize_module` on a fake process group
of 2 and 4 ranks, or as each stage of a pipeline, under torch's `FSDPMemTracker` or `MemTracker`; the same plan is
derived from a recording of the model on one device. Nothing is fitted.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from wavecast.analyzer.whatif.parallel.derive import derive_ranks
from wavecast.analyzer.whatif.parallel.memory import memory_per_rank
from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
from wavecast.analyzer.whatif.parallel.shard.shard import shard_tensors
from wavecast.formats.trace.tables import Trace
from wavecast.tracer import trace_iteration

BAR: Final = 0.08
VOCABULARY: Final = 2048
WHOLE: Final = {"embedding": "replicate", "head": "replicate"}
"""What the tracked model keeps whole under tensor parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Hold a model and its batch."""

    name: str
    width: int
    layers: int
    inner: int
    heads: int
    batch: int
    length: int


SIZES: Final = (
    Sizes(name="activations", width=256, layers=8, inner=704, heads=8, batch=4, length=256),
    Sizes(name="parameters", width=512, layers=8, inner=1408, heads=8, batch=2, length=64),
    Sizes(name="both", width=384, layers=4, inner=1024, heads=8, batch=4, length=128),
)


class Norm(nn.Module):
    """Divide by the root of the mean square, op by op: fused, it saves on GPUs other tensors than on the CPU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in made)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return result


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_norm, self.self_attn = Norm(sizes.width), Attention(sizes.width, sizes.heads)
        self.mlp_norm, self.mlp = Norm(sizes.width), Mlp(sizes.width, sizes.inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_norm(x))
        result: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Llama(nn.Module):
    """Hold layers `first` to `last`, the embedding with the first of all and the head with the last."""

    def __init__(self, sizes: Sizes, first: int = 0, last: int | None = None) -> None:
        super().__init__()
        last = sizes.layers if last is None else last
        self.embedding = nn.Embedding(VOCABULARY, sizes.width) if first == 0 else None
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(last - first))
        self.norm = Norm(sizes.width) if last == sizes.layers else None
        self.head = nn.Linear(sizes.width, VOCABULARY, bias=False) if last == sizes.layers else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.embedding is None else self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def record(sizes: Sizes, *, foreach: bool = True) -> Trace:
    """Record one iteration on one device."""
    with torch.device("meta"):
        model = Llama(sizes).to(torch.bfloat16)
        tokens = torch.zeros(sizes.batch, sizes.length, dtype=torch.long)
    step = _step(model, tokens, torch.optim.AdamW(model.parameters(), foreach=foreach))
    return trace_iteration(step, device="meta", mode="training", batch_size=sizes.batch, name=sizes.name)


def _step(model: nn.Module, tokens: torch.Tensor, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def train() -> None:
        optimizer.zero_grad()
        loss_of(model(tokens), tokens).backward()
        optimizer.step()

    return train


def _tracked(tracker: Any, step: Callable[[], None]) -> int:
    """Return the peak of the second of two steps."""
    with tracker:
        step()
        tracker.reset_mod_stats()
        step()
    peak = tracker.get_tracker_snapshot("peak")
    return int(sum(device["Total"] for device in peak.values()))


def track_fsdp(sizes: Sizes, ranks: int) -> list[int]:
    """Return the peak of a rank."""
    mesh = init_device_mesh("cpu", (ranks,))
    model = Llama(sizes).to(torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    tokens = torch.zeros(sizes.batch, sizes.length, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((tokens,))
    return [_tracked(tracker, _step(model, tokens, optimizer))]


def track_tp(sizes: Sizes, ranks: int) -> list[int]:
    """Return the peak of a rank whose layers' products are shared, without sequence parallelism."""
    mesh = init_device_mesh("cpu", (ranks,))
    model = Llama(sizes).to(torch.bfloat16)
    for layer in model.layers:
        plan = {f"self_attn.{part}_proj": ColwiseParallel() for part in "qkv"}
        plan |= {f"mlp.{part}_proj": ColwiseParallel() for part in ("gate", "up")}
        rows = {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
        parallelize_module(layer, mesh, {**plan, **rows})
    tokens = torch.zeros(sizes.batch, sizes.length, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tracker = MemTracker()
    tracker.track_external(model, optimizer, tokens)
    return [_tracked(tracker, _step(model, tokens, optimizer))]


def track_pp(sizes: Sizes, ranks: int, micro_batches: int) -> Iterator[int]:
    """Yield the peak of each stage's rank, which runs its micro batches by 1F1B; what it receives is made where it is.

    torch's own `pipelining` asks its neighbours for shapes before it starts, which no fake group answers.
    """
    share = sizes.layers // ranks
    for stage in range(ranks):
        model = Llama(sizes, stage * share, (stage + 1) * share).to(torch.bfloat16)
        tokens = torch.zeros(sizes.batch, sizes.length, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, tokens)
        pipeline = Pipeline(model=model, tokens=tokens, optimizer=optimizer, tracker=tracker, sizes=sizes)
        yield _tracked(tracker, partial(pipeline.step, ranks - stage, micro_batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Hold a stage of a pipeline, what it trains with and what counts its memory."""

    model: Llama
    tokens: torch.Tensor
    optimizer: torch.optim.Optimizer
    tracker: MemTracker
    sizes: Sizes
    waiting: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """What forward passes were given and returned, whose backward is to come."""

    def step(self, stages_left: int, micro_batches: int) -> None:
        """Run 1F1B: as many forward passes ahead as stages follow."""
        self.optimizer.zero_grad()
        ahead = min(stages_left - 1, micro_batches)
        for _ in range(ahead):
            self.forward()
        for _ in range(micro_batches - ahead):
            self.forward()
            self.backward()
        for _ in range(ahead):
            self.backward()
        self.optimizer.step()

    def forward(self) -> None:
        """Run a micro batch forward."""
        self.tracker.reset_mod_stats()  # it refuses a second call of a module else
        given, sizes = self.tokens, self.sizes
        if self.model.embedding is None:
            given = torch.zeros(sizes.batch, sizes.length, sizes.width, dtype=torch.bfloat16, requires_grad=True)
        result = self.model(given)
        self.waiting.append((given, loss_of(result, self.tokens) if self.model.head is not None else result))

    def backward(self) -> None:
        """Run the oldest one backward."""
        given, result = self.waiting.pop(0)
        result.backward(None if self.model.head is not None else torch.zeros_like(result))
        if given.requires_grad:  # the tracker's hooks hold what a stage received, and its gradient
            given.grad, given.data = None, torch.empty(0, dtype=given.dtype)


def _start(rank: int, ranks: int) -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)


def _show(name: str, sizes: Sizes, plan: ParallelPlan, trace: Trace, tracked: list[int]) -> float:
    """Print a case; return its worst error."""
    shard = partial(shard_tensors, overrides=WHOLE)
    found = memory_per_rank(derive_ranks(trace, plan, shard=shard), plan)
    worst = 0.0
    for stage, measured in enumerate(tracked):
        derived = found[stage].peak_bytes if found else 0
        error = derived / measured - 1
        worst = max(worst, abs(error))
        parts = ", ".join(f"{kind} {size / 1e6:.1f}" for kind, size in (found[stage].held if found else {}).items())
        print(
            f"{name:8}{sizes.name:12} stage {stage}: tracker {measured / 1e6:8.2f} MB, derived {derived / 1e6:8.2f}"
            f" ({100 * error:+.1f} %): {parts}"
        )
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", choices=[sizes.name for sizes in SIZES], nargs="+", default=[])
    parser.add_argument("--only", choices=("fsdp", "tp", "pp"), nargs="+", default=["fsdp", "tp", "pp"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    errors = []
    for sizes in SIZES:
        if options.sizes and sizes.name not in options.sizes:
            continue
        trace = record(sizes)
        for ranks in (2, 4):
            if "fsdp" in options.only:
                _start(0, ranks)
                errors.append(_show(f"fsdp={ranks}", sizes, ParallelPlan(fsdp=ranks), trace, track_fsdp(sizes, ranks)))
            if "tp" in options.only:
                _start(0, ranks)
                plan = ParallelPlan(tp=ranks, sp=False)
                single = record(sizes, foreach=False)  # lists of DTensors and others at once are refused
                errors.append(_show(f"tp={ranks}", sizes, plan, single, track_tp(sizes, ranks)))
            if "pp" in options.only:
                plan = ParallelPlan(pp=ranks, micro_batches=8)
                errors.append(_show(f"pp={ranks}", sizes, plan, trace, list(track_pp(sizes, ranks, 8))))
    print(f"worst {100 * max(errors):.1f} % of {len(errors)} plans; bar {100 * BAR:.0f} %")


if __name__ == "__main__":
    main()
