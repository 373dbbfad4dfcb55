"""A trace as a Chakra file: the kernels come back exactly, sums stay true, and the official schema reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.export.chakra import draw_chakra
from wavecast.errors import InputError
from wavecast.formats.chakra.nodes import ChakraType, read_binary, read_length
from wavecast.formats.files.open import load_trace
from wavecast.formats.kineto.importer import import_kineto
from wavecast.formats.trace.tables import Trace


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


@pytest.fixture(scope="module")
def measured_run() -> Trace:
    """Ten products of 1.4 µs, which whole microseconds alone would make 1, and an all-reduce."""
    shapes = {"Input type": ["float", "float"], "Input Dims": [[8, 16], [16, 32]]}
    events = []
    for at in range(10):
        start = 100.0 * at
        events += [
            event("cpu_op", "aten::mm", start, 50, **shapes),
            event("cuda_runtime", "cudaLaunchKernel", start + 10, 5.5, correlation=at + 1),
            event("kernel", f"gemm_{at % 2}", start + 30, 1.4, correlation=at + 1, device=0, stream=7),
        ]
    comms = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 256, "Group size": 2,
             "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}  # fmt: skip
    events += [
        event("cpu_op", "record_param_comms", 1000, 50, **comms),
        event("cuda_runtime", "cudaLaunchKernel", 1010, 5, correlation=99),
        event("kernel", "ncclDevKernel_AllReduce", 1030, 20, correlation=99, device=0, stream=20),
    ]
    return import_kineto(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def test_kernels_come_back_as_they_were(measured_run: Trace, tmp_path: Path) -> None:
    path = tmp_path / "x.et"
    path.write_bytes(draw_chakra(measured_run, build_graph(measured_run)))
    back = load_trace(path)

    def kernels(trace: Trace) -> list[tuple[str, int, int, int]]:
        table = trace.kernels
        names = [trace.strings[name] for name in table.name]
        return sorted(zip(names, table.duration_ns.tolist(), table.stream.tolist(), table.kind.tolist(), strict=True))

    assert kernels(back) == kernels(measured_run)
    assert back.quality.kernels_without_call == 0
    assert back.collectives.in_element_count.tolist() == [1024]
    assert back.members.rank.tolist() == [0, 1]


def test_rounding_keeps_the_sum_and_work_is_written(measured_run: Trace) -> None:
    nodes = read_binary(draw_chakra(measured_run, build_graph(measured_run))).nodes
    products = [node for node in nodes if node.name.startswith("gemm")]
    assert sum(node.duration_us for node in products) == 14
    assert {node.integer("num_ops") for node in products} == {2 * 8 * 16 * 32}
    assert {node.integer("tensor_size") for node in products} == {4 * (8 * 16 + 16 * 32 + 8 * 32)}
    reduced = next(node for node in nodes if node.kind == ChakraType.COMM_COLL)
    assert (reduced.integer("comm_type"), reduced.integer("comm_size")) == (0, 1024)
    numbers = {node.number for node in nodes}
    assert all(set(node.data_deps) <= numbers for node in nodes)


def test_the_official_schema_reads_it(measured_run: Trace) -> None:
    node_class = _official_node()
    data = draw_chakra(measured_run, build_graph(measured_run))
    ours = read_binary(data).nodes
    theirs = [node_class.FromString(message) for message in _messages(data)[1:]]
    assert [node.id for node in theirs] == [node.number for node in ours]
    assert [node.duration_micros for node in theirs] == [node.duration_us for node in ours]
    assert [list(node.data_deps) for node in theirs] == [node.data_deps for node in ours]
    assert [node.attr[0].bool_val for node in theirs] == [node.is_host for node in ours]


def test_shapes_have_no_times(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz")
    with pytest.raises(InputError, match="needs GPU times"):
        draw_chakra(trace, build_graph(trace))


def _messages(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        length, begin = read_length(data, at)
        at = begin + length
        found.append(data[begin:at])
    return found


def _official_node() -> Any:
    """Return Chakra's Node, with the fields that are compared, from its published numbers."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="ChakraProtoMsg", syntax="proto3")
    attribute, node = file.message_type.add(name="AttributeProto"), file.message_type.add(name="Node")
    attribute.field.add(name="name", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    attribute.field.add(name="int64_val", number=9, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    attribute.field.add(name="bool_val", number=27, type=kinds.TYPE_BOOL, label=kinds.LABEL_OPTIONAL)
    node.field.add(name="id", number=1, type=kinds.TYPE_UINT64, label=kinds.LABEL_OPTIONAL)
    node.field.add(name="name", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    node.field.add(name="data_deps", number=5, type=kinds.TYPE_UINT64, label=kinds.LABEL_REPEATED)
    node.field.add(name="duration_micros", number=7, type=kinds.TYPE_UINT64, label=kinds.LABEL_OPTIONAL)
    node.field.add(
        name="attr", number=10, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED,
        type_name=".ChakraProtoMsg.AttributeProto",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ChakraProtoMsg.Node"))
