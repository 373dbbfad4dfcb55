"""Training on a model whose true parameters are known."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from wavecast.analyzer.models.frame.correction import correct, mean_network
from wavecast.analyzer.models.frame.intervals import (
    GPU_CLASSES,
    GpuClass,
    IntervalTable,
    distances,
    factor_of,
    half_width,
    width_factors,
)
from wavecast.analyzer.models.frame.model import Estimate
from wavecast.analyzer.models.frame.parameters import Parameter, Values, resolve
from wavecast.analyzer.models.frame.problems import problem_count, take_problems
from wavecast.analyzer.models.matmul.problems import MatmulKernel
from wavecast.analyzer.models.registry import OP_MODELS
from wavecast.arrays import Codes
from wavecast.errors import InputError
from wavecast.mlp_weights.train import driver
from wavecast.mlp_weights.train.__main__ import main
from wavecast.mlp_weights.train.calibrate import LONE_CHIP_FACTOR, HeldOut, choose_shrink, fit_anchor, weighted_quantile
from wavecast.mlp_weights.train.driver import PRIORS, RECIPES, load_pool
from wavecast.mlp_weights.train.half_widths import (
    FEW_CHIPS,
    FEWEST_ROWS,
    FOREIGN_FACTOR,
    UNMEASURED_HALF_WIDTH,
    USUAL_SPREAD,
    Residuals,
    Z,
    class_factors,
    fit_intervals,
    half_width_table,
    residuals_of,
    seen_ratios,
    without_twins,
)
from wavecast.mlp_weights.train.recipe import find_recipe
from wavecast.mlp_weights.train.variant import Pool, fit_variant, join_samples, train_network
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus

from .toy import MODEL, RECIPE, TRUE, ToyProblems, samples, simulate

pytest.importorskip("scipy")
torch = pytest.importorskip("torch")


def test_fit_recovers_the_true_parameters_from_any_three_chips() -> None:
    pool = join_samples([samples()])
    for excluded in (frozenset({"AD102"}), frozenset({"GH100"})):
        variant = fit_variant(RECIPE, pool, excluded, seed=1)
        found = resolve(MODEL.parameters, variant.theta, 2, np.array([0]))
        assert found["efficiency"][0] == pytest.approx(TRUE["efficiency"], rel=0.03)
        assert found["floor_us"][0] == pytest.approx(TRUE["floor_us"], rel=0.05)


def test_a_fit_from_near_forgets_the_chip_that_its_start_saw() -> None:
    """Pairs start at parameters of one chip less left out: what that chip told must not stay."""
    clean = samples()
    odd = dataclasses.replace(clean, measured_ns=np.where(clean.gpu == 2, clean.measured_ns * 2.0, clean.measured_ns))
    pool = join_samples([odd])
    start = fit_variant(RECIPE, pool, frozenset({"GH100"}), seed=1).theta
    without = frozenset({"GH100", "AD102"})
    near, whole = (fit_variant(RECIPE, pool, without, seed=1, start=item) for item in (start, None))
    assert near.theta == pytest.approx(whole.theta, abs=0.03)
    assert np.abs(start - whole.theta).max() > 0.1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_models_measured_on_few_chips_have_weights_and_intervals_without_each(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = samples(noise=0.2)
    rows = every.gpu < count
    few = dataclasses.replace(
        every,
        problems=take_problems(every.problems, rows),
        gpu=every.gpu[rows],
        gpus=every.gpus[:count],
        measured_ns=every.measured_ns[rows] * np.array([1.0, 1.3, 0.8])[every.gpu[rows]],
        **{name: getattr(every, name)[rows] for name in ("family", "dtype", "share")},
    )
    pool = join_samples([few])
    monkeypatch.setattr(driver, "find_recipe", lambda _: RECIPE)
    monkeypatch.setattr(driver, "load_pool", lambda *_: pool)
    sets = [frozenset(chips) for size in range(3) for chips in combinations(pool.chips, size)]
    fits = {chips: driver.fit_and_predict("toy", (), chips) for chips in sets}
    covered = []
    for chips in [frozenset[str](), *(frozenset({chip}) for chip in pool.chips)]:
        found = driver.assemble(RECIPE, pool, fits, chips)
        silent = driver.assemble(dataclasses.replace(RECIPE, shrink=0.0), pool, fits, chips)
        assert "network.shrink" not in silent  # declared to be nothing, not left to be chosen
        table = IntervalTable(
            half_width=found["interval.half_width"],
            class_factor=found["interval.class_factor"],
            seen_ratio=found["interval.seen_ratio"],
            reference=float(found["interval.reference"][0]),
            positions=found["interval.positions"],
            is_declared=found["interval.is_declared"].astype(bool),
        )
        factor = width_factors(table, build_fleet(load_catalog().gpus))
        assert np.isfinite(factor).all()
        assert table.is_declared.all() == (len(chips) == count)
        for item in fits[chips][1]:
            residuals = residuals_of(item, 0.0, 0.7)
            here = factor_of(residuals.group, factor[:, :1].repeat(400, axis=1))
            width = half_width(table, residuals.group, item.predicted_ns(0.0, 0.7), here)
            covered.append(float(np.mean(residuals.absolute <= width)))
    assert np.mean(covered) > 0.8


def test_same_rows_and_seed_give_the_same_weights() -> None:
    pool = join_samples([samples()])
    first, second = (fit_variant(RECIPE, pool, frozenset(), seed=1) for _ in range(2))
    assert np.array_equal(first.theta, second.theta)
    assert first.network is not None
    assert second.network is not None
    assert all(np.array_equal(*pair) for pair in zip(first.network.weights, second.network.weights, strict=True))


def test_the_mean_of_networks_is_one_network() -> None:
    features = np.random.default_rng(1).normal(size=(64, 3))
    given = (features, features.sum(axis=1), np.ones(64), (8, 4))
    members = [train_network(*given, limit=9.0, seed=seed) for seed in range(3)]
    expected = np.mean([correct(item, features) for item in members], axis=0)
    assert correct(mean_network(members), features) == pytest.approx(expected, abs=1e-5)
    alone = mean_network(members[:1])
    assert all(np.array_equal(*pair) for pair in zip(alone.weights, members[0].weights, strict=True))


def test_rows_may_be_the_first_of_every_kind() -> None:
    # One row in ten is of nine other kinds, three times as slow: of 20 rows a GPU, they are two or 18.
    clean = samples()
    rows = np.arange(len(clean.gpu))
    slow = dataclasses.replace(clean, measured_ns=np.where(rows % 10 == 0, 3.0, 1.0) * clean.measured_ns)
    kinds = np.where(rows % 10 == 0, 1 + rows // 10 % 9, 0)
    model = dataclasses.replace(MODEL, kind=lambda problems: kinds[: problem_count(problems)])
    recipe, pool = dataclasses.replace(RECIPE, model=model, rows_per_gpu=20, hidden=()), join_samples([slow])
    thetas = [
        fit_variant(dataclasses.replace(recipe, by_kind=by_kind), pool, frozenset(), seed=1).theta[0]
        for by_kind in (False, True)
    ]
    assert thetas[1] < thetas[0] - 0.5


def test_rows_of_an_excluded_chip_change_nothing() -> None:
    clean = samples()
    spoiled = dataclasses.replace(clean, measured_ns=np.where(clean.gpu == 2, 1.0, clean.measured_ns))
    first, second = (
        fit_variant(RECIPE, join_samples([item]), frozenset({"AD102"}), seed=1) for item in (clean, spoiled)
    )
    assert np.array_equal(first.theta, second.theta)


def test_a_chip_may_have_a_number_of_rows_of_its_own() -> None:
    pool, plain = join_samples([samples()]), dataclasses.replace(RECIPE, hidden=())
    none = fit_variant(dataclasses.replace(plain, rows_of={"AD102": 0}), pool, frozenset(), seed=1).theta
    assert np.array_equal(none, fit_variant(plain, pool, frozenset({"AD102"}), seed=1).theta)
    assert not np.array_equal(none, fit_variant(plain, pool, frozenset(), seed=1).theta)


def test_rows_of_a_class_with_parameters_of_its_own_move_no_other() -> None:
    def apart(problems: ToyProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
        efficiency = np.where(fleet.has_hbm, values["hbm"], values["gddr"])
        return simulate(problems, fleet, {"efficiency": efficiency, "floor_us": np.full(len(efficiency), 3.0)}, choice)

    parameters = tuple(Parameter(name=name, prior=0.5) for name in MODEL.class_names)
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(MODEL, parameters=parameters, simulate=apart))
    clean = samples()
    odd = dataclasses.replace(clean, measured_ns=np.where(clean.gpu == 2, clean.measured_ns * 9.0, clean.measured_ns))
    first, second = (fit_variant(recipe, join_samples([item]), frozenset(), seed=1).theta for item in (clean, odd))
    assert first[0] == second[0]
    assert first[1] - second[1] > 1.0


def test_network_is_shrunk_to_nothing_where_it_learned_noise() -> None:
    item = held_out(np.zeros(500), correction=np.random.default_rng(0).normal(0, 0.3, 500))
    assert choose_shrink([item], limit=0.7, points=3000.0) == 0.0


def test_network_is_kept_where_it_is_right() -> None:
    ratio = np.random.default_rng(0).normal(0, 0.3, 500)
    assert choose_shrink([held_out(ratio, correction=ratio)], limit=2.0, points=3000.0) == 1.0
    assert choose_shrink([held_out(ratio, correction=ratio * 1e-4)], limit=2.0, points=3000.0) == 0.0


@pytest.mark.parametrize(("points", "shrink"), [(10.0, 0.0), (3000.0, 1.0)])
def test_a_chip_of_few_rows_says_little_of_the_network(points: float, shrink: float) -> None:
    ratio = np.random.default_rng(0).normal(0, 0.3, 500)
    many, few = held_out(ratio, correction=ratio), held_out(ratio[:5], correction=-5 * ratio[:5])
    assert choose_shrink([many, few], limit=2.0, points=points) == shrink


def test_intervals_cover_what_they_were_calibrated_on() -> None:
    pool = join_samples([samples()])
    random = np.random.default_rng(3)
    inner = []
    for chip in pool.chips:
        rows = np.flatnonzero(pool.chip == pool.chips.index(chip))
        inner.append(held_out(random.normal(0, 0.1, len(rows)), chip=chip, rows=rows))
    seen = [held_out(random.normal(0, 0.05, 400), chip=chip) for chip in pool.chips]
    table = fit_intervals(pool, inner, seen, 0.0, 0.7, groups=1, part=0.0)
    assert table.seen_ratio == pytest.approx(0.5, rel=0.15)
    assert distances(build_fleet(pool.gpus), table.positions).min(axis=-1)[0] == pytest.approx(np.zeros(4))
    assert table.class_factor[:2, 0] == pytest.approx([1.0, 1.0], abs=0.15)
    ratio = np.abs(random.normal(0, 0.1, 4000))
    assert np.mean(ratio <= table.half_width[0, 2] * table.class_factor[0, 0]) == pytest.approx(0.9, abs=0.05)


def test_what_a_group_needs_on_training_gpus_counts_by_its_rows_that_training_left_out() -> None:
    table, count = np.full((4, 5), 0.1), 2 * FEWEST_ROWS
    group = np.repeat([0, 0, 1, 2, 3], [count, count, count, count, 5])
    kept = np.repeat([True, False, True, False, True], [count, count, count, count, 5])
    absolute = np.repeat([0.04, 0.08, 0.2, 0.05, 0.08], [count, count, count, count, 5])
    part = Residuals(absolute=absolute, size=np.zeros(len(group), dtype=np.int64), group=group)
    share = np.where(kept, 1.0 + np.arange(len(group)), 0.0)
    found = seen_ratios([(part, share)], 0.5, table)
    assert found[:, 0] == pytest.approx([0.4 * (2.0 / 0.4) ** (1 / 9), 2.0, 0.5 * (2.0 / 0.5) ** (1 / 9), 2.0])
    alike = dataclasses.replace(part, absolute=np.full(len(group), 0.05))
    assert seen_ratios([(alike, share)], 0.5, table)[:, 0] == pytest.approx([0.5] * 4)
    assert seen_ratios([], 0.5, table).shape == (4, 0)


def test_a_training_chip_without_rows_of_a_group_takes_what_the_others_need() -> None:
    size = np.zeros(2 * FEWEST_ROWS, dtype=np.int64)
    near, far = (Residuals(absolute=np.full(len(size), width), size=size, group=size) for width in (0.05, 0.2))
    other = dataclasses.replace(far, group=size + 1)
    found = seen_ratios([(item, np.ones(len(size))) for item in (near, other)], 0.5, np.full((2, 5), 0.1))
    assert found[0, 0] < found[0, 1] < found[1, 1]
    assert found[1, 0] == pytest.approx(found[1, 1])


def test_a_group_of_few_rows_leans_on_all_groups_and_few_shapes_need_more_than_the_usual_quantile() -> None:
    size, group = np.zeros(1000 + FEWEST_ROWS, dtype=np.int64), np.repeat([0, 1], [1000, FEWEST_ROWS])
    part = Residuals(absolute=np.where(group == 0, 0.2, 0.05), size=size, group=group)
    assert half_width_table([part], 2)[1, 4] == pytest.approx(np.sqrt(0.2 * 0.05), rel=0.05)
    ranked = dataclasses.replace(part, absolute=np.linspace(0.0, 0.1, len(size)))
    alike, apart = np.zeros(len(size), dtype=np.float64), np.arange(len(size), dtype=np.float64)
    few, many = (seen_ratios([(ranked, shapes)], -1.0, np.full((2, 5), 0.1)) for shapes in (alike, apart))
    assert few[0, 0] > many[0, 0]


def spread_out(biases: Mapping[str, float]) -> tuple[Pool, list[HeldOut]]:
    """Return residuals of each chip about its bias."""
    pool, random = join_samples([samples()]), np.random.default_rng(3)
    rows = {chip: np.flatnonzero(pool.chip == row) for row, chip in enumerate(pool.chips)}
    return pool, [
        held_out(bias + random.normal(0, 0.05, len(rows[chip])), chip=chip, rows=rows[chip])
        for chip, bias in biases.items()
    ]


def test_shapes_that_did_not_train_stand_for_a_chip_where_only_priors_could_judge_it() -> None:
    pool, seen = spread_out({"GH100": 0.0})
    priors = dataclasses.replace(seen[0], excluded=frozenset(pool.chips), log_ratio=seen[0].log_ratio + 2.0)
    table = fit_intervals(pool, [priors], seen, 0.0, 0.7, groups=1, part=0.5)
    left = pool.share[seen[0].rows] >= 0.5
    needed = np.quantile(np.abs(seen[0].log_ratio[left]), 0.9)
    widths = table.half_width[0].mean() * table.class_factor[:, 0]
    hbm, amd = (GPU_CLASSES.index(item) for item in (GpuClass.HBM, GpuClass.AMD))
    assert widths[hbm] == pytest.approx(LONE_CHIP_FACTOR * np.exp(Z * USUAL_SPREAD) * needed, rel=0.1)
    assert widths[amd] == pytest.approx(FOREIGN_FACTOR * widths[hbm])


def test_intervals_widen_for_chips_that_differ() -> None:
    pool, inner = spread_out(dict(zip(("GA100", "AD102", "GB100", "GH100"), (0.3, -0.1, 0.0, 0.1), strict=True)))
    _, alike = spread_out(dict.fromkeys(pool.chips, 0.1))
    tables = [fit_intervals(pool, item, item, 0.0, 0.7, groups=1, part=0.0) for item in (inner, alike)]
    widths = [table.half_width[0, 2] * table.class_factor[:, 0] for table in tables]
    assert (widths[0] > 1.3 * widths[1]).all()


def test_a_class_takes_what_its_own_chips_need() -> None:
    hbm, gddr, amd = (GPU_CLASSES.index(item) for item in (GpuClass.HBM, GpuClass.GDDR, GpuClass.AMD))
    needed = [{"GH100": 0.0, "GA100": 0.0, "AD102": 0.5}]
    factor = class_factors(needed, {"GH100": hbm, "GA100": hbm, "AD102": gddr})[:, 0]
    mean, spread = 0.5 / 4, np.std([0.0, 0.0, 0.5], ddof=1)
    assert np.log(factor[hbm]) == pytest.approx(mean / 3 + Z * spread / np.sqrt(3))
    assert np.log(factor[gddr]) == pytest.approx(0.5)
    assert factor[amd] == pytest.approx(FOREIGN_FACTOR * np.exp(0.5))


def test_few_chips_take_what_the_worst_of_them_needs_and_many_what_they_need_on_average() -> None:
    hbm = GPU_CLASSES.index(GpuClass.HBM)
    for count in (FEW_CHIPS, FEW_CHIPS + 1):
        needed = {str(chip): 0.8 * (chip == 0) for chip in range(count)}
        found = np.log(class_factors([needed], dict.fromkeys(needed, hbm))[hbm, 0])
        assert (found == pytest.approx(0.8)) == (count == FEW_CHIPS)


def test_a_chip_without_rows_of_a_group_is_unseen_there() -> None:
    pool, inner = spread_out(dict(zip(("GA100", "AD102", "GB100", "GH100"), (0.3, -0.1, 0.0, 0.1), strict=True)))
    inner = [
        dataclasses.replace(item, group=np.arange(len(item.group)) % 2 * (at > 0)) for at, item in enumerate(inner)
    ]
    table = fit_intervals(pool, inner, inner, 0.0, 0.7, groups=2, part=0.0)
    apart = distances(build_fleet(pool.gpus), table.positions).min(axis=-1)
    assert not apart[0].any()
    assert (apart[1] > 0).tolist() == [gpu.name.startswith("A100") for gpu in pool.gpus]


def test_a_group_of_one_chip_is_widened_by_what_other_groups_show() -> None:
    hbm = GPU_CLASSES.index(GpuClass.HBM)
    needed = {"GH100": 0.4, "GA100": -0.4, "GB100": 0.0}
    factor = class_factors([needed, {}], dict.fromkeys(needed, hbm))
    assert np.log(factor[hbm, 1]) == pytest.approx(Z * np.std([0.4, -0.4, 0.0], ddof=1))


def test_the_difference_of_two_chips_counts_as_much_as_the_usual_one() -> None:
    hbm = GPU_CLASSES.index(GpuClass.HBM)
    for apart in (0.0, 0.6):
        factor = class_factors([{"GH100": apart, "GA100": -apart}, {}], {"GH100": hbm, "GA100": hbm})
        assert np.log(factor[hbm, 1]) == pytest.approx(Z * np.sqrt((USUAL_SPREAD**2 + 2 * apart**2) / 2))


def test_twins_tell_only_of_groups_that_no_other_chip_measured() -> None:
    near, far = (
        Residuals(absolute=np.full(4, width), size=np.zeros(4, dtype=np.int64), group=np.array(group))
        for width, group in ((0.1, [0, 0, 1, 1]), (0.3, [0, 0, 2, 2]))
    )
    found = without_twins({"GB100": near, "GB110": near, "GH100": far}, {"GB100", "GB110"})
    assert [found[chip].group.tolist() for chip in found] == [[1, 1], [1, 1], [0, 0, 2, 2]]
    assert without_twins({"GB100": near, "GB110": near}, {"GB100", "GB110"})["GB110"].group.tolist() == [0, 0, 1, 1]


def test_a_misfit_of_one_size_on_one_chip_does_not_widen_the_others() -> None:
    random = np.random.default_rng(3)
    small = dataclasses.replace(held_out(random.normal(0, 1.0, 400), chip="GA100"), simulated_ns=np.full(400, 2e3))
    large = [held_out(random.normal(0, 0.1, 400), chip=chip) for chip in ("GA100", "GH100", "AD102")]
    table = half_width_table([residuals_of(item, 0.0, 0.7) for item in (small, *large)], 1)[0]
    assert table[0] > 0.5
    assert table[2] < 0.25


def test_what_no_chip_has_is_declared_and_the_same_on_every_gpu() -> None:
    pool = join_samples([samples()])
    inner = [held_out(np.random.default_rng(3).normal(0, 0.1, 400), chip=chip) for chip in pool.chips]
    table = fit_intervals(pool, inner, inner, 0.0, 0.7, groups=2, part=0.0)
    assert table.is_declared.tolist() == [False, True]
    fleet = build_fleet(load_catalog().gpus)
    group = np.ones((1, 1), dtype=np.int64)
    width = half_width(table, group, np.array([[5e4]]), factor_of(group, width_factors(table, fleet)))
    assert set(width[0].tolist()) == {UNMEASURED_HALF_WIDTH}


def test_anchor_is_the_shared_part_of_the_residual() -> None:
    random = np.random.default_rng(4)
    common = random.normal(0, 0.2, 4000)
    keys = np.arange(4000, dtype=np.uint64)
    inner = [
        held_out(common + random.normal(0, 0.1, 4000), chip=chip, key=keys) for chip in ("GA100", "GH100", "AD102")
    ]
    anchor = fit_anchor(inner, 0.0, 0.7, groups=1)
    assert anchor.shared[0] == pytest.approx(0.04 / 0.05, abs=0.05)
    assert anchor.half_width[0] == pytest.approx(1.645 * np.sqrt(0.04 + 0.01 - 0.04**2 / 0.05), rel=0.05)
    assert np.isnan(anchor.foreign_half_width[0])


def test_between_vendors_the_width_is_what_their_pairs_show() -> None:
    random, keys = np.random.default_rng(4), np.arange(4000, dtype=np.uint64)
    known = {"GA100": 0.1, "GH100": 0.1, "Arcturus": 0.4, "Aldebaran": 0.4}
    inner = [held_out(random.normal(0, spread, 4000), chip=chip, key=keys) for chip, spread in known.items()]
    inner = [dataclasses.replace(item, group=np.repeat([0, 1], 2000)) for item in inner]
    inner[2:] = [take_rows(item, 2000) for item in inner[2:]]
    anchor = fit_anchor(inner, 0.0, 0.7, groups=2, foreign_chips={"Arcturus", "Aldebaran"})
    assert anchor.foreign_half_width[0] == pytest.approx(1.645 * 0.31, rel=0.2)
    ratio = anchor.foreign_half_width / anchor.half_width
    assert ratio[1] == pytest.approx(ratio[0])


def test_weighted_quantile_counts_weights() -> None:
    assert weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 8.0, 1.0]), 0.8) == 1.0


def test_host_floor_is_filled_for_training_only(tmp_path: Path) -> None:
    pool = join_samples([samples()])
    assert not hasattr(pool.problems, "host_floor_ns")
    kept = take_problems(pool.problems, np.arange(3))
    assert problem_count(kept) == 3
    assert take_gpus(build_fleet(pool.gpus), np.array([0, 0, 1])).sm_count.tolist()[:2] == [108, 108]


def held_out(
    log_ratio: np.ndarray,
    *,
    correction: np.ndarray | None = None,
    chip: str = "GA100",
    rows: np.ndarray | None = None,
    key: np.ndarray | None = None,
) -> HeldOut:
    count = len(log_ratio)
    return HeldOut(
        chip=chip,
        excluded=frozenset({chip}),
        rows=np.arange(count) if rows is None else rows,
        log_ratio=log_ratio,
        correction=np.zeros(count) if correction is None else correction,
        simulated_ns=np.full(count, 5e4),
        group=np.zeros(count, dtype=np.int64),
        key=np.arange(count, dtype=np.uint64) if key is None else key,
    )


def take_rows(item: HeldOut, count: int) -> HeldOut:
    columns = ("rows", "log_ratio", "correction", "simulated_ns", "group", "key")
    return dataclasses.replace(item, **{name: getattr(item, name)[:count] for name in columns})


@pytest.mark.data
def test_tables_of_several_directories_are_joined(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    once = load_pool("recurrent", (data_dir, tmp_path))
    (tmp_path / "ops" / "recurrent.parquet").write_bytes((data_dir / "ops" / "recurrent.parquet").read_bytes())
    load_pool.cache_clear()
    twice, own = load_pool("recurrent", (data_dir, tmp_path)), np.isin(once.chips, ["GH100"])[once.chip]
    assert len(twice.measured_ns) == len(once.measured_ns) + int((~own).sum())


def test_a_directory_without_the_table_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no measurements for model vector: expected ops/vector.parquet"):
        load_pool("vector", (tmp_path,))


def test_the_command_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [str(tmp_path), "--model", "vector", "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.output.startswith("Error: no measurements for model vector")
    assert len(result.output.splitlines()) == 1
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("name", OP_MODELS)
def test_a_model_has_a_recipe_or_stands_on_its_priors(name: str) -> None:
    assert (name in RECIPES) == OP_MODELS[name].is_measured == (name not in PRIORS)
    if name in RECIPES:
        assert find_recipe(name).model.name == name


def test_the_command_writes_the_same_bytes_whatever_its_jobs_and_hashes(tmp_path: Path) -> None:
    """Two chips of a few rows: of the hash of names, workers and threads nothing may be seen in weights or manifest."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    shapes = [(batch, steps, hidden) for batch in (1, 16, 64) for steps in (25, 50) for hidden in (256, 1024)]
    rows = [
        {
            **{"gpu": gpu, "op": op, "direction": "forward", "batch": batch, "steps": steps, "input_size": hidden},
            **{"hidden_size": hidden, "layers": 1, "bidirectional": False, "input_product": True, "dtype": "fp32"},
            **{"timing": "kernels", "latency_us": speed * steps * (5.0 + 1e-6 * batch * hidden**2)},
        }
        for gpu, speed in (("V100-SXM2-16GB", 1.0), ("P100-PCIE-16GB", 1.7))
        for op in ("lstm", "gru")
        for batch, steps, hidden in shapes
    ]
    (tmp_path / "ops").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "ops" / "recurrent.parquet")
    written = []
    for jobs, seed in (("1", "0"), ("2", "7")):
        folder = tmp_path / jobs
        command = [sys.executable, "-m", "wavecast.mlp_weights.train", str(tmp_path), "--model", "recurrent"]
        command += ["--jobs", jobs, "--output", str(folder)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert sorted(written[0]) == ["manifest.json", "recurrent.safetensors"]
    assert written[0] == written[1]


def test_quantised_products_train_with_plain_ones(data_dir: Path) -> None:
    problems: Any = load_pool("matmul_quantized", (data_dir,)).problems
    assert set(problems.kind[problems.quantized == 0].tolist()) >= {int(MatmulKernel.PLAIN)}
