"""What the bandwidth that a measured kernel reached leaves to another GPU of its chip."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.prediction.bounds import bound_ops
from wavecast.analyzer.prediction.limits import hold_reached
from wavecast.analyzer.prediction.ratios import UNREAD_SHARE, UPDATE_SHARE, Move, boundedness
from wavecast.analyzer.prediction.workload import measured_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.work import Family
from wavecast.formats.files.open import load_trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
RECORDING = load_trace(Path(__file__).parents[3] / "samples" / "vit_small-inference-bf16-b4-h100.json.gz")
KERNELS = measured_workload(RECORDING, select_window(RECORDING))
H100, H200 = "H100 SXM5 80GB", "H200"


def move_of(source: str, target: str, family: Family, *, known: bool = True, slower: float = 10.0) -> Move:
    """Kernels of one family between two GPUs, which moved their bytes that much slower than an H100's memory can."""
    moved = KERNELS.work.moved_bytes * KERNELS.op_share
    workload = replace(
        KERNELS,
        family=(family,) * len(KERNELS.op),
        duration_ns=slower * moved / 3.35e3 + (1e5 if slower > 1 else 2e3),
        has_work=(moved > 0) & known,
    )
    origin, fleet = (build_fleet([find_gpu(CATALOG, name)]) for name in (source, target))
    here, there = (bound_ops(workload.work, item) for item in (origin, fleet))
    return Move(trace=RECORDING, workload=workload, origin=origin, origin_bounds=here, fleet=fleet, bounds=there)


def held(move: Move, factor: float) -> np.ndarray:
    """By what the times change that were to change by `factor`."""
    time = move.workload.duration_ns[:, None] * factor
    hold_reached(time, np.full_like(time, 0.5), move, move.workload.has_work)
    return (time[:, 0] / move.workload.duration_ns)[move.workload.has_work]


@pytest.mark.parametrize("family", [Family.ELEMENTWISE, Family.MATMUL])
@pytest.mark.parametrize(("source", "target", "factor"), [(H100, H200, 0.7), (H200, H100, 1.43)])
def test_a_kernel_far_from_its_memorys_rate_changes_little(
    source: str, target: str, factor: float, family: Family
) -> None:
    change = np.log(held(move_of(source, target, family), factor)) / np.log(factor)
    assert len(change)
    assert np.all((change >= 0) & (change < 0.25))


def test_a_product_may_have_read_half_as_much_again() -> None:
    once, again = (1.0 - held(move_of(H100, H200, family), 0.5) for family in (Family.COPY, Family.MATMUL))
    np.testing.assert_allclose(again, 1.5 * once)


def test_what_was_in_the_cache_does_not_follow_the_memory() -> None:
    move = move_of(H100, H200, Family.ELEMENTWISE, slower=0.2)
    is_cached = (move.workload.work.moved_bytes * move.workload.op_share > 5e6)[move.workload.has_work]
    assert is_cached.any()
    np.testing.assert_allclose(held(move, 0.7)[is_cached], 1.0)


def test_what_promises_less_is_left() -> None:
    np.testing.assert_allclose(held(move_of(H100, H200, Family.ELEMENTWISE), 1.0), 1.0)


@pytest.mark.parametrize(
    ("target", "family"), [("B200 SXM (HGX, 180GB)", Family.ELEMENTWISE), (H200, Family.NORMALIZATION)]
)
def test_other_chips_and_kernels_that_read_again_are_not_held(target: str, family: Family) -> None:
    np.testing.assert_allclose(held(move_of(H100, target, family), 0.5), 0.5)


def test_fewer_multiprocessors_may_slow_down_what_the_memory_does_not() -> None:
    move = move_of(H100, "H20", Family.ELEMENTWISE)
    np.testing.assert_allclose(held(move, 1.6), 1.6)


@pytest.mark.parametrize(("family", "share"), [(Family.OPTIMIZER, UPDATE_SHARE), (Family.ELEMENTWISE, UNREAD_SHARE)])
def test_kernels_of_unknown_bytes_take_the_share_of_their_kind(family: Family, share: float) -> None:
    move = move_of(H100, H200, family, known=False)
    np.testing.assert_array_equal(boundedness(move, np.arange(3)), np.full((3, 1), share))


@pytest.mark.parametrize(("target", "narrower"), [(H200, True), ("B200 SXM (HGX, 180GB)", False)])
def test_one_chip_leaves_little_to_be_unsure_of(target: str, narrower: bool) -> None:
    move = move_of(H100, target, Family.MATMUL)
    time = move.workload.duration_ns[:, None].copy()
    width = np.full_like(time, 0.5)
    hold_reached(time, width, move, move.workload.has_work)
    assert np.all(width[move.workload.has_work] < 0.25) == narrower
    np.testing.assert_array_equal(time[:, 0], move.workload.duration_ns)
