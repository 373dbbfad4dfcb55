"""Training on a model whose true parameters are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from wavecast.analyzer.models.frame.intervals import distance_factor, distances, half_width
from wavecast.analyzer.models.frame.parameters import resolve
from wavecast.analyzer.models.frame.problems import problem_count, take_problems
from wavecast.analyzer.models.registry import OP_MODELS
from wavecast.errors import InputError
from wavecast.mlp_weights.train.__main__ import main
from wavecast.mlp_weights.train.calibrate import (
    UNMEASURED_HALF_WIDTH,
    HeldOut,
    choose_shrink,
    fit_anchor,
    fit_intervals,
    weighted_quantile,
)
from wavecast.mlp_weights.train.driver import PRIORS, RECIPES, find_recipe, load_pool
from wavecast.mlp_weights.train.variant import fit_variant, join_samples
from wavecast.specs.fleet import build_fleet, take_gpus

from .toy import MODEL, RECIPE, TRUE, samples

pytest.importorskip("scipy")
torch = pytest.importorskip("torch")


def test_fit_recovers_the_true_parameters_from_any_three_chips() -> None:
    pool = join_samples([samples()])
    for excluded in (frozenset[str](), frozenset({"AD102"}), frozenset({"GH100"})):
        variant = fit_variant(RECIPE, pool, excluded, seed=1)
        found = resolve(MODEL.parameters, variant.theta, 2, np.array([0]))
        assert found["efficiency"][0] == pytest.approx(TRUE["efficiency"], rel=0.03)
        assert found["floor_us"][0] == pytest.approx(TRUE["floor_us"], rel=0.05)


def test_same_rows_and_seed_give_the_same_weights() -> None:
    pool = join_samples([samples()])
    first, second = (fit_variant(RECIPE, pool, frozenset(), seed=1) for _ in range(2))
    assert np.array_equal(first.theta, second.theta)
    assert first.network is not None
    assert second.network is not None
    assert all(np.array_equal(*pair) for pair in zip(first.network.weights, second.network.weights, strict=True))


def test_rows_of_an_excluded_chip_change_nothing() -> None:
    clean = samples()
    spoiled = dataclasses.replace(clean, measured_ns=np.where(clean.gpu == 2, 1.0, clean.measured_ns))
    first, second = (
        fit_variant(RECIPE, join_samples([item]), frozenset({"AD102"}), seed=1) for item in (clean, spoiled)
    )
    assert np.array_equal(first.theta, second.theta)


def test_network_is_shrunk_to_nothing_where_it_learned_noise() -> None:
    item = held_out(np.zeros(500), correction=np.random.default_rng(0).normal(0, 0.3, 500))
    assert choose_shrink([item], limit=0.7) == 0.0


def test_network_is_kept_where_it_is_right() -> None:
    ratio = np.random.default_rng(0).normal(0, 0.3, 500)
    assert choose_shrink([held_out(ratio, correction=ratio)], limit=2.0) == 1.0


def test_intervals_cover_what_they_were_calibrated_on() -> None:
    pool = join_samples([samples()])
    random = np.random.default_rng(3)
    inner = []
    for chip in pool.chips:
        rows = np.flatnonzero(pool.chip == pool.chips.index(chip))
        inner.append(held_out(random.normal(0, 0.1, len(rows)), chip=chip, rows=rows))
    seen = [held_out(random.normal(0, 0.05, 400), chip=chip) for chip in pool.chips]
    table = fit_intervals(pool, inner, seen, 0.0, 0.7, groups=1)
    assert table.seen_ratio == pytest.approx(0.5, rel=0.15)
    assert distances(build_fleet(pool.gpus), table.positions) == pytest.approx(np.zeros(4))
    width = half_width(
        table, np.zeros(1, dtype=np.int64), np.array([5e4]), distance_factor(table, np.array([table.reference]))
    )
    assert np.mean(np.abs(random.normal(0, 0.1, 4000)) <= width) == pytest.approx(0.9, abs=0.03)


def test_intervals_widen_for_chips_that_differ() -> None:
    pool = join_samples([samples()])
    random = np.random.default_rng(3)
    biases = dict(zip(pool.chips, (0.3, -0.1, 0.0, 0.1), strict=True))
    rows = {chip: np.flatnonzero(pool.chip == row) for row, chip in enumerate(pool.chips)}
    inner = [
        held_out(bias + random.normal(0, 0.05, len(rows[chip])), chip=chip, rows=rows[chip])
        for chip, bias in biases.items()
    ]
    table = fit_intervals(pool, inner, inner, 0.0, 0.7, groups=1)
    pooled = np.quantile(np.abs(np.concatenate([item.log_ratio for item in inner])), 0.9)
    assert table.half_width[0, 2] > 1.05 * pooled


def test_what_no_chip_has_is_declared_and_the_same_on_every_gpu() -> None:
    pool = join_samples([samples()])
    inner = [held_out(np.random.default_rng(3).normal(0, 0.1, 400), chip=chip) for chip in pool.chips]
    table = fit_intervals(pool, inner, inner, 0.0, 0.7, groups=2)
    assert table.is_declared.tolist() == [False, True]
    assert table.half_width[1].tolist() == [UNMEASURED_HALF_WIDTH] * 5
    for away in (0.0, 1.0, 9.0):
        factor = distance_factor(table, np.array([away * table.reference]))
        assert half_width(table, np.ones(1, dtype=np.int64), np.array([5e4]), factor)[0] == UNMEASURED_HALF_WIDTH


def test_a_group_of_one_chip_is_widened() -> None:
    pool = join_samples([samples()])
    lone, *others = pool.chips
    ratio = np.random.default_rng(3).normal(0, 0.1, 400)
    inner = [dataclasses.replace(held_out(ratio, chip=lone), group=np.repeat([0, 1], 200))]
    inner += [held_out(ratio, chip=chip) for chip in others]
    table = fit_intervals(pool, inner, inner, 0.0, 0.7, groups=2)
    assert not table.is_declared.any()
    assert table.half_width[1, 2] == pytest.approx(1.5 * np.quantile(np.abs(ratio[200:]), 0.9), rel=0.05)


def test_anchor_is_the_shared_part_of_the_residual() -> None:
    random = np.random.default_rng(4)
    common = random.normal(0, 0.2, 4000)
    keys = np.arange(4000, dtype=np.uint64)
    inner = [
        held_out(common + random.normal(0, 0.1, 4000), chip=chip, key=keys) for chip in ("GA100", "GH100", "AD102")
    ]
    anchor, width = fit_anchor(inner, 0.0, 0.7, groups=1)
    assert anchor[0] == pytest.approx(0.04 / 0.05, abs=0.05)
    assert width[0] == pytest.approx(1.645 * np.sqrt(0.04 + 0.01 - 0.04**2 / 0.05), rel=0.05)


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


@pytest.mark.data
def test_tables_of_several_directories_are_joined(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    once = load_pool("convolution", (data_dir, tmp_path))
    (tmp_path / "ops" / "convolution.parquet").write_bytes((data_dir / "ops" / "convolution.parquet").read_bytes())
    load_pool.cache_clear()
    assert len(load_pool("convolution", (data_dir, tmp_path)).measured_ns) == 2 * len(once.measured_ns)


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
