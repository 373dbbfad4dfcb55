"""Kernels inside CUDA graphs that torch's annotations name.

No profiler file of torch 2.15 is at hand: these are MADE, after the layouts that PyTorch's sources write (the Python
export of `torch/profiler/_chrome_trace_export.py`, the script `torch/cuda/_annotate_cuda_graph_trace.py` of 2.13, the
`cupti_monitor` backend of `torch/profiler/_cupti/monitor_trace.py`).
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.prediction.capture_join import join_captures
from wavecast.analyzer.questions.show.page import describe_overview
from wavecast.analyzer.recorded.overview import describe_trace
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.formats.trace.validate import validate

Event = dict[str, Any]
GEMM, RELU = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "void at::native::relu_kernel"
NODES = [
    (GEMM, {"module_fqn": "layers.0.attention.wq"}),
    (RELU, {"module_fqn": "layers.0.attention.wq"}),
    (GEMM, {"module_fqn": "layers.1.attention.wq"}),
    (RELU, {"name": "loss"}),
    (GEMM, {"name": "loss", "autograd_phase": "backward"}),
    (GEMM, {}),
]


def span(cat: str, name: str, ts: float, dur: float, /, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def python_export(node: int, note: dict[str, str]) -> dict[str, Any]:
    """As the Python export of 2.15 splices a note into the arguments, the kernel moved to a lane for show."""
    return {"graph id": 3, "graph node id": (3 << 32) + node, "stream": 7, "original_stream": 40 + node % 2, **note}


def monitor_list(node: int, note: dict[str, str]) -> dict[str, Any]:
    """As the `cupti_monitor` backend writes a list of notes: as text."""
    listed = {"annotation": json.dumps([note])} if note else {}
    return {"graph id": 3, "graph node id": node, "stream": 40 + node % 2, **listed}


def monitor_fields(node: int, note: dict[str, str]) -> dict[str, Any]:
    """As the `cupti_monitor` backend writes a single note: as fields."""
    return {"graph id": 3, "graph node id": node, "stream": 40 + node % 2, **note}


def document(*events: Event) -> bytes:
    gpu = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "totalGlobalMem": 85_000_000_000}
    return json.dumps({"schemaVersion": 1, "deviceProperties": [gpu], "traceEvents": events}).encode()


def launches(count: int, write: Any = python_export, nodes: Any = NODES) -> list[Event]:
    """Return that many launches of one graph, each inside an op, and their kernels."""
    events = []
    for launch in range(count):
        start = 1000.0 + 500 * launch
        events.append(span("cpu_op", "CUDAGraph::replay", start, 60))
        events.append(span("cuda_runtime", "cudaGraphLaunch", start + 5, 40, correlation=launch + 1))
        for node, (name, note) in enumerate(nodes):
            args = write(node, note) | {
                "device": 0,
                "correlation": launch + 1,
                "grid": [64, 1, 1],
                "block": [256, 1, 1],
            }
            events.append(span("kernel", name, start + 60.125 + 20 * node, 12.5, **args))
    return events


def names(trace: Trace) -> list[tuple[str, str | None]]:
    """Return op and module of each kernel."""
    ops = trace.kernels.op.tolist()
    modules = [trace.ops.module[op] if op >= 0 else -1 for op in ops]
    return [
        (trace.strings[trace.ops.name[op]] if op >= 0 else "", trace.strings[module] if module >= 0 else None)
        for op, module in zip(ops, modules, strict=True)
    ]


EXPECTED = [
    ("wq", "layers.0.attention.wq"),
    ("wq", "layers.0.attention.wq"),
    ("wq", "layers.1.attention.wq"),
    ("loss", "loss"),
    ("loss", "loss"),
    ("CUDAGraph::replay", None),
]


@pytest.mark.parametrize("write", [python_export, monitor_list, monitor_fields])
def test_kernels_of_a_graph_get_the_op_and_module_that_their_node_is_annotated_with(write: Any) -> None:
    trace = import_kineto(document(*launches(2, write)))
    validate(trace)
    assert decode(encode(trace)) == trace
    assert names(trace) == EXPECTED * 2
    assert trace.kernels.stream.tolist() == [40, 41] * 6
    assert int(trace.kernels.duration_ns.sum()) == 2 * 6 * 12_500
    added = trace.ops.duration_ns == 0
    assert set(trace.ops.start_ns[added].tolist()) == set(trace.calls.start_ns.tolist())
    assert {trace.strings[trace.ops.name[row]] for row in trace.ops.parent[added].tolist()} == {"CUDAGraph::replay"}


def test_ops_are_runs_of_kernels_on_a_stream_and_backward_ones_are_told() -> None:
    def on_one_stream(node: int, note: dict[str, str]) -> dict[str, Any]:
        return {"graph id": 3, "graph node id": node, "stream": 7, **note}

    trace = import_kineto(document(*launches(1, on_one_stream)))
    op = trace.kernels.op
    assert op[0] == op[1] != op[2]
    assert trace.ops.phase[op].tolist() == [Phase.FORWARD] * 4 + [Phase.BACKWARD, Phase.FORWARD]
    assert trace.meta.workload.mode == "training"


def test_show_says_how_much_of_the_graphs_is_known_and_by_what() -> None:
    overview = describe_trace(import_kineto(document(*launches(3))))
    assert overview.graph_explained_ns == pytest.approx(overview.graph_gpu_ns * 5 / 6)
    assert overview.graph_shaped_ns == 0
    words = "ops and modules of 83 % of their GPU time are known, from torch's annotations, without shapes"
    assert words in draw_markdown(describe_overview(overview)).replace("\u202f", " ").replace("\xa0", " ")


def test_a_collective_in_a_graph_is_one_of_the_process_group() -> None:
    told = {
        "Collective name": "allreduce", "In msg nelems": "1024", "Out msg nelems": "1024", "Group size": "8",
        "dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Is asynchronized op": "False", "Rank": "0",
    }  # fmt: skip
    nodes = [("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", told | {"Seq": str(number)}) for number in (4, 5)]
    trace = import_kineto(document(*launches(1, nodes=[(GEMM, {"name": "mlp"}), *nodes])))
    validate(trace)
    rows = trace.collectives
    assert rows.in_element_count.tolist() == [1024, 1024]
    assert rows.group_size.tolist() == [8, 8]
    assert rows.sequence.tolist() == [4, 5]
    assert rows.op.tolist() == trace.kernels.op[1:].tolist()
    assert [name for name, _ in names(trace)] == ["mlp", "record_param_comms", "record_param_comms"]
    assert not rows.is_async.any()


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ({"name": "aten::mm", "module_fqn": "a.b"}, ("aten::mm", "a.b")),
        ({"name": "phase A"}, ("phase A", None)),
        ({"str": "L.model.layers.3"}, ("layers", "L.model.layers.3")),
        ({"name": "7.8"}, ("7.8", "7.8")),
        ({"name": "/home/ann/x y"}, ("<path>", None)),
        ({"module_fqn": "/home/ann/model"}, None),
        ({"annotation": "attention"}, ("attention", "attention")),
        ({"annotation": '[{"name": "outer"}, {"name": "inner"}]'}, ("inner", "inner")),
        ({"annotation": '["plain"]'}, ("plain", "plain")),
        ({"annotation": "[" * 100_000}, None),
        ({"annotation": "[" * 2_000}, None),
        ({"annotation": '[{"name": 5, "str": null}, 7, [1]]'}, None),
        ({"annotation": {"name": "not a text"}}, None),
        ({"name": 5, "str": ["x"], "module_fqn": 1.5}, None),
        ({"name": "   "}, None),
        ({"name": "x" * 1000}, ("x" * 200, "x" * 200)),
    ],
)
def test_what_notes_say(note: dict[str, Any], expected: tuple[str, str | None] | None) -> None:
    trace = import_kineto(document(*launches(1, monitor_fields, [(GEMM, note)])))
    validate(trace)
    assert names(trace) == [expected or ("CUDAGraph::replay", None)]


def test_a_kernel_outside_graphs_is_not_named_by_its_arguments() -> None:
    call = span("cuda_runtime", "cudaLaunchKernel", 1010, 4, correlation=9)
    kernel = span("kernel", GEMM, 1020, 4, correlation=9, stream=7, device=0, name="other", **{"graph node id": 0})
    trace = import_kineto(document(span("cpu_op", "aten::mm", 1000, 30), call, kernel))
    assert names(trace) == [("aten::mm", None)]


def test_a_kernel_without_a_launch_keeps_what_it_has() -> None:
    events = [event for event in launches(1) if event["cat"] != "cuda_runtime"]
    trace = import_kineto(document(*events))
    validate(trace)
    assert (trace.kernels.op == -1).all()


def test_a_capture_in_the_same_file_explains_the_launches_after_it(graph_files: Any) -> None:
    files = graph_files()
    files.capture(files.work(32))
    whole = import_kineto(files.execution(files.work(32), files.work(32), inputs=[32, 64]))
    joined = join_captures(whole, {})
    of_graph = np.flatnonzero(joined.kernels.duration_ns == 10_000)[2:]
    shapes = {
        joined.signatures[joined.ops.signature[op]].arguments[0].shape for op in joined.kernels.op[of_graph].tolist()
    }
    assert shapes == {(32, 64)}
    overview = describe_trace(joined)
    assert overview.graph_explained_ns == overview.graph_gpu_ns == overview.graph_shaped_ns > 0


def test_a_capture_in_the_same_file_that_is_in_doubt_or_comes_later_explains_nothing(graph_files: Any) -> None:
    doubtful, later = graph_files(), graph_files()
    doubtful.capture(doubtful.work(16), doubtful.work(32))
    trace = import_kineto(doubtful.execution(doubtful.work(32)))
    assert join_captures(trace, {}) is trace
    later.execution(later.work(32))
    trace = import_kineto(later.capture(later.work(32)))
    assert join_captures(trace, {}) is trace
