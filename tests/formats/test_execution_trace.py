"""PyTorch's execution traces: each version's layout, order, tensors, groups, the join, and files that are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wavecast.errors import InputError, TraceError
from wavecast.formats.execution_trace import load_joined
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.signature import TensorSpec
from wavecast.formats.trace.tables import Phase, Trace

Node = dict[str, Any]
A, B, C = ([number, number + 1, 0, 16, 4, "cuda:0"] for number in (10, 20, 30))
FLOAT = "Tensor(float)"


def node(number: int, name: str, parent: int = 2, *, old: bool = False, **more: Any) -> Node:
    inputs, outputs = more.pop("inputs", []), more.pop("outputs", [])
    facts = {"rf_id": number, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, **more}
    values, types = ([side[index] for side in inputs] for index in (0, 1))
    shapes = [[4, 4] if kind == FLOAT else [] for kind in types]
    returned, kinds = ([side[index] for side in outputs] for index in (0, 1))
    given = [[4, 4] if kind == FLOAT else [] for kind in kinds]
    if old:
        return {
            "id": number, "name": name, "parent": parent, **facts, "inputs": values, "input_shapes": shapes,
            "input_types": types, "outputs": returned, "output_shapes": given, "output_types": kinds,
        }  # fmt: skip
    strides = [[4, 1] if kind == FLOAT else [] for kind in types]
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": values, "shapes": shapes, "types": types, "strides": strides},
        "outputs": {"values": returned, "shapes": given, "types": kinds},
        "attrs": [{"name": key, "type": "", "value": value} for key, value in facts.items()],
    }


def add(number: int, left: Any = A, right: Any = B, result: Any = C, **more: Any) -> Node:
    inputs = [(left, FLOAT), (right, FLOAT), (1, "Int")]
    return node(number, "aten::add", inputs=inputs, outputs=[(result, FLOAT)], **more)


def text(*nodes: Node) -> str:
    return json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": list(nodes)})


def load(folder: Path, *nodes: Node, recover: bool = False) -> Trace:
    path = folder / "et.json"
    path.write_text(text(*nodes))
    trace = load_trace(path, recover=recover)
    assert decode(encode(trace)) == trace
    return trace


def names(trace: Trace) -> list[str]:
    return [trace.strings[name] for name in trace.ops.name]


@pytest.mark.parametrize("old", [True, False])
def test_every_layout_gives_inputs_types_and_tensors(tmp_path: Path, old: bool) -> None:
    trace = load(tmp_path, add(5, old=old), add(6, C, A, B, old=old))
    strides = None if old else (4, 1)
    first = trace.signatures[trace.ops.signature[0]]
    assert first.arguments == (*[TensorSpec("float32", (4, 4), strides)] * 2, 1)
    assert first.results == (TensorSpec("float32", (4, 4)),)
    assert (trace.meta.capture, trace.meta.has_shapes) == ("shapes", True)
    assert trace.ops.duration_ns.tolist() == [-1, -1]
    assert trace.operands.tensor.tolist() == [0, 1, 2, 2, 0, 1]
    assert trace.tensors.device.tolist() == [0, 0, 0]
    assert trace.tensors.element_count.tolist() == [16, 16, 16]


@pytest.mark.parametrize(("parent", "lost"), [(5, 0), (99, 1), (6, 1), (7, 1)])
def test_parents_that_are_not_there_or_not_before_are_counted(tmp_path: Path, parent: int, lost: int) -> None:
    """What they would call counts beside them."""
    assert load(tmp_path, add(5, parent=5), add(6, parent=parent)).quality.dependencies_lost == lost


def test_ops_are_in_order_of_their_numbers_inside_their_parents(tmp_path: Path) -> None:
    trace = load(tmp_path, add(7, parent=5), node(5, "aten::outer"), add(8), add(4))
    assert names(trace) == ["aten::add", "aten::outer", "aten::add", "aten::add"]
    assert trace.ops.parent.tolist() == [-1, -1, 1, -1]


def test_phases_and_forward_ops_are_found(tmp_path: Path) -> None:
    step = node(20, "Optimizer.step#SGD.step", scope=7)
    trace = load(tmp_path, add(5, seq_id=3), add(9, tid=2, fw_tid=1, seq_id=3), step, add(21, parent=20))
    assert trace.ops.phase.tolist() == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert trace.ops.forward.tolist() == [-1, 0, -1]
    assert trace.meta.workload.mode == "training"


def test_one_step_of_several_is_kept(tmp_path: Path) -> None:
    steps = [node(10 * at, f"ProfilerStep#{at}", scope=7) for at in (1, 2, 3)]
    trace = load(tmp_path, *steps, add(11, parent=10), add(21, parent=20), add(22, parent=20), add(31, parent=30))
    assert len(trace.ops.name) == 1
    assert trace.quality.ops_outside_iteration == 3


def test_ops_on_the_host_alone_are_left_out_beside_a_gpu(tmp_path: Path) -> None:
    host = [40, 41, 0, 16, 4, "cpu"]
    trace = load(tmp_path, add(5), add(6, host, host, host))
    assert len(trace.ops.name) == 1
    assert trace.quality.ops_on_host == 1


def test_an_undefined_tensor_is_none_and_a_private_text_is_not_kept(tmp_path: Path) -> None:
    undefined = ([50, 0, 0, 0, 0, ""], "Tensor(nullptr (uninitialized))")
    words = [("/home/ann/x", "String"), ("mean", "String"), ("<None>", "None"), ("cuda:1", "Device")]
    trace = load(tmp_path, node(5, "aten::x", inputs=[(A, FLOAT), undefined, *words]))
    assert b"ann" not in encode(trace)
    assert [repr(item) for item in trace.signatures[0].arguments[1:]] == [
        "None", "<Unknown.UNKNOWN: 'unknown'>", "'mean'", "None", "'cuda'",
    ]  # fmt: skip


def test_process_groups_and_collectives(tmp_path: Path) -> None:
    listed = json.dumps([{"pg_name": "0", "backend_id": 77, "ranks": [], "group_size": 4}])
    groups = node(3, "## process_group:init ##", inputs=[(listed, "String")], scope=7)
    inputs = [
        ([A], f"GenericList[{FLOAT}]"),
        (12, "Int"),
        (77, "Int"),
        (0, "Int"),
        ("all_gather", "String"),
        (4, "Int"),
    ]
    trace = load(tmp_path, groups, node(6, "record_param_comms", inputs=inputs))
    assert trace.groups.size.tolist() == [4]
    assert trace.members.rank.tolist() == [0, 1, 2, 3]
    table = trace.collectives
    assert trace.strings[table.name[0]] == "all_gather"
    assert (table.in_element_count[0], table.group_size[0], table.group[0], table.sequence[0]) == (16, 4, 0, 12)


def kineto(folder: Path, *ids: int) -> Path:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 10 * number, "dur": 5,
         "args": {"External id": 100 + number, "Record function id": number}}
        for number in ids
    ]  # fmt: skip
    path = folder / "kineto.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_profiler_file_gets_the_inputs_of_its_execution_trace(tmp_path: Path) -> None:
    beside = tmp_path / "et.json"
    beside.write_text(text(add(5), add(6, C, A, B), add(7)))
    trace = load_joined(kineto(tmp_path, 5, 6, 9), beside)
    assert trace.ops.duration_ns.tolist() == [5000, 5000, 5000]
    assert (trace.ops.signature >= 0).tolist() == [True, True, False]
    assert trace.operands.op.tolist() == [0, 0, 0, 1, 1, 1]
    assert (trace.quality.ops_not_joined, trace.quality.ops_without_shapes) == (1, 1)
    assert decode(encode(trace)) == trace


def test_files_of_two_runs_are_not_joined(tmp_path: Path) -> None:
    beside = tmp_path / "et.json"
    beside.write_text(text(add(5), add(6)))
    with pytest.raises(InputError, match=r"0 of its 2 ops \(0%\).*not of one run"):
        load_joined(kineto(tmp_path, 55, 56), beside)
    with pytest.raises(TraceError, match="expected a PyTorch profiler trace"):
        load_joined(beside, beside)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text(add(5), add(5)), "two nodes have the id 5"),
        (text({**add(5), "id": "x"}), r"nodes\[0\].*Expected `int`"),
        (text({**add(5), "id": -1}), r"nodes\[0\].*>= 0"),
        (text(add(5))[:-30], "ends early"),
        (text(node(5, "mark", scope=7)), "found no ops"),
        (text(*(node(at, "[pytorch|profiler|execution_trace|process]") for at in (1, 9))), "looks like 2 ranks"),
        (text({**add(5), "inputs": {"values": 3, "shapes": [], "types": []}}), r"nodes\[0\].*Expected `array`"),
    ],
)
def test_broken_files_are_refused_in_a_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "et.json"
    path.write_text(content)
    with pytest.raises(TraceError, match=message):
        load_trace(path)


def test_deep_nesting_and_huge_shapes_are_no_harm(tmp_path: Path) -> None:
    deep = text(add(5)).replace('"pid": 1', '"pid": ' + "[" * 5_000_000 + "]" * 5_000_000)
    (tmp_path / "deep.json").write_text(deep)
    with pytest.raises(TraceError, match="nested too deeply"):
        load_trace(tmp_path / "deep.json")
    huge = add(5)
    huge["inputs"]["shapes"][0] = [2**62, 2**62]
    huge["inputs"]["values"][1] = [1, 2, 3, 2**70, 4, "cuda:0"]
    trace = load(tmp_path, huge, add(6, parent=6))
    assert trace.signatures[0].arguments[0] not in trace.signatures[0].tensors()


def test_a_cut_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(text(add(5), add(6), add(7))[:-200])
    trace = load_trace(path, recover=True)
    assert len(trace.ops.name) == 2
    assert trace.quality.bytes_lost > 0
