"""Sparse tensors cost what they store: 20 lookups in a table of a thousand rows of 4, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wavecast.analyzer.work import Family, Work, work_of
from wavecast.analyzer.work.collective import with_ranks
from wavecast.analyzer.work.communication import CollectiveDims, CollectiveFacts, CollectiveKind
from wavecast.analyzer.work.embedding_dims import EmbeddingDims, EmbeddingStep
from wavecast.formats.trace.signature import Argument, Signature, TensorSpec, format_shapes

TABLE = TensorSpec("float32", (1000, 4), (4, 1))
SPARSE = TensorSpec("float32", (1000, 4), None, (20, 4))
OTHER = TensorSpec("float32", (1000, 4), None, (5, 4))
GRAD = TensorSpec("float32", (8, 4))
INDICES, OFFSETS = TensorSpec("int64", (20,)), TensorSpec("int64", (8,))
VALUES, PLACES = 20 * 4 * 4, 20 * 8
OTHER_VALUES, OTHER_PLACES = 5 * 4 * 4, 5 * 8
ALL = 1000 * 4 * 4
WEIGHTS = TensorSpec("float32", (20,))


@pytest.mark.parametrize(
    ("name", "arguments", "flops", "read_bytes", "written_bytes"),
    [
        # in place: values, their places and the rows that they are added to
        ("aten::add_", (TABLE, SPARSE, -0.1), 160, 2 * VALUES + PLACES, VALUES),
        ("aten::add_", (TABLE, SPARSE, 1), 80, 2 * VALUES + PLACES, VALUES),
        ("aten::sub_.Tensor", (TABLE, SPARSE, 1), 80, 2 * VALUES + PLACES, VALUES),
        # as profiles nest it: into a result that is given
        ("aten::add", (TABLE, SPARSE, 1, TABLE), 80, 2 * VALUES + PLACES, VALUES),
        # more stored rows than the table has touch all of it
        ("aten::add_", (TensorSpec("float32", (2, 4)), SPARSE, 1), 80, VALUES + PLACES + 32, 32),
        # into a new tensor: the whole table is copied
        ("aten::add", (TABLE, SPARSE, 1), 80, ALL + VALUES + PLACES, ALL),
        ("aten::add_", (SPARSE, OTHER, 1), 0, *(VALUES + PLACES + OTHER_VALUES + OTHER_PLACES,) * 2),
        ("aten::add", (SPARSE, OTHER, 1), 0, *(VALUES + PLACES + OTHER_VALUES + OTHER_PLACES,) * 2),
        ("aten::sparse_mask", (TABLE, SPARSE), 0, *(VALUES + PLACES,) * 2),
        ("aten::_to_dense", (SPARSE,), 0, VALUES + PLACES, ALL),
        # what has no formula of its own costs what its values alone would
        ("aten::mul", (SPARSE, 2.0), 80, VALUES, VALUES),
        ("aten::clone", (SPARSE, None), 0, VALUES, VALUES),
        ("aten::_foreach_mul_", ((SPARSE, OTHER), 0.9), 100, *(VALUES + OTHER_VALUES,) * 2),
        # an EmbeddingBag's gradient: each bag's row once per index
        ("aten::_embedding_bag_sparse_backward", (GRAD, INDICES, OFFSETS, INDICES, OFFSETS, 1000, False, 0, None, -1),
         0, 8 * 4 * 4 + PLACES, VALUES),
        ("aten::_embedding_bag_sparse_backward", (GRAD, INDICES, OFFSETS, INDICES, OFFSETS, 1000, False, 0, WEIGHTS),
         80, 8 * 4 * 4 + PLACES + 80 + VALUES, VALUES),
        ("aten::_embedding_bag_backward",
         (GRAD, INDICES, OFFSETS, INDICES, OFFSETS, OFFSETS, 1000, False, 0, True, None, -1),
         0, 8 * 4 * 4 + PLACES, VALUES),
        ("aten::_embedding_bag_backward",
         (GRAD, INDICES, OFFSETS, INDICES, OFFSETS, OFFSETS, 1000, False, 0, False, None, -1),
         80, 8 * 4 * 4 + 2 * PLACES + 3 * 64, ALL),
    ],
)  # fmt: skip
def test_work_is_that_of_the_stored_rows(
    name: str, arguments: tuple[Argument, ...], flops: float, read_bytes: float, written_bytes: float
) -> None:
    found = known(name, arguments)
    assert (found.flops, found.read_bytes, found.written_bytes) == (flops, read_bytes, written_bytes)


def known(name: str, arguments: tuple[Argument, ...], results: tuple[Argument, ...] = ()) -> Work:
    found = work_of(name, Signature(arguments, results))
    assert found is not None, name
    return found


def test_rows_of_the_same_index_are_joined_after_a_sort() -> None:
    found = known("aten::_coalesce", (SPARSE,), (OTHER,))
    assert found.flops == pytest.approx(20 * 4.3219 + 80, rel=1e-4)
    assert (found.read_bytes, found.written_bytes) == (VALUES + PLACES, OTHER_VALUES + OTHER_PLACES)


def test_a_table_of_any_size_costs_the_same() -> None:
    small, large = (
        known("aten::add_", (TensorSpec("float32", (count, 4)), TensorSpec("float32", (count, 4), None, (20, 4)), 1))
        for count in (1000, 10**9)
    )
    assert replace(small, dims=None) == replace(large, dims=None)
    assert isinstance(large.dims, EmbeddingDims)
    assert (large.dims.step, large.dims.lookups, large.dims.rows) == (EmbeddingStep.UNSORTED_UPDATE, 20, 10**9)


@pytest.mark.parametrize("name", ["aten::_sparse_coo_tensor_with_dims_and_tensors", "aten::embedding_sparse_backward"])
def test_what_only_puts_indices_beside_values_moves_nothing(name: str) -> None:
    assert known(name, (GRAD, INDICES, 1000, -1, False)).family is Family.VIEW


def test_a_dense_layers_gradient_keeps_its_cost() -> None:
    dense = known("aten::embedding_backward", (GRAD, OFFSETS, 1000, -1, False, False))
    assert dense.written_bytes == ALL
    assert work_of("aten::embedding_backward", Signature((GRAD, OFFSETS, 1000, -1, False, True))) is None


def test_mixing_sparse_and_dense_without_a_formula_is_not_guessed() -> None:
    assert work_of("aten::mm", Signature((SPARSE, TensorSpec("float32", (4, 7))))) is None


def test_a_result_of_which_one_part_was_seen_does_not_count() -> None:
    """The profiler's tree shows the indices that a copy of a sparse tensor made, not the copy."""
    assert known("aten::clone", (SPARSE, None), (TensorSpec("int64", (1, 20)),)).written_bytes == VALUES


def test_reports_show_what_is_stored() -> None:
    assert format_shapes(Signature((TABLE, SPARSE))) == "float32[1000,4] float32[1000,4] sparse[20,4]"


@pytest.mark.parametrize("name", ["c10d::allreduce_", "c10d::allreduce_coalesced_"])
def test_an_all_reduce_of_sparse_gradients_gathers_them(name: str) -> None:
    """Each rank gets the rows and the indices of all eight; how many ranks there are the group says."""
    found = known(name, ((SPARSE, OTHER),))
    own = VALUES + PLACES + OTHER_VALUES + OTHER_PLACES
    assert (found.read_bytes, found.flops) == (own, 100)
    asked = with_ranks(name, found, CollectiveFacts(ranks=8, run=8, stride=1))
    assert asked is not None
    assert isinstance(asked.dims, CollectiveDims)
    assert (asked.dims.kind, asked.dims.message_bytes, asked.dims.ranks) == (CollectiveKind.ALL_GATHER, 8 * own, 8)
    lost = with_ranks(name, found, CollectiveFacts(ranks=-1, run=-1, stride=1))
    assert lost is not None
    assert lost.dims is None


def test_rows_are_the_embedding_models() -> None:
    """Added to their table each rewrites its row; coalesced they are as many as are different."""
    added, joined = known("aten::add_", (TABLE, SPARSE, 1)), known("aten::_coalesce", (SPARSE,))
    for work, step in ((added, EmbeddingStep.UNSORTED_UPDATE), (joined, EmbeddingStep.COALESCE)):
        assert work.dims == EmbeddingDims(
            step=step, rows=1000, row_bytes=16, lookups=20, streamed_bytes=VALUES + PLACES
        )
        assert work.least_bytes < work.moved_bytes
    assert known("aten::_coalesce", (SPARSE,), (OTHER,)).dims is None
    """How many are different was recorded."""


def test_sparse_matrices_are_no_tables() -> None:
    matrix = TensorSpec("float32", (50, 50), None, (200,))
    assert known("aten::add_", (TensorSpec("float32", (50, 50)), matrix, 1)).dims is None


def test_a_product_with_a_sparse_operand_of_unknown_size_has_no_work() -> None:
    sparse, dense = TensorSpec("float32", (200, 200)), TensorSpec("float32", (200, 64), (64, 1))
    assert work_of("aten::mm", Signature((sparse, dense))) is None
    assert work_of("aten::mm", Signature((sparse, replace(dense, strides=None)))) is not None
    vector, turned = TensorSpec("float32", (200,), (1,)), TensorSpec("float32", (64, 200), (200, 1))
    batches = TensorSpec("float32", (4, 200, 200)), TensorSpec("float32", (4, 200, 64), (12800, 64, 1))
    asked = ("matmul", (sparse, dense)), ("linear", (turned, sparse)), ("mv", (sparse, vector)), ("bmm", batches)
    for name, operands in asked:
        assert work_of(f"aten::{name}", Signature(operands)) is None
        assert work_of(f"aten::{name}", Signature(tuple(replace(one, strides=None) for one in operands))) is not None
