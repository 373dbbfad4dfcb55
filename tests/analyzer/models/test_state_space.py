"""Delta nets, Mamba and causal convolutions: what holds on every GPU before anything is fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.analyzer.models.state_space.model import MODEL, runs_fused
from wavecast.analyzer.models.state_space.problems import StateSpaceProblems, least_work, problems_of
from wavecast.analyzer.work.recurrent import state_space_work
from wavecast.analyzer.work.work import StateRule, StateSpaceDims
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.gpu import Rate

GPUS = load_catalog().gpus
FLEET = build_fleet(GPUS)
NAMES = [gpu.name for gpu in GPUS]
DELTA = StateSpaceDims(
    rule=StateRule.GATED_DELTA, batch=4, steps=4096, heads=32, head_dim=128, state_dim=128, groups=16
)
UPDATE = replace(DELTA, batch=256, steps=1, is_update=True)
MAMBA = replace(DELTA, rule=StateRule.SCALAR_DECAY, heads=128, head_dim=64, groups=8)
SCAN = StateSpaceDims(rule=StateRule.SELECTIVE_SCAN, batch=4, steps=2048, heads=4096, head_dim=1, state_dim=16)
CONVOLUTION = StateSpaceDims(
    rule=StateRule.CAUSAL_CONVOLUTION, batch=16, steps=4096, heads=8192, head_dim=1, state_dim=4
)
ALL = (
    *(DELTA, replace(DELTA, is_fused=True), UPDATE),
    *(MAMBA, replace(MAMBA, batch=256, steps=1, is_update=True), SCAN),
    *(CONVOLUTION, replace(CONVOLUTION, is_fused=True), replace(CONVOLUTION, batch=2048, steps=1, is_update=True)),
)


def problems(dims: StateSpaceDims) -> StateSpaceProblems:
    return as_columns(problems_of([state_space_work(dims, "bfloat16")], [Rate.MATRIX_BF16]))


def times(dims: StateSpaceDims, fleet: Fleet = FLEET) -> Floats:
    values = prior_values(MODEL.parameters, len(fleet.gpus))
    return np.asarray(MODEL.simulate(problems(dims), fleet, values, None).time_ns[0])


@pytest.mark.parametrize("dims", ALL)
def test_every_gpu_has_a_time_above_its_bounds(dims: StateSpaceDims) -> None:
    least = least_work(problems_of([state_space_work(dims, "bfloat16")], [Rate.MATRIX_BF16]))
    found = times(dims)
    assert np.isfinite(found).all()
    assert (found >= least.flops / FLEET.flops_per_s[Rate.MATRIX_BF16] * 1e9).all()
    assert (found >= least.moved_bytes / FLEET.bandwidth_bytes_per_s * 1e9).all()


@pytest.mark.parametrize("dims", ALL)
@pytest.mark.parametrize("name", ["batch", "steps", "heads", "head_dim"])
def test_twice_of_it_takes_no_less(dims: StateSpaceDims, name: str) -> None:
    assert (times(replace(dims, **{name: 2 * getattr(dims, name)})) >= 0.999 * times(dims)).all()


def test_one_long_sequence_waits_for_its_chunks() -> None:
    few = replace(DELTA, batch=1, heads=4, groups=2, steps=32768)
    many = replace(few, batch=8)
    h100 = NAMES.index("H100 SXM5 80GB")
    assert times(replace(many, is_fused=True))[h100] < 1.3 * times(replace(few, is_fused=True))[h100]
    assert times(many)[h100] < 4 * times(few)[h100]


def test_the_fused_delta_rule_is_for_asynchronous_matrix_units() -> None:
    found = dict(zip(NAMES, runs_fused(problems(replace(DELTA, is_fused=True)), FLEET)[0].tolist(), strict=True))
    assert found["H100 SXM5 80GB"]
    assert not found["L40S"]
    assert runs_fused(problems(replace(CONVOLUTION, is_fused=True)), FLEET).all()


@given(
    dims=st.sampled_from(ALL),
    batch=st.sampled_from([1, 16, 300]),
    steps=st.sampled_from([1, 64, 1000]),
    factor=st.sampled_from([1.1, 2.0]),
)
def test_a_better_gpu_is_not_slower(dims: StateSpaceDims, batch: int, steps: int, factor: float) -> None:
    given_dims = replace(dims, batch=batch, steps=steps)
    rates = {rate: value * factor for rate, value in FLEET.flops_per_s.items()}
    for better in (
        replace(FLEET, bandwidth_bytes_per_s=FLEET.bandwidth_bytes_per_s * factor),
        replace(FLEET, l2_cache_bytes=FLEET.l2_cache_bytes * factor),
        replace(FLEET, clock_hz=FLEET.clock_hz * factor, flops_per_s=rates),
        replace(FLEET, sm_count=FLEET.sm_count * factor, flops_per_s=rates),
    ):
        assert (times(given_dims, better) <= 1.0001 * times(given_dims)).all()
