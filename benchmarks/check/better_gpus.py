"""GPUs that are better than others: a figure of one multiplied, or one of the catalogue beside a lesser of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Final

from wavecast.specs.gpu import Gpu, Rate, chip_of, has_inline_ecc, is_matrix_rate

Change = Callable[[Gpu, float], Gpu]


def more_sms(gpu: Gpu, factor: float) -> Gpu:
    """More multiprocessors like the present ones, at least one more: arithmetic grows with them."""
    count = max(round(gpu.sm_count * factor), gpu.sm_count + 1)
    return replace(gpu, sm_count=count, peak_flops_per_s=_rates(gpu, count / gpu.sm_count))


def faster_clock(gpu: Gpu, factor: float) -> Gpu:
    """All clocks: arithmetic grows with them."""
    return replace(
        gpu,
        boost_clock_hz=gpu.boost_clock_hz * factor,
        base_clock_hz=gpu.base_clock_hz and gpu.base_clock_hz * factor,
        matrix_clock_hz=gpu.matrix_clock_hz and gpu.matrix_clock_hz * factor,
        peak_flops_per_s=_rates(gpu, factor),
    )


def faster_matrix_units(gpu: Gpu, factor: float) -> Gpu:
    """Every rate of the matrix units."""
    per_clock = gpu.matrix_flops_per_clock_per_sm and round(gpu.matrix_flops_per_clock_per_sm * factor)
    return replace(gpu, peak_flops_per_s=_rates(gpu, factor, is_matrix_rate), matrix_flops_per_clock_per_sm=per_clock)


def faster_vector_units(gpu: Gpu, factor: float) -> Gpu:
    """Every rate of the vector units, by more lanes."""
    rates = _rates(gpu, factor, lambda rate: not is_matrix_rate(rate))
    return replace(gpu, peak_flops_per_s=rates, fp32_lanes_per_sm=round(gpu.fp32_lanes_per_sm * factor))


def better_in_all(gpu: Gpu, factor: float) -> Gpu:
    """Every figure by the factor; arithmetic by its square, with multiprocessors and clocks."""
    for change in _TOGETHER.values():
        gpu = change(gpu, factor)
    return gpu


def _rates(gpu: Gpu, factor: float, chosen: Callable[[Rate], bool] = lambda _rate: True) -> Mapping[Rate, float]:
    return {rate: peak * factor if chosen(rate) else peak for rate, peak in gpu.peak_flops_per_s.items()}


def _multiplied(name: str) -> Change:
    return lambda gpu, factor: replace(gpu, **{name: getattr(gpu, name) * factor})


_TOGETHER: Final[Mapping[str, Change]] = {
    "SMs": more_sms,
    "clock": faster_clock,
    "bandwidth": _multiplied("memory_bandwidth_bytes_per_s"),
    "L2": _multiplied("l2_cache_bytes"),
    "memory": _multiplied("memory_bytes"),
    "link": _multiplied("link_bandwidth_bytes_per_s"),
    "PCIe": _multiplied("pcie_bandwidth_bytes_per_s"),
    "power": _multiplied("tdp_w"),
}
FIGURES: Final[Mapping[str, Change]] = {
    **_TOGETHER,
    "matrix rates": faster_matrix_units,
    "vector rates": faster_vector_units,
    "all": better_in_all,
}
FACTORS: Final = (1.02, 1.1, 1.5, 2.0, 4.0)
ROUNDED: Final = 1.01
"""Datasheets round rates."""
_COMPARED: Final = (
    "sm_count", "boost_clock_hz", "memory_bandwidth_bytes_per_s", "l2_cache_bytes", "memory_bytes",
    "link_bandwidth_bytes_per_s", "pcie_bandwidth_bytes_per_s", "tdp_w", "fp32_lanes_per_sm", "registers_per_sm",
    "shared_memory_per_sm_bytes", "max_threads_per_sm",
)  # fmt: skip


def better(gpu: Gpu, figure: str, factor: float) -> Gpu:
    """Return a GPU with a figure multiplied, under a name that no recording knows."""
    return replace(FIGURES[figure](gpu, factor), name=f"{gpu.name}, {figure} × {factor}")


def unmeasured(gpu: Gpu) -> Gpu:
    """Return a GPU under a name that no recording knows: its own recordings are moved to it as to any other."""
    return replace(gpu, name=f"{gpu.name}, as it is")


def dominated_pairs(gpus: Sequence[Gpu]) -> list[tuple[int, int]]:
    """Return the pairs of one architecture whose second GPU is at least as good in every figure, and better in one.

    Error correction that costs bandwidth counts as a figure, and so does what one multiprocessor computes per clock.
    """
    return [
        (one, other)
        for one, other in permutations(range(len(gpus)), 2)
        if gpus[one].compute_capability == gpus[other].compute_capability and _is_better(gpus[one], gpus[other])
    ]


def _is_better(one: Gpu, other: Gpu) -> bool:
    figures = [(getattr(one, name), getattr(other, name)) for name in _COMPARED]
    for rate, peak in one.peak_flops_per_s.items():
        better_peak = other.peak_flops_per_s.get(rate, 0.0)
        figures += [(peak, better_peak), (_per_sm(one, peak), ROUNDED * _per_sm(other, better_peak))]
    if has_inline_ecc(other) and not has_inline_ecc(one):
        return False
    return all(left <= right for left, right in figures) and any(left < right for left, right in figures)


def _per_sm(gpu: Gpu, rate: float) -> float:
    """Return FLOP per clock of one multiprocessor, which a problem of few blocks has the use of."""
    return rate / (gpu.sm_count * gpu.boost_clock_hz)


def one_per_chip(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the first GPU of each chip, packages of several devices left out."""
    found: dict[str, Gpu] = {}
    for gpu in gpus:
        if not gpu.is_package:
            found.setdefault(chip_of(gpu), gpu)
    return list(found.values())
