"""Re-run times beside recorded and predicted ones: sums, shares, intervals, and what was left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.questions.rerun.comparison import compare_rerun, list_work
from wavecast.analyzer.questions.rerun.report import RerunReport
from wavecast.formats.measured.rerun import Rerun, WholePass
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import Device, KernelKind, KernelTable, Meta, OpTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
A100, L4 = (find_gpu(CATALOG, name) for name in ("A100 SXM4 80GB", "L4"))
NAN = float("nan")


def build_trace(device: str = "NVIDIA A100-SXM4-80GB") -> Trace:
    """Two linear layers, an activation, a custom op, a copy from the host, a collective and a lone kernel."""
    matrix = TensorSpec("float32", (1024, 1024))
    strings = (
        "aten::linear", "aten::addmm", "aten::relu", "vllm::gate", "aten::copy_", "c10d::allreduce_", "sgemm_128x64",
        "relu_kernel", "Memcpy HtoD (Pinned -> Device)", "ncclDevKernel_AllReduce", "lone",
    )  # fmt: skip
    return Trace(
        meta=Meta(framework="torch 2.6.0", has_shapes=True),
        devices=(Device(name=device),),
        strings=strings,
        signatures=(
            Signature((matrix, matrix, TensorSpec("float32", (1024,)))),
            Signature((TensorSpec("float32", (1024,)), matrix, matrix, 1, 1)),
            Signature((matrix,)),
        ),
        ops=build_table(
            OpTable, 8, name=[0, 1, 0, 1, 2, 3, 4, 5], signature=[0, 1, 0, 1, 2, 2, 2, 2],
            parent=[-1, 0, -1, 2, -1, -1, -1, -1], start_ns=np.arange(8) * 1000, duration_ns=[900, 500] * 4,
        ),
        kernels=build_table(
            KernelTable, 7, name=[6, 6, 7, 7, 8, 9, 10], op=[1, 3, 4, 5, 6, 7, -1],
            kind=[0, 0, 0, 0, KernelKind.MEMCPY, KernelKind.COLLECTIVE, 0], grid=[[8, 4, 1]] * 7,
            block=[[128, 1, 1]] * 7, start_ns=np.arange(7) * 200_000,
            duration_ns=[110_000, 130_000, 10_000, 20_000, 5_000, 15_000, 10_000],
        ),
    )  # fmt: skip


def report(
    trace: Trace, gpu: Gpu | None, *, times_ns: tuple[float, ...] = (100_000.0, 8_000.0, NAN), **changes: Any
) -> RerunReport:
    """Compare with a re-run that took 100 µs per linear layer and 8 µs per activation."""
    work = list_work(trace, CATALOG, gpu)
    values: dict[str, Any] = {
        "device": Device(name="NVIDIA L4"),
        "is_gpu": True,
        "framework": "torch 2.13.0",
        "call_of_leaf": np.array([0, 1, 2, 3, -1, -1, -1]),
        "op_of_call": np.array([0, 2, 4, 5]),
        "problem_of_call": np.array([0, 0, 1, 2]),
        "op": np.array([0, 4, 5]),
        "time_ns": np.array(times_ns),
        "timing": ("graph_mean", "graph_mean", ""),
        "reason": ("", "", "not one of PyTorch's own ops"),
        "whole": WholePass(call_count=3, parts_ns=208e3, elapsed_ns=250e3, device_ns=220e3, graph_ns=210e3),
    }
    return compare_rerun(work, Rerun(**(values | changes)))


def test_recorded_and_rerun_times_add_up() -> None:
    found = report(build_trace(), None)
    linear, relu = (item for item in found.ops if item.rerun_ns is not None)
    assert (linear.op, linear.count, linear.recorded_ns, linear.rerun_ns) == ("aten::linear", 2, 240_000, 200_000)
    assert (linear.predicted_ns, linear.error_ratio, linear.is_covered) == (None, None, None)
    assert (linear.family, relu.family) == ("matmul", "elementwise")
    assert (found.total.recorded_ns, found.total.rerun_ns, found.total.figures) == (250_000, 208_000, None)
    assert [row.family for row in found.families] == ["matmul", "elementwise"]
    assert sum(row.rerun_ns for row in found.families) == found.total.rerun_ns


def test_shares_are_of_all_recorded_time() -> None:
    found = report(build_trace(), None)
    assert found.weighed_by == "recorded"
    assert (found.rerun_call_count, found.call_count) == (3, 7)
    assert found.rerun_ratio == pytest.approx(250 / 300)
    assert {(item.op, item.reason, item.time_ns) for item in found.left_out} == {
        ("vllm::gate", "not one of PyTorch's own ops", 20_000),
        ("aten::copy_", "copies between host and device", 5_000),
        ("c10d::allreduce_", "communication between GPUs", 15_000),
        ("lone", "no op launched it", 10_000),
    }
    assert [item.time_ns for item in found.left_out] == [20_000, 15_000, 10_000, 5_000]


def test_predictions_are_those_of_the_analysis() -> None:
    work = list_work(build_trace(), CATALOG, L4)
    found = report(build_trace(), L4)
    assert not found.is_same_gpu
    assert found.weighed_by == "predicted"
    linear = found.ops[0]
    assert linear.predicted_ns == pytest.approx(work.predicted_ns[:2].sum())
    assert linear.predicted_low_ns == pytest.approx(work.low_ns[:2].sum())
    assert linear.predicted_high_ns == pytest.approx(work.high_ns[:2].sum())
    assert work.low_ns[:2].sum() < work.predicted_ns[:2].sum() < work.high_ns[:2].sum()
    assert found.total.predicted_ns == pytest.approx(work.predicted_ns[:3].sum())
    assert found.iteration.predicted_kernels_ns == pytest.approx(work.predicted_ns.sum())
    assert found.iteration.predicted_ns is not None
    assert found.iteration.predicted_ns >= work.predicted_ns[:4].sum()


@pytest.mark.parametrize(("scale", "covered"), [(1.0, 2), (0.2, 0), (5.0, 0)])
def test_intervals_are_counted(scale: float, covered: int) -> None:
    work = list_work(build_trace(), CATALOG, L4)
    exact = (work.predicted_ns[:2].sum() / 2 * scale, work.predicted_ns[2] * scale, NAN)
    found = report(build_trace(), L4, times_ns=exact)
    assert (found.intervals.op_count, found.intervals.covered_op_count) == (2, covered)
    assert found.total.figures is not None
    assert found.total.figures.mape == pytest.approx(abs(1 / scale - 1))
    assert found.total.figures.coverage_90 == covered / 2
    assert found.ops[0].error_ratio == pytest.approx(1 / scale - 1)


def test_the_gpu_of_the_recording_has_no_prediction() -> None:
    found = report(build_trace(), A100)
    assert found.is_same_gpu
    assert found.weighed_by == "recorded"
    assert {item.predicted_ns for item in found.ops} == {None}
    assert found.iteration.predicted_ns is None
    assert found.iteration.recorded_ns is not None


def test_a_recording_on_an_unknown_gpu_is_compared_without_prediction() -> None:
    found = report(build_trace("Voodoo 5"), L4)
    assert found.total.predicted_ns is None
    assert found.total.recorded_ns == 250_000
    assert any("'Voodoo 5'" in text for text in found.warnings)


def test_nothing_rerun_is_no_division_by_zero() -> None:
    found = report(build_trace(), L4, times_ns=(NAN, NAN, NAN), reason=("a", "b", "c"), timing=("", "", ""), whole=None)
    assert found.rerun_ratio == 0
    assert (found.families, found.total.rerun_ns, found.total.figures) == ((), 0, None)


def test_shapes_alone_are_weighed_by_prediction_and_without_one_by_calls() -> None:
    trace = build_trace()
    shapes = replace(
        trace,
        meta=replace(trace.meta, capture="shapes"),
        ops=build_table(OpTable, 2, name=[1, 2], signature=[1, 2]),
        kernels=build_table(KernelTable, 0),
        devices=(),
    )
    sides: dict[str, Any] = {
        "call_of_leaf": np.array([0, 1]), "op_of_call": np.array([0, 1]), "problem_of_call": np.array([0, 1]),
        "op": np.array([0, 1]), "timing": ("graph_mean", ""), "reason": ("", "the time budget was over"),
        "times_ns": (100_000.0, NAN),
    }  # fmt: skip
    predicted, counted = report(shapes, L4, **sides), report(shapes, None, **sides)
    assert predicted.source is None
    assert predicted.weighed_by == "predicted"
    assert 0.5 < predicted.rerun_ratio < 1
    assert (counted.weighed_by, counted.rerun_ratio) == (None, 0.5)
    assert counted.ops[0].recorded_ns is None
