"""Which rows are left, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wavecast.analyzer.iteration.decision.amounts import Selection
from wavecast.analyzer.iteration.decision.selection import select_rows
from wavecast.analyzer.iteration.report import GpuPrediction
from wavecast.errors import InputError
from wavecast.specs.catalog import load_catalog

BuildRow = Callable[..., GpuPrediction]
GPUS = load_catalog().gpus


@pytest.fixture
def rows(build_row: BuildRow) -> list[GpuPrediction]:
    return [
        build_row("H100 SXM5 80GB", 10.0, price=3.0),
        build_row("H100 PCIe 80GB", 13.0, price=2.0),
        build_row("Instinct MI300X", 9.0),
        build_row("L4", 40.0, price=0.5),
        build_row("Tesla T4", 90.0, price=0.3, fits=False),
    ]


def names(found: list[GpuPrediction], *named: str, **asked: Any) -> list[str]:
    return [row.gpu for row in select_rows(found, GPUS, Selection(**asked), named)]


def test_time_is_the_order_and_what_does_not_fit_stands_last(rows: list[GpuPrediction]) -> None:
    assert names(rows) == ["Instinct MI300X", "H100 SXM5 80GB", "H100 PCIe 80GB", "L4", "Tesla T4"]
    assert names(rows, sort="throughput") == names(rows)


def test_cost_puts_what_has_no_price_behind_and_what_does_not_fit_last(rows: list[GpuPrediction]) -> None:
    assert names(rows, sort="cost") == ["L4", "H100 PCIe 80GB", "H100 SXM5 80GB", "Instinct MI300X", "Tesla T4"]


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ({"vendors": ("amd",)}, {"Instinct MI300X"}),
        ({"vendors": "NVIDIA", "fits": True, "priced": True}, {"H100 SXM5 80GB", "H100 PCIe 80GB", "L4"}),
        ({"min_memory": "80GiB"}, {"H100 SXM5 80GB", "H100 PCIe 80GB", "Instinct MI300X"}),
        ({"min_memory": "81 GiB"}, {"Instinct MI300X"}),
        ({"min_memory": 24.0 * 2**30, "only": "l*"}, {"L4"}),
        ({"only": ("*SXM*", "t4")}, {"H100 SXM5 80GB", "Tesla T4"}),
        ({"only": ("sxm*",), "sort": "time", "vendors": ("AMD",)}, set()),
        ({"priced": True}, {"H100 SXM5 80GB", "H100 PCIe 80GB", "L4", "Tesla T4"}),
    ],
)
def test_filters(asked: dict[str, Any], left: set[str], rows: list[GpuPrediction]) -> None:
    if left:
        assert set(names(rows, **asked)) == left
        return
    with pytest.raises(InputError):
        names(rows, **asked)


def test_where_nothing_is_left_each_filter_says_what_it_leaves(rows: list[GpuPrediction]) -> None:
    with pytest.raises(InputError) as failure:
        names(rows, vendors=("AMD",), priced=True, only=("*l4*",))
    assert str(failure.value) == (
        "no GPU is left of 5: vendor AMD leaves 1, priced leaves 4, only '*l4*' leaves 1; together they leave none"
    )


def test_where_memory_is_not_known_that_is_said(build_row: BuildRow) -> None:
    with pytest.raises(InputError, match="fits leaves 0; whether it fits is not known"):
        names([build_row("L4", 1.0, fits=None)], fits=True)


def test_the_source_stays_as_a_reference(build_row: BuildRow) -> None:
    rows = [build_row("L4", 4.0), build_row("A100 SXM4 80GB", 1.0, is_source=True), build_row("L40S", 2.0)]
    left = select_rows(rows, GPUS, Selection(only=("L4",)), ())
    assert [(row.gpu, row.is_reference) for row in left] == [
        ("A100 SXM4 80GB", True), ("L40S", False), ("L4", False),
    ]  # fmt: skip
    named = select_rows(rows, GPUS, Selection(), ("L4",))
    assert [(row.gpu, row.is_reference) for row in named] == [("A100 SXM4 80GB", True), ("L4", False)]


@pytest.mark.parametrize(
    "asked",
    [{"sort": "beauty"}, {"rows": -1}, {"only": ("",)}, {"vendors": ("ACME",)}, {"min_memory": "much"}],
)
def test_what_cannot_be_asked_is_refused(asked: dict[str, Any], rows: list[GpuPrediction]) -> None:
    with pytest.raises(InputError):
        names(rows, **asked)


def test_what_has_no_price_cannot_be_sorted_by_it(build_row: BuildRow) -> None:
    with pytest.raises(InputError, match="no GPU here has a price"):
        names([build_row("L4", 1.0)], sort="cost")
