"""What the chances of ranks are computed from: how far sums of ops are off, and how alike on two GPUs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from wavecast.analyzer.iteration.decision.joint_errors import ANCHORED, CONSTANTS, HALF_WIDTH, KINDS, LEVELS, SHAPES
from wavecast.formats.files.constants import read_constants
from wavecast.mlp_weights.train.rank_errors import (
    DRAWS,
    FEWEST_BLOCKS,
    CommonRows,
    PairResiduals,
    draw_all,
    draw_pair,
    estimate,
)
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

GPUS = tuple(find_gpu(load_catalog(), name) for name in ("B200 SXM", "GB200 (per GPU)", "H100 SXM5 80GB"))


def residuals(first: int, second: int, shared: float, count: int, seed: int = 0) -> list[PairResiduals]:
    """Errors of two GPUs with deviation 0.5, of which a part is common."""
    random = np.random.default_rng(seed)
    common, own = random.standard_normal((count, 1, 200)), random.standard_normal((count, 2, 200))
    drawn = 0.5 * (np.sqrt(shared) * common + np.sqrt(1 - shared) * own)
    return [PairResiduals(block=str(at), gpus=(GPUS[first], GPUS[second]), residual=z) for at, z in enumerate(drawn)]


def test_what_errors_share_is_found() -> None:
    found = estimate([*residuals(0, 1, 0.9, 30), *residuals(0, 2, 0.3, 30, seed=1)])
    assert found.spread == pytest.approx(0.5, rel=0.1)
    assert found.correlation["chip"] == pytest.approx(0.9, abs=0.05)
    assert found.correlation["vendor"] == pytest.approx(0.3, abs=0.1)
    assert found.correlation["any"] == 0.0
    assert found.counts["chip"] == (30, 1)


def test_few_blocks_are_no_estimate() -> None:
    assert estimate(residuals(0, 1, 0.9, FEWEST_BLOCKS - 1)).correlation["chip"] == 0.0


def test_one_table_of_its_own_moves_nothing() -> None:
    usual = residuals(0, 1, 0.9, 30)
    odd = PairResiduals(block="odd", gpus=usual[0].gpus, residual=np.array([[40.0], [-40.0]]))
    before, after = estimate(usual), estimate([*usual, odd])
    assert after.correlation["chip"] == pytest.approx(before.correlation["chip"], abs=0.03)


def block(scale: float) -> CommonRows:
    """Ops whose second GPU takes `scale` of what is predicted, the first exactly that."""
    predicted = np.tile(np.linspace(1e4, 1e6, 60)[:, None], (1, 3))
    measured = predicted * np.array([1.0, scale, 1.0])
    moved = [predicted * measured[:, [at]] / predicted[:, [at]] for at in range(3)]
    return CommonRows(
        name="table family fp16",
        gpus=GPUS,
        measured_ns=measured,
        predicted_ns=np.stack([predicted, *moved]),
        half_width=np.full((4, 60, 3), 0.3),
    )


def test_both_gpus_run_the_same_ops() -> None:
    first, second = next(
        item for kind, item in draw_all(block(1.25)) if kind == SHAPES and item.level == "chip"
    ).residual
    assert len(first) == DRAWS
    assert first == pytest.approx(np.zeros(DRAWS), abs=1e-9)
    alone, together = np.log(1.25) * HALF_WIDTH / 0.3 * np.array([np.sqrt(50), 1.0])
    assert ((together < second) & (second < alone)).all()


def test_errors_of_the_source_are_carried_along() -> None:
    from_h100 = draw_pair(block(1.25), (0, 1), 2)
    assert from_h100 is not None
    assert np.exp(from_h100 * 0.3 / HALF_WIDTH) == pytest.approx(np.tile([[1.0], [1.25]], DRAWS), abs=0.02)


def test_pairs_with_the_source_or_its_twin_tell_nothing_of_two_predictions() -> None:
    kinds = defaultdict[tuple[str, str], list[str]](list)
    for kind, item in draw_all(block(1.0)):
        kinds[item.gpus[0].name, item.gpus[1].name].append(kind)
    b200, gb200, h100 = (gpu.name for gpu in GPUS)
    assert kinds == {(b200, gb200): [SHAPES, ANCHORED], (b200, h100): [SHAPES], (gb200, h100): [SHAPES]}


def test_constants_are_what_can_be_drawn_from() -> None:
    constants = read_constants(CONSTANTS)
    for kind in KINDS:
        alike = [constants["correlation"][kind][level] for level in LEVELS]
        assert 0 <= alike[0] <= alike[1] <= alike[2] <= alike[3] < 1
        assert 0 < constants["spread"][kind] < 2
