"""Rows and columns of ops that treat vectors alike."""

from __future__ import annotations

import pytest
from wavecast.analyzer.work import work_of
from wavecast.analyzer.work.work import RowDims
from wavecast.formats.signature import UNKNOWN, Argument, Signature, TensorSpec


def tensor(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(dtype, shape)


BATCH = (tensor(8, 3, 5), tensor(3), tensor(3), tensor(3), tensor(3))
MASK = (True, True, True)
# op, arguments, rows, columns
CASES: list[tuple[str, tuple[Argument, ...], int, int]] = [
    ("aten::native_layer_norm", (tensor(2, 7, 16), (16,), None, None, 1e-5), 14, 16),
    ("aten::layer_norm", (tensor(2, 7, 16), (7, 16), None, None, 1e-5), 2, 112),
    ("aten::rms_norm", (tensor(6, 16), (16,), None), 6, 16),
    ("aten::native_layer_norm_backward", (*[tensor(6, 16)] * 2, (16,), *[tensor(6, 1)] * 2, None, None, MASK), 6, 16),
    ("aten::_fused_rms_norm_backward", (*[tensor(6, 16)] * 2, (16,), tensor(6, 1), tensor(16), (True, True)), 6, 16),
    ("aten::group_norm", (tensor(2, 6, 4, 4), 3, None, None), 6, 32),
    # statistics per channel
    ("aten::native_batch_norm", (*BATCH, True, 0.1, 1e-5), 3, 40),
    ("aten::batch_norm_stats", (tensor(8, 3, 5), 1e-5), 3, 40),
    ("aten::native_batch_norm_backward", (*[tensor(8, 3, 5)] * 2, *[tensor(3)] * 5, True, 1e-5, MASK), 3, 40),
    ("aten::_softmax", (tensor(4, 9, 5), -1, False), 36, 5),
    ("aten::_log_softmax", (tensor(4, 9, 5), 1, False), 20, 9),
    ("aten::softmax", (tensor(), 0), 1, 1),
    ("aten::_softmax_backward_data", (tensor(4, 9), tensor(4, 9), 0, 6), 9, 4),
    ("aten::_masked_softmax", (tensor(4, 9), tensor(4, 9, dtype="bool"), 0), 9, 4),
    # the dim was not recorded: the last one
    ("aten::_softmax", (tensor(4, 9), UNKNOWN, False), 4, 9),
    ("aten::sum", (tensor(4, 9, 5), (0, 2)), 9, 20),
    ("aten::mean", (tensor(4, 9),), 1, 36),
    ("aten::max", (tensor(4, 9), 1, False), 4, 9),
    ("aten::embedding", (tensor(100, 64), tensor(3, 7, dtype="int64")), 21, 64),
    ("aten::index_select", (tensor(100, 64), 0, tensor(7, dtype="int64")), 7, 64),
]


@pytest.mark.parametrize(("name", "arguments", "rows", "columns"), CASES)
def test_rows_and_columns(name: str, arguments: tuple[Argument, ...], rows: int, columns: int) -> None:
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert work.dims == RowDims(rows=rows, columns=columns)


def test_recorded_results_tell_the_rows_of_a_reduction() -> None:
    work = work_of("aten::sum", Signature((tensor(4, 9, 5), UNKNOWN), (tensor(4),)))
    assert work is not None
    assert work.dims == RowDims(rows=4, columns=45)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::native_batch_norm", (*BATCH, False, 0.1, 1e-5)),
        ("aten::cumsum", (tensor(4, 9), 1)),
        ("aten::embedding_dense_backward", (tensor(7, 64), tensor(7, dtype="int64"), 100, -1, False)),
    ],
)
def test_others_have_only_their_totals(name: str, arguments: tuple[Argument, ...]) -> None:
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert work.dims is None
