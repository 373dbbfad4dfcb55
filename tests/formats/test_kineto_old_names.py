"""Files of PyTorch 1.8 to 1.12, which name events otherwise, import as today's do."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.signature import UNKNOWN, Signature, TensorSpec
from wavecast.formats.trace.tables import Phase, Trace

Event = dict[str, Any]

OLD_CATEGORIES = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
    "fwdbwd": "forward_backward",
}


def span(cat: str, name: str, ts: int, dur: int, tid: Any = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def gpu(cat: str, name: str, ts: int, dur: int, correlation: int, **args: Any) -> Event:
    return span(cat, name, ts, dur, tid=7, device=0, stream=7, correlation=correlation, **args)


def arrow(ph: str, ts: int, tid: int) -> Event:
    return {"ph": ph, "id": 3, "pid": 9, "tid": tid, "ts": ts, "cat": "fwdbwd", "name": "fwdbwd"}


def shaped(*shapes: list[int]) -> dict[str, Any]:
    return {"Input Dims": list(shapes), "Input type": ["float"] * len(shapes)}


STEP = [
    span("user_annotation", "ProfilerStep#3", 0, 190),
    span("cpu_op", "aten::linear", 10, 40, **{"External id": 1, "Sequence number": 5, "Fwd thread id": 0}),
    span("cpu_op", "aten::addmm", 10, 40, **{"External id": 2}, **shaped([4], [2, 3], [3, 4])),
    span("cuda_runtime", "cudaLaunchKernel", 20, 5, correlation=11),
    gpu("kernel", "volta_sgemm", 30, 9, 11, grid=[1, 2, 1], block=[64, 1, 1]),
    span("cpu_op", "AddmmBackward", 60, 30, tid=2, **{"External id": 3, "Sequence number": 5, "Fwd thread id": 1}),
    span("cuda_runtime", "cudaMemsetAsync", 70, 5, tid=2, correlation=12),
    gpu("gpu_memset", "Memset (Device)", 80, 2, 12, bytes=64),
    arrow("s", 10, 1),
    arrow("f", 60, 2),
    span("user_annotation", "Optimizer.step#SGD.step", 100, 40),
    span("cpu_op", "aten::add_", 110, 20, **{"External id": 4}),
    span("cuda_runtime", "cudaMemcpyAsync", 150, 5, correlation=13),
    gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 160, 6, 13, bytes=128),
]
MEMORY = {"Device Type": 1, "Device Id": 0, "Bytes": 64}
DEVICES = [{"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0, "numSms": 80}]


def load(events: list[Event]) -> Trace:
    return import_kineto(json.dumps({"deviceProperties": DEVICES, "traceEvents": events}).encode())


def age(event: Event) -> Event:
    """Write an event as PyTorch 1.8 did: other categories, threads as texts, the op's number in lower case."""
    old = event | {"cat": OLD_CATEGORIES[event["cat"]]}
    if event["ph"] != "X":
        return old
    old["tid"] = f"stream {event['tid']}" if old["cat"] in ("Kernel", "Memcpy", "Memset") else str(event["tid"])
    if old["cat"] != "Operator":
        old["args"] = event["args"] | {"external id": 2}
    return old


def memory(**more: Any) -> Event:
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 9, "tid": 1, "ts": 15, "args": MEMORY} | more


def test_old_names_mean_what_new_ones_do() -> None:
    new = load([*STEP, memory(cat="cpu_instant_event")])
    assert len(new.ops.name) == 4
    assert new.ops.forward.tolist() == [-1, -1, 0, -1]
    assert new.ops.phase.tolist() == [Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    ended = sorted(STEP, key=lambda event: event["ts"] + event.get("dur", 0))
    for events in (STEP, list(reversed(STEP)), ended):
        assert same(load([*map(age, events), memory()]), new)


def same(one: Trace, other: Trace) -> bool:
    """Compare by texts: numbers of names follow the order of a file."""
    return by_name(one) == by_name(other)


def by_name(trace: Trace) -> Trace:
    order = np.argsort(np.argsort(np.array(trace.strings)))
    tables = {name: getattr(trace, name) for name in ("ops", "calls", "kernels")}
    named = {name: replace(table, name=order[table.name].astype(np.int32)) for name, table in tables.items()}
    return replace(trace, strings=tuple(sorted(trace.strings)), **named)


def test_of_equal_spans_the_op_that_began_first_is_outside() -> None:
    trace = load([age(STEP[2]), age(STEP[1])])  # as the old versions list them: by their ends
    assert [trace.strings[name] for name in trace.ops.name] == ["aten::linear", "aten::addmm"]
    assert trace.ops.parent.tolist() == [-1, 0]


def test_annotations_among_the_operators_are_no_ops_and_leave_no_name() -> None:
    notes = [
        "## load secret.csv ##",
        "enumerate(DataLoader)#Loader.__next__",
        "Net.forward",
        "nccl:all_reduce",
        "alices_model",
    ]
    ops = [
        span("Operator", "aten::mm", 1, 1),
        span("Operator", "detach_", 3, 1),
        span("Operator", "torch::autograd::AccumulateGrad", 5, 1),
        span("Operator", "autograd::engine::evaluate_function: AddBackward0", 7, 1),
        span("Operator", "CppNode<Mine>", 9, 1, **{"Sequence number": 1}),
    ]
    trace = load([span("Operator", name, 20 + at, 1) for at, name in enumerate(notes)] + ops)
    assert sorted(trace.strings) == sorted(op["name"] for op in ops)


@pytest.mark.parametrize("key", ["Input Dims", "Input dims"])
def test_scalars_and_lists_are_no_tensors(key: str) -> None:
    kinds = ["float", "double", "Double", "Int", "Bool", "GenericList", ""]
    args = {key: [[2, 3], [4], [], [], [], [], []], "Input type": kinds}
    (signature,) = load([span("Operator", "aten::foo", 1, 1, **args)]).signatures
    unknown = (UNKNOWN,) * 5
    assert signature == Signature((TensorSpec("float32", (2, 3)), TensorSpec("float64", (4,)), *unknown))


def test_memory_without_addresses_is_of_no_block() -> None:
    table = load([age(STEP[1]), memory(), memory(ts=20, args=MEMORY | {"Bytes": -64})]).memory
    assert table.block.tolist() == [-1, -1]
    assert (table.size_bytes.tolist(), table.op.tolist(), table.device.tolist()) == ([64, -64], [0, 0], [0, 0])


@pytest.mark.data
def test_a_public_file_of_1_8_holds_all_that_it_did(data_dir: Path) -> None:
    data = gzip.decompress((data_dir / "traces" / "odd" / "old_names_resnet50.json.gz").read_bytes())
    events = json.loads(data)["traceEvents"]
    trace = import_kineto(data)
    counts = {name: sum(event.get("cat") == name for event in events) for name in OLD_CATEGORIES.values()}
    marks = sum("#" in event["name"] for event in events if event.get("cat") == "Operator")
    assert len(trace.ops.name) == counts["Operator"] - marks
    assert len(trace.calls.name) == counts["Runtime"]
    assert len(trace.kernels.name) == counts["Kernel"] + counts["Memcpy"] + counts["Memset"]
    assert len(trace.memory.time_ns) == sum(event.get("name") == "[memory]" for event in events)
    assert len(trace.iterations.start_ns) == 6
    assert trace.quality.ops_with_crossed_nesting == 0
    numbers = {event["args"]["External id"]: event for event in events if event.get("cat") == "Operator"}
    kernels = sorted(
        (event for event in events if event.get("cat") in ("Kernel", "Memcpy", "Memset")),
        key=lambda event: (event["ts"], -event["dur"]),
    )
    named = [trace.strings[trace.ops.name[row]] for row in trace.kernels.op.tolist()]
    assert named == [numbers[event["args"]["external id"]]["name"] for event in kernels]
    backward = trace.ops.phase == Phase.BACKWARD
    numbered = backward & (trace.ops.sequence >= 0)
    assert (trace.ops.forward[numbered] >= 0).all()
