"""What a call says of the kernel that it launches, where none ran: a launch under graph capture."""

from __future__ import annotations

import json
from typing import Any

from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import Trace


def launch(correlation: int, **told: Any) -> dict[str, Any]:
    args = {"correlation": correlation, **told}
    event = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "ts": correlation * 10, "dur": 2}
    return {**event, "pid": 1, "tid": 1, "args": args}


def kernel(correlation: int, name: str) -> dict[str, Any]:
    args = {"correlation": correlation, "device": 0, "stream": 0}
    event = {"ph": "X", "cat": "kernel", "name": name, "ts": correlation * 10 + 4, "dur": 2}
    return {**event, "pid": 0, "tid": 0, "args": args}


def load(*events: dict[str, Any]) -> Trace:
    return import_kineto(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def test_a_call_keeps_what_it_says_of_a_kernel_that_did_not_run() -> None:
    trace = load(
        launch(1, kernel="/home/user/gemm", grid=[2, 3, 4], block=[64, 1, 1]),
        launch(2, kernel="ran", grid=[5, 1, 1], block=[32, 1, 1]),
        launch(3),
        launch(4, kernel=7),
        kernel(2, "ran"),
    )
    names = [trace.strings[name] if name >= 0 else None for name in trace.calls.kernel.tolist()]
    assert names == ["<path>", None, None, None]
    assert trace.calls.grid.tolist() == [[2, 3, 4], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert trace.calls.block.tolist() == [[64, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert trace.kernels.grid.tolist() == [[5, 1, 1]]
    assert decode(encode(trace)) == trace


def test_the_names_of_kernels_that_ran_are_kept_once() -> None:
    trace = load(launch(1, kernel="other spelling"), kernel(1, "ran"))
    assert "other spelling" not in trace.strings
    assert b'"grid"' not in encode(trace)


def numbered(name: str, number: int, start: int) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": 8, "pid": 1, "tid": 1}
    return {**event, "args": {"External id": number}}


def of_op(correlation: int, number: int) -> dict[str, Any]:
    found = kernel(correlation, "gemm")
    return {**found, "args": {**found["args"], "External id": number}}


def test_kernels_are_joined_to_the_ops_that_they_name_where_no_call_was_recorded() -> None:
    ops = (numbered("aten::mm", 7, 10), numbered("aten::add", 9, 20))
    trace = load(*ops, of_op(3, 9), of_op(4, 7), of_op(5, 9), of_op(6, 8))
    launched = [trace.calls.op[call] if call >= 0 else -1 for call in trace.kernels.call.tolist()]
    assert [trace.strings[trace.ops.name[row]] if row >= 0 else None for row in launched] == [
        "aten::add", "aten::mm", "aten::add", None,
    ]  # fmt: skip
    recorded = load(*ops, launch(1), of_op(3, 9))
    assert len(recorded.calls.name) == 1, "what was recorded counts alone"


def test_an_older_profilers_number_of_a_kernel_is_no_op() -> None:
    assert not len(load(numbered("aten::mm", 3, 10), of_op(3, 3)).calls.name)


def test_the_kernels_of_a_graph_that_names_its_op_have_one_launch() -> None:
    kernels = [{**of_op(3, 9), "ts": 30 + 4 * at} for at in range(40)]
    trace = load(numbered("Torch-Compiled Region", 9, 20), *kernels)
    assert trace.kernels.call.tolist() == [0] * 40
    assert trace.quality.events_dropped == 0


def test_kernels_of_several_ops_under_one_number_have_no_known_launch() -> None:
    ops = [numbered("aten::mm", 7 + at, 10 + at) for at in range(4)]
    trace = load(*ops, *({**of_op(3, 7 + at), "ts": 30 + 4 * at} for at in range(4)))
    assert trace.kernels.call.tolist() == [-1] * 4
