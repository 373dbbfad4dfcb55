"""Sizes of matrix products that calls hold."""

from __future__ import annotations

import pytest
from wavecast.analyzer.work import work_of
from wavecast.analyzer.work.work import MatmulDims
from wavecast.formats.trace.signature import Argument, Signature, TensorSpec


def spec(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(dtype, shape, None)


OFFSETS = spec(3, dtype="int32")
CASES: list[tuple[str, tuple[Argument, ...], MatmulDims]] = [
    ("aten::mm", (spec(2, 3), spec(3, 4)), MatmulDims(m=2, n=4, k=3)),
    ("aten::addmm", (spec(4), spec(2, 3), spec(3, 4)), MatmulDims(m=2, n=4, k=3)),
    ("aten::bmm", (spec(5, 2, 3), spec(5, 3, 4)), MatmulDims(batch=5, m=2, n=4, k=3)),
    ("aten::baddbmm", (spec(5, 2, 4), spec(5, 2, 3), spec(5, 3, 4)), MatmulDims(batch=5, m=2, n=4, k=3)),
    # a sum over the batch is one product that is as deep as all together
    ("aten::addbmm", (spec(2, 4), spec(5, 2, 3), spec(5, 3, 4)), MatmulDims(m=2, n=4, k=15)),
    # a matrix on the right folds the left one's leading sizes into its rows
    ("aten::matmul", (spec(7, 2, 3), spec(3, 4)), MatmulDims(m=14, n=4, k=3)),
    ("aten::matmul", (spec(7, 2, 3), spec(7, 3, 4)), MatmulDims(batch=7, m=2, n=4, k=3)),
    ("aten::linear", (spec(7, 2, 3), spec(4, 3), spec(4)), MatmulDims(m=14, n=4, k=3, is_k_contiguous=True)),
    ("aten::linear_backward", (spec(2, 3), spec(2, 4), spec(4, 3), (True, False, True)), MatmulDims(m=2, n=3, k=4)),
    (
        "aten::linear_backward",
        (spec(2, 3), spec(2, 4), spec(4, 3), (True, True, True)),
        MatmulDims(batch=2, m=2, n=3, k=4),
    ),
    ("aten::_int_mm", (spec(2, 3, dtype="int8"), spec(3, 4, dtype="int8")), MatmulDims(m=2, n=4, k=3)),
    ("aten::_weight_int4pack_mm", (spec(2, 64), spec(1, 4, 32, 4), 32, spec(2, 8, 2)), MatmulDims(m=2, n=8, k=64)),
    ("aten::_grouped_mm", (spec(10, 3), spec(3, 3, 4), OFFSETS), MatmulDims(batch=3, m=3, n=4, k=3, is_grouped=True)),
    ("aten::_grouped_mm", (spec(4, 10), spec(10, 5), OFFSETS), MatmulDims(batch=3, m=4, n=5, k=3, is_grouped=True)),
    ("aten::_grouped_mm", (spec(3, 4, 10), spec(10, 6), OFFSETS), MatmulDims(batch=3, m=4, n=2, k=10, is_grouped=True)),
    # of 9 groups that 9 rows choose at random 6 have any
    ("aten::_grouped_mm", (spec(9, 3), spec(9, 3, 4), OFFSETS), MatmulDims(batch=6, m=2, n=4, k=3, is_grouped=True)),
    ("aten::_grouped_mm", (spec(3, 4, 10), spec(3, 10, 6), None), MatmulDims(batch=3, m=4, n=6, k=10)),
]


@pytest.mark.parametrize(("name", "arguments", "dims"), CASES)
def test_product_holds_its_sizes(name: str, arguments: tuple[Argument, ...], dims: MatmulDims) -> None:
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert work.dims == dims


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::mv", (spec(2, 3), spec(3))),
        ("aten::dot", (spec(3), spec(3))),
        ("aten::outer", (spec(3), spec(5))),
        ("aten::matmul", (spec(2, 3), spec(3))),
    ],
)
def test_product_with_a_vector_is_no_tiled_product(name: str, arguments: tuple[Argument, ...]) -> None:
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert work.dims is None
    assert not work.is_matrix
