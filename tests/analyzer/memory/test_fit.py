"""Whether memory fits a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.memory import MemoryCategory, MemoryMethod, MemoryUse, fit_on
from wavecast.analyzer.memory.fit import CONTEXT_BYTES, UNREPORTED_RATIO, matmul_workspace_bytes, usable_bytes
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu

GIB = 1 << 30
MIB = 1 << 20


def use(peak_bytes: int, **changes: Any) -> MemoryUse:
    values: dict[str, Any] = {
        "peak_bytes": peak_bytes,
        "highest_bytes": peak_bytes,
        "allocated_peak_bytes": peak_bytes,
        "reserved_peak_bytes": None,
        "held": {MemoryCategory.OTHER: peak_bytes},
        "at_op": None,
        "method": MemoryMethod.ALLOCATION_EVENTS,
        "reason": "",
        "workspace_count": 0,
    }
    return MemoryUse(**(values | changes))


@pytest.fixture(scope="module")
def gpus() -> tuple[Gpu, ...]:
    return load_catalog().gpus


def named(gpus: tuple[Gpu, ...], name: str) -> Gpu:
    return next(item for item in gpus if item.name == name)


@pytest.mark.parametrize(
    ("peak_gib", "fits", "is_tight"),
    [
        (1, True, False),
        (30, True, False),
        (36, True, True),
        (38, False, True),
        (39.5, False, False),
        (80, False, False),
    ],
)
def test_the_answer_follows_what_is_needed(gpus: tuple[Gpu, ...], peak_gib: float, fits: bool, is_tight: bool) -> None:
    (answer,) = fit_on(use(int(peak_gib * GIB)), [named(gpus, "A100 SXM4 40GB")])
    assert (answer.fits, answer.is_tight) == (fits, is_tight)


def test_what_is_needed_is_reserved_memory_and_the_context(gpus: tuple[Gpu, ...]) -> None:
    played = use(10 * GIB, workspace_count=2, allocated_peak_bytes=10 * GIB + MIB, reserved_peak_bytes=11 * GIB)
    (answer,) = fit_on(played, [named(gpus, "H100 SXM5 80GB")])
    assert answer.allocated_bytes == 10 * GIB + MIB + 2 * 32 * MIB
    assert answer.reserved_bytes == 11 * GIB + 2 * 32 * MIB
    assert answer.context_bytes == CONTEXT_BYTES.typical
    assert answer.needed_bytes == answer.reserved_bytes + answer.context_bytes


def test_free_blocks_between_make_an_answer_tight_not_certain(gpus: tuple[Gpu, ...]) -> None:
    (answer,) = fit_on(use(30 * GIB, reserved_peak_bytes=40 * GIB), [named(gpus, "A100 SXM4 40GB")])
    assert (answer.fits, answer.is_tight) == (False, True)


def test_memory_that_is_not_known_fits_nowhere_for_sure(gpus: tuple[Gpu, ...]) -> None:
    answers = fit_on(None, gpus)
    assert len(answers) == len(gpus)
    assert {answer.fits for answer in answers} == {None}
    assert {answer.needed_bytes for answer in answers} == {None}


def test_what_python_may_hold_makes_an_answer_tight(gpus: tuple[Gpu, ...]) -> None:
    gpu = named(gpus, "A100 SXM4 40GB")
    assert not fit_on(use(20 * GIB), [gpu])[0].is_tight
    assert fit_on(use(20 * GIB, highest_bytes=39 * GIB), [gpu])[0].is_tight


@given(st.integers(0, 400 * GIB), st.integers(0, 50 * GIB), st.integers(0, 2))
def test_more_memory_never_fits_where_less_does_not(peak: int, more: int, workspaces: int) -> None:
    for gpu in load_catalog().gpus[::9]:
        small, large = (fit_on(use(size, workspace_count=workspaces), [gpu])[0] for size in (peak, peak + more))
        assert small.fits or not large.fits
        assert small.lowest_needed_bytes is not None
        assert small.needed_bytes is not None
        assert small.highest_needed_bytes is not None
        assert peak <= small.lowest_needed_bytes <= small.needed_bytes <= small.highest_needed_bytes


def test_reported_memory_lies_in_the_range_assumed_for_its_kind(gpus: tuple[Gpu, ...]) -> None:
    reported = [item for item in gpus if item.reported_memory_bytes is not None and not item.has_shared_memory]
    assert len(reported) > 15
    for item in reported:
        ratio = float(item.reported_memory_bytes or 0) / item.memory_bytes
        assumed = usable_bytes(without_report(item))
        assert assumed.low <= ratio * item.memory_bytes <= assumed.high, item.name


def without_report(item: Gpu) -> Gpu:
    return replace(item, reported_memory_bytes=None)


def test_a_package_of_two_devices_offers_half_its_memory_to_each(gpus: tuple[Gpu, ...]) -> None:
    package = usable_bytes(named(gpus, "Instinct MI250X (package, 2 GCD)"))
    assert package == usable_bytes(named(gpus, "Instinct MI250X (1 GCD)"))


def test_a_host_that_shares_the_memory_keeps_a_part_of_what_is_reported(gpus: tuple[Gpu, ...]) -> None:
    spark = named(gpus, "GB10 (DGX Spark)")
    assert spark.reported_memory_bytes is not None
    usable = usable_bytes(spark)
    assert usable.low < usable.typical < usable.high < spark.reported_memory_bytes < spark.memory_bytes
    assert usable.typical == pytest.approx(0.87 * spark.reported_memory_bytes)


def test_usable_memory_is_below_nominal(gpus: tuple[Gpu, ...]) -> None:
    for item in gpus:
        least = 0.8 if item.has_shared_memory else 0.9
        assert least * item.memory_bytes / (1 + item.is_package) < usable_bytes(item).typical <= item.memory_bytes
    assert all(kind.low <= kind.typical <= kind.high <= 1 for kind in UNREPORTED_RATIO.values())


@pytest.mark.parametrize(
    ("vendor", "capability", "mib"),
    [
        ("NVIDIA", "7.0", 8.125),
        ("NVIDIA", "8.9", 8.125),
        ("NVIDIA", "9.0", 32),
        ("NVIDIA", "12.0", 32),
        ("AMD", "gfx90a", 32 + 76),
        ("AMD", "gfx942", 128 + 76),
    ],
)
def test_the_workspace_is_what_torch_gives_the_matrix_library(
    gpu: Callable[..., Gpu], vendor: str, capability: str, mib: float
) -> None:
    assert matmul_workspace_bytes(gpu(vendor=vendor, compute_capability=capability)) == mib * MIB
