"""What carries over from a measured GPU to another, which model predicts which op, and what measurements correct."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.models.frame.correction import Calibration
from wavecast.analyzer.models.frame.intervals import distances, gpu_positions, separations
from wavecast.analyzer.models.frame.parameters import GpuFactors
from wavecast.analyzer.models.frame.problems import problem_count
from wavecast.analyzer.models.library import Library, carried_factor, load_library
from wavecast.analyzer.models.registry import assign_models
from wavecast.analyzer.work.work import (
    AttentionDims,
    ConvolutionDims,
    Dims,
    Direction,
    Family,
    MatmulDims,
    RecurrentDims,
    RowDims,
    Work,
)
from wavecast.specs.fleet import build_fleet, take_gpus
from wavecast.specs.gpu import Rate

from ..conftest import build_gpu
from .test_parts import Moves, fitted

GPUS = (build_gpu(name="One"), build_gpu(name="Two", memory_bandwidth_bytes_per_s=3e12))


def carried(measured: float, *, anchor: float = 0.4, width: float = 0.1, apart: float = 1.0) -> float:
    """Return the natural logarithm of the factor for a source that takes exp(measured) times the model's time."""
    one = np.ones(1)
    factor = carried_factor(1e4 * np.exp(measured) * one, 1e4 * one, anchor * one, width * one, apart * one)
    return float(np.log(factor[0]))


@pytest.mark.parametrize("sign", [1, -1])
def test_of_a_usual_deviation_a_part_carries_over_and_of_the_rest_all(sign: int) -> None:
    assert carried(sign * 0.05) == pytest.approx(sign * 0.4 * 0.05)
    assert carried(sign * 0.3) == pytest.approx(sign * (0.4 * 0.1 + 0.2))
    assert carried(0.0) == pytest.approx(0.0)


def test_the_more_alike_two_gpus_are_the_more_carries_over() -> None:
    assert carried(0.05, apart=0.0) == pytest.approx(0.05)
    assert carried(0.05, apart=0.5) == pytest.approx((1 - 0.6 * 0.5) * 0.05)
    assert carried(0.05, apart=3.0) == pytest.approx(0.4 * 0.05)
    assert carried(0.3, apart=0.0) == pytest.approx(0.3)


def test_gpus_are_as_far_apart_as_their_figures() -> None:
    """A factor of four in one figure is a distance of one."""
    base, fast = GPUS[0], replace(GPUS[0], memory_bandwidth_bytes_per_s=4 * GPUS[0].memory_bandwidth_bytes_per_s)
    both = replace(fast, l2_cache_bytes=fast.l2_cache_bytes / 4)
    gddr = replace(base, memory_type="GDDR6")
    fleet, origin = build_fleet([base, fast, both, gddr]), build_fleet([base])
    assert separations(fleet, origin) == pytest.approx([0.0, 1.0, np.sqrt(2.0), 1.0])
    assert distances(fleet, gpu_positions(origin)).min(axis=-1) == pytest.approx([0.0, 1.0, np.sqrt(2.0), 1.0])
    two = gpu_positions(build_fleet([base, both]))
    assert distances(fleet, two).min(axis=-1) == pytest.approx([0.0, 1.0, 0.0, 1.0])
    amd = build_fleet([replace(base, vendor="AMD", compute_capability="gfx942")])
    assert separations(amd, origin)[0] == pytest.approx(np.sqrt(2.0**2 + 8.0))  # kind, and the root of 8.0


def test_a_prediction_is_the_model_with_its_interval_and_what_was_learned_of_anchors() -> None:
    fleet, problems = build_fleet(GPUS), Moves(moved_bytes=np.array([[1e6], [1e8]]))
    found = Library(fitted={"moves": fitted()}).predict("moves", problems, fleet)
    expected = problems.moved_bytes / fleet.bandwidth_bytes_per_s * 1e9 / 0.8 + 2e3
    assert found.time_ns == pytest.approx(expected)
    assert found.low_ns == pytest.approx(found.time_ns * np.exp(-found.half_width))
    assert found.high_ns == pytest.approx(found.time_ns * np.exp(found.half_width))
    away = distances(fleet, fitted().interval.positions).min(axis=-1)
    of_class = 1.2  # both have HBM
    factor = 0.5 + (of_class - 0.5) * np.minimum(away / 0.25, 1.0)
    assert found.half_width == pytest.approx(np.broadcast_to(0.1 * factor, (2, 2)))
    assert found.anchor.tolist() == [[0.5], [0.5]]
    assert found.anchored_half_width == pytest.approx(np.broadcast_to(0.05 * factor, (2, 2)))
    assert found.foreign_half_width.tolist() == [[0.3], [0.3]]


def calibration(offset: float, slope: float) -> Calibration:
    return Calibration(
        columns=np.zeros(1, dtype=np.int64),
        mean=np.zeros(1),
        scale=np.full(1, 10.0),
        coefficients=np.array([offset, slope]),
        taught=np.zeros((0, 1)),
        taught_kinds=np.zeros(0, dtype=np.int64),
        weights=np.zeros(0),
        reach=0.5,
        other_kind_ratio=0.5,
        kinds=np.zeros(0, dtype=np.int64),
        kind_offsets=np.zeros(0),
        spared_kinds=np.zeros(0, dtype=np.int64),
    )


def test_only_the_calibrated_gpu_is_corrected_with_its_whole_interval() -> None:
    problems = Moves(moved_bytes=np.array([[1e6], [1e8], [1e9]]))
    plain = Library(fitted={"moves": fitted()})
    taught = replace(plain, calibrations={"moves": {"Two": calibration(0.2, 0.1)}})
    fleet = build_fleet(GPUS)
    before, after = (library.predict("moves", problems, fleet) for library in (plain, taught))
    factor = np.ones((3, 2))
    factor[:, 1] = np.exp(0.2 + 0.1 * np.log(before.time_ns[:, 1]) / 10.0)
    for name in ("time_ns", "low_ns", "high_ns"):
        assert getattr(after, name) == pytest.approx(getattr(before, name) * factor)
    assert after.half_width == pytest.approx(before.half_width)
    pairs = taught.predict(
        "moves", Moves(moved_bytes=problems.moved_bytes[:, 0]), take_gpus(fleet, np.array([1, 1, 1]))
    )
    assert pairs.time_ns == pytest.approx(after.time_ns[:, 1])
    assert taught.prepare("moves", fleet).width_factor[0] == pytest.approx(before.half_width[0] / 0.1)
    assert taught.trained_chips("moves") == {"GH100"}


def test_rates_that_measurements_found_move_every_model_of_their_gpu() -> None:
    problems = Moves(moved_bytes=np.array([[1e6], [1e8], [1e9]]))
    plain, fleet = Library(fitted={"moves": fitted()}), build_fleet(GPUS)
    found = replace(plain, factors={"Two": GpuFactors(bandwidth=0.5)})
    before, after = (library.predict("moves", problems, fleet) for library in (plain, found))
    np.testing.assert_array_equal(after.time_ns[:, 0], before.time_ns[:, 0])
    assert after.time_ns[:, 1] - 2e3 == pytest.approx(2 * (before.time_ns[:, 1] - 2e3))
    assert after.half_width == pytest.approx(before.half_width)
    spared = replace(found, spared=frozenset({("moves", "Two")})).predict("moves", problems, fleet)
    np.testing.assert_array_equal(spared.time_ns, before.time_ns)


DECODE = AttentionDims(batch=2, heads=8, kv_heads=8, queries=1, keys=64, query_dim=64, value_dim=64)
WORKS: tuple[tuple[Family, Dims | None, Rate, str | None], ...] = (
    (Family.MATMUL, MatmulDims(m=8, n=8, k=8), Rate.MATRIX_BF16, "matmul"),
    (Family.MATMUL, MatmulDims(m=8, n=8, k=8), Rate.MATRIX_FP8, "matmul_quantized"),
    (Family.MATMUL, MatmulDims(m=8, n=8, k=8), Rate.FP32, "matmul_simt"),
    (Family.MATMUL, MatmulDims(m=8, n=8, k=8), Rate.MATRIX_FP64, "matmul_simt"),
    (Family.ATTENTION, DECODE, Rate.MATRIX_BF16, "attention_decode"),
    (Family.ATTENTION, replace(DECODE, keys=1), Rate.MATRIX_BF16, "attention_prefill"),
    (Family.ATTENTION, replace(DECODE, queries=2), Rate.MATRIX_BF16, "attention_decode"),
    (Family.ATTENTION, replace(DECODE, queries=9), Rate.MATRIX_BF16, "attention_prefill"),
    (Family.ATTENTION, replace(DECODE, direction=Direction.BOTH_GRADIENTS), Rate.MATRIX_BF16, "attention_backward"),
    (Family.ELEMENTWISE, None, Rate.FP32, "vector"),
    (Family.SOFTMAX, RowDims(rows=4, columns=9), Rate.FP32, "vector"),
    (Family.COLLECTIVE, None, Rate.FP32, None),
    (Family.ATTENTION, None, Rate.MATRIX_BF16, None),
    (Family.CONVOLUTION, None, Rate.FP32, None),
)


def work(family: Family, dims: Dims | None, **changes: Any) -> Work:
    is_matrix = isinstance(dims, (MatmulDims, AttentionDims, ConvolutionDims, RecurrentDims))
    values: dict[str, Any] = {"flops": 1e3, "read_bytes": 256.0, "written_bytes": 128.0, "dtype": "bfloat16"}
    return Work(family=family, dims=dims, is_matrix=is_matrix, **(values | changes))


def test_each_op_has_the_model_of_its_dims_and_unit() -> None:
    works = [None, *(work(family, dims) for family, dims, _, _ in WORKS), work(*WORKS[0][:2], flops=0.0)]
    rates = np.array([Rate.FP32, *(rate for _, _, rate, _ in WORKS), Rate.MATRIX_BF16], dtype=object)
    found = assign_models(works, rates, load_library().fitted)
    named = {int(row): item.model for item in found for row in item.rows}
    assert named == {row: name for row, (_, _, _, name) in enumerate(WORKS, 1) if name is not None}
    for item in found:
        assert problem_count(item.problems) == len(item.rows)
    few = assign_models(works, rates, {"vector"})
    assert [(item.model, item.rows.tolist()) for item in few] == [("vector", [10, 11])]
