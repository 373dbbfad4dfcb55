"""Every op model has one row, and every part that a row names is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer import models
from wavecast.analyzer.measurements.readers import MEASURED, TABLES, find_reader, table_of
from wavecast.analyzer.models.frame.model import Model, group_of, kind_of
from wavecast.analyzer.models.frame.problems import as_columns, join_problems, problem_columns, problem_count
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.models.registry import (
    OP_MODELS,
    OpModel,
    assign_models,
    columns_of,
    least_work,
    load_model,
    model_of,
    problems_of,
)
from wavecast.analyzer.models.store import read_manifest
from wavecast.analyzer.prediction.op_models import model_times
from wavecast.analyzer.work import Family, Work
from wavecast.analyzer.work.communication import CollectiveDims, CollectiveKind
from wavecast.analyzer.work.embedding_dims import EmbeddingDims
from wavecast.analyzer.work.row_kernels import RowKernel
from wavecast.analyzer.work.work import (
    AttentionDims,
    ConvolutionDims,
    Dims,
    Direction,
    ExpertsDims,
    LatentAttentionDims,
    MatmulDims,
    RecurrentDims,
    RowDims,
    StateRule,
    StateSpaceDims,
)
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

PRODUCT = MatmulDims(m=64, n=128, k=256)
PREFILL = AttentionDims(batch=1, heads=8, kv_heads=8, queries=64, keys=64, query_dim=64, value_dim=64)
BACKWARD = replace(PREFILL, direction=Direction.BOTH_GRADIENTS)
DECODE = AttentionDims(batch=1, heads=8, kv_heads=8, queries=1, keys=64, query_dim=64, value_dim=64)
CONVOLUTION = ConvolutionDims(
    batch=1, c_in=8, c_out=8, groups=1, input_size=(8, 8), output_size=(8, 8), kernel_size=(3, 3), stride=(1, 1)
)
RECURRENT = RecurrentDims(gates=4, layers=1, directions=1, steps=10, batch=4, input_size=32, hidden_size=32)
COLLECTIVE = CollectiveDims(kind=CollectiveKind.ALL_REDUCE, message_bytes=1e5, ranks=8, run=8)
LATENT = LatentAttentionDims(batch=2, heads=16, queries=1, keys=512)
DELTA = StateSpaceDims(rule=StateRule.GATED_DELTA, batch=2, steps=64, heads=4, head_dim=128, state_dim=128)

EXPERTS = ExpertsDims(tokens=64, hidden=128, intermediate=64, experts=8, local_experts=8, top_k=2)
LOOKUP = EmbeddingDims(rows=1000, row_bytes=256, lookups=64, streamed_bytes=1e4)
GROUPED = MatmulDims(batch=8, m=16, n=64, k=128, is_grouped=True)


def work(family: Family, dims: Dims | None = None, *, is_matrix: bool = False, read_bytes: float = 1e5) -> Work:
    return Work(
        family=family,
        flops=1e6,
        read_bytes=read_bytes,
        written_bytes=1e4,
        dtype="bfloat16",
        is_matrix=is_matrix,
        dims=dims,
    )


def product(read_bytes: float = 98304.0) -> Work:
    """Return a product whose operands take 2 bytes per element; less read: packed weights."""
    return work(Family.MATMUL, PRODUCT, is_matrix=True, read_bytes=read_bytes)


CASES = (
    ("matmul", product(), Rate.MATRIX_BF16),
    ("matmul_quantized", product(), Rate.MATRIX_FP8),
    ("matmul_quantized", product(), Rate.MATRIX_INT8),
    ("matmul_quantized", product(read_bytes=2 * 64 * 256 + 128 * 256 / 2), Rate.MATRIX_BF16),
    ("matmul_simt", product(), Rate.MATRIX_FP32),
    ("matmul_simt", product(), Rate.FP64),
    ("attention_prefill", work(Family.ATTENTION, PREFILL, is_matrix=True), Rate.MATRIX_BF16),
    (
        "attention_decode",
        work(Family.ATTENTION, replace(DECODE, queries=4, keys=128), is_matrix=True),
        Rate.MATRIX_BF16,
    ),
    (
        "attention_prefill",
        work(Family.ATTENTION, replace(DECODE, queries=4, keys=127), is_matrix=True),
        Rate.MATRIX_BF16,
    ),
    (
        "attention_prefill",
        work(Family.ATTENTION, replace(DECODE, queries=9, keys=999), is_matrix=True),
        Rate.MATRIX_BF16,
    ),
    ("attention_backward", work(Family.ATTENTION, BACKWARD, is_matrix=True), Rate.MATRIX_BF16),
    ("attention_backward", work(Family.ATTENTION, replace(BACKWARD, queries=1), is_matrix=True), Rate.MATRIX_BF16),
    ("attention_decode", work(Family.ATTENTION, DECODE, is_matrix=True), Rate.MATRIX_BF16),
    ("convolution", work(Family.CONVOLUTION, CONVOLUTION, is_matrix=True), Rate.MATRIX_BF16),
    ("recurrent", work(Family.RECURRENT, RECURRENT, is_matrix=True), Rate.MATRIX_BF16),
    ("collective", work(Family.COLLECTIVE, COLLECTIVE), Rate.MATRIX_BF16),
    ("latent_attention", work(Family.ATTENTION, LATENT, is_matrix=True), Rate.MATRIX_BF16),
    ("state_space", work(Family.STATE_SPACE, DELTA, is_matrix=True), Rate.MATRIX_BF16),
    ("experts", work(Family.EXPERTS, EXPERTS, is_matrix=True), Rate.MATRIX_BF16),
    ("matmul", work(Family.MATMUL, GROUPED, is_matrix=True), Rate.MATRIX_BF16),
    ("embedding", work(Family.EMBEDDING, LOOKUP), Rate.FP32),
    ("vector", work(Family.EMBEDDING, RowDims(rows=8, columns=64, table_rows=99)), Rate.FP32),
    ("vector", work(Family.NORMALIZATION, RowDims(rows=8, columns=64)), Rate.FP32),
    ("vector", work(Family.COPY), Rate.FP32),
    ("vector", work(Family.RECURRENT), Rate.FP32),
    (None, work(Family.CONVOLUTION, is_matrix=True), Rate.MATRIX_BF16),
    (None, work(Family.ATTENTION), Rate.FP32),
    (None, work(Family.RECURRENT, is_matrix=True), Rate.MATRIX_BF16),
    (None, work(Family.STATE_SPACE), Rate.FP32),
    (None, work(Family.COLLECTIVE), Rate.FP32),
    (None, work(Family.SORT), Rate.FP32),
    (None, work(Family.VIEW), Rate.FP32),
    ("reduction", work(Family.POOLING, RowDims(rows=8, columns=9, kernel=RowKernel.POOL)), Rate.FP32),
)


@pytest.mark.parametrize(("name", "given", "rate"), CASES)
def test_a_work_has_the_model_of_its_sizes_and_unit(name: str | None, given: Work, rate: Rate) -> None:
    found = model_of(given, rate)
    assert (found and found.name) == name


@pytest.mark.parametrize("name", OP_MODELS)
def test_every_row_has_a_work_that_it_covers(name: str) -> None:
    covered = {case[0] for case in CASES if case[0]}
    assert name in covered | {OP_MODELS[other].amd for other in covered}


@pytest.mark.parametrize("row", OP_MODELS.values(), ids=OP_MODELS)
def test_the_model_of_a_row_has_its_name(row: OpModel) -> None:
    found = load_model(row)
    assert isinstance(found, Model)
    assert found.name == row.name


@pytest.mark.parametrize(("name", "given", "rate"), [case for case in CASES if case[0]])
def test_problems_and_least_work_of_a_row_are_as_many_as_its_works(name: str, given: Work, rate: Rate) -> None:
    row = OP_MODELS[name]
    problems = problems_of(row, [given, given], [rate, rate])
    joined = join_problems([problems, problems])
    assert problem_count(joined) == 4
    assert {column.shape for column in problem_columns(as_columns(joined)).values()} == {(4, 1)}
    model = load_model(row)
    assert len(group_of(model, problems)) == len(kind_of(model, problems)) == 2
    if row.is_measured:
        least = least_work(row, problems)
        assert len(least.flops) == len(least.moved_bytes) == len(least.rate) == 2
        assert (least.flops > 0).all()
        assert (least.moved_bytes > 0).all()
        assert all(isinstance(item, Rate) for item in least.rate)


def test_every_family_with_a_model_has_a_row() -> None:
    folder = Path(models.__file__).parent
    assert {path.parent.name for path in folder.glob("*/problems.py")} - {"frame"} == {
        row.family for row in OP_MODELS.values()
    }


def test_every_model_with_weights_has_a_row() -> None:
    assert set(read_manifest()["models"]) == set(OP_MODELS)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.name)
def test_a_measured_row_has_a_reader_and_a_table(row: OpModel) -> None:
    assert callable(find_reader(row))
    assert table_of(row) in TABLES


def test_works_are_assigned_to_the_models_at_hand() -> None:
    works = [case[1] for case in CASES]
    rates = np.array([case[2] for case in CASES], dtype=object)
    found = {item.model: item.rows.tolist() for item in assign_models(works, rates, {"matmul", "vector"})}
    assert found == {"matmul": [0, 19], "vector": [21, 22, 23, 24]}


def test_convolutions_are_of_the_library_of_each_vendor() -> None:
    names = ("Instinct MI100", "Tesla V100 SXM2 16GB", "Instinct MI250X (1 GCD)")
    gpus = [find_gpu(load_catalog(), name) for name in names]
    rates, library = np.array([Rate.MATRIX_FP16], dtype=object), load_library()
    found = assign_models([work(Family.CONVOLUTION, CONVOLUTION, is_matrix=True)], rates, library.fitted)
    assert [item.model for item in found] == ["convolution", "convolution_miopen"]
    assert [columns_of(item.model, build_fleet(gpus)).tolist() for item in found] == [[1], [0, 2]]
    assert columns_of("matmul", build_fleet(gpus)).tolist() == [0, 1, 2]
    together = model_times(found, 1, build_fleet(gpus), library)
    for column, gpu in enumerate(gpus):
        here, alone = together.on(column), model_times(found, 1, build_fleet([gpu]), library)
        for name in ("time_ns", "half_width", "anchored_half_width", "anchor"):
            assert getattr(here, name).tolist() == getattr(alone, name).tolist()


def test_an_op_that_computes_nothing_has_no_model() -> None:
    assert assign_models([replace(product(), flops=0.0), None], np.array([Rate.MATRIX_BF16] * 2), OP_MODELS) == []


BATCHED = replace(
    work(Family.MATMUL, MatmulDims(batch=3, m=5, n=7, k=11), is_matrix=True), read_bytes=792.0, written_bytes=210.0
)
SINGLE = replace(BATCHED, dims=MatmulDims(m=5, n=7, k=11), read_bytes=264.0, written_bytes=70.0)


@pytest.mark.parametrize(
    ("name", "given", "rate", "flops", "moved_bytes"),
    [
        ("matmul", BATCHED, Rate.MATRIX_BF16, 2 * 3 * 5 * 7 * 11, 3 * (5 * 11 + 11 * 7 + 5 * 7) * 2),
        ("matmul", SINGLE, Rate.MATRIX_BF16, 2 * 5 * 7 * 11, (5 * 11 + 11 * 7 + 5 * 7) * 2),
        ("matmul_simt", BATCHED, Rate.FP32, 2 * 3 * 5 * 7 * 11, 3 * (5 * 11 + 11 * 7 + 5 * 7) * 2),
        ("convolution", CASES[13][1], Rate.MATRIX_BF16, 2 * 8 * 8 * 8 * 8 * 9, 2 * (2 * 8 * 8 * 8 + 8 * 8 * 9)),
    ],
)
def test_the_least_work_is_each_operation_and_each_byte_once(
    name: str, given: Work, rate: Rate, flops: float, moved_bytes: float
) -> None:
    found = least_work(OP_MODELS[name], problems_of(OP_MODELS[name], [given], [rate]))
    assert (found.flops.tolist(), found.moved_bytes.tolist()) == ([flops], [moved_bytes])
