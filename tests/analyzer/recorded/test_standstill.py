"""Cold starts: what no later iteration has is left out, and said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.recorded.no_iteration import Reason, find_standstills, leave_out_standstills
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import row_count
from wavecast.formats.trace.tables import KernelKind, Trace

Recordings = Callable[[], Any]
MS = 1_000_000


def test_set_up_with_the_op_around_it_is_cut_out(recording: Any) -> None:
    recording.iteration(0, 1_300 * MS, 0, 1_300 * MS)
    recording.op(10 * MS, 1_000 * MS, name="aten::to")
    recording.call("cudaFree", 20 * MS, 900 * MS, op=0)
    recording.launch(1_005 * MS, MS, 1_008 * MS, 50 * MS)
    recording.launch(1_200 * MS, MS, 1_202 * MS, 50 * MS)
    before = recording.trace()
    after, found = leave_out_standstills(before, 0)
    assert [(item.reason, item.start_ns, item.end_ns, item.call, item.op) for item in found] == [
        (Reason.SETUP, 10 * MS, 1_008 * MS, "cudaFree", "aten::to")
    ]
    assert select_window(after, 0).duration_ns == 302 * MS
    assert after.iterations.cpu_end_ns.tolist() == [302 * MS]
    assert after.kernels.start_ns.tolist() == [10 * MS, 204 * MS]
    assert np.array_equal(after.kernels.duration_ns, before.kernels.duration_ns)
    assert after.ops.duration_ns.tolist() == [2 * MS]
    assert [row_count(table) for table in (after.ops, after.calls, after.kernels)] == [1, 3, 2]


@pytest.mark.parametrize(
    ("call", "lasting", "busy", "count"),
    [
        ("cudaMalloc", 200, False, 1),
        ("cudaLaunchKernel", 200, False, 1),  # loads its module
        ("cudaMalloc", 90, False, 0),
        ("cudaLaunchKernel", 200, True, 0),  # waits for room in the queue
        ("cudaDeviceSynchronize", 200, True, 0),
        ("cudaStreamSynchronize", 200, False, 1),  # for earlier work
    ],
)
def test_what_is_a_standstill(call: str, lasting: int, busy: bool, count: int, recording: Any) -> None:
    recording.iteration(0, 600 * MS, 0, 600 * MS)
    recording.launch(0, MS, MS, 400 * MS if busy else 10 * MS)
    recording.call(call, 50 * MS, lasting * MS)
    recording.launch(450 * MS, MS, 452 * MS, 50 * MS)
    assert len(find_standstills(recording.trace())) == count


def test_little_set_up_stays(recording: Any) -> None:
    recording.iteration(0, 5_000 * MS, 0, 5_000 * MS)
    recording.call("cudaMalloc", 50 * MS, 200 * MS)
    recording.launch(450 * MS, MS, 452 * MS, 4_000 * MS)
    trace = recording.trace()
    assert leave_out_standstills(trace, 0) == (trace, ())


def test_set_up_in_another_iteration_stays(recording: Any) -> None:
    for start in (0, 1_000 * MS):
        recording.iteration(start, start + 900 * MS, start, start + 900 * MS)
        recording.launch(start + 700 * MS, MS, start + 702 * MS, 50 * MS)
    recording.call("cudaMalloc", 50 * MS, 500 * MS)
    trace = recording.trace()
    assert len(leave_out_standstills(trace, 0)[1]) == 1
    assert leave_out_standstills(trace, 1)[1] == ()


def waiting(recording: Any, *, launched: str | None, copy_bytes: int | None) -> Trace:
    """A wait of 400 ms with the GPU idle, after a launch of which no kernel was recorded."""
    recording.iteration(0, 600 * MS, 0, 600 * MS)
    if launched is not None:
        recording.call(launched, 0, MS)
    wait = recording.call("hipMemcpyWithStream", 50 * MS, 400 * MS)
    recording.kernel(450 * MS - 1_000, 1_000, call=wait, kind=KernelKind.MEMCPY)
    trace: Trace = recording.trace()
    sizes = trace.kernels.size_bytes.copy()
    sizes[:] = -1 if copy_bytes is None else copy_bytes
    object.__setattr__(trace.kernels, "size_bytes", sizes)
    return trace


@pytest.mark.parametrize(
    ("launched", "copy_bytes", "count"),
    [
        (None, 256, 1),
        (None, 1 << 30, 0),  # may be prepared that long
        (None, None, 0),
        ("hipGraphLaunch", 256, 0),  # its kernels may be missing
        ("hipLaunchKernel", 256, 0),  # its kernel is missing
    ],
)
def test_a_wait_for_earlier_work(launched: str | None, copy_bytes: int | None, count: int, recording: Any) -> None:
    found = find_standstills(waiting(recording, launched=launched, copy_bytes=copy_bytes))
    assert [item.reason for item in found] == [Reason.EARLIER_WORK] * count


@pytest.mark.parametrize(("call", "count"), [("cudaGraphLaunch", 0), ("cudaLaunchKernel", 1)])
def test_set_up_after_a_graph_that_was_not_recorded_may_be_a_wait_for_it(call: str, count: int, recording: Any) -> None:
    recording.iteration(0, 600 * MS, 0, 600 * MS)
    recording.call(call, 0, MS)
    recording.call("cudaFree", 50 * MS, 300 * MS)
    recording.launch(450 * MS, MS, 452 * MS, 50 * MS)
    assert len(find_standstills(recording.trace())) == count


def test_a_recording_without_marks_is_cut_as_well(recording: Any) -> None:
    recording.call("cudaMalloc", 50 * MS, 500 * MS)
    recording.launch(700 * MS, MS, 702 * MS, 50 * MS)
    after, found = leave_out_standstills(recording.trace(), None)
    assert len(found) == 1
    assert after.kernels.start_ns.tolist() == [202 * MS]


def test_nothing_recorded_on_a_gpu_is_no_standstill(recording: Any) -> None:
    recording.call("cudaMalloc", 50 * MS, 500 * MS)
    assert find_standstills(recording.trace()) == []


def test_the_public_cold_start(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "odd" / "cold_start.json.gz")
    after, found = leave_out_standstills(trace, 0)
    assert {item.reason for item in found} == {Reason.SETUP}
    assert sum(item.length_ns for item in found) == pytest.approx(40.35e9, rel=1e-3)
    assert select_window(after, 0).duration_ns == pytest.approx(791.5e6, rel=1e-3)
    assert np.array_equal(after.kernels.duration_ns, trace.kernels.duration_ns)
    assert row_count(after.ops) == row_count(trace.ops)


def test_the_public_executions_wait_for_an_earlier_step(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "odd" / "sglang_decode_execution.json.gz")
    after, found = leave_out_standstills(trace, 0)
    assert [(item.reason, item.call) for item in found] == [(Reason.EARLIER_WORK, "hipMemcpyWithStream")]
    assert select_window(after, 0).duration_ns == pytest.approx(10.81e6, rel=1e-3)  # from the server's own mark on


def test_usual_recordings_have_none(data_dir: Path) -> None:
    for name in ("v100_convnet_ddp_training", "mi300x_bert_small_inference", "h100_vit_small_inference"):
        trace = load_trace(data_dir / "traces" / f"{name}.json.gz")
        assert leave_out_standstills(trace, select_window(trace).index)[1] == ()
