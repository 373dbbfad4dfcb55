"""FBGEMM's lookups in many tables: what is told by a signature, and what is refused."""

from __future__ import annotations

import pytest
from wavecast.analyzer.work import Family, family_of, work_of
from wavecast.analyzer.work.embedding_dims import EmbeddingDims, EmbeddingStep
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec

TABLES, ROWS, WIDTH, BATCH, LOOKUPS = 3, 1000, 16, 128, 768
FLAT = TensorSpec("float32", (TABLES * ROWS * WIDTH,))
EMPTY = TensorSpec("float32", (0,))
CUMULATED = TensorSpec("int64", (TABLES + 1,))
PER_TABLE = TensorSpec("int64", (TABLES,))
INDICES = TensorSpec("int64", (LOOKUPS,))
OFFSETS = TensorSpec("int64", (TABLES * BATCH + 1,))
GRADIENT = TensorSpec("float32", (BATCH, TABLES * WIDTH))
ADAGRAD = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"


def lookup(*, host: TensorSpec = EMPTY, width: Argument = TABLES * WIDTH, weights: Argument = None) -> Signature:
    placed = (EMPTY, FLAT, host, TensorSpec("float32", (0, 0)), PER_TABLE, PER_TABLE, CUMULATED)
    return Signature((*placed, width, WIDTH, CUMULATED, 12, INDICES, OFFSETS, 0, weights, None, PER_TABLE))


def dims_of(name: str, signature: Signature) -> EmbeddingDims:
    work = work_of(name, signature)
    assert work is not None
    assert isinstance(work.dims, EmbeddingDims)
    return work.dims


def test_a_lookup_in_all_tables() -> None:
    work = work_of(ADAGRAD, lookup())
    assert work is not None
    results, indices, offsets = 4 * BATCH * TABLES * WIDTH, 8 * LOOKUPS, 8 * (TABLES * BATCH + 1)
    assert work.flops == LOOKUPS * WIDTH
    assert work.written_bytes == results
    assert work.read_bytes == LOOKUPS * 4 * WIDTH + indices + offsets
    assert work.least_bytes == work.moved_bytes - (LOOKUPS - TABLES) * 4 * WIDTH
    assert work.dims == EmbeddingDims(
        tables=TABLES,
        rows=ROWS,
        row_bytes=4 * WIDTH,
        lookups=LOOKUPS,
        streamed_bytes=results + indices + offsets,
        blocks=TABLES * BATCH * 8 / 512,
    )


def test_weights_of_lookups_are_read_and_multiplied() -> None:
    plain, weighted = work_of(ADAGRAD, lookup()), work_of(ADAGRAD, lookup(weights=TensorSpec("float32", (LOOKUPS,))))
    assert plain is not None
    assert weighted is not None
    assert weighted.flops == 2 * plain.flops
    assert weighted.read_bytes == plain.read_bytes + 4 * LOOKUPS


def test_tables_of_a_dense_gradient_and_calls_inside_say_the_same() -> None:
    dense = Signature((FLAT, PER_TABLE, CUMULATED, TABLES * WIDTH, WIDTH, CUMULATED, 12, INDICES, OFFSETS, 0, None))
    inside = Signature((FLAT, EMPTY, EMPTY, PER_TABLE, PER_TABLE, CUMULATED, TABLES * WIDTH, WIDTH, INDICES, OFFSETS))
    expected = dims_of(ADAGRAD, lookup())
    assert dims_of("fbgemm::dense_embedding_codegen_lookup_function", dense) == expected
    assert dims_of("fbgemm::split_embedding_codegen_forward_unweighted_cuda", inside) == expected


@pytest.mark.parametrize(
    ("optimizer", "state_bytes"),
    [("sgd", 0.0), ("rowwise_adagrad", 4.0), ("adagrad", 4.0 * WIDTH), ("adam", 8.0 * WIDTH)],
)
def test_a_fused_update_rewrites_rows_and_what_the_optimizer_keeps(optimizer: str, state_bytes: float) -> None:
    tables = (FLAT, EMPTY, EMPTY, PER_TABLE, PER_TABLE, CUMULATED, WIDTH, CUMULATED, 12, INDICES, OFFSETS, 0)
    name = f"fbgemm::split_embedding_backward_codegen_{optimizer}_unweighted_exact_cuda"
    dims = dims_of(name, Signature((GRADIENT, *tables)))
    assert (dims.step, dims.tables, dims.rows, dims.row_bytes) == (EmbeddingStep.UPDATE, TABLES, ROWS, 4.0 * WIDTH)
    assert dims.state_bytes == state_bytes


@pytest.mark.parametrize(
    "signature",
    [
        lookup(host=TensorSpec("float32", (4096,))),
        lookup(width=UNKNOWN),
        lookup(width=-1),
        lookup(width=0),
        Signature(()),
        Signature(lookup().arguments[:11]),
        Signature((EMPTY, EMPTY, *lookup().arguments[2:])),
    ],
)
def test_tables_in_host_memory_and_sizes_that_are_missing_are_not_guessed(signature: Signature) -> None:
    assert work_of(ADAGRAD, signature) is None
    assert family_of(ADAGRAD) is Family.EMBEDDING
