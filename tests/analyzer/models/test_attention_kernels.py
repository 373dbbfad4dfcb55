"""Whose attention runs where: what exists, what PyTorch chooses, and what becomes of a wish that fits no GPU."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.models.attention.kernels import kernel_on
from wavecast.analyzer.models.attention.prefill import PREFILL
from wavecast.analyzer.models.attention.problems import ArithmeticFormat, AttentionProblems, Dispatch
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.arrays import Floats
from wavecast.specs.attention_kernels import AttentionKernel
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.generations import has_attention
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
V100, A100, L40S, H100 = "Tesla V100 PCIe 32GB", "A100 SXM4 80GB", "L40S", "H100 SXM5 80GB"
B200, PRO_6000, MI300X, MI100 = (
    "B200 SXM (HGX, 180GB)",
    "RTX PRO 6000 Blackwell Server",
    "Instinct MI300X",
    "Instinct MI100",
)
FLASH2, FLASH3, CUDNN, EFFICIENT = (
    AttentionKernel.FLASH2,
    AttentionKernel.FLASH3,
    AttentionKernel.CUDNN,
    AttentionKernel.EFFICIENT,
)
MATH, TRITON, CK = AttentionKernel.MATH, AttentionKernel.TRITON, AttentionKernel.CK
FIXED, FLASH_FIRST, CUDNN_FIRST, SERVED = Dispatch


def problem(**columns: int | float) -> AttentionProblems:
    """Return one causal prefill of 2,048 tokens on flash attention 2, unless said otherwise."""
    chosen: dict[str, Any] = {
        **{"batch": 8.0, "heads": 16.0, "kv_heads": 16.0, "queries": 2048.0, "keys": 2048.0, "query_dim": 128.0},
        **{"value_dim": 128.0, "window": 0.0, "is_causal": 1, "has_dropout": 0, "kv_bytes": 2.0, "copies": 1.0},
        **{"kernel": FLASH2, "dispatch": FIXED, "arithmetic": ArithmeticFormat.BF16, "planned_kv_heads": 0.0},
    } | columns
    return AttentionProblems(**{item.name: np.array([int(chosen[item.name])]) for item in fields(AttentionProblems)})


def runs(name: str, **columns: int) -> AttentionKernel:
    """Return the kernel that runs on a GPU."""
    fleet = build_fleet([find_gpu(CATALOG, name)])
    return AttentionKernel(int(kernel_on(as_columns(problem(**columns)), fleet)[0, 0]))


def times(*names: str, **columns: int | float) -> Floats:
    """Return simulated times on GPUs, with the priors."""
    fleet = build_fleet([find_gpu(CATALOG, name) for name in names])
    values = prior_values(PREFILL.parameters, len(fleet.gpus))
    return np.asarray(PREFILL.simulate(as_columns(problem(**columns)), fleet, values, None).time_ns[0])


@pytest.mark.parametrize(
    ("gpu", "recorded", "dispatch", "kernel"),
    [
        (V100, FLASH2, FLASH_FIRST, EFFICIENT),
        (A100, FLASH2, FLASH_FIRST, FLASH2),
        (A100, CUDNN, CUDNN_FIRST, FLASH2),
        (H100, FLASH2, FLASH_FIRST, FLASH2),
        (H100, FLASH2, CUDNN_FIRST, CUDNN),
        (B200, EFFICIENT, CUDNN_FIRST, CUDNN),
        (PRO_6000, FLASH2, CUDNN_FIRST, FLASH2),
        (L40S, EFFICIENT, FLASH_FIRST, EFFICIENT),
        (MI300X, FLASH2, FLASH_FIRST, TRITON),
        (MI100, FLASH2, FLASH_FIRST, MATH),
        (H100, TRITON, FLASH_FIRST, FLASH2),
        (H100, MATH, CUDNN_FIRST, MATH),
        (H100, FLASH2, SERVED, AttentionKernel.PAGED),
        (B200, FLASH2, SERVED, AttentionKernel.TENSORRT_LLM),
    ],
)
def test_pytorch_chooses_by_gpu_and_version(
    gpu: str, recorded: AttentionKernel, dispatch: Dispatch, kernel: AttentionKernel
) -> None:
    assert runs(gpu, kernel=recorded, dispatch=dispatch) is kernel


@pytest.mark.parametrize(
    ("gpu", "asked", "kernel"),
    [
        (H100, FLASH3, FLASH3),
        (A100, FLASH3, FLASH2),
        (B200, FLASH3, FLASH2),
        (H100, CK, FLASH2),
        (MI300X, CK, CK),
        (MI300X, CUDNN, TRITON),
        (V100, CUDNN, EFFICIENT),
        (V100, MATH, MATH),
        (PRO_6000, CUDNN, CUDNN),
    ],
)
def test_what_is_asked_for_runs_where_it_exists(gpu: str, asked: AttentionKernel, kernel: AttentionKernel) -> None:
    assert runs(gpu, kernel=asked) is kernel


@pytest.mark.parametrize("gpu", [V100, A100, H100, B200])
@pytest.mark.parametrize("dispatch", [FIXED, FLASH_FIRST, CUDNN_FIRST])
def test_fp32_runs_memory_efficient_kernels(gpu: str, dispatch: Dispatch) -> None:
    assert runs(gpu, dispatch=dispatch, arithmetic=ArithmeticFormat.FP32) is EFFICIENT


def test_math_exists_everywhere_and_nothing_of_one_vendor_on_the_other() -> None:
    fleet = build_fleet(CATALOG.gpus)
    exists = {kernel: has_attention(np.array(kernel), fleet) for kernel in AttentionKernel}
    is_amd = np.array([gpu.vendor == "AMD" for gpu in CATALOG.gpus])
    assert exists[MATH].all()
    assert not exists[CK][~is_amd].any()
    for kernel in (FLASH2, FLASH3, CUDNN, EFFICIENT):
        assert not exists[kernel][is_amd].any()


def test_own_instructions_pay_where_the_gpu_has_newer_ones() -> None:
    flash2, cudnn, math = (times(A100, H100, B200, kernel=kernel) for kernel in (FLASH2, CUDNN, MATH))
    assert flash2[0] == pytest.approx(cudnn[0])
    assert 1.5 < flash2[1] / cudnn[1] < 2.2
    assert 2.5 < flash2[2] / cudnn[2] < 4.2
    assert (math > 2 * cudnn).all()


def test_operands_that_wait_in_a_large_cache_are_read_from_memory_after_other_work() -> None:
    sizes = {"batch": 64.0, "queries": 16.0, "keys": 16.0, "heads": 32.0, "kv_heads": 32.0}
    warm, cold = (times(L40S, PRO_6000, copies=copies, **sizes) for copies in (1.0, 6.0))
    assert (cold > 1.1 * warm).all()
