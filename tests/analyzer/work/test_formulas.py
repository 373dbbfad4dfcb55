"""Hand-computed work of single calls."""

from __future__ import annotations

import pytest
from wavecast.analyzer.work import Family, Work, family_of, work_of
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec


def tensor(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(dtype, shape, strides)


def half(*shape: int, strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec("float16", shape, strides)


def index(*shape: int) -> TensorSpec:
    return TensorSpec("int64", shape)


def call(*arguments: Argument, results: tuple[Argument, ...] = ()) -> Signature:
    return Signature(arguments, results)


def known(name: str, signature: Signature) -> Work:
    work = work_of(name, signature)
    assert work is not None, (name, signature)
    return work


# op, call, FLOPs, bytes read, bytes written
CASES: list[tuple[str, Signature, float, float, float]] = [
    # 2·2·3·4 FLOP; 6 + 12 floats in, 8 out
    ("aten::mm", call(tensor(2, 3), tensor(3, 4)), 48, 72, 32),
    ("aten::mm", call(half(2, 3), half(3, 4)), 48, 36, 16),
    # squares and ones widen the rows by 2
    ("aten::_euclidean_dist", call(tensor(5, 2, 3), tensor(5, 4, 3)), 2 * 5 * 2 * 4 * 5, 360, 160),
    ("aten::_cdist_backward", call(tensor(4, 6), tensor(4, 3), tensor(6, 3), 1.0, tensor(4, 6)), 360, 312, 48),
    ("aten::_pdist_forward", call(tensor(4, 3), 2.0), 3 * 6 * 3, 48, 24),
    ("aten::polygamma", call(1, tensor(6)), 24, 24, 24),
    (
        "aten::segment_reduce",
        call(tensor(6, 2), "sum", index(3), results=(tensor(3, 2),)),
        12, 72, 24,
    ),
    # the bias, expanded over the rows, is 4 elements
    ("aten::addmm", call(tensor(2, 4, strides=(0, 1)), tensor(2, 3), tensor(3, 4), 1, 1), 48, 88, 32),
    ("aten::addmm", call(tensor(2, 4), tensor(2, 3), tensor(3, 4), 0, 1), 48, 72, 32),
    ("aten::bmm", call(tensor(5, 2, 3), tensor(5, 3, 4)), 240, 360, 160),
    # one matrix expanded over the batch is read once
    ("aten::bmm", call(tensor(5, 2, 3, strides=(6, 3, 1)), tensor(5, 3, 4, strides=(0, 4, 1))), 240, 168, 160),
    ("aten::addbmm", call(tensor(2, 4), tensor(5, 2, 3), tensor(5, 3, 4)), 240, 392, 32),
    ("aten::mv", call(tensor(2, 3), tensor(3)), 12, 36, 8),
    ("aten::addmv", call(tensor(2), tensor(2, 3), tensor(3)), 12, 44, 8),
    ("aten::dot", call(tensor(3), tensor(3)), 6, 24, 4),
    ("aten::outer", call(tensor(3), tensor(5)), 15, 32, 60),
    ("aten::matmul", call(tensor(7, 2, 3), tensor(3, 4)), 336, 216, 224),
    ("aten::matmul", call(tensor(3), tensor(3)), 6, 24, 4),
    ("aten::linear", call(tensor(7, 2, 3), tensor(4, 3), tensor(4)), 336, 232, 224),
    ("aten::linear_backward", call(tensor(2, 3), tensor(2, 4), tensor(4, 3), (True, True, True)), 96, 104, 88),
    ("aten::_int_mm", call(tensor(2, 3, dtype="int8"), tensor(3, 4, dtype="int8")), 48, 18, 32),
    (
        "aten::_scaled_mm",
        call(
            tensor(2, 3, dtype="float8_e4m3fn"), tensor(3, 4, dtype="float8_e4m3fn"), tensor(), tensor(), None, None,
            "bfloat16",
        ),
        48, 26, 16,
    ),
    # two groups of rows, three experts
    ("aten::_grouped_mm", call(half(10, 3), half(3, 3, 4), tensor(3, dtype="int32")), 240, 60 + 72 + 12, 80),
    ("aten::_grouped_mm", call(half(4, 10), half(10, 5), tensor(3, dtype="int32")), 400, 80 + 100 + 12, 120),
    # 2·2 images·4·4 places·3·3 kernel·3·5 channels
    (
        "aten::cudnn_convolution",
        call(tensor(2, 3, 6, 6), tensor(5, 3, 3, 3), (0, 0), (1, 1), (1, 1), 1, False, False, True),
        8640, 4 * (216 + 135), 4 * 160,
    ),
    # torch before 1.8: a bias third
    (
        "aten::cudnn_convolution",
        call(tensor(2, 3, 6, 6), tensor(5, 3, 3, 3), tensor(5), (0, 0), (1, 1), (1, 1), 1),
        8640, 4 * (216 + 135 + 5), 4 * 160,
    ),
    (
        "aten::miopen_convolution",
        call(tensor(2, 3, 6, 6), tensor(5, 3, 3, 3), tensor(5), (1, 1), (2, 2), (1, 1), 1),
        2 * 2 * 9 * 135, 4 * (216 + 135 + 5), 4 * 90,
    ),
    (
        "aten::_conv_depthwise2d",
        call(tensor(2, 3, 6, 6), tensor(3, 1, 3, 3), (3, 3), None, (1, 1), (1, 1), (1, 1)),
        2 * 2 * 36 * 27, 4 * (216 + 27), 4 * 216,
    ),
    # a quarter of the pixels lies under a filter
    (
        "aten::cudnn_convolution",
        call(tensor(2, 3, 8, 8), tensor(5, 3, 1, 1), (0, 0), (2, 2), (1, 1), 1, False, False, False),
        2 * 32 * 15, 4 * (96 + 15), 4 * 160,
    ),
    (
        "aten::convolution_backward",
        call(
            tensor(2, 5, 4, 4), tensor(2, 3, 8, 8), tensor(5, 3, 1, 1), (5,), (2, 2), (0, 0), (1, 1), False, (0, 0), 1,
            (False, True, False),
        ),
        2 * 32 * 15, 4 * (160 + 96), 4 * 15,
    ),
    (
        "aten::cudnn_convolution_transpose",
        call(tensor(1, 4, 5, 5), tensor(4, 2, 2, 2), (0, 0), (0, 0), (2, 2), (1, 1), 3),
        2 * 25 * 32, 4 * (100 + 32), 4 * 6 * 100,
    ),
    # grads of input (576 floats), weight (135) and bias (5) of a 2×5×4×4 gradient
    (
        "aten::convolution_backward",
        call(
            tensor(2, 5, 4, 4), tensor(2, 3, 6, 6), tensor(5, 3, 3, 3), (5,), (1, 1), (0, 0), (1, 1), False, (0, 0), 1,
            (True, True, True),
        ),
        17280, 4 * (160 + 135 + 216), 4 * (216 + 135 + 5),
    ),
    # b2 h4 q10 k17 d8: 2·8·10·17·16 FLOP; q, k, v halves in; out halves and 80 float32 log-sum-exps
    (
        "aten::_scaled_dot_product_flash_attention",
        call(half(2, 4, 10, 8), half(2, 4, 17, 8), half(2, 4, 17, 8), 0.0, True),
        43520, 2 * (640 + 2 * 1088), 2 * 640 + 4 * 80,
    ),
    # the same, heads after the sequence
    (
        "aten::_flash_attention_forward",
        call(half(2, 10, 4, 8), half(2, 17, 4, 8), half(2, 17, 4, 8), None, None, 10, 17, 0.0, False, False),
        43520, 2 * (640 + 2 * 1088), 2 * 640 + 4 * 80,
    ),
    (
        "aten::_flash_attention_backward",
        call(
            half(2, 10, 4, 8), half(2, 10, 4, 8), half(2, 17, 4, 8), half(2, 17, 4, 8), half(2, 10, 4, 8),
            tensor(2, 4, 10), None, None, 10, 17, 0.0, False,
        ),
        108800, 2 * (3 * 640 + 2 * 1088) + 4 * 80, 2 * (640 + 2 * 1088),
    ),
    # no log-sum-exp asked for; a mask is read
    (
        "aten::_scaled_dot_product_efficient_attention",
        call(half(2, 4, 10, 8), half(2, 4, 17, 8), half(2, 4, 17, 8), half(2, 4, 10, 17), False),
        43520, 2 * (640 + 2 * 1088 + 1360), 2 * 640,
    ),
    ("aten::native_layer_norm", call(half(6, 8), (8,), half(8), half(8), 1e-5), 384, 128, 96 + 48),
    ("aten::native_layer_norm", call(half(6, 8), (8,), None, None, 1e-5), 288, 96, 96 + 48),
    (
        "aten::native_layer_norm_backward",
        call(half(6, 8), half(6, 8), (8,), tensor(6, 1), tensor(6, 1), half(8), half(8), (True, True, True)),
        13 * 48, 2 * 96 + 48 + 16, 96 + 32,
    ),
    ("aten::_fused_rms_norm", call(half(6, 8), (8,), half(8), 1e-6), 4 * 48, 112, 96 + 24),
    # 4 channels: weight, bias, two running statistics in; two saved and two running out
    (
        "aten::native_batch_norm",
        call(tensor(2, 4, 3, 3), *[tensor(4)] * 4, True, 0.1, 1e-5),
        8 * 72, 4 * 72 + 64, 4 * 72 + 64,
    ),
    ("aten::cudnn_batch_norm", call(tensor(2, 4, 3, 3), *[tensor(4)] * 4, False, 0.1, 1e-5), 288, 352, 288),
    (
        "aten::cudnn_batch_norm_backward",
        call(tensor(2, 4, 3, 3), tensor(2, 4, 3, 3), *[tensor(4)] * 5, 1e-5, tensor(0, dtype="uint8")),
        13 * 72, 2 * 288 + 48, 288 + 32,
    ),
    ("aten::native_group_norm", call(half(2, 4, 9), half(4), half(4), 2, 4, 9, 2, 1e-5), 8 * 72, 160, 144 + 32),
    ("aten::_softmax", call(half(6, 8), -1, False), 240, 96, 96),
    ("aten::_log_softmax_backward_data", call(tensor(6, 8), tensor(6, 8), 1, "float32"), 192, 384, 192),
    ("aten::add", call(half(6, 8), half(6, 8), 1), 48, 192, 96),
    ("aten::add", call(half(6, 8), half(6, 8), 0.5), 96, 192, 96),
    ("aten::add_", call(half(6, 8), tensor(8), 1), 48, 128, 96),
    # broadcasting: 6 and 8 elements make 48
    ("aten::mul", call(half(6, 1), half(8)), 48, 28, 96),
    ("aten::mul", call(half(6, 8), tensor(dtype="float64")), 48, 104, 96),
    ("aten::add", call(half(6, 8), tensor(8), 1), 48, 128, 192),
    # an out tensor, third, is written, not read
    ("aten::mul", call(half(8), half(8), half(8)), 8, 32, 16),
    ("aten::eq", call(tensor(6, 8), 1), 48, 192, 48),
    ("aten::div", call(index(4), 2), 4, 32, 16),
    ("aten::where", call(tensor(6, 8, dtype="bool"), half(6, 8), half()), 48, 48 + 96 + 2, 96),
    ("aten::masked_fill_", call(half(6, 8), tensor(6, 1, dtype="bool"), 0), 48, 96 + 6, 96),
    ("aten::gelu", call(half(4), "none"), 36, 8, 8),
    ("aten::gelu", call(half(4), "tanh"), 36, 8, 8),
    ("aten::threshold_backward", call(half(4), half(4), 0), 8, 16, 8),
    ("aten::elu_backward", call(half(4), 1, 1, 1, False, half(4)), 16, 16, 8),
    ("aten::clamp_min_", call(tensor(4), 0), 4, 16, 16),
    ("aten::addcmul_", call(tensor(4), tensor(4), tensor(4), 1), 12, 32, 16),
    ("aten::addcmul", call(tensor(4), tensor(4), tensor(1), 1), 12, 36, 16),
    ("aten::glu", call(tensor(4, 6), -1), 60, 96, 48),
    ("aten::copy_", call(half(3, 4), tensor(3, 4), False), 0, 48, 24),
    ("aten::clone", call(half(3, 4, strides=(0, 1)), None), 0, 8, 24),
    ("aten::_to_copy", call(tensor(3, 4), "float16"), 0, 48, 24),
    ("aten::cat", call((half(2, 3), half(4, 3)), 0), 0, 36, 36),
    ("aten::fill_", call(half(5), 0.0), 0, 0, 10),
    ("aten::zero_", call(half(5)), 0, 0, 10),
    ("aten::constant_pad_nd", call(half(2, 3), (1, 1, 0, 2), 0), 0, 12, 40),
    ("aten::repeat", call(half(2, 3), (2, 2, 1)), 0, 12, 48),
    ("aten::arange", call(5), 0, 0, 40),
    ("aten::slice_backward", call(half(2, 3), (4, 3), 0, 0, 2, 1), 0, 12, 24),
    ("aten::_local_scalar_dense", call(tensor(1, dtype="bool")), 0, 1, 1),
    ("aten::sum", call(half(6, 8), (1,), False, None), 48, 96, 12),
    ("aten::sum", call(half(6, 8), None, False, None), 48, 96, 2),
    ("aten::sum", call(half(6, 8), UNKNOWN, UNKNOWN, UNKNOWN), 48, 96, 2),
    ("aten::sum", call(half(6, 8), (-1,), False, "float32"), 48, 96, 24),
    ("aten::max", call(half(6, 8), 0, False), 48, 96, 8 * 10),
    ("aten::max", call(half(6, 8)), 48, 96, 2),
    ("aten::max", call(half(6), half(6)), 6, 24, 12),
    ("aten::var_mean", call(tensor(6, 8), (0,)), 192, 192, 64),
    ("aten::cumsum", call(tensor(6, 8), 0), 48, 192, 192),
    # 3×3 windows, stride 2, padding 1: 3×3 results of 6 planes, each with an int64 index
    (
        "aten::max_pool2d_with_indices",
        call(tensor(2, 3, 6, 6), (3, 3), (2, 2), (1, 1), (1, 1), False),
        54 * 9, 864, 54 * 12,
    ),
    (
        "aten::max_pool2d_with_indices_backward",
        call(tensor(2, 3, 3, 3), tensor(2, 3, 6, 6), (3, 3), (2, 2), (1, 1), (1, 1), False, index(2, 3, 3, 3)),
        54, 54 * 12, 864,
    ),
    # ceil mode adds a fourth window only where it starts inside
    ("aten::avg_pool2d", call(tensor(1, 1, 6, 6), (2, 2), (2, 2), (0, 0), True), 36, 144, 36),
    ("aten::avg_pool2d", call(tensor(1, 1, 7, 7), (2, 2), (2, 2), (0, 0), True), 64, 196, 64),
    ("aten::_adaptive_avg_pool2d", call(half(2, 3, 6, 6), (2, 2)), 216, 432, 48),
    ("aten::upsample_bilinear2d", call(half(1, 2, 3, 3), (6, 6), False), 504, 36, 144),
    # 5 rows of 4 halves out of 100
    ("aten::embedding", call(half(100, 4), index(5)), 0, 40 + 40, 40),
    ("aten::embedding", call(half(3, 4), index(50)), 0, 24 + 400, 400),
    ("aten::embedding_dense_backward", call(half(5, 4), index(5), 100, -1, False), 20, 40 + 40, 800),
    ("aten::_embedding_bag", call(tensor(100, 4), index(6), index(2), False, 0), 24, 96 + 48 + 16, 32),
    ("aten::gather", call(half(100, 4), 0, index(5, 4)), 0, 40 + 160, 40),
    ("aten::index_select", call(half(100, 4), 0, index(5)), 0, 40 + 40, 40),
    ("aten::index", call(half(9, 9), (index(5), index(5))), 0, 10 + 80, 10),
    ("aten::index", call(half(9, 9), UNKNOWN, results=(half(5, 9),)), 0, 90 + 5 * 8, 90),
    ("aten::index", call(half(9, 9), UNKNOWN, results=(half(9, 5),)), 0, 90 + 5 * 8, 90),
    ("aten::index_put_", call(half(9, 9), (index(5), index(5)), half(5), True), 5, 10 + 80 + 10, 10),
    ("aten::scatter_add_", call(tensor(9), 0, index(5), tensor(5)), 5, 40 + 20 + 20, 20),
    ("aten::sort", call(tensor(2, 8), -1, False), 48, 64, 192),
    ("aten::topk", call(tensor(2, 8), 3, -1), 16, 64, 72),
    ("aten::nll_loss_forward", call(tensor(6, 8), index(6), None, 1, -100), 12, 24 + 48, 4),
    ("aten::nll_loss_backward", call(tensor(), tensor(6, 8), index(6), None, 1, -100, tensor()), 6, 56, 192),
    ("aten::mse_loss", call(tensor(6, 8), tensor(6, 8), 1), 144, 384, 4),
    ("aten::mse_loss", call(tensor(6, 8), tensor(6, 8), 0), 144, 384, 192),
    ("aten::mse_loss_backward", call(tensor(), tensor(6, 8), tensor(6, 8), 1), 144, 388, 192),
    ("aten::native_dropout", call(half(6, 8), 0.1, True), 960, 96, 144),
    ("aten::native_dropout_backward", call(half(6, 8), tensor(6, 8, dtype="bool"), 1.1), 96, 144, 96),
    ("aten::normal_", call(half(6), 0.0, 1.0), 12, 0, 12),
    ("aten::randperm", call(7), 7, 0, 56),
    ("aten::_foreach_add_", call((half(3), half(4)), (half(3), half(4)), -0.1), 14, 28, 14),
    ("aten::_foreach_mul_", call((half(3), half(4)), 0.9), 7, 14, 14),
    ("aten::_foreach_zero_", call((half(3), half(4))), 0, 0, 14),
    ("aten::_foreach_norm", call((tensor(3), tensor(4)), 2), 14, 28, 8),
    # parameters, gradients, both moments and two step counts in; parameters and moments out
    (
        "aten::_fused_adamw_",
        call(*[(tensor(3), tensor(4))] * 4, (), (tensor(), tensor()), 0.1, 0.9, 0.99, 0.0, 1e-8, False, False),
        105, 4 * 28 + 8, 3 * 28,
    ),
    ("aten::_fused_sgd_", call((tensor(3),), (tensor(3),), (), 0.0, 0.0, 0.1), 12, 24, 12),
    # LSTM, 5 steps of 3 sequences, 6 → 8: 32·(6 + 8) weights; biases 64; hx and cx 24 each
    (
        "aten::_cudnn_rnn",
        call(
            tensor(5, 3, 6), (tensor(32, 6), tensor(32, 8), tensor(32), tensor(32)), 4, None, tensor(1, 3, 8),
            tensor(1, 3, 8), 2, 8, 0, 1, False, 0.0, True, False, (), None,
        ),
        2 * 15 * 448, 4 * (90 + 448 + 64 + 48), 4 * (120 + 48),
    ),
    (
        "aten::_thnn_fused_lstm_cell",
        call(tensor(3, 32), tensor(3, 32), tensor(3, 8), tensor(32), tensor(32)),
        30 * 24, 4 * (96 + 96 + 24 + 64), 4 * 6 * 24,
    ),
    ("c10d::allreduce_", call((half(10),)), 10, 20, 20),
    ("c10d::_allgather_base_", call(half(80), half(10)), 0, 20, 160),
    ("c10d::_reduce_scatter_base_", call(half(10), half(80)), 80, 160, 20),
    ("_c10d_functional::all_gather_into_tensor", call(half(10), 8, "0"), 0, 20, 160),
    ("record_param_comms", call(half(10), None, None, 0, "allreduce"), 10, 20, 20),
    ("nccl:all_reduce", call(half(10)), 10, 20, 20),
    ("_C::fused_add_rms_norm", call(half(6, 8), half(6, 8), half(8), 1e-5), 240, 208, 192),
    ("aten::view", call(half(6, 8), (48,)), 0, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "signature", "flops", "read", "written"), CASES)
def test_work_equals_the_hand_computed(
    name: str, signature: Signature, flops: float, read: float, written: float
) -> None:
    work = known(name, signature)
    assert (work.flops, work.read_bytes, work.written_bytes) == (flops, read, written)
    assert work.family is family_of(name)


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("aten::mm", None),
        ("aten::mm", call(tensor(2, 3), tensor(4, 5))),
        ("aten::mm", call(tensor(2, 3))),
        ("aten::bmm", call(tensor(2, 3, 4), tensor(3, 4, 5))),
        ("aten::add", call(tensor(3), tensor(4))),
        ("aten::cat", call(UNKNOWN, 0)),
        ("aten::index", call(tensor(9, 9), UNKNOWN)),
        ("aten::cudnn_convolution", call(tensor(2, 3, 6, 6), tensor(5, 3, 3, 3), UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)),
        ("aten::convolution_backward", call(*[tensor(2, 3, 6, 6)] * 3, *[UNKNOWN] * 8)),
        ("aten::topk", call(tensor(2, 8), UNKNOWN, -1)),
        ("aten::_foreach_add_", call(UNKNOWN, UNKNOWN, 1)),
        ("record_param_comms", call(tensor(8), UNKNOWN)),
        ("aten::no_such_op", call(tensor(8))),
    ],
)
def test_no_work_is_guessed(name: str, signature: Signature | None) -> None:
    assert work_of(name, signature) is None


def test_a_weight_tells_what_is_normalised() -> None:
    expected = known("aten::native_layer_norm", call(half(2, 3, 8), (8,), half(8), half(8), 1e-5))
    assert known("aten::native_layer_norm", call(half(2, 3, 8), UNKNOWN, half(8), half(8), UNKNOWN)) == expected
    assert work_of("aten::native_layer_norm", call(half(2, 3, 8), UNKNOWN, half(3), half(3), UNKNOWN)) is None
    assert work_of("aten::native_layer_norm", call(half(2, 3, 8), UNKNOWN, None, None, UNKNOWN)) is None


def test_matrix_units_are_for_products_only() -> None:
    assert known("aten::mm", call(half(2, 3), half(3, 4))).is_matrix
    assert not known("aten::mv", call(half(2, 3), half(3))).is_matrix
    assert not known("aten::add", call(half(2, 3), half(3))).is_matrix


def test_compute_dtype_is_the_operands() -> None:
    assert known("aten::eq", call(half(2), 1)).dtype == "float16"
    assert known("aten::add", call(half(2), TensorSpec("bfloat16", (2,)), 1)).dtype == "float32"
    assert known("aten::mul", call(half(2), tensor(dtype="float64"))).dtype == "float16"
    assert known("aten::sqrt", call(index(2))).dtype == "float32"
    assert known("aten::mul", call(index(2), tensor(dtype="float64"))).dtype == "float32"


def test_views_need_no_shapes() -> None:
    work = work_of("aten::reshape", None)
    assert work is not None
    assert work.moved_bytes == 0
    assert family_of("aten::reshape") is Family.VIEW


@pytest.mark.parametrize(("given", "made"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_cast_counts_elements_once_whichever_side_is_wider(given: str, made: str) -> None:
    x, result = (tensor(64, 32, dtype=dtype, strides=(32, 1)) for dtype in (given, made))
    works = known("aten::_to_copy", call(x, made, results=(result,))), known("aten::copy_", call(result, x, False))
    assert [work.dtype for work in works] == ["float32"] * 2
