"""The interval of a sum: what errors ops share."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.prediction.shared_error import IterationKind, shared_half_widths
from wavecast.analyzer.prediction.sum_interval import FAMILY_SHARE, busy_interval_ns, row_changes
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

SAMPLES = Path(__file__).parents[3] / "samples"
NAMES = ("H100 SXM5 80GB", "GeForce RTX 4090", "Instinct MI300X")


@pytest.fixture(scope="module")
def result() -> Analysis:
    """ResNet-50's inference in bfloat16, from its shapes."""
    catalog = load_catalog()
    trace = load_trace(SAMPLES / "resnet50-inference-bf16-b32-shapes.json.gz")
    return run_analysis(trace, catalog, targets=[find_gpu(catalog, name) for name in NAMES])


def by_family(result: Analysis, change: Floats) -> Floats:
    """How far the families' errors move the sum on each GPU, were they all there are."""
    time = result.prediction.time_ns * result.prediction.weight[:, None] * change
    families = np.array([family or "" for family in result.workload.family])
    sums = [FAMILY_SHARE * time[families == family].sum(axis=0) for family in np.unique(families)]
    alone = (1 - FAMILY_SHARE**2) * np.square(time).sum(axis=0)
    return np.asarray(np.sqrt(np.square(sums).sum(axis=0) + alone))


def test_times_from_shapes_share_an_error_of_their_gpu(result: Analysis) -> None:
    changes, total = row_changes(result.prediction), result.prediction.total_busy_ns()
    _, high = busy_interval_ns(result.prediction, result.workload.family, changes)
    shared = np.expm1(result.prediction.shared_half_width)
    assert high - total == pytest.approx(np.hypot(by_family(result, changes.rise), total * shared))
    assert (high > total * (1 + shared)).all()
    kind = IterationKind(is_half=True, is_training=False, is_compiled=False)
    assert (
        result.prediction.shared_half_width.tolist()
        == shared_half_widths(kind, result.prediction.fleet.gpus, {"GH100", "AD102"}).tolist()
    )


def test_a_chip_that_weights_saw_and_networks_ran_on_is_surer() -> None:
    gpus = [find_gpu(load_catalog(), name) for name in NAMES]
    kind = IterationKind(is_half=True, is_training=True, is_compiled=False)
    blind, seen = (shared_half_widths(kind, gpus, chips) for chips in (set(), {"GH100", "AD102"}))
    assert seen[0] < 0.6 * blind[0]
    others = [find_gpu(load_catalog(), name) for name in ("H100 PCIe 80GB", "H20")]
    assert (shared_half_widths(kind, others, {"GH100"}) >= blind[0] * 0.6).all()
    assert seen[1:].tolist() == blind[1:].tolist()


def test_a_chip_that_weights_saw_without_recordings_is_no_surer() -> None:
    turing = [find_gpu(load_catalog(), "RTX 2080 Ti")]
    kinds = [
        IterationKind(is_half=is_half, is_training=is_training, is_compiled=False)
        for is_half, is_training in product((True, False), repeat=2)
    ]
    blind, seen = (
        [float(shared_half_widths(kind, turing, chips)[0]) for kind in kinds] for chips in (set(), {"TU102"})
    )
    assert all(one <= other for one, other in zip(blind, seen, strict=True))
    assert blind != seen


def test_what_nobody_measured_shares_the_widest_error_of_all() -> None:
    gpus = {gpu.name: gpu for gpu in load_catalog().gpus}
    for is_half, is_training in ((True, False), (False, True)):
        kind = IterationKind(is_half=is_half, is_training=is_training, is_compiled=False)
        widths = shared_half_widths(kind, list(gpus.values()))
        widest = {name for name, width in zip(gpus, widths.tolist(), strict=True) if width == widths.max()}
        assert {"Radeon RX 7900 XTX", "Gaudi 3", "Arc B580", "GB10 (DGX Spark)"} <= widest


@pytest.mark.parametrize("is_half", [True, False])
@pytest.mark.parametrize("is_training", [True, False])
def test_a_compiled_kind_is_no_surer_than_the_eager_one(is_half: bool, is_training: bool) -> None:
    gpus = [gpu for gpu in load_catalog().gpus if gpu.name in NAMES]
    eager = IterationKind(is_half=is_half, is_training=is_training, is_compiled=False)
    compiled = shared_half_widths(replace(eager, is_compiled=True), gpus)
    assert (compiled > shared_half_widths(eager, gpus)).all()


def test_no_end_is_under_the_bounds_of_all_rows(result: Analysis) -> None:
    prediction = result.prediction
    low, _ = busy_interval_ns(prediction, result.workload.family)
    floor = np.einsum("ij,i,i->j", prediction.bounds.lower_ns, prediction.bound_share, prediction.weight)
    assert (low >= floor * (1 - 1e-9)).all()
    assert (low < prediction.total_busy_ns()).all()


def test_the_ends_of_the_iteration_move_rows_no_further_than_their_own_errors(result: Analysis) -> None:
    """All rows together move the sum at least to its ends, so that none has to move beyond its own."""
    changes, total = row_changes(result.prediction), result.prediction.total_busy_ns()
    low, high = busy_interval_ns(result.prediction, result.workload.family, changes)
    time = result.prediction.time_ns * result.prediction.weight[:, None]
    assert ((time * changes.joint_fall).sum(axis=0) >= (total - low) * (1 - 1e-9)).all()
    assert ((time * changes.joint_rise).sum(axis=0) >= (high - total) * (1 - 1e-9)).all()


def test_one_error_of_a_gpu_moves_all_its_times_but_not_through_their_bounds(result: Analysis) -> None:
    changes, prediction = row_changes(result.prediction), result.prediction
    room = 1.0 - prediction.bounds.lower_ns * prediction.bound_share[:, None] / prediction.time_ns
    rise = np.expm1(prediction.shared_half_width)
    assert changes.shared_rise == pytest.approx(np.broadcast_to(rise, prediction.time_ns.shape))
    assert (changes.shared_fall <= np.maximum(room, 0.0) + 1e-12).all()
    assert changes.shared_fall.max(axis=0) == pytest.approx(-np.expm1(-prediction.shared_half_width))


@pytest.mark.data
def test_times_moved_from_a_recording_have_no_error_of_times_from_shapes(data_dir: Path) -> None:
    catalog = load_catalog()
    trace = load_trace(data_dir / "traces" / "h100_bert_small_inference.json.gz")
    changes = row_changes(run_analysis(trace, catalog, targets=[find_gpu(catalog, "L40S")]).prediction)
    assert not changes.shared_rise.any()
    assert changes.joint_rise is changes.rise
