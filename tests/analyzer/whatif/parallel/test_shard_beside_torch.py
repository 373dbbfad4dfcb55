"""What is derived from one GPU beside what torch's own tensor parallelism runs on a process group without peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
from wavecast.analyzer.whatif.parallel.shard.shard import shard_tensors
from wavecast.analyzer.work import work_of
from wavecast.formats.trace.signature import Argument, Signature, TensorSpec
from wavecast.tracer import trace_iteration

from .test_shard import BATCH, LAYERS, TOKENS, Decoder

Call = tuple[str, Signature]
UNLIKE = ("embedding", "masked_fill", "index_put", "clone", "wait_tensor", "wrap_tensor")
"""Ops by which torch looks up a shared table otherwise: it makes the whole table's gradient on every rank."""


class Log(TorchDispatchMode):
    """Keep what runs on this rank, below distributed tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and note an op."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        results = made if isinstance(made, tuple | list) else (made,)
        signature = Signature(tuple(map(_described, args)), tuple(map(_described, results)))
        self.calls.append((func._schema.name.replace("_for_cpu", ""), signature))
        return made


def _described(value: Any) -> Argument:
    if isinstance(value, Tensor):
        return TensorSpec(str(value.dtype)[6:], tuple(value.shape), tuple(value.stride()))
    if isinstance(value, tuple | list):
        return tuple(map(_described, value))  # type: ignore[return-value]
    return value if isinstance(value, bool | int | float | str) or value is None else None


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    """Be rank 0 of as many."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    torch.distributed.destroy_process_group()


def _parallelize(model: nn.Module, degree: int) -> None:
    """Share tensors, and tokens between them, as torchtitan shares Llama's."""
    mesh = init_device_mesh("cpu", (degree,))
    row, gather = RowwiseParallel, PrepareModuleInput
    own: dict[str, Any] = {
        "table": row(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=True),
    }
    for number in range(LAYERS):
        layer = f"layers.{number}"
        own |= {f"{layer}.norms.{norm}": SequenceParallel() for norm in range(2)}
        for part, columns, last in (
            ("attention", ("query", "key", "value"), "out"),
            ("inner", ("gate", "up"), "down"),
        ):
            own[f"{layer}.{part}"] = gather(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            own |= {f"{layer}.{part}.{column}": ColwiseParallel() for column in columns}
            own[f"{layer}.{part}.{last}"] = row(output_layouts=Shard(1))
    parallelize_module(model, mesh, own)


def _run(model: nn.Module, tokens: Tensor) -> None:
    model(tokens).float().mean().backward()


def _exchanged(calls: list[Call]) -> Counter[tuple[str, int]]:
    return Counter(
        (name, signature.tensors()[0].element_count)
        for name, signature in calls
        if "c10d" in name and not any(word in name for word in UNLIKE)
    )


def _computed(calls: list[Call]) -> tuple[Counter[tuple[str, tuple[tuple[int, ...], ...]]], float]:
    """Return what products and attention read, and the bytes of all that moves some."""
    found: Counter[tuple[str, tuple[tuple[int, ...], ...]]] = Counter()
    moved = 0.0
    for name, signature in calls:
        work = work_of(name, signature)
        if "c10d" in name or any(word in name for word in UNLIKE) or work is None:
            continue
        moved += work.read_bytes + work.written_bytes
        if work.is_matrix:
            found[name, tuple(spec.shape for spec in signature.tensors()[:3])] += 1
    return found, moved


@pytest.mark.parametrize("ranks", [2, 4], indirect=True)
def test_derived_ranks_run_what_torch_runs(ranks: int) -> None:
    model, tokens = Decoder().bfloat16(), torch.zeros(BATCH, TOKENS, dtype=torch.long)
    _parallelize(model, ranks)
    _run(model, tokens)  # the first time, torch works out shapes by running whole ops as well
    model.zero_grad()
    with Log() as log:
        _run(model, tokens)
    with torch.device("meta"):
        lone, given = Decoder().bfloat16(), torch.zeros(BATCH, TOKENS, dtype=torch.long)
    whole = trace_iteration(lambda: _run(lone, given), warmup=0, device="meta", mode="training", batch_size=BATCH)
    derived = shard_tensors(whole, ParallelPlan(tp=ranks)).trace
    pairs = zip(derived.ops.name.tolist(), derived.ops.signature.tolist(), strict=True)
    calls = [(derived.strings[name], derived.signatures[number]) for name, number in pairs if number >= 0]
    assert _exchanged(calls) == _exchanged(log.calls)
    (products, moved), (expected, expected_moved) = _computed(calls), _computed(log.calls)
    assert products == expected
    assert moved == pytest.approx(expected_moved, rel=0.01)
