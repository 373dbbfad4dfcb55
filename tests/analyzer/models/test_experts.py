"""Layers of experts: whose rows go where, and what their times can be held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.measurements.experts import load_samples
from wavecast.analyzer.models.experts.model import MODEL, simulate
from wavecast.analyzer.models.experts.problems import ExpertsProblems, least_work, problems_of
from wavecast.analyzer.models.experts.routing import HEIGHTS, RankLoad, rank_load
from wavecast.analyzer.models.frame.parameters import resolve, theta_size
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.analyzer.work import Family, Work
from wavecast.analyzer.work.work import Dims, ExpertsDims, ExpertsFormat
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.experts_kernels import ExpertsKernel
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.generations import has_tf32
from wavecast.specs.gpu import Rate

FLEET = build_fleet(load_catalog().gpus)
MIXTRAL = ExpertsDims(tokens=256, hidden=4096, intermediate=14336, experts=8, local_experts=8, top_k=2)
SKEWS = (-1.0, 0.0, 0.6, 1.01, 1.2)


def problems(*dims: Dims, dtype: str = "bfloat16", rate: Rate = Rate.MATRIX_BF16) -> ExpertsProblems:
    works = [
        Work(
            family=Family.EXPERTS, flops=1.0, read_bytes=1.0, written_bytes=1.0, dtype=dtype, is_matrix=True, dims=item
        )
        for item in dims
    ]
    return problems_of(works, [rate] * len(dims))


def times(*dims: Dims, fleet: Fleet = FLEET) -> Floats:
    theta = np.zeros(theta_size(MODEL.parameters, len(MODEL.class_names)))
    values = resolve(MODEL.parameters, theta, len(MODEL.class_names), MODEL.gpu_class(fleet))
    return simulate(as_columns(problems(*dims)), fleet, values, None).time_ns


def load(tokens: int = 512, top_k: int = 4, experts: int = 64, ranks: int = 1, skew: float = 0.0) -> RankLoad:
    return rank_load(tokens, top_k, experts, ranks, skew)


@pytest.mark.parametrize("skew", SKEWS)
def test_all_choices_are_made_by_all_experts_together(skew: float) -> None:
    assert load(skew=skew).rows == pytest.approx(512 * 4, rel=0.02)


@given(
    st.integers(1, 3000),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([8, 64, 256]),
    st.sampled_from([1, 4, 8]),
    st.sampled_from(SKEWS),
)
def test_a_rank_holds_no_more_than_there_is(tokens: int, top_k: int, experts: int, ranks: int, skew: float) -> None:
    found = load(tokens, top_k, experts, ranks, skew)
    assert 0 <= found.busy <= min(experts // ranks, max(found.rows, 1.0)) + 1e-9
    assert found.most <= tokens + 1e-9
    assert found.rows <= min(tokens * top_k * 1.05 + experts, found.busy * tokens) + 1e-9
    for height, blocks in zip(HEIGHTS, found.blocks, strict=True):
        assert found.rows / height - 1e-9 <= blocks <= found.rows / height + found.busy + 1e-9


def test_few_tokens_reach_few_experts() -> None:
    assert load(tokens=1).busy == 4
    assert load(tokens=1, skew=-1.0).busy == pytest.approx(64 * (1 - np.exp(-4 / 64)), abs=1.0)


def test_the_busiest_rank_takes_more_than_its_share() -> None:
    even, uneven = load(ranks=8), load(ranks=8, skew=1.2)
    assert even.rows == 512 * 4 / 8
    assert uneven.rows > 1.5 * even.rows
    assert load(ranks=8, skew=1.2).rows > load(ranks=8, skew=0.6).rows


@pytest.mark.parametrize("kernel", [None, *ExpertsKernel])
@pytest.mark.parametrize("weights", ExpertsFormat)
def test_every_gpu_has_a_time_by_every_kernel_and_format(kernel: ExpertsKernel | None, weights: ExpertsFormat) -> None:
    found = times(replace(MIXTRAL, kernel=kernel, weights=weights))
    assert np.isfinite(found).all()
    assert (found > 0).all()


@pytest.mark.parametrize(
    "more",
    [
        replace(MIXTRAL, tokens=1024),
        replace(MIXTRAL, hidden=8192),
        replace(MIXTRAL, intermediate=28672),
        replace(MIXTRAL, top_k=4),
    ],
    ids=["tokens", "hidden", "intermediate", "choices"],
)
def test_more_of_it_takes_longer(more: ExpertsDims) -> None:
    assert (times(more) > times(MIXTRAL)).all()


def test_experts_on_other_ranks_cost_less_here() -> None:
    assert (times(replace(MIXTRAL, local_experts=2)) < times(MIXTRAL)).all()


def test_narrow_weights_are_read_faster() -> None:
    few = replace(MIXTRAL, tokens=8)
    faster = times(replace(few, weights=ExpertsFormat.W4A16)) < times(few)
    assert faster[:, has_tf32(FLEET)].all()


def test_least_work_reads_the_weights_of_busy_experts_once() -> None:
    found = least_work(problems(replace(MIXTRAL, tokens=1, skew=0.0)))
    weights = 3 * 4096 * 14336
    assert found.flops[0] == 2 * 2 * weights
    assert found.moved_bytes[0] == 2 * 2 * weights + 2 * 4096 * 2
    assert found.rate[0] is Rate.MATRIX_BF16


def more_flops(fleet: Fleet) -> Fleet:
    return replace(fleet, flops_per_s={rate: flops * 1.1 for rate, flops in fleet.flops_per_s.items()})


BETTER: dict[str, Callable[[Fleet], Fleet]] = {
    "SMs": lambda fleet: replace(fleet, sm_count=fleet.sm_count * 1.1),
    "clock": lambda fleet: replace(fleet, clock_hz=fleet.clock_hz * 1.1),
    "bandwidth": lambda fleet: replace(fleet, bandwidth_bytes_per_s=fleet.bandwidth_bytes_per_s * 1.1),
    "L2": lambda fleet: replace(fleet, l2_cache_bytes=fleet.l2_cache_bytes * 1.1),
    "rates": more_flops,
}


@pytest.mark.parametrize("better", BETTER.values(), ids=BETTER)
@pytest.mark.parametrize("tokens", [1, 48, 700, 9000])
def test_no_better_gpu_is_slower(better: Callable[[Fleet], Fleet], tokens: int) -> None:
    dims = [replace(MIXTRAL, tokens=tokens), replace(MIXTRAL, tokens=tokens, experts=64, local_experts=64, top_k=6)]
    assert (times(*dims, fleet=better(FLEET)) <= times(*dims) * 1.05).all()


def test_a_table_of_layers_is_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {
        "gpu": ["L40S", "L40S", "H100 SXM5 80GB", "H100 SXM5 80GB"],
        "tokens": [1, 64, 64, 64],
        "hidden": [2048] * 4,
        "inter": [768] * 4,
        "topk": [8] * 4,
        "experts": [128] * 4,
        "tp": [1, 2, 1, 1],
        "ep": [1, 1, 8, 8],
        "distribution": ["balanced", "power_law_1.2", "balanced", "balanced"],
        "kernel": ["moe_torch_flow_nongated", "vllm_fused_moe", "deepgemm", "sglang_fused_moe_triton"],
        "dtype": ["bf16", "int4_wo", "fp8_block", "bf16"],
        "latency_us": [30.0, 60.0, 50.0, 90.0],
    }
    (tmp_path / "ops").mkdir()
    parquet.write_table(pa.table(rows), tmp_path / "ops" / "moe.parquet")
    (found,) = load_samples(tmp_path)
    assert found.measured_ns.tolist() == [30e3, 60e3, 50e3]
    kernels = [ExpertsKernel(code) for code in found.problems.kernel]
    assert kernels == [ExpertsKernel.CUTLASS, ExpertsKernel.TRITON_FIXED, ExpertsKernel.DEEP_GEMM]
    assert found.problems.columns.tolist() == [768, 768, 1536]
    assert found.problems.intermediate.tolist() == [768, 384, 768]
    assert found.problems.local_experts.tolist() == [128, 128, 16]
    assert found.problems.busy[0] == 8
