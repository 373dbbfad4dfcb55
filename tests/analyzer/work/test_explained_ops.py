"""Which ops stand for GPU work where no kernel was recorded."""

from __future__ import annotations

from wavecast.analyzer.work.lookup import explained_ops
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import OpTable, Trace

IMAGE, WEIGHT, BIAS = (TensorSpec("float32", shape) for shape in ((4, 3, 32, 32), (8, 3, 3, 3), (8,)))
OUTPUT = TensorSpec("float32", (4, 8, 32, 32))
CONVOLUTION = Signature((IMAGE, WEIGHT, BIAS, (1, 1), (1, 1), (1, 1), False, (0, 0), 1), (OUTPUT,))
SUM = Signature((OUTPUT, TensorSpec("float32", (8, 1, 1)), 1), (OUTPUT,))
GRADIENT = Signature(
    (OUTPUT, IMAGE, WEIGHT, (8,), (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (True, True, True)), (IMAGE, WEIGHT, BIAS)
)
BIAS_SUM = Signature((OUTPUT, (0, 2, 3)), (BIAS,))


def nested(*calls: tuple[str, int, int]) -> Trace:
    """Ops by name, signature (0: convolution, 1: sum, 2: gradient, 3: sum of its bias) and parent."""
    return Trace(
        strings=tuple(name for name, _, _ in calls),
        signatures=(CONVOLUTION, SUM, GRADIENT, BIAS_SUM),
        ops=build_table(
            OpTable,
            len(calls),
            name=list(range(len(calls))),
            signature=[signature for _, signature, _ in calls],
            parent=[parent for _, _, parent in calls],
        ),
    )


def test_a_convolution_counts_itself_and_not_the_bias_inside() -> None:
    trace = nested(("aten::miopen_convolution", 0, -1), ("aten::add_", 1, 0))
    assert explained_ops(trace).tolist() == [0]


def test_the_sum_of_a_bias_counts_beside_the_gradient_around_it() -> None:
    trace = nested(("aten::convolution_backward", 2, -1), ("aten::copy_", 1, 0), ("aten::sum", 3, 0))
    assert explained_ops(trace).tolist() == [0, 2]
    trace = nested(("aten::miopen_convolution", 0, -1), ("aten::sum", 3, 0))
    assert explained_ops(trace).tolist() == [0]


def test_of_nested_convolutions_the_innermost_counts() -> None:
    trace = nested(
        ("aten::conv2d", 0, -1), ("aten::convolution", 0, 0), ("aten::miopen_convolution", 0, 1), ("aten::add_", 1, 2)
    )
    assert explained_ops(trace).tolist() == [2]


def test_ops_beside_it_count_too() -> None:
    trace = nested(("aten::convolution", 0, -1), ("aten::add_", 1, -1))
    assert explained_ops(trace).tolist() == [0, 1]


def test_what_another_library_launches_beside_allocations_is_counted_as_unknown() -> None:
    allocating = nested(("quantized::linear_dynamic", 1, -1), ("aten::empty", 1, 0), ("aten::empty_like", 1, 0))
    assert explained_ops(allocating).tolist() == [0]
    composed = nested(("torchvision::deform_conv2d", 1, -1), ("aten::empty", 1, 0), ("aten::convolution", 0, 0))
    assert explained_ops(composed).tolist() == [2]


def test_a_product_of_unknown_size_counts_as_unknown_beside_what_it_fills() -> None:
    filling = (("aten::fill_", 1, 1), ("aten::sparse_dim", 1, 1))
    assert explained_ops(nested(("aten::matmul", 3, -1), ("aten::mm", 3, 0), *filling)).tolist() == [1, 2]


def test_a_view_that_is_recorded_twice_is_no_unknown_op() -> None:
    assert explained_ops(nested(("aten::detach", 1, -1), ("detach", 1, 0))).tolist() == []
