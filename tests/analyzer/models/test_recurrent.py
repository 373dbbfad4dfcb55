"""Recurrent layers: what priors alone can be held to."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from wavecast.analyzer.models.frame.parameters import resolve, theta_size
from wavecast.analyzer.models.recurrent.model import MODEL, simulate
from wavecast.analyzer.models.recurrent.problems import problems_of
from wavecast.analyzer.work import Family, Work
from wavecast.analyzer.work.work import Direction, RecurrentDims
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Rate

FLEET = build_fleet(load_catalog().gpus)
LSTM = RecurrentDims(gates=4, layers=2, directions=1, steps=50, batch=32, input_size=256, hidden_size=512)


def times(dims: RecurrentDims, rate: Rate = Rate.MATRIX_FP16) -> Floats:
    work = Work(family=Family.RECURRENT, flops=1.0, read_bytes=1.0, written_bytes=1.0, dtype="float16", dims=dims)
    problems = problems_of([work], [rate])
    rows = replace(problems, **{item.name: getattr(problems, item.name)[:, None] for item in fields(problems)})
    theta = np.zeros(theta_size(MODEL.parameters, len(MODEL.class_names)))
    values = resolve(MODEL.parameters, theta, len(MODEL.class_names), MODEL.gpu_class(FLEET))
    return np.asarray(simulate(rows, FLEET, values, None).time_ns[0])


def test_times_are_above_the_products_at_peak() -> None:
    weights = 4 * 512 * (256 + 512) + 4 * 512 * (512 + 512)
    peak = np.maximum(FLEET.flops_per_s[Rate.MATRIX_FP16], FLEET.flops_per_s[Rate.FP32])
    found = times(LSTM)
    assert np.isfinite(found).all()
    assert (found >= 2 * 50 * 32 * weights / peak * 1e9).all()


@pytest.mark.parametrize(
    "more",
    [
        replace(LSTM, steps=100),
        replace(LSTM, layers=4),
        replace(LSTM, directions=2),
        replace(LSTM, hidden_size=1024),
        replace(LSTM, direction=Direction.BOTH_GRADIENTS),
    ],
    ids=["steps", "layers", "directions", "hidden", "weight gradient"],
)
def test_more_of_it_takes_longer(more: RecurrentDims) -> None:
    assert (times(more) >= times(LSTM)).all()


def test_small_layers_wait_for_their_steps() -> None:
    small = replace(LSTM, hidden_size=64, input_size=64, batch=1, layers=1)
    assert times(replace(small, steps=1000)) / times(small) == pytest.approx(20.0, rel=0.1)


def test_no_parameter_is_fitted() -> None:
    assert all(item.spread == 0 for item in MODEL.parameters)
