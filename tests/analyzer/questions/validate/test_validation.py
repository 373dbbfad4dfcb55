"""Predictions beside measurements: real recordings of one workload on two GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.prediction.prediction import Method
from wavecast.analyzer.questions.validate.report import Validation
from wavecast.analyzer.questions.validate.validation import validate_traces
from wavecast.analyzer.recorded.recording import without_times
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.errors import InputError, UnknownGpuError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

pytestmark = pytest.mark.data

Load = Callable[[str], Trace]
MODELS = ("bert_small_inference", "vit_small_inference")
PAIRS = [(f"{a}_{model}", f"{b}_{model}") for model in MODELS for a, b in (("h100", "mi300x"), ("mi300x", "h100"))]


@pytest.fixture
def load(data_dir: Path) -> Load:
    return lambda name: load_trace(data_dir / "traces" / f"{name}.json.gz")


def validate(first: Trace, second: Trace, **options: object) -> Validation:
    return validate_traces(first, second, load_catalog(), op_limit=None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_recordings_of_two_vendors_match_entirely(first: str, second: str, load: Load) -> None:
    source, target = load(first), load(second)
    found = validate(source, target)
    for side in (found.source, found.target):
        assert side.matched_call_count == side.call_count > 60
        assert side.matched_ratio == pytest.approx(1.0)
    assert found.unmatched == ()
    kernels = target.kernels.duration_ns[select_window(target).kernel_rows]
    assert sum(op.measured_ns for op in found.ops) == pytest.approx(kernels.sum())
    assert sum(op.count for op in found.ops) == found.source.call_count
    assert sum(family.share for family in found.families) == pytest.approx(1.0)
    assert {op.target_op for op in found.ops if "convolution" in op.op} <= {
        "aten::cudnn_convolution", "aten::miopen_convolution",
    }  # fmt: skip


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_parts_of_the_error_add_up(first: str, second: str, load: Load) -> None:
    iteration = validate(load(first), load(second)).iteration
    parts = iteration.kernel_error_ns + iteration.host_error_ns + iteration.other_error_ns
    assert parts == pytest.approx(iteration.predicted_ns - iteration.measured_ns)
    for busy, idle, whole in (
        (iteration.predicted_busy_ns, iteration.predicted_idle_ns, iteration.predicted_ns),
        (iteration.measured_busy_ns, iteration.measured_idle_ns, iteration.measured_ns),
    ):
        assert busy + sum(idle.values()) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_kernels_and_host_of_the_target_give_its_iteration(first: str, second: str, load: Load) -> None:
    iteration = validate(load(first), load(second)).iteration
    assert abs(iteration.other_error_ns) < 0.01 * iteration.measured_ns
    assert abs(iteration.host_error_ns) > 0.05 * iteration.measured_ns  # the hosts do differ


def test_a_host_as_fast_as_the_targets_leaves_no_error_to_the_host(load: Load) -> None:
    first, second = (load(name) for name in PAIRS[0])
    speed = validate(first, second).iteration.host_speed_ratio
    assert speed is not None
    again = validate(first, second, scenario=Scenario(cpu_speed=speed)).iteration
    assert again.host_speed_ratio == pytest.approx(speed)
    assert abs(again.host_error_ns) < 0.001 * again.measured_ns
    assert abs(again.error_ratio) < 0.02


def test_a_recording_against_itself_is_exact(load: Load) -> None:
    trace = load(PAIRS[2][0])
    found = validate(trace, trace)
    assert found.iteration.error_ratio == pytest.approx(0.0, abs=1e-9)
    assert found.iteration.host_speed_ratio == pytest.approx(1.0)
    assert all(op.predicted_ns == pytest.approx(op.measured_ns) for op in found.ops)
    assert {op.method for op in found.ops} == {Method.MEASURED}
    assert found.intervals.op_count == 0  # what was measured has no interval to be in
    assert found.iteration.is_covered is None


@pytest.mark.parametrize(
    "name", ["v100_convnet_ddp_training", "a100_80gb_training", "mi300x_resnet_checkpointed_training"]
)
def test_wrong_kernel_times_alone_are_the_kernels_error(name: str, load: Load) -> None:
    """A recording taken for one of another GPU, against itself: its own kernel times put right give its iteration."""
    trace = load(name)
    iteration = validate(trace, trace, source=find_gpu(load_catalog(), "L40S")).iteration
    assert abs(iteration.kernel_error_ns) > 0.001 * iteration.measured_ns
    assert abs(iteration.host_error_ns) < 0.001 * iteration.measured_ns
    assert abs(iteration.other_error_ns) < 0.01 * iteration.measured_ns


def test_kernels_that_took_longer_are_the_kernels_error(load: Load) -> None:
    """Two ranks on one type of GPU: rank 1 waited longer in its collectives, and nothing else differs much."""
    found = validate(load("v100_dlrm_training_rank0"), load("v100_dlrm_training_rank1"))
    iteration = found.iteration
    assert iteration.error_ratio < -0.25
    assert abs(iteration.kernel_error_ns) > 0.95 * abs(iteration.predicted_ns - iteration.measured_ns)
    assert found.ops[0].family == "collective"
    assert found.source.matched_ratio > 0.95 < found.target.matched_ratio
    missing = [item for item in found.unmatched if item.is_measured]
    assert sum(item.time_ns for item in missing) == pytest.approx(found.target.kernel_time_ns - found.target.matched_ns)


def test_an_iteration_timed_without_the_profiler_is_the_measured_one(load: Load) -> None:
    first, second = (load(name) for name in PAIRS[0])
    table = second.iterations
    start = np.append(table.start_ns, -20_000_000)
    length = int(table.end_ns[0] - table.start_ns[0]) * 9 // 10
    timed = replace(
        table,
        start_ns=start,
        end_ns=np.append(table.end_ns, start[-1] + length),
        profiled=np.append(table.profiled, False),
        cpu_start_ns=np.append(table.cpu_start_ns, -1),
        cpu_end_ns=np.append(table.cpu_end_ns, -1),
    )
    slow, fast = (validate(first, trace).iteration for trace in (second, replace(second, iterations=timed)))
    assert fast.measured_ns == length
    assert fast.host_speed_ratio is not None
    assert slow.host_speed_ratio is not None
    assert fast.host_speed_ratio > 1.05 * slow.host_speed_ratio
    assert abs(fast.other_error_ns) < 0.01 * length


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_shapes_alone_are_held_against_a_measurement(first: str, second: str, load: Load) -> None:
    source = load(first)
    found = validate(without_times(source, select_window(source)), load(second))
    assert found.source.gpu is None
    # The bias of a convolution is a kernel of its own in a recording; of shapes alone it belongs to the convolution.
    assert {item.op for item in found.unmatched if item.is_measured} <= {"aten::add_"}
    assert found.target.matched_call_count >= found.target.call_count - 1
    assert all(op.source_ns is None and op.kernel_count is None for op in found.ops)
    parts = found.iteration
    assert parts.kernel_error_ns + parts.host_error_ns + parts.other_error_ns == pytest.approx(
        parts.predicted_ns - parts.measured_ns
    )
    assert parts.host_speed_ratio is not None


def test_the_order_of_ops_and_limits(load: Load) -> None:
    first, second = (load(name) for name in PAIRS[0])
    whole = validate(first, second)
    errors = [abs(op.error_ns) for op in whole.ops]
    assert errors == sorted(errors, reverse=True)
    short = validate_traces(first, second, load_catalog(), op_limit=2)
    assert short.ops == whole.ops[:2]
    assert (short.op_count, short.families, short.total) == (whole.op_count, whole.families, whole.total)


def test_the_gpus_can_be_named(load: Load) -> None:
    catalog = load_catalog()
    first, second = (load(name) for name in PAIRS[0])
    found = validate(first, second, source=find_gpu(catalog, "H200"), target=find_gpu(catalog, "MI325X"))
    assert (found.source.gpu, found.target.gpu) == (find_gpu(catalog, "H200").name, find_gpu(catalog, "MI325X").name)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (PAIRS[0][0], PAIRS[2][0], "not of the same workload: only 0% of the first one's kernel time and 0%"),
        (PAIRS[2][0], "rtx2080ti_resnet_training", "the second one holds no shapes"),
    ],
)
def test_other_workloads_are_refused(first: str, second: str, words: str, load: Load) -> None:
    with pytest.raises(InputError, match=words):
        validate(load(first), load(second))


def test_an_unknown_gpu_is_named_by_the_option_of_its_side(load: Load) -> None:
    trace = load(PAIRS[0][0])
    unknown = replace(trace, devices=(replace(trace.devices[0], name="Voodoo 3"),))
    with pytest.raises(UnknownGpuError, match=r"the trace was recorded on 'Voodoo 3'.*with source"):
        validate(unknown, trace)
    with pytest.raises(UnknownGpuError, match=r"the second trace: .*'Voodoo 3'.*with to,"):
        validate(trace, unknown)


def test_a_second_recording_without_times_is_refused(load: Load) -> None:
    trace = load(PAIRS[0][0])
    with pytest.raises(InputError, match="nothing to compare with"):
        validate(trace, without_times(trace, select_window(trace)))
