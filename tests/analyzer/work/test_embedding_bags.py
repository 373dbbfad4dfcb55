"""Bags of every kind, by hand: 4,000 lookups in 1,000 bags of a table of 50,000 rows of 32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from wavecast.analyzer.work import work_of
from wavecast.analyzer.work.embedding_dims import EmbeddingDims
from wavecast.analyzer.work.lookup import WorkLookup
from wavecast.formats.trace.signature import Argument, Signature, TensorSpec
from wavecast.tracer import trace_iteration

ROWS, WIDTH, BAGS, LOOKUPS = 50_000, 32, 1_000, 4_000
TABLE, HALF = (TensorSpec(dtype, (ROWS, WIDTH)) for dtype in ("float32", "float16"))
INDICES, OFFSETS, LAST = (TensorSpec("int64", (count,)) for count in (LOOKUPS, BAGS, BAGS + 1))
WEIGHTS = TensorSpec("float32", (LOOKUPS,))
READ_ROWS, RESULTS = LOOKUPS * WIDTH * 4, BAGS * WIDTH * 4
SUM, MEAN, MAX = 0, 1, 2


def bag(
    table: TensorSpec = TABLE, offsets: TensorSpec = OFFSETS, mode: int = SUM, weights: Argument = None, **_: object
) -> tuple[Argument, ...]:
    return (table, INDICES, offsets, False, mode, False, weights, offsets is LAST, -1)


@pytest.mark.parametrize(
    ("arguments", "flops", "read_bytes", "written_bytes"),
    [
        (bag(), LOOKUPS * WIDTH, READ_ROWS + 8 * LOOKUPS + 8 * BAGS, RESULTS),
        (bag(mode=MEAN), LOOKUPS * WIDTH, READ_ROWS + 8 * LOOKUPS + 8 * BAGS, RESULTS),
        # which row each element of a maximum is of, in eight bytes
        (bag(mode=MAX), LOOKUPS * WIDTH, READ_ROWS + 8 * LOOKUPS + 8 * BAGS, 3 * RESULTS),
        (bag(offsets=LAST), LOOKUPS * WIDTH, READ_ROWS + 8 * LOOKUPS + 8 * (BAGS + 1), RESULTS),
        (bag(weights=WEIGHTS), 2 * LOOKUPS * WIDTH, READ_ROWS + 12 * LOOKUPS + 8 * BAGS, RESULTS),
        (bag(table=HALF), LOOKUPS * WIDTH, READ_ROWS / 2 + 8 * LOOKUPS + 8 * BAGS, RESULTS / 2),
    ],
    ids=["sum", "mean", "maximum", "with the last offset", "weighted", "half"],
)
def test_a_bag_reads_its_rows_and_writes_its_results(
    arguments: tuple[Argument, ...], flops: float, read_bytes: float, written_bytes: float
) -> None:
    found = work_of("aten::_embedding_bag", Signature(arguments))
    assert found is not None
    assert (found.flops, found.read_bytes, found.written_bytes) == (flops, read_bytes, written_bytes)
    assert isinstance(found.dims, EmbeddingDims)
    assert found.dims.row_bytes == (64 if arguments[0] is HALF else 128)
    assert (found.dims.rows, found.dims.lookups) == (ROWS, LOOKUPS)
    assert found.dims.streamed_bytes == read_bytes - LOOKUPS * found.dims.row_bytes + written_bytes


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_recorded_steps_are_read_alike(mode: str, dtype: torch.dtype) -> None:
    """Forward and backward of a module, with `include_last_offset`: as many bags as there are."""
    with torch.device("meta"):
        table = nn.EmbeddingBag(ROWS, WIDTH, mode=mode, include_last_offset=True, dtype=dtype)
        indices, offsets = torch.randint(0, ROWS, (LOOKUPS,)), torch.arange(0, LOOKUPS + 1, LOOKUPS // BAGS)
    trace = trace_iteration(lambda: table(indices, offsets).float().square().sum().backward(), device="meta", warmup=0)
    lookup, element_bytes = WorkLookup(trace), dtype.itemsize
    works = {trace.strings[name]: lookup.work(row) for row, name in enumerate(trace.ops.name.tolist())}
    forward, backward = works["aten::_embedding_bag"], works["aten::_embedding_bag_backward"]
    assert forward is not None
    assert forward.written_bytes == BAGS * WIDTH * (element_bytes + 8 * (mode == "max"))
    assert backward is not None
    assert backward.written_bytes == ROWS * WIDTH * element_bytes
    saved = BAGS * WIDTH * 8 * (mode == "max")
    assert backward.read_bytes >= BAGS * WIDTH * element_bytes + LOOKUPS * 8 + saved
    for work in (forward, backward):
        assert isinstance(work.dims, EmbeddingDims)
        assert (work.dims.row_bytes, work.dims.lookups) == (WIDTH * element_bytes, LOOKUPS)


def test_weights_of_lookups_get_gradients_of_their_own() -> None:
    grad, bags = TensorSpec("float32", (BAGS, WIDTH)), INDICES
    call = Signature((grad, TABLE, INDICES, OFFSETS, bags, SUM, -1))
    found = work_of("aten::_embedding_bag_per_sample_weights_backward", call)
    assert found is not None
    assert found.written_bytes == 4 * LOOKUPS
    assert found.read_bytes == RESULTS + READ_ROWS + 2 * 8 * LOOKUPS + 8 * BAGS


def test_deduplicated_indices_cost_the_rows_that_are_left() -> None:
    """`torch.unique`, a lookup of what is left, and the rows put where they belong: each by its own sizes."""
    kept, back = TensorSpec("int64", (700,)), TensorSpec("float32", (LOOKUPS, WIDTH))
    unique = work_of("aten::_unique2", Signature((INDICES, True, True, False), (kept, INDICES)))
    lookup = work_of("aten::embedding", Signature((TABLE, kept)))
    spread = work_of("aten::index_select", Signature((TensorSpec("float32", (700, WIDTH)), 0, INDICES), (back,)))
    assert unique is not None
    assert unique.moved_bytes == 8 * (LOOKUPS + 700 + LOOKUPS)
    assert lookup is not None
    assert lookup.moved_bytes == 700 * (2 * 128 + 8)
    assert spread is not None
    assert spread.moved_bytes == 700 * 128 + LOOKUPS * (8 + 128)
