"""Chakra traces: layout in time, launches, collectives, what the official schema reads of ours, and broken files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.errors import TraceError
from wavecast.formats.chakra.nodes import ChakraType, WrittenNode, encode_chakra, read_binary
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import KernelKind, Trace
from wavecast.records import replace


def node(number: int, us: int = 10, *deps: int, host: bool = False, **more: Any) -> WrittenNode:
    kind = more.pop("kind", ChakraType.COMP)
    attributes = {"is_cpu_op": int(host), **more}
    return WrittenNode(
        number=number, name=f"n{number}", kind=kind, duration_us=us, data_deps=deps, attributes=attributes
    )


def load(folder: Path, *nodes: WrittenNode) -> Trace:
    path = folder / "x.et"
    path.write_bytes(encode_chakra(nodes))
    trace = load_trace(path)
    assert decode(encode(trace)) == trace
    return trace


def test_nodes_run_after_what_they_depend_on(tmp_path: Path) -> None:
    op, second = node(1, 5, host=True, tid=1), node(4, 7, 1, host=True, tid=1)
    trace = load(tmp_path, op, node(2, 30, 1, stream=7), node(3, 10, 2, stream=20), second)
    assert trace.ops.start_ns.tolist() == [0, 5000]
    assert trace.kernels.start_ns.tolist() == [5000, 35_000]
    assert trace.kernels.stream.tolist() == [7, 20]
    assert trace.kernels.op.tolist() == [0, -1]
    assert trace.quality.kernels_without_call == 1


def test_a_stream_runs_one_after_the_other(tmp_path: Path) -> None:
    trace = load(tmp_path, node(1, 10, stream=7), node(2, 20, stream=7))
    assert trace.kernels.start_ns.tolist() == [0, 10_000]
    assert int(trace.kernels.duration_ns.sum()) == 30_000


def test_communication_and_memory_have_their_kinds(tmp_path: Path) -> None:
    reduced = node(1, 10, kind=ChakraType.COMM_COLL, comm_type=0, comm_size=4096, pg_name="0")
    sent = node(2, 10, kind=ChakraType.COMM_SEND, comm_size=64, comm_dst=3)
    stored = node(3, 10, kind=ChakraType.MEM_STORE, tensor_size=2**20)
    groups = WrittenNode(
        number=9, name="g", kind=ChakraType.METADATA, duration_us=0, values='[\'[{"pg_name": "0", "ranks": [0, 2]}]\']'
    )
    trace = load(tmp_path, groups, reduced, sent, stored)
    table = trace.collectives
    assert [trace.strings[name] for name in table.name] == ["allreduce", "send"]
    assert table.in_element_count.tolist() == [4096, 64]
    assert table.peer.tolist() == [-1, 3]
    assert trace.members.rank.tolist() == [0, 2]
    assert table.group_size.tolist() == [2, -1]
    assert sorted(trace.kernels.kind.tolist()) == [KernelKind.MEMCPY, KernelKind.COLLECTIVE, KernelKind.COLLECTIVE]
    assert trace.kernels.size_bytes.max() == 2**20


def test_circles_and_unknown_ids_are_counted(tmp_path: Path) -> None:
    trace = load(tmp_path, node(1, 10, 2), node(2, 10, 1), node(3, 10, 99), node(4, 10, 4))
    assert len(trace.kernels.name) == 4
    assert trace.quality.dependencies_lost == 3


def test_two_runs_in_one_file_are_refused(tmp_path: Path) -> None:
    run = [node(1, host=True), node(2, 10, 1), node(3, 10, 2)]
    again = [replace(each, number=each.number + 9, data_deps=tuple(at + 9 for at in each.data_deps)) for each in run]
    load(tmp_path, *run)
    with pytest.raises(TraceError, match="several ranks or runs in one file"):
        load(tmp_path, *run, *again)


def test_ranks_of_other_models_are_refused_by_what_depends_on_nothing_before(tmp_path: Path) -> None:
    ranks = [[node(at, 10 + rank, at - 1) for at in range(first, first + 80)] for rank, first in enumerate((1, 500))]
    load(tmp_path, *(node(at, 10, max(at - 2, 0)) for at in range(1, 200)))  # two streams of one rank
    with pytest.raises(TraceError, match="several ranks or runs in one file"):
        load(tmp_path, *ranks[0], *ranks[1])


def test_two_ranks_whose_calls_have_the_same_numbers_are_refused(tmp_path: Path) -> None:
    ops = [
        {"Id": at, "Name": f"op{at % 3}", "NodeType": 4, "runtime": 5, "is_cpu_op": True, "rf_id": at % 3 + 1}
        for at in range(1, 7)
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"workload_graph": ops[:3]}))
    assert len(load_trace(path).ops.name) == 3
    path.write_text(json.dumps({"workload_graph": ops}))
    with pytest.raises(TraceError, match="several ranks or runs in one file"):
        load_trace(path)


def test_the_json_form_gives_the_same_times(tmp_path: Path) -> None:
    items = [
        {"Id": 1, "Name": "aten::add", "NodeType": 4, "runtime": 5, "data_deps": [], "is_cpu_op": True},
        {"Id": 2, "Name": "voId k<StrIde>()", "NodeType": 4, "runtime": 9, "data_deps": [1], "is_cpu_op": False},
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"workload_graph": items}))
    trace = load_trace(path)
    assert trace.kernels.start_ns.tolist() == [5000]
    assert trace.strings[trace.kernels.name[0]] == "void k<Stride>()"
    assert trace.strings[trace.ops.name[trace.kernels.op[0]]] == "aten::add"


def test_an_attribute_without_a_name_is_no_peer(tmp_path: Path) -> None:
    items = [{"Id": at, "NodeType": at, "runtime": 5, "is_cpu_op": False, "comm_src": 2, "": 3} for at in (6, 7)]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"workload_graph": items}))
    assert load_trace(path).collectives.peer.tolist() == [2, -1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (encode_chakra([node(1), node(2)])[:-4], "node 1.* with recover"),
        (encode_chakra([node(1), node(1)]), "two nodes have the id 1"),
        (encode_chakra([node(1, 0)]), "no node has a runtime"),
        (encode_chakra([node(1)]) + b"\x80" * 8 + b"\x40", "bytes are announced"),
        (encode_chakra([node(1)]) + b"\xff" * 12, "a length without an end"),
        (encode_chakra([node(1)]) + b"\x02\x0b\x00", "Node: found 2 bytes that are no such Protocol Buffers message"),
        (encode_chakra([node(1, 2**50)]), "a duration of"),
    ],
)
def test_broken_files_are_refused_in_a_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.et"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        load_trace(path)


def test_any_cut_is_refused_or_read(tmp_path: Path) -> None:
    data = encode_chakra([node(number, 10, *range(1, number)) for number in range(1, 5)])
    for end in range(len(data)):
        with suppress(TraceError):  # a cut between two nodes is none
            assert len(read_binary(data[:end]).nodes) < 4
    assert len(read_binary(data[:-1], recover=True).nodes) == 3


@pytest.mark.parametrize("item", [3, {"Name": 3}, {"Id": -1}, {"Id": 1, "data_deps": 3}, {"Id": 1, "runtime": 1.5}])
def test_odd_json_nodes_are_refused(tmp_path: Path, item: Any) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"workload_graph": [item]}))
    with pytest.raises(TraceError, match=r"\$.workload_graph\[0\]"):
        load_trace(path)


def test_many_nodes_take_no_more_than_their_number(tmp_path: Path) -> None:
    trace = load(tmp_path, *(node(number, 1, number - 1) for number in range(1, 5001)))
    assert np.all(np.diff(trace.kernels.start_ns) == 1000)
