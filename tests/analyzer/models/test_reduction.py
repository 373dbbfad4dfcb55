"""Behaviour of the model of walks over rows at its priors: what idles, what is read again, monotony."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.reduction.model import CODE_US, MODEL, simulate
from wavecast.analyzer.models.reduction.problems import GROUP_NAMES, ReductionProblems, group, problems_of
from wavecast.analyzer.work.row_kernels import RowKernel
from wavecast.analyzer.work.work import Family, RowDims, Work
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
BETTER = ("sm_count", "clock_hz", "bandwidth_bytes_per_s", "l2_cache_bytes")


def problem(
    kernel: RowKernel,
    rows: int,
    columns: int,
    *,
    run: int = 0,
    streamed_bytes: float = 0.0,
    window: int = 1,
    moved_bytes: float | None = None,
) -> ReductionProblems:
    """Return one op in fp32 that reads and writes as many elements as it has."""
    half = 4.0 * rows * columns if moved_bytes is None else moved_bytes / 2.0
    dims = RowDims(rows=rows, columns=columns, kernel=kernel, run=run, streamed_bytes=streamed_bytes)
    work = Work(
        family=Family.NORMALIZATION,
        flops=float(rows * window),
        read_bytes=half,
        written_bytes=half,
        dtype="float32",
        dims=dims,
    )
    return problems_of([work], [])


def time_on(problems: ReductionProblems, name: str = "H100 SXM5 80GB", **factors: float) -> float:
    """Return the time on a GPU of which some figures are so many times as large."""
    fleet = build_fleet([find_gpu(CATALOG, name)])
    fleet = replace(fleet, **{key: getattr(fleet, key) * factor for key, factor in factors.items()})
    return float(simulate(problems, fleet, prior_values(MODEL.parameters, 1)).time_ns[0])


def test_few_channels_leave_multiprocessors_idle() -> None:
    few, many = (problem(RowKernel.BATCH_NORM, rows, (1 << 28) // rows) for rows in (64, 4096))
    assert time_on(few) > 1.5 * time_on(many)
    assert time_on(few, sm_count=2.0) == pytest.approx(time_on(few), rel=0.05)


def test_a_softmax_gradients_threads_load_sixteen_bytes() -> None:
    """Eight halves or four singles: as many rows of 262,144 took 89 and 164 us on H100."""
    half, single = (problem(RowKernel.SOFTMAX_GRADIENT, 64, 1 << 18, moved_bytes=3.0 * w * (1 << 24)) for w in (2, 4))
    assert time_on(single) > 1.5 * time_on(half)


def test_zeros_are_written_faster_than_a_copy_and_no_kernel_waits_for_them() -> None:
    zeros, copy = (
        replace(problem(kernel, 4096, 1, streamed_bytes=1e9), least_bytes=np.array([2e9]), launches=np.array([2.0]))
        for kernel in (RowKernel.PICK, RowKernel.STREAM)
    )
    alone = replace(zeros, streamed_bytes=np.zeros(1), launches=np.ones(1))
    assert time_on(zeros) - time_on(alone) < 0.95 * time_on(copy)


def test_a_few_long_rows_take_the_time_of_their_loads() -> None:
    """Sixteen rows of four million elements took eight milliseconds on H100, twenty times what their bytes take."""
    few, many = (problem(RowKernel.ROW_FORWARD, rows, (1 << 26) // rows) for rows in (16, 4096))
    assert time_on(few) > 10.0 * time_on(many)
    assert time_on(few, bandwidth_bytes_per_s=2.0) == pytest.approx(time_on(few), rel=0.1)


def test_blocks_share_the_channels_that_lie_last() -> None:
    first = problem(RowKernel.MOMENTS, 16, 1 << 22, run=1 << 14)
    last = problem(RowKernel.COLUMN_MOMENTS, 16, 1 << 22, run=1)
    assert time_on(first) > 3.0 * time_on(last)


def test_few_tiles_of_a_column_are_one_blocks_and_many_are_added_up_after_them() -> None:
    few, many = (problem(RowKernel.COLUMN_MOMENTS, 32, columns, run=1) for columns in (1024, 4096))
    assert time_on(few) > time_on(many)


@pytest.mark.parametrize(("kernel", "streamed"), [(RowKernel.COLUMN_ELEMENTS, False), (RowKernel.COLUMN_SUMS, True)])
def test_elements_of_few_channels_that_lie_last_wait_for_their_blocks_loads(kernel: RowKernel, streamed: bool) -> None:
    """32 channels have 128 blocks: in bf16 H100 moves 103 M elements of 32 in 433 us, 103 M of 512 in 193."""

    def of(channels: int) -> ReductionProblems:
        found = problem(kernel, channels, (1 << 26) // channels, run=1, streamed_bytes=streamed * 4e8)
        return replace(found, streaming=np.array([RowKernel.COLUMN_ELEMENTS if streamed else -1]))

    assert time_on(of(32)) > 1.1 * time_on(of(512))


@pytest.mark.parametrize("kernel", list(RowKernel))
def test_an_empty_tensor_takes_a_finite_time(kernel: RowKernel) -> None:
    assert 0 < time_on(problem(kernel, 64, 0)) < 1e6


def test_sums_of_columns_fetch_their_code_where_other_kernels_ran() -> None:
    again, between, swept = (
        replace(problem(kernel, 768, 2048, moved_bytes=6e6), moved_since_bytes=np.array([since]))
        for kernel, since in (
            (RowKernel.REDUCE_COLUMNS, 0.0),
            (RowKernel.REDUCE_COLUMNS, 1.0),
            (RowKernel.REDUCE_COLUMNS, np.inf),
        )
    )
    assert time_on(between) - time_on(again) == pytest.approx(1e3 * CODE_US, rel=0.01)
    assert time_on(swept) > time_on(again)
    assert time_on(problem(RowKernel.REDUCE_COLUMNS, 768, 2048, moved_bytes=6e6)) == time_on(between)  # not known
    rows = problem(RowKernel.REDUCE, 768, 2048, moved_bytes=6e6)
    assert time_on(rows) == pytest.approx(time_on(replace(rows, moved_since_bytes=np.zeros(1))), rel=1e-3)


def test_a_scan_of_few_rows_goes_through_more_levels() -> None:
    few, many = (problem(RowKernel.SCAN, rows, (1 << 28) // rows) for rows in (1 << 11, 1 << 14))
    assert time_on(few) > 1.2 * time_on(many)


def test_blocks_share_gradients_of_more_than_65536_rows() -> None:
    least, more = (problem(RowKernel.ROW_BACKWARD, rows, 64) for rows in (1 << 16, (1 << 16) + 32))
    least, more = (replace(item, launches=np.array([3.0])) for item in (least, more))
    assert time_on(least) > 2.0 * time_on(more)


def test_a_scan_of_far_more_rows_than_columns_takes_a_block_per_row() -> None:
    """Own rows: 131,072 rows of 128 columns run 131,072 blocks, 98,304 of 197 run 3,072."""
    more, fewer = (time_on(problem(RowKernel.SCAN, rows, 64)) for rows in (1 << 16, 1 << 15))
    assert more > 4.0 * fewer


def test_a_scan_along_another_dim_waits_for_a_load_per_element_and_is_not_sure() -> None:
    last, other = (problem(RowKernel.SCAN, 64, 8192, run=run) for run in (0, 1))
    assert time_on(other) > 8192 * 200.0 > 10.0 * time_on(last)
    fleet = build_fleet([find_gpu(CATALOG, "H100 SXM5 80GB")])
    widths = [simulate(item, fleet, prior_values(MODEL.parameters, 1)).unstated for item in (last, other)]
    assert widths[0] is None
    assert widths[1] is not None
    assert (widths[1] > 0.5).all()


def test_one_thread_adds_up_the_row_that_is_looked_up_most_and_atomics_add_to_few() -> None:
    """Own rows: 329,000 of a million lookups in one of 10,000 rows took 3.4 ms longer than evenly spread ones."""
    even, skewed = (
        problem(RowKernel.TABLE_GRADIENT, 10_000, 64, run=run, window=6400, moved_bytes=1e6) for run in (100, 329_000)
    )
    assert 2e6 < time_on(skewed) - time_on(even) < 4e6
    few = problem(RowKernel.TABLE_GRADIENT, 2, 64, run=329_000, window=32_000_000, moved_bytes=1e6)
    assert time_on(few) < 0.3 * time_on(skewed)


def test_a_row_that_is_sorted_alone_takes_its_blocks_own_time() -> None:
    one, many = (problem(RowKernel.SORT_ROWS, rows, 16384) for rows in (1, 132))
    assert time_on(one) > 0.8 * time_on(many)
    assert time_on(one, sm_count=2.0) == pytest.approx(time_on(one), rel=0.01)


def test_the_largest_are_sorted_and_one_block_walks_over_a_row() -> None:
    one, many = (problem(RowKernel.TOP_ROWS, 2, 600, run=run) for run in (1, 4096))
    assert time_on(many) > time_on(one) + 5e3
    assert time_on(problem(RowKernel.TOP_ROWS, 2, 10_000, run=1)) > 3.0 * time_on(one)


def test_a_topk_by_one_block_hardly_waits_for_dram_and_one_by_parts_starts_every_kernel_anew() -> None:
    rows = problem(RowKernel.TOP_ROWS, 32, 1000)
    again, flushed = (time_on(replace(rows, moved_since_bytes=np.array([since]))) for since in (0.0, np.inf))
    assert flushed < again + 0.5e3
    parts = problem(RowKernel.TOP_PARTS, 2, 5 * 10_000)
    few, many = (time_on(replace(parts, launches=np.array([count]))) for count in (15.0, 21.0))
    assert many > few + 6 * 1.5e3


def test_blocks_share_a_long_row_of_a_topk_and_one_counts_for_all() -> None:
    whole, shared = (problem(RowKernel.TOP_PARTS, 64 // rows, rows << 18, run=1) for rows in (1, 64))
    assert 1.05 * time_on(whole) < time_on(shared) < 2.0 * time_on(whole)


def test_blocks_that_wait_for_each_other_take_some_channels_at_a_time_and_read_again_what_they_cannot_keep() -> None:
    """In fp16 H100 takes 12 us for 3,136 elements of 1,024 channels, twice that for 2,048; beyond, three passes."""
    kernel = RowKernel.PERSISTENT_NORM
    one, two = (problem(kernel, channels, 3136, run=1, moved_bytes=12544.0 * channels) for channels in (1024, 2048))
    assert time_on(two, l2_cache_bytes=100.0) > 1.7 * time_on(one, l2_cache_bytes=100.0)
    large = problem(RowKernel.PERSISTENT_NORM, 64, 1 << 22, run=1)
    assert time_on(large) > 1.4 * time_on(problem(RowKernel.STREAM, 1, 1 << 28, streamed_bytes=8.0 * (1 << 28)))


def test_a_block_that_holds_its_row_reads_before_it_computes() -> None:
    """So that bytes add to the time of what follows; pairs of halves are computed at once."""
    held, twice = (problem(RowKernel.BATCH_NORM, rows, (1 << 26) // rows, run=784) for rows in (8192, 64))
    for item, adds in ((held, True), (problem(RowKernel.SORT_ROWS, 1 << 14, 4096), True), (twice, False)):
        slower = time_on(item, bandwidth_bytes_per_s=0.5) - time_on(item)
        assert (slower > 1.05e9 * float(item.walked_bytes[0]) / 3.35e12) is adds
    odd, even = (problem(RowKernel.BATCH_NORM, 512, 12544, run=run, moved_bytes=4.0 * 512 * 12544) for run in (49, 196))
    assert time_on(odd) > 1.2 * time_on(even)


def test_what_a_repeated_call_streams_lies_between() -> None:
    norm = problem(RowKernel.MOMENTS, 64, 100_000, run=3136, streamed_bytes=1e8)
    again, apart = (time_on(replace(norm, moved_since_bytes=np.array([since]))) for since in (0.0, 1.0))
    assert again > 1.1 * apart


def test_every_block_and_every_further_kernel_takes_its_start() -> None:
    """Rows of 49 elements: H100 starts 131,072 blocks in 80 us."""
    many = replace(problem(RowKernel.MOMENTS, 512, 256 * 49, run=49), streaming=np.array([RowKernel.CHANNEL_ELEMENTS]))
    assert 70e3 < time_on(many) - time_on(problem(RowKernel.MOMENTS, 512, 256 * 49, run=49)) < 90e3
    more = replace(many, launches=many.launches + 4.0)
    assert time_on(more) - time_on(many) > 4.0 * time_on(problem(RowKernel.STREAM, 1, 1))


def test_larger_windows_take_longer() -> None:
    small, large = (problem(RowKernel.POOL, 1 << 26, 1, window=window, moved_bytes=1e8) for window in (4, 121))
    assert time_on(large) > 5.0 * time_on(small)


def test_images_of_few_pixels_are_resampled_by_one_block() -> None:
    """Whatever their number; of many pixels the bytes count, or at least what all multiprocessors do."""
    few, many = (problem(RowKernel.INTERPOLATE, 14 * 14 * more, (1 << 20) // more) for more in (1, 1 << 12))
    assert time_on(few) > 20.0 * time_on(many)
    assert time_on(few, sm_count=2.0) == pytest.approx(time_on(few), rel=0.01)


def test_one_block_picks_all_targets() -> None:
    picked = problem(RowKernel.PICK, 1 << 20, 1, moved_bytes=1e6)
    assert time_on(picked, sm_count=2.0) == pytest.approx(time_on(picked), rel=0.01)


def test_elementwise_passes_take_their_bytes() -> None:
    alone = problem(RowKernel.REDUCE, 1, 1 << 28)
    around = problem(RowKernel.REDUCE, 1, 1 << 28, streamed_bytes=4e9)
    fleet = build_fleet([find_gpu(CATALOG, "H100 SXM5 80GB")])
    least_ns = 4e9 / float(fleet.bandwidth_bytes_per_s[0]) * 1e9
    assert least_ns < time_on(around) - time_on(alone) < 1.4 * least_ns


def test_events_read_the_floor_of_their_host_at_least() -> None:
    tiny = replace(problem(RowKernel.SCAN, 8, 8), host_floor_ns=np.array([30e3]))
    long = problem(RowKernel.SCAN, 1 << 14, 1 << 14)
    assert time_on(tiny) >= 30e3
    assert time_on(long) < time_on(replace(long, host_floor_ns=np.array([30e3]))) < time_on(long) + 30e3


def test_every_kernel_has_a_group() -> None:
    problems = [problem(kernel, 64, 64) for kernel in RowKernel]
    assert {GROUP_NAMES[int(group(item)[0])] for item in problems} == set(GROUP_NAMES)


def test_a_work_without_a_walk_is_refused() -> None:
    work = Work(
        family=Family.REDUCTION,
        flops=1.0,
        read_bytes=4.0,
        written_bytes=4.0,
        dtype="float32",
        dims=RowDims(rows=1, columns=1),
    )
    with pytest.raises(ValueError, match="name no kernel"):
        problems_of([work], [])


@settings(deadline=None, max_examples=60)
@given(
    kernel=st.sampled_from(list(RowKernel)),
    rows=st.integers(1, 1 << 14),
    columns=st.integers(1, 1 << 14),
    run=st.sampled_from([1, 49, 784, 12544, 0]),
    figure=st.sampled_from(BETTER),
    factor=st.sampled_from([1.02, 1.4, 2.0]),
    name=st.sampled_from(["H100 SXM5 80GB", "L40S", "Tesla T4", "Instinct MI300X"]),
)
def test_a_gpu_that_is_better_in_one_figure_is_not_slower(
    kernel: RowKernel, rows: int, columns: int, run: int, figure: str, factor: float, name: str
) -> None:
    given_problem = problem(kernel, rows, columns, run=min(run, columns))
    assert time_on(given_problem, name, **{figure: factor}) <= 1.02 * time_on(given_problem, name)


@settings(deadline=None, max_examples=40)
@given(kernel=st.sampled_from(list(RowKernel)), rows=st.integers(1, 1 << 16), columns=st.integers(1, 1 << 16))
def test_times_are_finite_and_over_the_launch(kernel: RowKernel, rows: int, columns: int) -> None:
    assert 1e3 < time_on(problem(kernel, rows, columns)) < 1e13


def row_gradient(rows: int, columns: int, width: float, operations: int, since: float = 1.0) -> ReductionProblems:
    """Return a row norm's gradients, of input and parameters, in so many operations per element."""
    size = width * rows * columns
    kernel, window = RowKernel.ROW_BACKWARD, operations * columns
    found = problem(kernel, rows, columns, window=window, moved_bytes=3.0 * size, streamed_bytes=2.0 * size)
    return replace(found, launches=np.array([3.0]), moved_since_bytes=np.array([since]))


def test_layer_norms_parameters_are_two_sums_and_rms_norms_one() -> None:
    """32,768 rows of 384 columns in fp32 take 143 and 101 us on H100; of more rows each has parts to add up."""
    for rows in (1 << 15, 1 << 17):
        both, one = (time_on(row_gradient(rows, 384, 4.0, operations)) for operations in (13, 12))
        assert 1.01 * one < both < 1.4 * one


def test_rows_at_work_are_read_again_from_l2_while_their_bytes_fit() -> None:
    """H100 takes five passes over DRAM for 4,096 columns in fp32, three for 1,024 in bf16: 884 and 77 us."""
    kernel, rows = RowKernel.ROW_BACKWARD, 1 << 15
    narrow, wide = (problem(kernel, rows, c, moved_bytes=3.0 * w * rows * c) for c, w in ((1024, 2), (4096, 4)))
    assert time_on(wide) > 8.5 * time_on(narrow)
    assert time_on(wide, l2_cache_bytes=100.0) < 8.0 * time_on(narrow)


def test_one_wave_of_blocks_reads_its_rows_then_walks_over_them_again() -> None:
    """512 rows of 8,192 columns in bf16: 25 us from DRAM on H100, 15 from L2."""
    cold, hot = (time_on(row_gradient(512, 8192, 2.0, 12, since)) for since in (np.inf, 0.0))
    assert cold - hot > 0.8 * 1e9 * 2.0 * 2.0 * 512 * 8192 / 3.35e12


def test_a_loss_takes_the_nearest_power_of_threads() -> None:
    """`nll_loss` of 3,200 rows runs 256 threads, as of 4,096: 15 and 19 us on H100."""
    few, more = (time_on(problem(RowKernel.PICK, rows, 1)) for rows in (3200, 4096))
    assert few < more


def test_few_of_the_largest_are_sorted_by_comparisons() -> None:
    few, many = (time_on(problem(RowKernel.TOP_ROWS, 1 << 14, 512, run=run)) for run in (32 * 4, 128 * 4))
    assert many > few + 20e3


def test_a_waves_blocks_of_a_topk_end_together_so_that_a_few_more_take_another_wave() -> None:
    """512 rows of 50,257 halves took a half longer than their elements say, on H100 (1,056 blocks at a time)."""
    two, more = (
        replace(problem(RowKernel.TOP_PARTS, rows, 3 * 65536, run=1), launches=np.array([15.0])) for rows in (264, 280)
    )
    assert time_on(more) > 1.4 * time_on(two)


def test_a_losss_gradient_waits_for_its_target_alone_and_for_stores_of_many_threads() -> None:
    forward = problem(RowKernel.PICK, 512, 1, moved_bytes=6144.0)
    zeros = replace(forward, streamed_bytes=np.array([4.0]), least_bytes=np.array([1e6]))
    assert time_on(zeros) < 0.7 * time_on(forward)
    few, many = (replace(zeros, rows=np.array([rows]), elements=np.array([rows])) for rows in (2048.0, 16384.0))
    assert time_on(many) > 1.5 * time_on(few)


def test_a_gathers_blocks_are_as_wide_as_its_rows() -> None:
    thin, wide = (problem(RowKernel.GATHER_ROWS, 20000, 1, run=run, moved_bytes=1e6) for run in (32, 192))
    assert time_on(wide) > time_on(thin)


def test_few_blocks_for_an_image_are_cudnns_alone() -> None:
    few, many = (problem(RowKernel.BROADCAST, rows, (1 << 20) // rows) for rows in (1, 64))
    assert time_on(few) > 3.0 * time_on(many)
    assert time_on(few, "Instinct MI300X") < 1.5 * time_on(many, "Instinct MI300X")


def test_gradients_of_rows_wait_until_what_they_push_out_of_l2_is_written() -> None:
    cold, hot = (time_on(row_gradient(32768, 8192, 4.0, 12, since)) for since in (np.inf, 0.0))
    assert 1e-9 * (cold - hot) == pytest.approx(0.5 * 50 * 2**20 / 3.0e12, rel=0.2)


def test_the_multiprocessor_with_most_columns_ends_a_row_norms_gradients() -> None:
    one, more, two = (time_on(row_gradient(8192, 32 * blocks, 2.0, 13, 0.0)) for blocks in (132, 136, 264))
    assert more - one > 1.5 * (two - more) * 4 / 128
