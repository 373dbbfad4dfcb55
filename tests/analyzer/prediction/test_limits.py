"""GPUs under a cap, at a locked clock, and in slices are never predicted faster than what they are parts of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

SAMPLE = Path(__file__).parents[3] / "samples" / "vit_b16-training-bf16-b32-shapes.json.gz"
ROUNDING = 1e-9


@pytest.mark.parametrize(
    "names",
    [
        [f"H100 SXM5 80GB@{watts}W" for watts in (700, 690, 600, 500, 350, 200)],
        [f"GeForce RTX 3090@{watts}W" for watts in (350, 300, 230, 120)],
        [f"A100 SXM4 80GB@{clock}MHz" for clock in (1410, 1300, 1000, 500, 210)],
        [f"A100 SXM4 80GB{part}" for part in ("", "/7g.80gb", "/4g.40gb", "/3g.40gb", "/2g.20gb", "/1g.10gb")],
        [f"MI300X{part}" for part in ("", "/DPX", "/QPX", "/CPX")],
    ],
    ids=["power", "power of a GeForce", "clock", "MIG", "partitions"],
)
def test_less_is_never_faster(names: list[str]) -> None:
    catalog = load_catalog()
    result = run_analysis(load_trace(SAMPLE), catalog, targets=[find_gpu(catalog, name) for name in names])
    time, prediction = result.prediction.time_ns, result.prediction
    busy = prediction.total_busy_ns()
    assert np.isfinite(time).all()
    assert (time >= prediction.bounds.lower_ns * prediction.bound_share[:, None] * (1 - ROUNDING)).all()
    assert (np.diff(busy) >= -ROUNDING * busy[1:]).all()
    assert busy[-1] > 1.5 * busy[0]
    is_sliced = any("/" in name for name in names)
    steps = time[:, 1:] / time[:, :-1]
    assert (steps >= (0.8 if is_sliced else 1 - ROUNDING)).all(), "no op of its own gets much faster in a smaller slice"


def test_a_cap_at_the_cards_power_changes_nothing() -> None:
    catalog = load_catalog()
    gpus = [find_gpu(catalog, name) for name in ("H100 SXM5 80GB", "H100 SXM5 80GB@700W", "H100 SXM5 80GB@1980MHz")]
    time = run_analysis(load_trace(SAMPLE), catalog, targets=gpus).prediction.time_ns
    np.testing.assert_allclose(time[:, 1:], time[:, :1].repeat(2, axis=1), rtol=1e-12)
