"""Latent attention: what holds on every GPU before anything is fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.analyzer.models.latent_attention.model import MODEL, kernel_on
from wavecast.analyzer.models.latent_attention.problems import least_work, problems_of
from wavecast.analyzer.work import Family
from wavecast.analyzer.work.work import LatentAttentionDims, LatentKernel, Work
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.gpu import Rate

GPUS = load_catalog().gpus
FLEET = build_fleet(GPUS)
NAMES = [gpu.name for gpu in GPUS]
DECODE = LatentAttentionDims(batch=32, heads=128, queries=1, keys=8192)
PREFILL = LatentAttentionDims(
    batch=2, heads=128, queries=2048, keys=2048, query_dim=192, value_dim=128, is_absorbed=False, is_causal=True
)


def work_of(dims: LatentAttentionDims) -> Work:
    """2·b·h·q·k·(d + e) FLOPs in bf16; one latent per token is read, or the keys and values of every head."""
    rows = dims.batch * dims.heads * dims.queries
    elements = dims.query_dim if dims.is_absorbed else dims.heads * (dims.query_dim + dims.value_dim)
    return Work(
        family=Family.ATTENTION,
        flops=2 * rows * dims.keys * (dims.query_dim + dims.value_dim),
        read_bytes=rows * dims.query_dim * 2 + dims.batch * dims.keys * elements * dims.cache_bytes,
        written_bytes=rows * dims.value_dim * 2,
        dtype="bfloat16",
        is_matrix=True,
        dims=dims,
    )


def times(dims: LatentAttentionDims, fleet: Fleet = FLEET) -> Floats:
    problems = as_columns(problems_of([work_of(dims)], [Rate.MATRIX_BF16]))
    values = prior_values(MODEL.parameters, len(fleet.gpus))
    return np.asarray(MODEL.simulate(problems, fleet, values, None).time_ns[0])


def test_more_sequences_of_few_keys_take_longer_where_operands_have_16_bits() -> None:
    b200 = build_fleet([gpu for gpu in GPUS if gpu.name.startswith("B200 SXM")])
    few, many = (
        [times(replace(DECODE, batch=batch, heads=8, keys=16, cache_bytes=size), b200)[0] for size in (2, 1)]
        for batch in (16, 128)
    )
    assert many[0] - few[0] > 1.3e3 + many[1] - few[1]


@pytest.mark.parametrize("dims", [DECODE, PREFILL], ids=["decode", "prefill"])
@pytest.mark.parametrize("kernel", LatentKernel)
def test_every_gpu_has_a_time_above_its_bounds(dims: LatentAttentionDims, kernel: LatentKernel) -> None:
    work = work_of(replace(dims, kernel=kernel))
    least = least_work(problems_of([work], [Rate.MATRIX_BF16]))
    found = times(replace(dims, kernel=kernel))
    assert np.isfinite(found).all()
    assert (found >= least.flops / FLEET.flops_per_s[Rate.MATRIX_BF16] * 1e9).all()
    assert (found >= 0.9 * least.moved_bytes / FLEET.bandwidth_bytes_per_s * 1e9).all()


@pytest.mark.parametrize(
    ("dims", "more"),
    [
        (DECODE, replace(DECODE, batch=64)),
        (DECODE, replace(DECODE, keys=16384)),
        (replace(DECODE, heads=16), DECODE),
        (replace(DECODE, cache_bytes=1.0), DECODE),
        (PREFILL, replace(PREFILL, batch=4)),
        (PREFILL, replace(PREFILL, is_causal=False)),
        (PREFILL, replace(PREFILL, query_dim=576, value_dim=512, is_absorbed=True)),
    ],
    ids=["batch", "keys", "heads", "wider cache", "prompts", "whole scores", "absorbed"],
)
def test_more_of_it_takes_no_less(dims: LatentAttentionDims, more: LatentAttentionDims) -> None:
    assert (times(more) >= 0.999 * times(dims)).all()


def test_one_query_of_keys_per_head_is_a_prefill() -> None:
    b200 = build_fleet([gpu for gpu in GPUS if gpu.name.startswith("B200 SXM")])
    one, few = (times(replace(PREFILL, heads=16, queries=count, keys=count), b200) for count in (1, 16))
    decode = times(replace(DECODE, batch=2, heads=16, keys=1), b200)
    assert (0.85 * few < one).all()
    assert (decode < one - 1.5e3).all()


def test_hand_written_kernels_are_for_asynchronous_matrix_units() -> None:
    problems = as_columns(problems_of([work_of(DECODE)], [Rate.MATRIX_BF16]))
    found = dict(zip(NAMES, kernel_on(problems, FLEET)[0].tolist(), strict=True))
    assert found["H100 SXM5 80GB"] == LatentKernel.LIBRARY
    assert found["A100 SXM4 80GB"] == LatentKernel.TRITON


def test_heads_share_the_latent_where_the_units_are_fast() -> None:
    found = times(DECODE) / times(replace(DECODE, heads=16))
    assert found[NAMES.index("H100 SXM5 80GB")] < 2.0
    assert found[NAMES.index("A100 SXM4 80GB")] > 3.0


def test_two_tiles_of_heads_read_a_long_cache_twice_on_blackwell() -> None:
    long = replace(DECODE, batch=64, keys=32768)
    found = times(replace(long, heads=32)) / times(replace(long, heads=16))
    assert found[NAMES.index("B200 SXM (HGX, 180GB)")] > 1.5
    assert found[NAMES.index("H100 SXM5 80GB")] < 1.2


@given(
    batch=st.sampled_from([1, 8, 64, 512]),
    heads=st.sampled_from([1, 16, 128]),
    keys=st.sampled_from([1, 64, 1000, 65536]),
    factor=st.sampled_from([1.1, 2.0]),
)
def test_a_faster_gpu_is_not_slower(batch: int, heads: int, keys: int, factor: float) -> None:
    dims = replace(DECODE, batch=batch, heads=heads, keys=keys)
    rates = {rate: value * factor for rate, value in FLEET.flops_per_s.items()}
    for better in (
        replace(FLEET, bandwidth_bytes_per_s=FLEET.bandwidth_bytes_per_s * factor),
        replace(FLEET, l2_cache_bytes=FLEET.l2_cache_bytes * factor),
        replace(FLEET, clock_hz=FLEET.clock_hz * factor, flops_per_s=rates),
    ):
        assert (times(dims, better) <= 1.0001 * times(dims)).all()
