"""What all op models share: parameters, the correction network, intervals, event timing, calibration."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.measurements.calibration import FEWEST_POINTS, calibrated_ns, fit_calibration
from wavecast.analyzer.models.frame.classes import time_by_class
from wavecast.analyzer.models.frame.correction import Network, correct
from wavecast.analyzer.models.frame.gpu_physics import event_time_ns
from wavecast.analyzer.models.frame.intervals import (
    GPU_CLASSES,
    IntervalTable,
    distances,
    factor_of,
    gpu_class,
    gpu_positions,
    half_width,
    size_class,
    width_factors,
)
from wavecast.analyzer.models.frame.model import Estimate, Model
from wavecast.analyzer.models.frame.parameters import Parameter, Values, prior_scale, resolve, theta_size
from wavecast.analyzer.models.frame.problems import as_columns, take_problems
from wavecast.analyzer.models.library import Fitted, corrected_ns, predict_fitted, simulate
from wavecast.arrays import Codes, Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.match import find_gpu

PARAMETERS = (Parameter(name="a", prior=2.0), Parameter(name="b", prior=3.0, class_spread=0.1))
CATALOG = load_catalog()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moves:
    moved_bytes: Floats


def simulate_moves(problems: Moves, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    time_ns = problems.moved_bytes / fleet.bandwidth_bytes_per_s * 1e9 / values["efficiency"] + 2e3
    features = np.log(time_ns)[..., None]
    return Estimate(time_ns=time_ns, features=features, sizes=features, choice=choice)


def fitted(network: Network | None = None) -> Fitted:
    model: Model[Moves] = Model(
        name="moves",
        parameters=(Parameter(name="efficiency", prior=0.8),),
        class_names=("any",),
        gpu_class=lambda fleet: np.zeros(len(fleet.gpus), dtype=np.int64),
        simulate=simulate_moves,
        feature_names=("log time",),
        size_names=("log time",),
    )
    positions = gpu_positions(build_fleet([find_gpu(CATALOG, "H100 SXM5 80GB")]))
    return Fitted(
        model=model,
        theta=np.zeros(1),
        network=network,
        interval=IntervalTable(
            half_width=np.full((1, 5), 0.1),
            class_factor=np.array([[1.2], [1.5], [2.0]]),
            seen_ratio=np.full((1, 1), 0.5),
            reference=1.0,
            positions=positions,
            is_declared=np.zeros(1, dtype=bool),
        ),
        anchor=np.array([0.5]),
        anchored_half_width=np.array([0.05]),
        foreign_half_width=np.array([0.3]),
        trained_chips=frozenset({"GH100"}),
    )


def test_one_class_may_have_an_offset_alone() -> None:
    parameters = (Parameter(name="a", prior=2.0, spread=0.0, class_spread=0.5, only=1), PARAMETERS[1])
    assert theta_size(parameters, 3) == 2 + 1 + 3
    assert prior_scale(parameters, 3).tolist() == [0.0, 0.5, 0.5, 0.1, 0.1, 0.1]
    values = resolve(parameters, np.array([0.0, 0.0, 1.0, 0.0, 0.0, 2.0]), 3, np.arange(3))
    assert values["a"].tolist() == pytest.approx([2.0, 2.0 * np.e, 2.0])
    assert values["b"].tolist() == pytest.approx([3.0, 3.0, 3.0 * np.e**2])


def test_classes_are_simulated_apart() -> None:
    fleet = build_fleet(load_catalog().gpus)
    classes, problems = gpu_class(fleet), Moves(moved_bytes=np.array([1e6, 1e9]))
    values = {"efficiency": np.linspace(0.5, 0.9, len(GPU_CLASSES))[classes]}

    def timed(part: Moves, gpus: Fleet, known: Values) -> Floats:
        assert len(set(known["efficiency"].tolist())) == 1
        return simulate_moves(part, gpus, known, None).time_ns

    apart = time_by_class(timed, as_columns(problems), fleet, values, classes)
    np.testing.assert_array_equal(apart, simulate_moves(as_columns(problems), fleet, values, None).time_ns)
    pair = np.array([3, len(fleet.gpus) - 1])
    paired = time_by_class(
        timed, problems, take_gpus(fleet, pair), {"efficiency": values["efficiency"][pair]}, classes[pair]
    )
    np.testing.assert_array_equal(paired, apart[[0, 1], pair])


def test_theta_of_zeros_gives_the_priors() -> None:
    values = resolve(PARAMETERS, np.zeros(4), 2, np.array([0, 1, 1]))
    assert values["a"].tolist() == pytest.approx([2.0, 2.0, 2.0])
    assert values["b"].tolist() == pytest.approx([3.0, 3.0, 3.0])


def test_offsets_belong_to_their_class() -> None:
    values = resolve(PARAMETERS, np.log([2.0, 1.0, 1.0, 1.5]), 2, np.array([0, 1, 1]))
    assert values["a"].tolist() == pytest.approx([4.0, 4.0, 4.0])
    assert values["b"].tolist() == pytest.approx([3.0, 4.5, 4.5])


def test_theta_of_the_wrong_length_is_refused() -> None:
    assert theta_size(PARAMETERS, 2) == 4
    assert prior_scale(PARAMETERS, 2).tolist() == [0.5, 0.5, 0.1, 0.1]
    with pytest.raises(ValueError, match="4 expected"):
        resolve(PARAMETERS, np.zeros(3), 2, np.array([0]))


def network_of(weight: float, *, shrink: float = 1.0, limit: float = 1.0) -> Network:
    """Return one hidden ReLU unit: output = weight * max(0, feature)."""
    one = np.ones((1, 1), dtype=np.float32)
    zero = np.zeros(1, dtype=np.float32)
    return Network(
        mean=zero,
        scale=np.ones(1, dtype=np.float32),
        weights=(one, one * np.float32(weight)),
        biases=(zero, zero),
        shrink=shrink,
        limit=limit,
    )


def test_network_is_what_its_layers_say() -> None:
    features = np.array([[-1.0], [0.5], [2.0]])
    assert correct(network_of(0.3), features).tolist() == pytest.approx([0.0, 0.15, 0.6])
    assert correct(network_of(0.3, shrink=0.5, limit=0.2), features).tolist() == pytest.approx([0.0, 0.075, 0.2])


def test_nothing_is_corrected_of_which_a_network_knows_nothing() -> None:
    assert correct(network_of(0.3), np.array([[np.nan], [2.0]])).tolist() == pytest.approx([0.0, 0.6])


def test_network_keeps_leading_axes() -> None:
    assert correct(network_of(0.3), np.ones((4, 3, 1))).shape == (4, 3)


@given(st.floats(-1e6, 1e6))
def test_correction_never_exceeds_its_limit(feature: float) -> None:
    assert abs(correct(network_of(7.0, limit=0.7), np.array([[feature]]))[0]) <= 0.7


def test_pairs_and_products_of_problems_and_gpus_agree() -> None:
    fleet, model = build_fleet(CATALOG.gpus), fitted(network_of(0.02))
    moved = np.array([1e4, 1e6, 1e9])
    product = predict_fitted(model, Moves(moved_bytes=moved[:, None]), fleet)
    assert product.time_ns.shape == product.half_width.shape == (3, len(CATALOG.gpus))
    for column in (0, 50, 100):
        paired = predict_fitted(model, Moves(moved_bytes=moved), take_gpus(fleet, np.full(3, column)))
        assert paired.time_ns == pytest.approx(product.time_ns[:, column])
        assert paired.high_ns == pytest.approx(product.high_ns[:, column])


def test_interval_surrounds_the_time_and_widens_with_distance() -> None:
    names = ("H100 SXM5 80GB", "H200 SXM 141GB", "Tesla P4", "Instinct MI300X")
    fleet = build_fleet([find_gpu(CATALOG, name) for name in names])
    found = predict_fitted(fitted(), Moves(moved_bytes=np.array([[1e7]])), fleet)
    assert (found.low_ns < found.time_ns).all()
    assert (found.time_ns < found.high_ns).all()
    assert found.half_width[0, 0] == pytest.approx(0.05)
    assert found.half_width[0, 0] < found.half_width[0, 1] < found.half_width[0, 2]
    assert found.half_width[0, 1] < found.half_width[0, 3]


def test_a_training_gpu_is_at_distance_zero() -> None:
    fleet = build_fleet(CATALOG.gpus)
    assert distances(fleet, gpu_positions(fleet)).min(axis=-1) == pytest.approx(np.zeros(len(CATALOG.gpus)))


def test_half_width_is_that_of_group_and_size_times_the_factor_of_the_gpus_class() -> None:
    h100, l40s, mi300x = (find_gpu(CATALOG, name) for name in ("H100 SXM5 80GB", "L40S", "Instinct MI300X"))
    like = replace(h100, memory_bandwidth_bytes_per_s=h100.memory_bandwidth_bytes_per_s * 4**0.25)
    table = IntervalTable(
        half_width=np.arange(10.0).reshape(2, 5),
        class_factor=np.array([[1.0, 1.0], [1.0, 1.5], [1.0, 3.0]]),
        seen_ratio=np.full((2, 1), 0.5),
        reference=2.0,
        positions=gpu_positions(build_fleet([h100])),
        is_declared=np.array([True, False]),
    )
    assert gpu_class(build_fleet([h100, l40s, mi300x])).tolist() == [0, 1, 2]
    assert size_class(np.array([1e3, 1e4, 5e4, 5e5, 5e6])).tolist() == [0, 1, 2, 3, 4]
    group, time_ns = np.array([1]), np.array([5e4])
    factors = width_factors(table, build_fleet([h100, like, l40s, mi300x]))
    found = half_width(table, group[:, None], time_ns[:, None], factor_of(group[:, None], factors))
    assert found[0] == pytest.approx([3.5, 5.25, 7.0 * 1.5, 7.0 * 3.0])
    group[:] = 0
    declared = half_width(table, group[:, None], time_ns[:, None], factor_of(group[:, None], factors))
    assert declared[0].tolist() == [2.0] * 4


def test_where_nothing_like_a_gpu_was_measured_the_widest_class_counts() -> None:
    names = ["H100 SXM", "RX 7900 XTX", "Gaudi 3", "GB10", "Arc B580"]
    fleet = build_fleet([find_gpu(CATALOG, name) for name in names])
    table = IntervalTable(
        half_width=np.ones((2, 5)),
        class_factor=np.array([[1.0, 1.2], [1.5, 4.0], [3.0, 2.0]]),
        seen_ratio=np.full((2, len(names)), 0.5),
        reference=2.0,
        positions=gpu_positions(fleet),
        is_declared=np.array([False, False]),
    )
    assert width_factors(table, fleet).tolist() == [[0.5, 3.0, 3.0, 3.0, 3.0], [0.5, 4.0, 4.0, 4.0, 4.0]]


def test_a_training_gpus_interval_is_never_wider_than_its_class_asks_for() -> None:
    table = IntervalTable(
        half_width=np.ones((1, 5)),
        class_factor=np.full((3, 1), 0.4),
        seen_ratio=np.full((1, 1), 0.5),
        reference=2.0,
        positions=gpu_positions(build_fleet([find_gpu(CATALOG, "L40S")])),
        is_declared=np.zeros(1, dtype=bool),
    )
    assert width_factors(table, build_fleet(CATALOG.gpus)) == pytest.approx(np.full((1, len(CATALOG.gpus)), 0.4))


def test_a_gpu_takes_the_ratio_of_the_training_gpu_that_it_is_nearest_to_of_those_with_rows() -> None:
    fleet = build_fleet([find_gpu(CATALOG, name) for name in ("H100 SXM5 80GB", "L40S", "H200 SXM 141GB")])
    positions = np.broadcast_to(gpu_positions(fleet)[:2], (2, 2, 10)).copy()
    positions[1, 0] = np.inf
    table = IntervalTable(
        half_width=np.ones((2, 5)),
        class_factor=np.ones((3, 2)),
        seen_ratio=np.array([[0.2, 0.6], [0.3, 0.7]]),
        reference=1e9,
        positions=positions,
        is_declared=np.zeros(2, dtype=bool),
    )
    assert width_factors(table, fleet) == pytest.approx(np.array([[0.2, 0.6, 0.2], [0.7, 0.7, 0.7]]), rel=1e-6)


@given(st.floats(1.0, 1e7), st.floats(1e3, 1e5))
def test_event_time_is_never_under_floor_or_kernel(kernel_ns: float, floor_ns: float) -> None:
    found = event_time_ns(np.array([kernel_ns]), floor_ns)[0]
    assert found >= max(kernel_ns, floor_ns) * (1 - 1e-9)
    assert found <= 1.1 * (kernel_ns + floor_ns)


def test_calibration_finds_what_a_gpu_does_differently() -> None:
    model, random = fitted(), np.random.default_rng(0)
    problems = Moves(moved_bytes=np.exp(random.uniform(np.log(1e5), np.log(1e9), 400)))
    fleet = take_gpus(build_fleet([find_gpu(CATALOG, "L40S")]), np.zeros(400, dtype=np.int64))
    truth = corrected_ns(model, simulate(model, problems, fleet)) * 1.25 * np.exp(random.normal(0, 0.03, 400))
    few, rest = np.arange(50), np.arange(50, 400)

    def error(predicted: Floats) -> float:
        return float(np.abs(predicted / truth[rest] - 1).mean())

    calibration = fit_calibration(model, take_problems(problems, few), take_gpus(fleet, few), truth[few])
    later, on = take_problems(problems, rest), take_gpus(fleet, rest)
    assert error(calibrated_ns(calibration, model, later, on)) < 0.04
    assert error(corrected_ns(model, simulate(model, later, on))) > 0.18


def test_calibration_wants_enough_points() -> None:
    few = np.zeros(FEWEST_POINTS - 1, dtype=np.int64)
    fleet = take_gpus(build_fleet([find_gpu(CATALOG, "L40S")]), few)
    with pytest.raises(ValueError, match="too few"):
        fit_calibration(fitted(), Moves(moved_bytes=np.full(9, 1e6)), fleet, np.full(9, 1e4))
