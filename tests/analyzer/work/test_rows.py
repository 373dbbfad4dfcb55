"""Rows and columns of ops that treat vectors alike."""

from __future__ import annotations

import pytest
from wavecast.analyzer.work import Family, Work, work_of
from wavecast.analyzer.work.normalization import DIVIDED
from wavecast.analyzer.work.optimizer import ROOT_OPERATIONS
from wavecast.analyzer.work.pooling import HALVES_APART, HALVES_TOGETHER, LAST_NEAREST
from wavecast.analyzer.work.row_kernels import RowKernel
from wavecast.analyzer.work.walks import HALF_ADDS
from wavecast.analyzer.work.work import RowDims
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec


def tensor(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(dtype, shape)


BATCH = (tensor(8, 3, 5), tensor(3), tensor(3), tensor(3), tensor(3))
MASK = (True, True, True)
INDEX, HALVES = tensor(100, dtype="int64"), tensor(100, 40, dtype="bfloat16")
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
    ("aten::cumsum", (tensor(4, 9, 5), 1), 20, 9),
    ("aten::embedding", (tensor(100, 64), tensor(3, 7, dtype="int64")), 21, 64),
    ("aten::index_select", (tensor(100, 64), 0, tensor(7, dtype="int64")), 7, 64),
    # additions of 16 bits count 1.1 times, where they are gathered once
    ("aten::index_add", (tensor(9, 40), 0, INDEX, tensor(100, 40)), 4000, 1),
    ("aten::index_add", (HALVES, 0, INDEX, HALVES), round(4000 * HALF_ADDS), 1),
    ("aten::scatter_add", (HALVES, 0, tensor(100, 40, dtype="int64"), HALVES), round(4000 * HALF_ADDS), 1),
    ("aten::gather", (HALVES, 0, tensor(50, 40, dtype="int64")), 2000, 1),
]


@pytest.mark.parametrize(("name", "arguments", "rows", "columns"), CASES)
def test_rows_and_columns(name: str, arguments: tuple[Argument, ...], rows: int, columns: int) -> None:
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert isinstance(work.dims, RowDims)
    assert (work.dims.rows, work.dims.columns) == (rows, columns)


def test_a_softmax_divides_and_a_log_softmax_does_not() -> None:
    works = [known(f"aten::{name}", Signature((tensor(4, 9), 1, False))) for name in ("_softmax", "_log_softmax")]
    assert [work.access for work in works] == [DIVIDED, None]


def test_recorded_results_tell_the_rows_of_a_reduction() -> None:
    work = work_of("aten::sum", Signature((tensor(4, 9, 5), UNKNOWN), (tensor(4),)))
    assert work is not None
    assert work.dims == RowDims(rows=4, columns=45, kernel=RowKernel.REDUCE)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::grid_sampler_2d", (tensor(2, 3, 8, 8), tensor(2, 4, 4, 2), 0, 0, False)),
        ("aten::masked_scatter", (tensor(7, 64), tensor(7, 64, dtype="bool"), tensor(7, 64))),
    ],
)
def test_others_have_only_their_totals(name: str, arguments: tuple[Argument, ...]) -> None:
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert work.dims is None


LAST = TensorSpec("float32", (8, 16, 7, 7), (784, 1, 112, 16))
FIRST = TensorSpec("float32", (8, 16, 7, 7), (784, 49, 7, 1))
HALF = TensorSpec("float16", (8, 16, 7, 7), (784, 1, 112, 16))
BRAIN, LAST_BRAIN = (TensorSpec("bfloat16", item.shape, item.strides) for item in (FIRST, LAST))
BYTES = 8 * 16 * 49 * 4.0
PER_CHANNEL = [tensor(16)] * 4
SAVED = [tensor(16)] * 5


@pytest.mark.parametrize(
    ("name", "arguments", "kernel", "run", "walked", "streamed"),
    [
        ("aten::native_batch_norm", (FIRST, *PER_CHANNEL, True, 0.1, 1e-5), RowKernel.BATCH_NORM, 49, 2, 0),
        ("aten::native_batch_norm", (LAST, *PER_CHANNEL, True, 0.1, 1e-5), RowKernel.PERSISTENT_NORM, 1, 2, 0),
        ("aten::native_batch_norm", (BRAIN, *PER_CHANNEL, True, 0.1, 1e-5), RowKernel.MOMENTS, 49, 0.5, 1),
        ("aten::native_batch_norm", (LAST_BRAIN, *PER_CHANNEL, True, 0.1, 1e-5), RowKernel.COLUMN_MOMENTS, 1, 0.5, 1),
        ("aten::native_batch_norm", (FIRST, *PER_CHANNEL, False, 0.1, 1e-5), RowKernel.CHANNEL_ELEMENTS, 49, 2, 0),
        (
            "aten::native_batch_norm_backward",
            (FIRST, FIRST, *SAVED, True, 1e-5, MASK),
            RowKernel.BATCH_NORM_BACKWARD,
            49,
            3,
            0,
        ),
        (
            "aten::native_batch_norm_backward",
            (LAST, LAST, *SAVED, True, 1e-5, MASK),
            RowKernel.PERSISTENT_GRADIENT,
            1,
            3,
            0,
        ),
        (
            "aten::native_batch_norm_backward",
            (BRAIN, BRAIN, *SAVED, True, 1e-5, MASK),
            RowKernel.BATCH_NORM_ROWS_GRADIENT,
            49,
            1.5,
            0,
        ),
        (
            "aten::native_batch_norm_backward",
            (LAST_BRAIN, LAST_BRAIN, *SAVED, True, 1e-5, MASK),
            RowKernel.COLUMN_SUMS,
            1,
            1,
            1.5,
        ),
        ("aten::native_batch_norm", (HALF, *PER_CHANNEL, True, 0.1, 1e-5), RowKernel.PERSISTENT_NORM, 1, 1, 0),
        ("aten::_native_batch_norm_legit", (FIRST, None, None, True, 0.1, 1e-5), RowKernel.MOMENTS, 49, 1, 2),
        ("aten::native_batch_norm", (LAST, *[None] * 4, True, 0.1, 1e-5), RowKernel.COLUMN_MOMENTS, 1, 1, 2),
        ("aten::batch_norm_stats", (LAST, 1e-5), RowKernel.COLUMN_MOMENTS, 1, 0, 0),
        ("aten::batch_norm_backward_reduce", (FIRST, FIRST, *PER_CHANNEL), RowKernel.CHANNEL_SUMS, 49, 0, 0),
        ("aten::group_norm", (FIRST, 4, None, None), RowKernel.MOMENTS, 0, 1, 2),
    ],
)
def test_a_batch_norm_names_the_kernel_of_its_layout(
    name: str, arguments: tuple[Argument, ...], kernel: RowKernel, run: int, walked: float, streamed: float
) -> None:
    """By layout, dtype and scale: cuDNN's kernels know no bfloat16 and need a scale, else torch runs its own."""
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert isinstance(work.dims, RowDims)
    assert (work.dims.kernel, work.dims.run) == (kernel, run)
    assert (work.dims.walked_bytes, work.dims.streamed_bytes) == (walked * BYTES, streamed * BYTES)


@pytest.mark.parametrize(
    ("name", "arguments", "kernel"),
    [
        ("aten::layer_norm", (tensor(16, 20000), (20000,), None, None, 1e-5), RowKernel.ROW_FORWARD),
        ("aten::layer_norm", (tensor(16, 2000), (2000,), None, None, 1e-5), None),
        ("aten::max_pool2d", (tensor(2, 3, 8, 8), (2, 2)), RowKernel.POOL),
        ("aten::adaptive_avg_pool2d", (tensor(2, 3, 8, 8), (1, 1)), RowKernel.REDUCE),
        ("aten::adaptive_avg_pool2d", (tensor(2, 3, 8, 8), (4, 4)), RowKernel.POOL),
        ("aten::mse_loss", (tensor(4, 9), tensor(4, 9), 1), RowKernel.REDUCE),
        ("aten::mse_loss", (tensor(4, 9), tensor(4, 9), 0), RowKernel.STREAM),
        ("aten::nll_loss2d_forward", (tensor(2, 9, 8, 8), tensor(2, 8, 8, dtype="int64"), None, 1), RowKernel.PICK),
        ("aten::nll_loss_backward", (tensor(), tensor(40, 9), tensor(40, dtype="int64"), None, 1), RowKernel.PICK),
        ("aten::nll_loss_backward", (tensor(40), tensor(40, 9), tensor(40, dtype="int64"), None, 0), RowKernel.STREAM),
        ("aten::nll_loss_forward", (tensor(40, 9), tensor(40, dtype="int64"), None, 1, -100), RowKernel.PICK),
        ("aten::nonzero", (tensor(4, 9),), RowKernel.STREAM),
        ("aten::mode", (tensor(4, 9), 1), None),
        ("aten::median", (tensor(4, 9), 1), RowKernel.TOP_ROWS),
        ("aten::median", (tensor(40, 900),), RowKernel.SORT_SEGMENTS),
        ("aten::kthvalue", (tensor(4, 20000), 5), RowKernel.TOP_ROWS),
        ("aten::_unique2", (tensor(200, dtype="int64"),), RowKernel.SORT_ROWS),
        ("aten::max_unpool2d", (tensor(2, 3, 4, 4), tensor(2, 3, 4, 4, dtype="int64"), (8, 8)), RowKernel.SCATTER),
        ("aten::sum", (tensor(4, 9), (1,), False), RowKernel.REDUCE),
        ("aten::sum", (tensor(4, 9), (0,), False), RowKernel.REDUCE_COLUMNS),
        ("aten::sum", (FIRST, (0, 2, 3), False), RowKernel.REDUCE_PIECES),
        ("aten::argmax", (tensor(4, 9), 1, False), RowKernel.SELECT_ROWS),
        ("aten::amax", (tensor(4, 9), (0,), False), RowKernel.SELECT_COLUMNS),
        ("aten::var", (tensor(4, 9), (1,), 1, False), RowKernel.MOMENT_ROWS),
        ("aten::_fused_rms_norm", (tensor(4, 9), (9,), tensor(9), 1e-5), RowKernel.ROOT_NORM),
        ("aten::_log_softmax_backward_data", (tensor(4, 2000), tensor(4, 2000), 1, 6), RowKernel.SOFTMAX_GRADIENT),
        ("aten::sort", (tensor(4, 200), -1, False), RowKernel.SORT_ROWS),
        ("aten::sort", (tensor(4, 20000), -1, False), RowKernel.SORT_SEGMENTS),
        ("aten::topk", (tensor(4, 200), 5), RowKernel.TOP_ROWS),
        ("aten::topk", (tensor(4, 20000), 5), RowKernel.TOP_PARTS),
        ("aten::topk", (tensor(4, 19999), 5), RowKernel.TOP_ROWS),
        ("aten::topk", (tensor(5000, 400), 5), RowKernel.TOP_PARTS),
        ("aten::index_add_", (tensor(9, 8), 0, tensor(40, dtype="int64"), tensor(40, 8)), RowKernel.INDEX_ADD),
        ("aten::index_select", (tensor(9, 8), 0, tensor(40, dtype="int64")), RowKernel.GATHER_ROWS),
        ("aten::index_select", (tensor(9, 7), 0, tensor(40, dtype="int64")), RowKernel.SCATTER),
        (
            "aten::embedding_dense_backward",
            (tensor(7, 64), tensor(7, dtype="int64"), 100, -1, False),
            RowKernel.TABLE_FEW,
        ),
        (
            "aten::embedding_dense_backward",
            (tensor(7000, 64), tensor(7000, dtype="int64"), 100, -1, False),
            RowKernel.TABLE_GRADIENT,
        ),
        ("aten::upsample_nearest2d", (tensor(2, 3, 8, 8), (16, 16)), RowKernel.NEAREST),
        ("aten::upsample_bilinear2d", (LAST, (16, 16), False), RowKernel.BILINEAR_LAST),
        ("aten::avg_pool2d", (LAST, (2, 2)), RowKernel.AVERAGE_LAST),
        ("aten::upsample_bilinear2d", (tensor(2, 3, 8, 8), (16, 16), False), RowKernel.INTERPOLATE),
        ("aten::upsample_bicubic2d", (LAST, (16, 16), False), RowKernel.INTERPOLATE),
    ],
)
def test_an_op_names_the_kernel_that_walks(
    name: str, arguments: tuple[Argument, ...], kernel: RowKernel | None
) -> None:
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert isinstance(work.dims, RowDims)
    assert work.dims.kernel is kernel


@pytest.mark.parametrize(
    ("name", "sizes", "lists", "launches"),
    [
        ("aten::_foreach_mul_", [10] * 3, 1, 1),
        ("aten::_foreach_mul_", [10] * 111, 1, 2),
        ("aten::_foreach_add_", [10] * 65, 2, 2),
        ("aten::_foreach_mul_", [65536 * 320 * 3], 1, 3),
        ("aten::_foreach_mul_", [65536 * 319, 1, 1], 1, 2),
        ("aten::_fused_adam_", [10] * 37, 4, 2),
        ("aten::_foreach_norm", [10] * 3, 1, 2),
    ],
)
def test_a_list_of_tensors_takes_as_many_kernels_as_their_arguments_hold(
    name: str, sizes: list[int], lists: int, launches: int
) -> None:
    tensors = tuple(tensor(size) for size in sizes)
    given = (tensors,) * lists
    arguments: tuple[Argument, ...] = (*given, (), tensors[:1], 0.1) if "adam" in name else (*given, 2.0)
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert isinstance(work.dims, RowDims)
    assert work.dims.launches == launches


def test_large_images_take_more_blocks_of_a_loss() -> None:
    """512 x 512 pixels are 256 blocks of a thread per pixel, of which two pick, 128 pixels a thread."""
    found = work_of(
        "aten::nll_loss2d_forward", Signature((tensor(8, 21, 512, 512), tensor(8, 512, 512, dtype="int64"), None, 1))
    )
    assert found is not None
    assert isinstance(found.dims, RowDims)
    assert (found.dims.rows, found.dims.columns) == (512 * 512 // 2, 1024)


def test_rows_that_are_no_whole_vectors_are_looked_up_by_element() -> None:
    kernels = []
    for columns in (10, 12):
        found = work_of("aten::embedding", Signature((tensor(32, columns), tensor(40, dtype="int64"))))
        assert found is not None
        assert isinstance(found.dims, RowDims)
        kernels.append(found.dims.kernel)
    assert kernels == [None, RowKernel.GATHER_ROWS]


@pytest.mark.parametrize(
    ("count", "run", "launches"), [(1, 1, 1), (5, 32 * 4, 2), (40, 128 * 4, 2), (1000, 1024 * 4, 2)]
)
def test_several_of_the_largest_are_sorted_by_another_kernel(count: int, run: int, launches: int) -> None:
    work = work_of("aten::topk", Signature((tensor(2, 2000), count)))
    assert work is not None
    assert isinstance(work.dims, RowDims)
    assert (work.dims.run, work.dims.launches) == (run, launches)


def test_a_tables_gradient_copies_what_does_not_lie_in_order_first() -> None:
    turned = TensorSpec("float32", (64, 100, 32), (32, 64 * 32, 1))
    plain, copied = (
        work_of("aten::embedding_dense_backward", Signature((grad, tensor(6400, dtype="int64"), 9000, -1, False)))
        for grad in (tensor(64, 100, 32), turned)
    )
    assert plain is not None
    assert copied is not None
    assert isinstance(plain.dims, RowDims)
    assert isinstance(copied.dims, RowDims)
    assert (copied.dims.launches, plain.dims.rows, plain.dims.run) == (plain.dims.launches + 1, 4580, 1)
    assert copied.dims.streamed_bytes - plain.dims.streamed_bytes == 2 * turned.size_bytes


@pytest.mark.parametrize(
    ("name", "roots"), [("_foreach_mul_", 0), ("_foreach_div_", 1), ("_foreach_sqrt", 1), ("_foreach_rsqrt", 2)]
)
def test_divisions_and_roots_of_lists_take_more_instructions(name: str, roots: int) -> None:
    work = work_of(f"aten::{name}", Signature(((tensor(10), tensor(20)), 0.9)))
    assert work is not None
    assert (work.access.operations if work.access else 0.0) == roots * ROOT_OPERATIONS


@pytest.mark.parametrize(
    ("name", "last", "halves"),
    [("upsample_nearest2d_backward", LAST_NEAREST, 1.0), ("upsample_bilinear2d_backward", 1.0, HALVES_APART)],
)
def test_gradients_of_resampling_depend_on_layout_and_on_how_halves_are_added(
    name: str, last: float, halves: float
) -> None:
    shape, strides = (2, 8, 64, 64), {False: (8 * 64 * 64, 64 * 64, 64, 1), True: (8 * 64 * 64, 1, 64 * 8, 8)}
    rows = {}
    for dtype in ("float32", "bfloat16"):
        for is_last, steps in strides.items():
            grad = TensorSpec(dtype, shape, steps)
            work = work_of(f"aten::{name}", Signature((grad, (64, 64), (2, 8, 32, 32), 2.0, 2.0)))
            assert work is not None
            assert isinstance(work.dims, RowDims)
            rows[dtype, is_last] = work.dims.rows / (2 * 8 * 64 * 64)
    assert rows["float32", False] == 1.0
    assert rows["float32", True] == pytest.approx(last, rel=1e-4)
    assert rows["bfloat16", True] == pytest.approx(last * (HALVES_TOGETHER if halves > 1.0 else 1.0), rel=1e-4)
    assert rows["bfloat16", False] == pytest.approx(halves, rel=1e-4)


def known(name: str, signature: Signature) -> Work:
    work = work_of(name, signature)
    assert work is not None
    return work


@pytest.mark.parametrize(
    ("arguments", "launches", "streamed_bytes"),
    [
        # one kernel reads 8 rows of 64 floats, writes 33 complex numbers each
        ((tensor(8, 64), (1,), 0, True), 1, 8 * (64 * 4 + 33 * 8)),
        # two dims; the scaling reads and writes the result once more
        ((tensor(8, 64, dtype="complex64"), (0, 1), 1, True), 3, 3 * 8 * 64 * 16),
        # 8,192 numbers stay on chip, twice as many do not
        ((tensor(16384, dtype="complex64"), (0,), 0, True), 2, 2 * 16384 * 16),
        # a prime of 251 is a convolution of 512: two transforms and three products
        ((tensor(251, dtype="complex64"), (0,), 0, True), 5, 5 * 512 * 16),
    ],
)
def test_a_transform_moves_each_dim_once(arguments: tuple[Argument, ...], launches: int, streamed_bytes: float) -> None:
    work = known("aten::_fft_r2c" if launches == 1 else "aten::_fft_c2c", Signature(arguments))
    assert isinstance(work.dims, RowDims)
    assert work.dims.launches == launches
    assert work.dims.streamed_bytes == pytest.approx(streamed_bytes)
    assert work.family is Family.TRANSFORM


def test_an_inverse_to_real_numbers_copies_its_input_and_halves_the_arithmetic() -> None:
    work = known("aten::_fft_c2r", Signature((tensor(8, 33, dtype="complex64"), (1,), 2, 64)))
    assert isinstance(work.dims, RowDims)
    assert (work.flops, work.written_bytes, work.dims.launches) == (5 * 8 * 64 * 6 / 2, 8 * 64 * 4, 3)


@pytest.mark.parametrize("name", ["aten::_ctc_loss", "aten::_ctc_loss_backward"])
def test_each_step_of_a_ctc_loss_waits_for_the_one_before(name: str) -> None:
    x, targets, table = tensor(200, 16, 30), tensor(16, 30, dtype="int64"), tensor(16, 200, 61)
    forward = Signature((x, targets, *[tensor(16, dtype="int64")] * 2), (tensor(16), table))
    backward = Signature((tensor(16), x, targets, *[tensor(16)] * 3, table))
    work = known(name, forward if name.endswith("loss") else backward)
    assert isinstance(work.dims, RowDims)
    assert work.dims.launches == 200


@pytest.mark.parametrize(
    ("shape", "strides", "kernel", "rows"),
    [
        ((8, 3, 16, 16), (768, 256, 16, 1), RowKernel.CHANNEL_ELEMENTS, 24),
        ((8, 3, 16, 16), (768, 1, 48, 3), RowKernel.BROADCAST, 8),
    ],
)
def test_cudnns_batch_norm_in_inference_walks_over_images(
    shape: tuple[int, ...], strides: tuple[int, ...], kernel: RowKernel, rows: int
) -> None:
    x = TensorSpec("float32", shape, strides)
    dims = known("aten::native_batch_norm", Signature((x, *[tensor(3)] * 4, False, 0.1, 1e-5))).dims
    assert isinstance(dims, RowDims)
    assert (dims.kernel, dims.rows) == (kernel, rows)
    half = TensorSpec("float16", shape, strides)
    assert known("aten::native_batch_norm", Signature((half, *[tensor(3)] * 4, False, 0.1, 1e-5))).dims is None


def test_batch_norms_of_fp16_with_a_scale_in_fp16_run_as_those_of_bfloat16() -> None:
    strides = (768, 256, 16, 1)
    half, brain = (
        [TensorSpec(dtype, (8, 3, 16, 16), strides), *[TensorSpec(dtype, (3,))] * 4]
        for dtype in ("float16", "bfloat16")
    )
    for is_training in (False, True):
        found, same = (known("aten::native_batch_norm", Signature((*x, is_training, 0.1, 1e-5))) for x in (half, brain))
        assert found.dims == same.dims
        assert found.dtype == "float16"


def test_one_pixel_is_spread_by_a_thread_per_pixel_and_added_up_in_one_place() -> None:
    x, y = (TensorSpec("float32", (8, 256, n, n), (256 * n * n, n * n, n, 1)) for n in (1, 64))
    dims = known("aten::upsample_bilinear2d", Signature((x, (64, 64), False, None, None), (y,))).dims
    assert isinstance(dims, RowDims)
    assert (dims.kernel, dims.rows) == (RowKernel.INTERPOLATE, 64 * 64)
    back = known("aten::upsample_bilinear2d_backward", Signature((y, (64, 64), (8, 256, 1, 1), False, None, None))).dims
    assert isinstance(back, RowDims)
    assert back.rows == pytest.approx(181 * y.element_count, rel=0.01)


def test_pooling_to_a_given_size_starts_whole_blocks() -> None:
    x = TensorSpec("float32", (2, 4, 7, 7), (196, 49, 7, 1))
    dims = known("aten::_adaptive_avg_pool2d", Signature((x, (7, 7)), (x,))).dims
    assert isinstance(dims, RowDims)
    assert dims.rows == 8 * 256
    more = known("aten::_adaptive_avg_pool2d", Signature((x, (9, 9)), (TensorSpec("float32", (2, 4, 9, 9)),))).dims
    assert isinstance(more, RowDims)
    assert more.rows == 8 * 9 * 32
