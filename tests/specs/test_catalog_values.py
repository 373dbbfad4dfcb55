"""The catalogue's numbers agree with each other; what does not is explained in the file."""

from __future__ import annotations

import pytest
from wavecast.specs.gpu import (
    Catalog,
    Gpu,
    Rate,
    has_inline_ecc,
    is_hbm,
    is_matrix_rate,
    peak_flops_per_s,
)
from wavecast.specs.layout import GROUPS

TOLERANCE = 0.03

FP64_SHARE = {
    "6.0": 1 / 2, "6.1": 1 / 32, "7.0": 1 / 2, "7.5": 1 / 32, "8.0": 1 / 2, "8.6": 1 / 64, "8.9": 1 / 64,
    "9.0": 1 / 2, "10.0": 1 / 2, "10.3": 1 / 64, "12.0": 1 / 64,
    "12.1": 1 / 64, "gfx908": 1 / 2, "gfx90a": 1, "gfx942": 1 / 2, "gfx950": 1 / 2,
    "gfx1030": 1 / 16, "gfx1100": 1 / 32, "gfx1101": 1 / 32, "gfx1102": 1 / 32, "gfx1151": 1 / 32, "gfx1200": 1 / 32,
    "gfx1201": 1 / 32, "xe-hpc": 1,
}  # fmt: skip
"""fp64 over fp32, from the CUDA C Programming Guide's table of arithmetic throughput and AMD's ISA documents."""
FP16_SHARE = {
    "6.0": 2, "6.1": 1 / 64, "7.0": 2, "7.5": 2, "8.0": 4, "8.6": 1, "8.9": 1,
    "9.0": 2, "10.0": 2, "10.3": 2, "12.0": 1,
    "8.7": 2, "12.1": 1, "gfx908": 2, "gfx90a": 2, "gfx942": 1, "gfx950": 1,
    "gfx1030": 2, "gfx1100": 2, "gfx1101": 2, "gfx1102": 2, "gfx1151": 2, "gfx1200": 2, "gfx1201": 2,
    "xe-hpc": 2, "xe-hpg": 2, "xe2-hpg": 2, "gaudi2": 2, "gaudi3": 2,
}  # fmt: skip
"""fp16 over fp32; the fp32 of gfx942 and gfx950 counts packed instructions already."""
MATRIX_MULTIPLES: dict[Rate, set[float]] = {
    Rate.MATRIX_TF32: {1 / 2},
    Rate.MATRIX_FP16: {1},
    Rate.MATRIX_FP16_ACCUMULATE_FP16: {1, 2},
    Rate.MATRIX_BF16: {1 / 2, 1},
    Rate.MATRIX_FP8: {2},
    Rate.MATRIX_FP8_ACCUMULATE_FP16: {2, 4},
    Rate.MATRIX_FP4: {4, 8},
    Rate.MATRIX_INT8: {1 / 2, 1, 2, 4},
}
"""Rates over SMs × fp16 FLOP per clock × clock that the architectures know. Half-rate int8 is DP4A on Volta."""
PIN_GBIT_PER_S = {
    "GDDR5": (5, 9), "GDDR5X": (10, 12), "GDDR6": (10, 20), "GDDR6X": (19, 24), "GDDR7": (28, 32),
    "HBM2": (1.4, 2.43), "HBM2e": (2.4, 3.6), "HBM3": (5.1, 6.4), "HBM3e": (5.8, 9.8),
    "LPDDR5": (4.2, 6.4), "LPDDR5X": (7.5, 9.6),
}  # fmt: skip
"""Data rates per pin at which the memory types are sold (JEDEC standards and vendors' speed grades)."""


def residual(value: float, expected: float) -> float:
    return abs(value / expected - 1)


def explained(gpu: Gpu, group: str) -> bool:
    return f"{group}:" in gpu.note


def test_catalog_holds_pascal_to_blackwell_and_cdna(catalog: Catalog) -> None:
    assert len(catalog.gpus) >= 160
    assert {gpu.architecture for gpu in catalog.gpus} >= {
        "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA", "CDNA2", "CDNA3", "CDNA4",
        "RDNA2", "RDNA3", "RDNA3.5", "RDNA4", "Xe-HPC", "Xe-HPG", "Xe2-HPG", "Gaudi 2", "Gaudi 3",
    }  # fmt: skip
    assert {gpu.vendor for gpu in catalog.gpus} == {"NVIDIA", "AMD", "Intel"}


def test_fp32_rate_is_lanes_times_clock(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        expected = gpu.sm_count * gpu.fp32_lanes_per_sm * 2 * gpu.boost_clock_hz
        assert residual(gpu.peak_flops_per_s[Rate.FP32], expected) <= TOLERANCE or explained(gpu, "vector")


def test_fp64_and_fp16_rates_are_the_architectures_share_of_fp32(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        fp32 = gpu.peak_flops_per_s[Rate.FP32]
        for rate, shares in ((Rate.FP64, FP64_SHARE), (Rate.FP16, FP16_SHARE)):
            value = gpu.peak_flops_per_s.get(rate)
            if value is not None:
                assert residual(value, fp32 * shares[gpu.compute_capability]) <= TOLERANCE or explained(gpu, "vector")


def test_matrix_rates_are_multiples_of_flop_per_clock_times_clock(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        if gpu.matrix_flops_per_clock_per_sm is None:
            matrix_rates = {rate for rate in gpu.peak_flops_per_s if is_matrix_rate(rate)}
            assert matrix_rates <= {Rate.MATRIX_INT8}, "only DP4A goes without matrix units"
            continue
        unit = gpu.sm_count * gpu.matrix_flops_per_clock_per_sm * (gpu.matrix_clock_hz or gpu.boost_clock_hz)
        assert Rate.MATRIX_FP16 in gpu.peak_flops_per_s
        for rate, multiples in MATRIX_MULTIPLES.items():
            value = gpu.peak_flops_per_s.get(rate)
            if value is not None:
                nearest = min(residual(value, unit * multiple) for multiple in multiples)
                assert nearest <= TOLERANCE or explained(gpu, "matrix"), rate


def test_bandwidth_is_bus_times_pin_rate(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        if gpu.memory_bus_bits is None:
            continue
        low, high = PIN_GBIT_PER_S[gpu.memory_type]
        implied_gbit_per_s = gpu.memory_bandwidth_bytes_per_s * 8 / gpu.memory_bus_bits / 1e9
        assert low * 0.99 <= implied_gbit_per_s <= high * 1.01 or explained(gpu, "memory")
        if gpu.memory_pin_rate_bits_per_s is not None:
            expected = gpu.memory_bus_bits * gpu.memory_pin_rate_bits_per_s / 8
            assert residual(gpu.memory_bandwidth_bytes_per_s, expected) <= TOLERANCE or explained(gpu, "memory")


def test_almost_every_bandwidth_can_be_derived(catalog: Catalog) -> None:
    unknown = {gpu.name for gpu in catalog.gpus if gpu.memory_pin_rate_bits_per_s is None}
    assert unknown == {
        "B100 SXM", "GB200 (per GPU)", "B300 SXM (HGX)", "GB300 (per GPU)",
    }  # fmt: skip


def test_values_are_positive_and_in_si_units(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        assert 1e8 < gpu.boost_clock_hz < 4e9
        assert gpu.base_clock_hz is None or gpu.base_clock_hz <= gpu.boost_clock_hz
        assert 4 * 2**30 <= gpu.memory_bytes < 2**40
        assert 1e11 < gpu.memory_bandwidth_bytes_per_s < 2e13
        assert 2**20 <= gpu.l2_cache_bytes < 2**29
        assert 1 <= gpu.sm_count < 1000
        assert 20 <= gpu.tdp_w <= 2000
        assert 1e9 < gpu.pcie_bandwidth_bytes_per_s < 2e11
        assert gpu.link_bandwidth_bytes_per_s >= 0
        assert (gpu.link_name is None) == (gpu.link_bandwidth_bytes_per_s == 0)
        assert all(1e10 < value < 2e16 for value in gpu.peak_flops_per_s.values())
        assert gpu.max_threads_per_sm % gpu.warp_size == 0
        assert gpu.max_shared_memory_per_block_bytes <= gpu.shared_memory_per_sm_bytes


def test_every_group_names_its_source(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        assert set(gpu.sources) >= set(GROUPS) - {"matrix"}
        for group, note in gpu.sources.items():
            assert note.source, group
            if note.verified and group in {"clocks", "memory", "l2", "links", "power"}:
                assert "unsourced" not in note.source, group


def test_a_package_is_the_sum_of_its_dies(catalog: Catalog) -> None:
    by_name = {gpu.name: gpu for gpu in catalog.gpus}
    packages = [gpu for gpu in catalog.gpus if gpu.is_package]
    assert len(packages) == 3
    for package in packages:
        die = by_name[package.name.replace("(package, 2 GCD)", "(1 GCD)").replace("(package, 2 stacks)", "(1 stack)")]
        assert package.sm_count == 2 * die.sm_count
        assert package.memory_bytes == 2 * die.memory_bytes
        assert package.memory_bandwidth_bytes_per_s == pytest.approx(2 * die.memory_bandwidth_bytes_per_s)


def test_accessors(catalog: Catalog) -> None:
    h100 = next(gpu for gpu in catalog.gpus if gpu.name == "H100 SXM5 80GB")
    p100 = next(gpu for gpu in catalog.gpus if gpu.name == "Tesla P100 SXM2 16GB")
    assert peak_flops_per_s(h100, Rate.MATRIX_FP8) == pytest.approx(1978.9e12)
    assert peak_flops_per_s(p100, Rate.MATRIX_FP16) is None


def test_a_host_that_shares_the_memory_is_reached_through_it(catalog: Catalog) -> None:
    shared = {gpu.name: gpu for gpu in catalog.gpus if gpu.has_shared_memory}
    assert {"GB10 (DGX Spark)", "Jetson AGX Orin 64GB", "Radeon 8060S (Ryzen AI Max, 128GB)"} <= set(shared)
    assert all(gpu.pcie_bandwidth_bytes_per_s == gpu.memory_bandwidth_bytes_per_s / 2 for gpu in shared.values())


def test_correction_among_the_data_takes_a_sixteenth_of_what_is_reported(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        is_separate = gpu.vendor == "NVIDIA" and not gpu.has_shared_memory
        if gpu.reported_memory_bytes is not None and is_separate and not is_hbm(gpu.memory_type):
            assert (gpu.reported_memory_bytes < gpu.memory_bytes * 15 / 16) == has_inline_ecc(gpu), gpu.name
