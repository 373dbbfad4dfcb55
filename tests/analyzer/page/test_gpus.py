"""Catalogue entries in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wavecast.analyzer.page.page import Page
from wavecast.analyzer.page.terminal import Screen, draw_terminal
from wavecast.analyzer.questions.catalog.gpus_page import describe_gpu, describe_gpus
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu, Rate, SourceNote
from wavecast.specs.prices.book import PriceBook, shipped_prices

CheckGolden = Callable[[str, str], None]


@pytest.fixture
def example() -> Gpu:
    """A GPU with every field filled; the catalogue's own change as facts are checked."""
    return Gpu(
        name="Example 9000",
        aliases=("NVIDIA Example 9000",),
        vendor="NVIDIA",
        architecture="Imaginary",
        chip="GX900",
        compute_capability="9.9",
        is_package=True,
        release_date="2031-02-03",
        sm_count=100,
        fp32_lanes_per_sm=128,
        base_clock_hz=1e9,
        boost_clock_hz=2e9,
        matrix_clock_hz=1.9e9,
        memory_bytes=96 * 2**30,
        reported_memory_bytes=95 * 2**30,
        memory_type="HBM9",
        memory_bus_bits=8192,
        memory_bandwidth_bytes_per_s=8e12,
        l2_cache_bytes=2.75 * 2**20,
        peak_flops_per_s={Rate.FP32: 51.2e12, Rate.MATRIX_BF16: 1234.5e12},
        warp_size=32,
        max_threads_per_sm=2048,
        max_blocks_per_sm=32,
        registers_per_sm=65536,
        shared_memory_per_sm_bytes=228 * 2**10,
        max_shared_memory_per_block_bytes=227 * 2**10,
        link_name="Link 9",
        link_bandwidth_bytes_per_s=900e9,
        pcie_bandwidth_bytes_per_s=63e9,
        tdp_w=700,
        sources={
            "clocks": SourceNote(source="datasheet", verified=True),
            "memory": SourceNote(source="a long story about where these values were found " * 3, verified=False),
        },
        note="Nobody has seen it.",
    )


@pytest.mark.parametrize("width", [60, 100])
def test_all_facts_of_one_gpu(width: int, example: Gpu, check_golden: CheckGolden) -> None:
    text = draw_terminal(describe_gpu(example, PriceBook()), Screen(width=width))
    assert max(len(line) for line in text.splitlines()) <= width
    check_golden(f"gpu_{width}.txt", text)


def test_a_pipe_gets_facts_on_one_line_each(example: Gpu) -> None:
    source = example.sources["memory"].source.rstrip()
    lines = draw_terminal(describe_gpu(example, PriceBook()), Screen()).splitlines()
    assert any(line.startswith("memory") and line.endswith(source) for line in lines)


def test_every_drawing_is_whole(example: Gpu, assert_drawn_whole: Callable[[Page], None]) -> None:
    assert_drawn_whole(describe_gpu(example, PriceBook()))
    assert_drawn_whole(describe_gpus([example, *load_catalog().gpus], shipped_prices()))
