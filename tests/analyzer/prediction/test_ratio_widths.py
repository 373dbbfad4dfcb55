"""Intervals of times that a plain ratio moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import analyze_trace, run_analysis
from wavecast.analyzer.iteration.op_rows import list_ops
from wavecast.analyzer.iteration.report import OpPrediction
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.prediction.prediction import Method
from wavecast.analyzer.prediction.ratio_widths import memory_rates
from wavecast.analyzer.prediction.ratios import RULE_OF, ratio_half_widths
from wavecast.analyzer.prediction.sum_interval import busy_interval_ns
from wavecast.analyzer.work import Family
from wavecast.arrays import Floats
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Catalog, Gpu
from wavecast.specs.match import find_gpu

GpuBuilder = Callable[..., Gpu]
TraceBuilder = Callable[..., Trace]
CATALOG = load_catalog()
EVERY_RULE = [
    *((rule, None) for rule in ("wave", "bandwidth", "pcie", "link")),
    *(
        (rule, family)
        for rule in ("bound", "compute", "guess")
        for family in (Family.MATMUL, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT)
    ),
]


def widths(
    rule: str, *names: str, source: str, family: Family | None = None, time_ns: float = 1e7, factor: float = 0.5
) -> list[float]:
    """Half widths on catalogue GPUs of one row that the rule moves."""
    fleet, origin = build_fleet([find_gpu(CATALOG, name) for name in names]), build_fleet([find_gpu(CATALOG, source)])
    moved_by = np.full((1, len(names)), factor)
    found = ratio_half_widths(RULE_OF[rule], [family], np.array([time_ns]), moved_by, fleet, origin)
    return [float(width) for width in found[0]]


def toy_result(trace: Trace, source: Gpu, *targets: Gpu) -> Analysis:
    return run_analysis(trace, Catalog(gpus=(source, *targets)), targets=targets, library=Library(fitted={}))


def ops_of(result: Analysis) -> dict[str, OpPrediction]:
    """The first target's ops."""
    return {item.op: item for item in list_ops(result.trace, result.run, 0, limit=None)}


def busy_low_ns(result: Analysis) -> Floats:
    return busy_interval_ns(result.prediction, result.workload.family)[0]


@pytest.mark.parametrize(("rule", "family"), EVERY_RULE)
def test_every_rule_has_a_width_on_every_gpu(rule: str, family: Family | None) -> None:
    names = [gpu.name for gpu in CATALOG.gpus]
    found = widths(rule, *names, source="Tesla V100 SXM2 32GB", family=family, time_ns=1e9)
    assert all(0.05 < width < 5.0 for width in found)


@pytest.mark.parametrize(("rule", "family"), [row for row in EVERY_RULE if row[0] not in ("pcie", "link")])
def test_widths_grow_from_twin_to_next_generation_to_other_vendor(rule: str, family: Family | None) -> None:
    near_to_far = ("H100 SXM5 80GB", "H200 SXM 141GB", "B200 SXM (HGX, 180GB)", "L40S", "Instinct MI300X")
    found = widths(rule, *near_to_far, source="H100 SXM5 80GB", family=family)
    assert found == sorted(found)
    assert found[-1] > 1.3 * found[2] > 1.3 * found[0] > 0


def test_a_faster_link_promises_nothing() -> None:
    """A copy may go at the host's speed, a collective may wait: eight times the bandwidth may change nothing."""
    for rule in ("pcie", "link"):
        assert widths(rule, "B200 SXM (HGX, 180GB)", source="H100 SXM5 80GB", factor=1 / 8) == [
            pytest.approx(np.log(8))
        ]
        assert widths(rule, "B200 SXM (HGX, 180GB)", source="H100 SXM5 80GB", factor=1.0)[0] < np.log(8)


def test_what_a_cache_may_hold_is_less_certain_than_what_comes_from_memory() -> None:
    """L40S has a quarter of an H100's DRAM bandwidth, but half its bandwidth to 96 MB of cache."""
    short, long = (widths("wave", "L40S", source="H100 SXM5 80GB", time_ns=time_ns)[0] for time_ns in (2e4, 1e6))
    rates = memory_rates(build_fleet([find_gpu(load_catalog(), name) for name in ("H100 SXM5 80GB", "L40S")]))
    ratio = (rates.dram[0] / rates.dram[1]) / (rates.l2[0] / rates.l2[1])
    assert 1.3 < ratio < 5.0
    assert short == pytest.approx(np.hypot(long, np.log(ratio)), rel=0.05)
    assert widths("compute", "L40S", source="H100 SXM5 80GB", family=Family.MATMUL, time_ns=2e4) == pytest.approx(
        widths("compute", "L40S", source="H100 SXM5 80GB", family=Family.MATMUL, time_ns=1e6)
    )


def test_every_moved_kernel_has_an_interval_around_it(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    fast = gpu(name="Fast", memory_bandwidth_bytes_per_s=2e12)
    ops = ops_of(toy_result(toy_trace(), gpu(), fast))
    methods = {item.method for item in ops.values()}
    assert methods == {Method.WAVE_SCALING, Method.BOUND_RATIO, Method.LINK_RATIO}
    for item in ops.values():
        assert item.predicted_low_ns is not None
        assert item.predicted_high_ns is not None
        assert item.predicted_low_ns < item.predicted_ns < item.predicted_high_ns


def test_the_source_has_no_spread(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    result = toy_result(toy_trace(), gpu(), gpu(name="Other"))
    assert result.prediction.half_width[:, 1].tolist() == [0.0] * len(result.workload.op)
    assert busy_low_ns(result)[1] == result.prediction.total_busy_ns()[1]


def test_no_low_end_is_under_the_bound_that_holds(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    """The product takes 1 ms on the source, whose bound is 0.69 ms: a factor of two either way would be too low."""
    ops = ops_of(toy_result(toy_trace(), gpu(), gpu(name="Other", memory_type="GDDR6")))
    bound_ns = 2 * 4096**3 / 200e12 * 1e9
    assert ops["aten::mm"].bound_ns == pytest.approx(bound_ns)
    assert ops["aten::mm"].predicted_low_ns == pytest.approx(bound_ns)
    assert ops["my_kernel"].predicted_low_ns is not None
    assert ops["my_kernel"].predicted_low_ns < ops["my_kernel"].predicted_ns


def test_errors_of_ratios_go_together_and_those_of_links_apart(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    result = toy_result(toy_trace(), gpu(), gpu(name="Other", memory_type="GDDR6"))
    ops = ops_of(result).values()
    rises = {item.op: (item.predicted_high_ns or np.nan) - item.predicted_ns for item in ops}
    copy_ns = rises.pop("aten::copy_")
    high_ns = busy_interval_ns(result.prediction, result.workload.family)[1][0]
    spread_ns = high_ns - result.prediction.total_busy_ns()[0]
    assert spread_ns == pytest.approx(np.hypot(sum(rises.values()), copy_ns))


@settings(max_examples=25, deadline=None)
@given(bandwidth=st.floats(0.1, 20.0), compute=st.floats(0.1, 20.0), slowdown=st.floats(0.3, 20.0))
def test_the_sum_stays_between_its_bounds_and_its_high_end(
    gpu: GpuBuilder, toy_trace: TraceBuilder, bandwidth: float, compute: float, slowdown: float
) -> None:
    base = gpu()
    rates = {rate: flops * compute for rate, flops in base.peak_flops_per_s.items()}
    other = gpu(name="Other", memory_bandwidth_bytes_per_s=bandwidth * 1e12, peak_flops_per_s=rates)
    trace = toy_trace()
    kernels = replace(trace.kernels, duration_ns=(trace.kernels.duration_ns * slowdown).astype(np.int64))
    result = toy_result(replace(trace, kernels=kernels), base, other)
    low, high = (end[0] for end in busy_interval_ns(result.prediction, result.workload.family))
    total = result.prediction.total_busy_ns()[0]
    floor = result.prediction.bounds.lower_ns[:, 0] * result.prediction.bound_share * result.prediction.weight
    assert low < total < high
    assert floor.sum() <= low * (1 + 1e-9)


def test_what_nothing_models_has_no_interval(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    """Collectives on GPUs without links were measured up to 200 times slower than with them: no width is honest."""
    trace = toy_trace()
    strings = (*trace.strings[:6], "ncclDevKernel_AllReduce_Sum_f16_RING_LL", trace.strings[7])
    result = toy_result(replace(trace, strings=strings), gpu(), gpu(name="Other"))
    found = ops_of(result)["ncclDevKernel_AllReduce_Sum_f16_RING_LL"]
    assert found.method is Method.UNMODELLED
    assert (found.predicted_low_ns, found.predicted_high_ns) == (None, None)
    assert np.isnan(busy_low_ns(result)[0])


@pytest.mark.data
@pytest.mark.parametrize(
    "name", ["v100_convnet_ddp_training", "b200_eager_inference", "v100_dlrm_training_rank0", "a100_80gb_training"]
)
def test_recordings_without_shapes_get_intervals(data_dir: Path, name: str) -> None:
    trace = load_trace(data_dir / "traces" / f"{name}.json.gz")
    targets = [find_gpu(CATALOG, gpu) for gpu in ("H100 NVL 94GB", "Tesla V100 SXM2 16GB", "Instinct MI300X")]
    for row in analyze_trace(trace, CATALOG, targets=targets, op_limit=0).predictions:
        assert row.iteration_low_ns is not None
        assert row.iteration_high_ns is not None
        assert row.iteration_low_ns <= row.iteration_ns <= row.iteration_high_ns
        assert row.is_source or row.iteration_high_ns > 1.05 * row.iteration_low_ns
