"""Derived against torch's own: collectives of `fully_shard` on a fake process group, and memory by its tracker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from wavecast.analyzer.whatif.parallel.derive import derive_ranks
from wavecast.analyzer.whatif.parallel.memory import memory_per_rank
from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
from wavecast.formats.trace.tables import Trace
from wavecast.tracer import trace_iteration

WIDTH, LAYERS, VOCABULARY, BATCH, LENGTH = 64, 4, 500, 4, 96
RANKS = 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(functional.gelu(self.up(x)))
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.head(x)
        return result


class Collectives(TorchDispatchMode):
    """Note the elements of each collective's larger buffer."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_"):
            kind = "all_gather" if "gather" in name else "reduce_scatter"
            self.sizes.append((kind, max(args[0].numel(), args[1].numel())))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()


def record() -> Trace:
    with torch.device("meta"):
        model, tokens = Model(), torch.zeros(BATCH, LENGTH, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    return trace_iteration(lambda: train(model, optimizer, tokens), device="meta", mode="training", batch_size=BATCH)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("group")
def test_collectives_and_memory_are_those_of_fully_shard() -> None:
    mesh, model, tokens = init_device_mesh("cpu", (RANKS,)), Model(), torch.zeros(BATCH, LENGTH, dtype=torch.long)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((tokens,))
    with tracker:
        train(model, optimizer, tokens)
        tracker.reset_mod_stats()
        train(model, optimizer, tokens)
    with Collectives() as ran:
        train(model, optimizer, tokens)
    plan = ParallelPlan(fsdp=RANKS)
    ranks = derive_ranks(record(), plan)
    table, strings = ranks[0].trace.collectives, ranks[0].trace.strings
    sizes = zip(table.in_element_count.tolist(), table.out_element_count.tolist(), strict=True)
    derived = [(strings[name], max(pair)) for name, pair in zip(table.name.tolist(), sizes, strict=True)]
    assert sorted(derived) == sorted(ran.sizes)
    memory = memory_per_rank(ranks, plan)
    assert memory is not None
    tracked = sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values())
    assert memory[0].peak_bytes == pytest.approx(tracked, rel=0.08)
