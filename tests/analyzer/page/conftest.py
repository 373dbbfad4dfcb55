"""What `analyze` reports, by hand, and what every drawing of a page must hold."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wavecast.analyzer.iteration.report import (
    FASTER_KERNELS,
    AnalysisReport,
    Gain,
    GpuPrediction,
    OpPrediction,
    Source,
    TraceSummary,
)
from wavecast.analyzer.page import formats
from wavecast.analyzer.page.page import Page, Passage
from wavecast.analyzer.page.sheet import Sheet
from wavecast.analyzer.page.terminal import Screen
from wavecast.analyzer.prediction.prediction import Method
from wavecast.analyzer.replay.causes import IdleCause
from wavecast.errors import spelling_options

MILLISECOND_NS = 1e6


def words_of(page: Page) -> Iterator[str]:
    """Yield what a page says, in order of reading; of sheets the title and the cells, row by row."""
    for block in page.blocks:
        if isinstance(block, Passage):
            yield from (word for line in block.lines for word in (line.label, *line.text.split("\n")))
        elif isinstance(block, Sheet):
            yield block.title
            yield from (item.cells[row] for row in range(block.row_count) for item in block.columns)


def unescape(text: str) -> str:
    return re.sub(r"\\([\\`*_\[\]<>|])", r"\1", html.unescape(text))


@pytest.fixture(autouse=True)
def for_command_line() -> Iterator[None]:
    """Let pages name options, as those of the command line do."""
    with spelling_options():
        yield


@pytest.fixture
def assert_drawn_whole() -> Callable[[Page], None]:
    """Hold every drawer to a page: all that it says must be drawn, in its order; what a new drawer has to keep."""

    def check(page: Page) -> None:
        sheets = [block for block in page.blocks if isinstance(block, Sheet)]
        titles = [column.title for sheet in sheets for column in sheet.columns]
        for item in formats.PAGE_FORMATS:
            text, at = unescape(item.draw(page, Screen())), 0
            for word in filter(None, (unescape(word).strip() for word in words_of(page))):
                at = text.find(word, at)
                assert at >= 0, (item.name, word)
            assert all(part in text for title in titles for part in title.split("\n")), item.name

    return check


def build_prediction(gpu: str, iteration_ms: float, **changes: Any) -> GpuPrediction:
    values: dict[str, Any] = {
        "gpu": gpu,
        "vendor": "AMD" if "Instinct" in gpu else "NVIDIA",
        "is_source": False,
        "iteration_ns": iteration_ms * MILLISECOND_NS,
        "iteration_low_ns": None,
        "iteration_high_ns": None,
        "gpu_busy_ns": (iteration_ms - 2) * MILLISECOND_NS,
        "communication_ns": 0.25 * MILLISECOND_NS,
        "idle_ns": {
            IdleCause.HOST: 1.5 * MILLISECOND_NS,
            IdleCause.SYNC: 0.25 * MILLISECOND_NS,
            IdleCause.COMMUNICATION: 0.0,
            IdleCause.DEPENDENCY: 0.25 * MILLISECOND_NS,
            IdleCause.UNEXPLAINED: 0.0,
        },
        "fits": True,
        "is_tight": False,
        "memory_allocated_bytes": None,
        "memory_reserved_bytes": None,
        "memory_needed_bytes": 3 << 30,
        "memory_usable_bytes": 80 << 30,
        "methods": {Method.BOUND_RATIO: 0.7, Method.WAVE_SCALING: 0.297, Method.UNMODELLED: 0.003},
        "speedup": 10 / iteration_ms,
        "samples_per_s": 32e3 / iteration_ms,
        "price_usd_per_hour": None,
        "price_date": None,
    }
    return GpuPrediction(**(values | changes))


def build_op(op: str, predicted_ms: float, **changes: Any) -> OpPrediction:
    values: dict[str, Any] = {
        "op": op,
        "shapes": "float16[32,1024] float16[1024,4096]",
        "module": "Net/layers.0/mlp",
        "family": "matmul",
        "count": 24,
        "source_ns": predicted_ms * MILLISECOND_NS,
        "predicted_ns": predicted_ms * MILLISECOND_NS,
        "predicted_low_ns": None,
        "predicted_high_ns": None,
        "bound_ns": 0.4 * predicted_ms * MILLISECOND_NS,
        "bound_by": "compute",
        "method": Method.MEASURED,
        "reason": "this is the source",
        "share": predicted_ms / 8,
    }
    return OpPrediction(**(values | changes))


KERNEL_NAME = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::Half, c10::Half, "
    "at::native::binary_internal::MulFunctor<float>>, std::array<char*, 3ul>>(int, float)"
)


@pytest.fixture
def measured_report() -> AnalysisReport:
    """A report with everything that a report can hold."""
    return AnalysisReport(
        trace=TraceSummary(
            name="small net",
            source_format="kineto",
            capture="measured",
            framework="torch 2.6.0",
            mode="training",
            batch_size=32,
            samples_per_iteration=32,
            iteration_count=5,
            iteration_index=2,
            op_count=1234,
            kernel_count=1,
        ),
        source=Source(gpu="A100 SXM4 80GB", iteration_ns=10 * MILLISECOND_NS, gpu_busy_ns=8 * MILLISECOND_NS),
        predictions=(
            build_prediction(
                "B200 SXM (HGX, 180GB)",
                4.6543,
                price_usd_per_hour=6.25,
                price_date="2024-05-01",
                price_kind="spot",
                price_source="Lambda",
            ),
            build_prediction(
                "Instinct MI300X", 7.2, iteration_low_ns=5.9 * MILLISECOND_NS, iteration_high_ns=9.12 * MILLISECOND_NS
            ),
            build_prediction(
                "A100 SXM4 80GB",
                10.0,
                is_source=True,
                methods={Method.MEASURED: 1.0},
                price_usd_per_hour=3.0,
                price_date="2023-11-20",
                price_kind="on-demand",
                price_source="AWS, GCP",
            ),
            build_prediction(
                "Tesla P4",
                123.456,
                fits=False,
                is_tight=True,
                memory_usable_bytes=8 << 30,
                methods={Method.BOUND_RATIO: 0.9996, Method.LINK_RATIO: 0.0004},
            ),
        ),
        ops_gpu="A100 SXM4 80GB",
        ops=(
            build_op("aten::addmm", 4.0),
            build_op(KERNEL_NAME, 0.0123, shapes="", module=None, bound_ns=None, bound_by=None, family=None),
        ),
        gains=(
            Gain(change="CUDA graphs", option="--cuda-graph", speedup=1.18),
            Gain(change="a batch twice as large at least", option="--batch 64", speedup=1.1),
            Gain(change="a host twice as fast", option="--host 2", speedup=1.029),
            Gain(change=FASTER_KERNELS, option=None, speedup=1.5),
        ),
        warnings=("80% of the GPU time is in kernels without shapes: record with record_shapes=True",),
    )


@pytest.fixture
def shapes_report() -> AnalysisReport:
    """A report of a trace without timings: most is not known."""
    return AnalysisReport(
        trace=TraceSummary(
            name=None,
            source_format="wavecast",
            capture="shapes",
            framework=None,
            mode=None,
            batch_size=None,
            samples_per_iteration=None,
            iteration_count=0,
            iteration_index=None,
            op_count=1,
            kernel_count=0,
        ),
        source=Source(),
        predictions=tuple(
            build_prediction(
                gpu,
                time_ms,
                iteration_low_ns=0.8 * time_ms * MILLISECOND_NS,
                gpu_busy_ns=time_ms * MILLISECOND_NS,
                communication_ns=0.0,
                idle_ns=dict.fromkeys(IdleCause, 0.0),
                fits=None,
                memory_needed_bytes=None,
                methods={Method.ROOFLINE: 1.0},
                speedup=None,
                samples_per_s=None,
            )
            for gpu, time_ms in (("H100 SXM5 80GB", 0.0451), ("Tesla T4", 0.391))
        ),
        ops_gpu="H100 SXM5 80GB",
        ops=(build_op("aten::mm", 0.0451, source_ns=None, module=None, count=1, method=Method.ROOFLINE, share=1.0),),
    )
