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
