"""What the chances of ranks are computed from: how far sums of ops are off, and how alike on two GPUs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from wavecast.analyzer.iteration.decision.joint_errors import CONSTANTS, KINDS, LEVELS
from wavecast.formats.files.constants import read_constants
from wavecast.mlp_weights.train.pseudo_iterations import DRAWS, CommonRows, draw_all
from wavecast.mlp_weights.train.rank_errors import FEWEST_BLOCKS, PairResiduals, estimate
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
    width = np.full((60, 3), 0.3)
    return CommonRows(
        name="table family fp16",
        gpus=GPUS,
        measured_ns=measured,
        predicted_ns=predicted,
        half_width=width,
        moved_ns=np.stack([predicted * measured[:, [at]] / predicted[:, [at]] for at in range(3)]),
        moved_half_width=np.stack([width] * 3),
    )


def test_both_gpus_run_the_same_ops() -> None:
    drawn = list(draw_all(block(1.25)))
    twins = next(item for item in drawn if item.level == "chip" and item.source is None)
    assert twins.measured_ns.shape == (2, DRAWS)
    assert twins.measured_ns[1] / twins.measured_ns[0] == pytest.approx(np.full(DRAWS, 1.25))
    assert np.log(1.25) / twins.residual[1] == pytest.approx((twins.fall[1] + twins.rise[1]) / 2)
    assert (np.abs(twins.residual[0]) < 1e-9).all()


def test_a_twin_of_the_source_is_no_stranger_to_it() -> None:
    sources = defaultdict[tuple[str, str], list[str | None]](list)
    for item in draw_all(block(1.0)):
        sources[item.gpus[0].name, item.gpus[1].name].append(None if item.source is None else item.source.name)
    b200, gb200, h100 = (gpu.name for gpu in GPUS)
    assert sources[b200, gb200] == [None, b200, gb200, h100]
    assert sources[b200, h100] == [None, b200, h100]


def test_the_source_itself_is_known() -> None:
    item = next(item for item in draw_all(block(1.0)) if item.has_source)
    assert np.isnan(item.residual[0]).all()
    assert (item.predicted_ns[0] == item.measured_ns[0]).all()


def test_constants_are_what_can_be_drawn_from() -> None:
    constants = read_constants(CONSTANTS)
    for kind in KINDS:
        alike = [constants["correlation"][kind][level] for level in LEVELS]
        assert 0 <= alike[0] <= alike[1] <= alike[2] <= alike[3] < 1
        assert 0 < constants["spread"][kind] < 2
