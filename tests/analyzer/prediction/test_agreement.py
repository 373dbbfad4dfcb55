"""Recorded kernels moved by their ops' models and by plain ratios: both within their intervals, no gain past limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.models.library import Library, load_library
from wavecast.analyzer.prediction.sum_interval import busy_interval_ns
from wavecast.arrays import Floats
from wavecast.formats.files.open import load_trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
NAMES = ("H100 SXM5 80GB", "H200", "A100 SXM4 80GB", "Tesla T4", "L40S", "RTX 4090", "B200", "MI300X")
PUBLIC = ("bert_small-inference-bf16-b1-h100", "bert_small-inference-bf16-b1-mi300x")
OWN = ("mlp_policy-train-fp32-b256.h200", "unet2d-train-amp-b16-256.h100", "llama1b-train-bf16-b4-s2048.h200")
LEAST_AGREED = 0.9
"""Of the time: Hopper's products with odd rows are slow there alone, and ratios carry that along."""


@pytest.fixture(scope="module", params=PUBLIC + OWN)
def moved(request: pytest.FixtureRequest, root_dir: Path) -> tuple[Analysis, Analysis]:
    """By the models, and by ratios and wave scaling alone."""
    name = f"{request.param}.json.gz"
    is_own = request.param in OWN
    path = request.getfixturevalue("data_dir") / "own" / "traces" / name if is_own else root_dir / "samples" / name
    trace, gpus = load_trace(path), [find_gpu(CATALOG, name) for name in NAMES]
    models, ratios = (
        run_analysis(trace, CATALOG, targets=gpus, library=library) for library in (load_library(), Library(fitted={}))
    )
    return models, ratios


def test_models_and_ratios_agree_within_their_intervals(moved: tuple[Analysis, Analysis]) -> None:
    models, ratios = (item.prediction for item in moved)
    apart = np.abs(np.log(models.time_ns / ratios.time_ns))
    agrees = ~(apart > models.half_width + ratios.half_width)
    time = models.time_ns * models.weight[:, None]
    assert ((time * agrees).sum(axis=0) >= LEAST_AGREED * time.sum(axis=0)).all()
    (low, high), (least, most) = (busy_interval_ns(item.prediction, item.workload.family) for item in moved)
    assert not ((low > most) | (least > high)).any()


def test_no_recording_gains_more_than_the_most_that_its_gpu_does_better(moved: tuple[Analysis, Analysis]) -> None:
    models, source = moved[0].prediction, moved[0].recorded.gpu
    assert source is not None
    busy = models.total_busy_ns()
    gain = (moved[0].workload.duration_ns @ models.weight) / busy
    assert (gain <= most_gains(models.fleet, build_fleet([source])) * 1.001).all()


def most_gains(fleet: Fleet, origin: Fleet) -> Floats:
    """The largest ratio of any rate, [m]: of memory, caches, clock, multiprocessors, arithmetic of each kind."""
    names = ("bandwidth_bytes_per_s", "l2_ratio", "clock_hz")
    pairs = [(getattr(fleet, name), getattr(origin, name)) for name in names]
    pairs += [(fleet.sm_count * fleet.clock_hz, origin.sm_count * origin.clock_hz)]
    pairs += [(fleet.flops_per_s[name], rate) for name, rate in origin.flops_per_s.items() if rate[0] > 0]
    return np.asarray(np.max([np.nan_to_num(there / here) for there, here in pairs], axis=0))
