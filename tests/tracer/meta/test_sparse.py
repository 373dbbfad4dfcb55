"""Sparse gradients of embedding tables: recorded without the table's size, costed and held by the rows touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.iteration.result import Analysis
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.signature import Signature
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch's own, of its optimizers
ROWS, WIDTH, BAGS, LOOKUPS = 10_000_000, 64, 2048, 20
TABLE_BYTES = ROWS * WIDTH * 4
ROW_BYTES = BAGS * LOOKUPS * WIDTH * 4
OPTIMIZERS: dict[str, tuple[Callable[..., Any], dict[str, float]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "SparseAdam": (torch.optim.SparseAdam, {}),
}


def build_step(optimizer: str, *, is_sparse: bool, rows: int = ROWS, device: str = "meta") -> Callable[[], None]:
    """Return a step of a bag of twenty lookups and a plain embedding, into one layer."""
    make, options = OPTIMIZERS[optimizer]
    if not is_sparse and optimizer == "SparseAdam":
        make = torch.optim.Adam
    with torch.device(device):
        bag = nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=is_sparse)
        table = nn.Embedding(rows, WIDTH, sparse=is_sparse)
        head = nn.Linear(2 * WIDTH, 1)
        many = torch.randint(0, rows, (BAGS * LOOKUPS,))
        offsets, one = torch.arange(0, BAGS * LOOKUPS, LOOKUPS), torch.randint(0, rows, (BAGS,))
    updates = make([*bag.parameters(), *table.parameters()], **options), torch.optim.SGD(head.parameters(), lr=0.1)

    def step() -> None:
        for update in updates:
            update.zero_grad()
        head(torch.cat([bag(many, offsets), table(one)], 1)).sum().backward()
        for update in updates:
            update.step()

    return step


def analyzed(optimizer: str, *, is_sparse: bool) -> Analysis:
    trace = trace_iteration(build_step(optimizer, is_sparse=is_sparse), device="meta")
    catalog = load_catalog()
    return run_analysis(trace, catalog, targets=[find_gpu(catalog, "H100 SXM5 80GB")])


def moved_bytes(result: Analysis) -> float:
    return float(result.workload.count @ result.workload.work.moved_bytes)


def signatures_of(trace: Trace, name: str) -> list[Signature]:
    return [trace.signatures[row] for row in trace.ops.signature[named(trace, name)].tolist()]


def named(trace: Trace, name: str) -> Any:
    return np.flatnonzero([trace.strings[number] == name for number in trace.ops.name.tolist()])


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_step_costs_and_holds_the_rows_that_it_touches(optimizer: str) -> None:
    sparse, dense = (analyzed(optimizer, is_sparse=is_sparse) for is_sparse in (True, False))
    assert moved_bytes(sparse) < 60 * ROW_BYTES
    assert moved_bytes(dense) > 8 * TABLE_BYTES
    times_ns = [float(result.prediction.total_busy_ns()[0]) for result in (sparse, dense)]
    assert times_ns[0] < times_ns[1] / 30
    assert sparse.memory is not None
    assert dense.memory is not None
    assert dense.memory.peak_bytes - sparse.memory.peak_bytes > 1.9 * TABLE_BYTES
    states = {"Adagrad": 1, "SparseAdam": 2}.get(optimizer, 0)
    assert sparse.memory.peak_bytes < (2 + 2 * states) * TABLE_BYTES + 10 * ROW_BYTES


def test_signatures_say_what_a_sparse_gradient_stores() -> None:
    trace = decode(encode(trace_iteration(build_step("SGD", is_sparse=True), device="meta")))
    stored = [item.tensors()[1].stored for item in signatures_of(trace, "aten::add_")]
    assert sorted(shape for shape in stored if shape) == [(BAGS, WIDTH), (BAGS * LOOKUPS, WIDTH)]
    copies = [item.tensors()[0] for item in signatures_of(trace, "aten::clone")]
    assert [tensor.stored for tensor in copies] == [(BAGS, WIDTH)]
    """The plain embedding's rows lie apart in the layer's gradient and are copied; the bag's are taken as they are."""


def test_coalesced_gradients_keep_their_rows_up_to_all_of_the_table() -> None:
    trace = trace_iteration(build_step("Adagrad", is_sparse=True, rows=3000), device="meta")
    kept = [item.results[0] for item in signatures_of(trace, "aten::_coalesce")]
    assert [getattr(result, "stored", None) for result in kept] == [(3000, WIDTH), (BAGS, WIDTH)]


def test_gradients_of_two_batches_are_added_by_joining_their_rows() -> None:
    with torch.device("meta"):
        table, batches = nn.Embedding(ROWS, 8, sparse=True), [torch.randint(0, ROWS, (size,)) for size in (5, 7)]

    def step() -> None:
        table.zero_grad()
        for batch in batches:
            table(batch).sum().backward()
        assert table.weight.grad is not None
        table.weight.grad.coalesce()

    (found,) = signatures_of(trace_iteration(step, device="meta", warmup=0), "aten::_coalesce")
    assert found.tensors()[0].stored == (12, 8)


@pytest.mark.parametrize(
    ("change", "stored"),
    [
        (lambda it: it * 2.0, (5, 4)),
        (lambda it: -it, (5, 4)),
        (lambda it: it / torch.ones((), device="meta"), (5, 4)),
        (lambda it: it + it, (10, 4)),
        (lambda it: it.mul_(3), (5, 4)),
        (lambda it: it.to(torch.bfloat16), (5, 4)),
        (lambda it: it.to_dense(), None),
        (lambda it: torch.zeros(100, 4, device="meta") + it, None),
    ],
)
def test_shapes_of_sparse_tensors_on_the_meta_device(change: Any, stored: tuple[int, ...] | None) -> None:
    sizes: list[Any] = []

    def step() -> None:
        places, values = torch.zeros(1, 5, dtype=torch.long, device="meta"), torch.zeros(5, 4, device="meta")
        found = change(torch.sparse_coo_tensor(places, values, (100, 4), check_invariants=False))
        sizes.append((tuple(found.shape), tuple(found._values().shape) if found.is_sparse else None))

    trace_iteration(step, device="meta", warmup=0)
    assert sizes == [((100, 4), stored)]


def test_torch_makes_sparse_tensors_as_before_after_a_recording() -> None:
    before = torch.Tensor.new
    trace_iteration(build_step("SparseAdam", is_sparse=True), device="meta")
    assert torch.Tensor.new is before


def test_steps_measured_on_a_cpu_tell_sparse_gradients_too() -> None:
    trace = trace_iteration(build_step("Adagrad", is_sparse=True, rows=5000, device="cpu"), device="cpu", repeats=0)
    added = [item.tensors()[1] for item in signatures_of(trace, "aten::add_")]
    rows = {tensor.stored[0] for tensor in added if tensor.shape == (5000, WIDTH) and tensor.stored}
    assert len(rows) == 1
    assert BAGS / 2 < rows.pop() < BAGS * LOOKUPS
