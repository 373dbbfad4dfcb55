"""Rows of GPUs by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wavecast.analyzer.iteration.report import AnalysisReport, GpuPrediction, Source, TraceSummary
from wavecast.specs.catalog import load_catalog

BuildRow = Callable[..., GpuPrediction]
BuildReport = Callable[..., AnalysisReport]


@pytest.fixture
def build_row() -> BuildRow:
    """Return a function that makes a row: `build_row("L4", 10.0, price=0.8)`, the time in ms."""
    vendors = {gpu.name: gpu.vendor for gpu in load_catalog().gpus}

    def build(gpu: str, time_ms: float, *, price: float | None = None, width: float = 0.0, **changes: Any) -> Any:
        values: dict[str, Any] = {
            "gpu": gpu,
            "vendor": vendors.get(gpu, "NVIDIA"),
            "is_source": False,
            "iteration_ns": time_ms * 1e6,
            "iteration_low_ns": time_ms * 1e6 / (1 + width),
            "iteration_high_ns": time_ms * 1e6 * (1 + width),
            "gpu_busy_ns": time_ms * 1e6,
            "communication_ns": 0.0,
            "idle_ns": {},
            "methods": {},
            "fits": True,
            "is_tight": False,
            "memory_allocated_bytes": None,
            "memory_reserved_bytes": None,
            "memory_needed_bytes": 1 << 30,
            "memory_usable_bytes": 8 << 30,
            "speedup": None,
            "samples_per_s": None,
            "price_usd_per_hour": price,
            "price_date": None,
        }
        return GpuPrediction(**(values | changes))

    return build


@pytest.fixture
def build_report() -> BuildReport:
    """Return a function that makes a report of rows."""

    def build(*rows: GpuPrediction, **changes: Any) -> AnalysisReport:
        trace = TraceSummary(
            name="net", source_format="wavecast", capture="shapes", framework=None, mode=None, batch_size=None,
            samples_per_iteration=None, iteration_count=0, iteration_index=None, op_count=1, kernel_count=0,
        )  # fmt: skip
        return AnalysisReport(trace=trace, source=Source(), predictions=rows, ops_gpu=rows[0].gpu, ops=(), **changes)

    return build
