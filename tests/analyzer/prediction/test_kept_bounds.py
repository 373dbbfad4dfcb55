"""No op is predicted under the bound that stands beside it, unless the text says that its source broke it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from wavecast.analyzer.iteration.analyze import analyze_trace, run_analysis
from wavecast.analyzer.iteration.op_rows import BROKEN_BOUND, list_ops
from wavecast.analyzer.iteration.report import AnalysisReport, OpPrediction
from wavecast.analyzer.whatif.scenario import Scenario, TargetPrecision
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import CallTable, KernelTable, OpTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Catalog, Gpu
from wavecast.specs.match import find_gpu

GpuBuilder = Callable[..., Gpu]
TraceBuilder = Callable[..., Trace]
CATALOG = load_catalog()
TARGETS = [
    find_gpu(CATALOG, name) for name in ("Tesla P4", "GeForce GTX 1660 Ti", "A10", "H100 SXM5 80GB", "Instinct MI300X")
]
SAMPLES = ("bert_base-training-bf16-b16", "dlrm-training-fp32-b2048", "resnet50-inference-fp32-b32")
SCENARIOS = (Scenario(), Scenario(precision=TargetPrecision.BF16), Scenario(fuse_elementwise=True))


def additions(toy_trace: TraceBuilder, starts: Sequence[int], duration: int) -> Trace:
    """Return a recording of additions of 100 MB, each on a stream of its own: 96.7 µs at 1 TB/s, 4 MB of it in L2."""
    count = len(starts)
    return toy_trace(
        ops=build_table(
            OpTable, count, name=[0] * count, signature=[0] * count, start_ns=starts, duration_ns=[5] * count
        ),
        calls=build_table(
            CallTable, count, name=[7] * count, start_ns=starts, duration_ns=[1] * count, op=list(range(count))
        ),
        kernels=build_table(
            KernelTable,
            count,
            name=[3] * count,
            stream=list(range(count)),
            start_ns=[start + 1_000 for start in starts],
            duration_ns=[duration] * count,
            call=list(range(count)),
            op=list(range(count)),
            grid=[[32768, 1, 1]] * count,
            block=[[128, 1, 1]] * count,
        ),
    )


def report_of(trace: Trace, ops_gpu: Gpu, *gpus: Gpu) -> AnalysisReport:
    return analyze_trace(trace, Catalog(gpus=gpus), targets=gpus, ops_gpu=ops_gpu)


def test_kernels_that_overlap_share_their_bounds_as_they_share_the_time(
    gpu: GpuBuilder, toy_trace: TraceBuilder
) -> None:
    for apart, bound_us in ((0, 96.7), (200_000, 2 * 96.7)):
        trace = additions(toy_trace, [0, apart], 100_000)
        (op,) = report_of(trace, gpu(), gpu()).ops
        assert op.predicted_ns == pytest.approx(200_000 if apart else 100_000, rel=0.02)
        assert op.bound_ns == pytest.approx(bound_us * 1e3, rel=0.02)


@pytest.mark.parametrize(("duration", "is_broken"), [(100_000, False), (20_000, True)])
@pytest.mark.parametrize("is_source", [True, False])
def test_a_source_that_broke_its_bound_is_said_to_have(
    gpu: GpuBuilder, toy_trace: TraceBuilder, duration: int, is_broken: bool, is_source: bool
) -> None:
    source, target = gpu(), gpu(name="Twin")
    (op,) = report_of(additions(toy_trace, [0], duration), source if is_source else target, source, target).ops
    assert op.bound_ns is not None
    assert (op.predicted_ns < op.bound_ns) == is_broken
    assert (BROKEN_BOUND in op.reason) == is_broken


def under_unsaid(trace: Trace, targets: Sequence[Gpu], scenario: Scenario) -> list[tuple[str, OpPrediction]]:
    """Return the ops that are predicted under their bounds without a word, with the GPU."""
    result = run_analysis(trace, CATALOG, targets=targets, scenario=scenario)
    return [
        (gpu.name, op)
        for column, gpu in enumerate(result.prediction.fleet.gpus)
        for op in list_ops(result.trace, result.run, column, limit=None)
        if op.bound_ns is not None and op.predicted_ns < op.bound_ns * (1 - 1e-9) and BROKEN_BOUND not in op.reason
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_keep_their_bounds(root_dir: Path, name: str) -> None:
    trace = load_trace(root_dir / "samples" / f"{name}-shapes.json.gz")
    for scenario in SCENARIOS:
        assert not under_unsaid(trace, TARGETS, scenario)


@pytest.mark.data
def test_public_recordings_keep_their_bounds(data_dir: Path) -> None:
    for number, path in enumerate(sorted((data_dir / "traces").glob("*.json.gz"))):
        trace = load_trace(path)
        is_large = path.stat().st_size > 2_000_000  # one takes as long as all small ones
        for scenario in (SCENARIOS[0],) if is_large else (SCENARIOS[0], SCENARIOS[1 + number % 2]):
            try:
                assert not under_unsaid(trace, TARGETS, scenario), (path.name, scenario)
            except InputError:
                assert scenario.precision is not None, path.name  # no product with shapes to change
