"""The graph that users touch: what is in it, that it has no cycle, and that other programs can read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.export.export import ON_PATH, mark_critical_path, to_networkx
from wavecast.analyzer.graph.export.ops import data_links
from wavecast.analyzer.graph.graph import Graph
from wavecast.analyzer.questions.convert.page import draw_dot, draw_graph_json, draw_graphml
from wavecast.analyzer.replay.iterations import iteration_rows
from wavecast.analyzer.replay.paths import measured_path
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import CollectiveTable, KernelTable, OperandTable, OpTable, TensorTable, Trace

ToyTrace = Callable[..., Trace]
OPS = {"name": [0, 1, 2], "signature": [0, 1, 2], "start_ns": [10, 110, 210], "duration_ns": [90, 90, 90]}


def export(trace: Trace, **options: Any) -> nx.DiGraph:
    return to_networkx(trace, build_graph(trace), **options)


def kinds(network: nx.DiGraph) -> dict[tuple[str, str], str]:
    return {(source, target): facts["kinds"] for source, target, facts in network.edges(data=True)}


def operand_trace(uses: list[tuple[int, int, bool]], storages: list[int], op_count: int) -> Trace:
    """Ops without times; each use is op, tensor and whether the op returns it."""
    op, tensor, is_output = (list(column) for column in zip(*uses, strict=True))
    return Trace(
        strings=("aten::op", "float32"),
        ops=build_table(OpTable, op_count, name=[0] * op_count),
        tensors=build_table(
            TensorTable, len(storages), storage=storages, dtype=[1] * len(storages), element_count=[8] * len(storages)
        ),
        operands=build_table(OperandTable, len(uses), op=op, tensor=tensor, is_output=is_output),
    )


def data_pairs(trace: Trace) -> set[tuple[int, int]]:
    links = data_links(trace)
    return set(zip(links.source.tolist(), links.target.tolist(), strict=True))


def test_every_node_and_edge_of_a_small_trace(toy_trace: ToyTrace) -> None:
    network = export(toy_trace())
    assert kinds(network) == {
        ("op:0", "op:1"): "program_order",
        ("op:1", "op:2"): "program_order",
        ("op:0", "call:0"): "op_launch",
        ("op:1", "call:1"): "op_launch",
        ("op:2", "call:2"): "op_launch",
        ("iteration:0:start", "call:0"): "program_order",
        ("call:0", "call:1"): "program_order",
        ("call:1", "call:2"): "program_order",
        ("call:2", "call:3"): "program_order",
        ("call:3", "iteration:0:end"): "program_order",
        ("call:0", "kernel:0"): "launch",
        ("call:1", "kernel:1"): "launch",
        ("call:2", "kernel:2"): "launch",
        ("call:3", "kernel:3"): "launch",
        ("kernel:0", "kernel:1"): "stream_order",
        ("kernel:1", "kernel:2"): "stream_order",
        ("kernel:2", "kernel:3"): "stream_order",
    }
    assert network.nodes["op:1"] == {
        "kind": "op",
        "name": "aten::mm",
        "row": 1,
        "thread": 0,
        "start_ns": 110,
        "duration_ns": 90,
        "phase": "other",
        "shapes": "float16[4096,4096] float16[4096,4096]",
        "iteration": 0,
    }
    kernel = network.nodes["kernel:1"]
    assert (kernel["kind"], kernel["op"], kernel["device"], kernel["stream"]) == ("kernel", "op:1", 0, 0)
    assert (kernel["start_ns"], kernel["duration_ns"]) == (150_000, 1_000_000)
    assert kernel["shapes"] == network.nodes["op:1"]["shapes"]
    assert "op" not in network.nodes["kernel:3"]
    assert network.nodes["call:2"]["thread"] == 0
    assert network.edges["call:0", "kernel:0"]["lag_ns"] > 0
    assert "lag_ns" not in network.edges["op:0", "op:1"]


def test_ops_that_call_and_differentiate_others(toy_trace: ToyTrace) -> None:
    ops = build_table(OpTable, 3, **OPS, parent=[-1, 0, -1], forward=[-1, -1, 0])
    assert {pair: kind for pair, kind in kinds(export(toy_trace(ops=ops))).items() if pair[1].startswith("op")} == {
        ("op:0", "op:1"): "nesting",
        ("op:0", "op:2"): "program_order,forward_backward",
    }


def test_several_reasons_are_one_edge_of_the_telling_kind() -> None:
    network = export(operand_trace([(0, 0, True), (1, 0, False)], [0], 2))
    assert network.edges["op:0", "op:1"] == {"kind": "data", "kinds": "program_order,data"}


@pytest.mark.parametrize(
    ("uses", "storages", "expected"),
    [
        pytest.param([(0, 0, True), (1, 0, False), (2, 0, False)], [0], {(0, 1), (0, 2)}, id="two readers"),
        pytest.param([(0, 0, False), (1, 0, True)], [0], set(), id="read before it is made"),
        pytest.param(
            [(0, 0, True), (1, 0, False), (1, 0, True), (2, 0, False)], [0], {(0, 1), (1, 2)}, id="written in place"
        ),
        pytest.param(
            [(0, 0, True), (1, 0, False), (1, 1, True), (2, 1, False), (3, 0, False)],
            [0, 0],
            {(0, 1), (1, 2), (0, 3)},
            id="a view is no writing",
        ),
        pytest.param(
            [(0, 0, True), (1, 0, False), (1, 1, True), (2, 1, False), (2, 1, True), (3, 0, False)],
            [0, 0],
            {(0, 1), (1, 2), (0, 3), (2, 3)},
            id="written through a view",
        ),
        pytest.param([(0, 0, True), (1, 1, False)], [0, 1], set(), id="another tensor"),
    ],
)
def test_readers_follow_the_last_writer(
    uses: list[tuple[int, int, bool]], storages: list[int], expected: set[tuple[int, int]]
) -> None:
    assert data_pairs(operand_trace(uses, storages, 1 + max(op for op, _, _ in uses))) == expected


def test_collectives_of_one_group_are_ordered(toy_trace: ToyTrace) -> None:
    base = toy_trace()
    kernels = build_table(
        KernelTable,
        4,
        **{name: getattr(base.kernels, name) for name in ("name", "start_ns", "duration_ns", "call", "op")},
        kind=[3, 3, 3, 0],
        stream=[1, 2, 3, 4],
    )
    collectives = build_table(CollectiveTable, 3, op=[0, 1, 2], name=[0] * 3, group=[5, 6, 5])
    found = kinds(export(toy_trace(kernels=kernels, collectives=collectives)))
    assert found["kernel:0", "kernel:2"] == "collective"
    assert found["op:0", "op:2"] == "collective"
    assert ("kernel:0", "kernel:1") not in found


def test_one_iteration_holds_its_own_nodes(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "v100_convnet_ddp_training.json.gz")
    graph = build_graph(trace)
    whole, part = to_networkx(trace, graph), to_networkx(trace, graph, iteration=2)
    inside = [name for name, facts in whole.nodes(data=True) if facts.get("iteration") == 2]
    assert list(part) == inside
    assert 0 < len(inside) < len(whole)
    assert part.edges.keys() == whole.subgraph(inside).edges.keys()
    for iteration in (5, -1):
        with pytest.raises(InputError, match="0 to 4"):
            to_networkx(trace, graph, iteration=iteration)


def test_a_trace_without_iterations_has_none_to_choose(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "dcgan-training-fp32-b64-shapes.json.gz")
    with pytest.raises(InputError, match="marks no iterations"):
        export(trace, iteration=0)


def assert_sound(trace: Trace) -> None:
    """No cycle; ops and GPU activities are all there; every edge says why."""
    graph = build_graph(trace)
    network = to_networkx(trace, graph)
    assert nx.is_directed_acyclic_graph(network)
    names = {f"op:{row}" for row in range(len(trace.ops.name))} | {
        f"kernel:{row}" for row in range(len(trace.kernels.name))
    }
    assert names <= set(network)
    assert len(network) == len(trace.ops.name) + len(graph.nodes.row)
    assert all(facts["kind"] in facts["kinds"].split(",") for *_, facts in network.edges(data=True))
    assert_marked(network, trace, graph)


def assert_marked(network: nx.DiGraph, trace: Trace, graph: Graph) -> None:
    rows = iteration_rows(trace)
    path = measured_path(trace, graph, int(rows[-1]) if len(rows) else None)
    names, missing = mark_critical_path(network, trace, graph, path)
    assert missing == ()
    marked = network.edge_subgraph([(*ends,) for *ends, facts in network.edges(data=True) if facts[ON_PATH]])
    assert sum(facts[ON_PATH] for _, facts in network.nodes(data=True)) == len(names)
    assert len(marked.edges) == max(len(names) - 1, 0)
    if len(names) > 1:
        assert tuple(nx.topological_sort(marked)) == names


def test_samples_are_sound(root_dir: Path) -> None:
    files = sorted((root_dir / "samples").glob("*training*.json.gz"))
    assert files
    for file in files:
        trace = load_trace(file)
        assert_sound(trace)
        if len(trace.operands.op):
            assert any(facts["kind"] == "data" for *_, facts in export(trace).edges(data=True))


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    [
        "a100_80gb_training",
        "a100_event_sync_multi_stream",
        "b200_eager_inference",
        "mi300x_resnet_checkpointed_training",
        "v100_convnet_ddp_training",
        "v100_dlrm_training_rank1",
    ],
)
def test_real_traces_are_sound(name: str, data_dir: Path) -> None:
    assert_sound(load_trace(data_dir / "traces" / f"{name}.json.gz"))


@given(st.data())
def test_no_table_makes_a_cycle(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    other = st.lists(st.integers(-1, count - 1), min_size=count, max_size=count)
    uses = data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, 3), st.booleans()), min_size=1))
    base = operand_trace(uses, [0, 0, 1, 2], count)
    ops = build_table(
        OpTable,
        count,
        name=[0] * count,
        parent=data.draw(other),
        forward=data.draw(other),
        thread=data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)),
    )
    members = data.draw(other)
    collectives = build_table(CollectiveTable, count, op=members, name=[0] * count, group=data.draw(other))
    trace = Trace(strings=base.strings, ops=ops, tensors=base.tensors, operands=base.operands, collectives=collectives)
    network = export(trace)
    assert nx.is_directed_acyclic_graph(network)
    assert len(network) == count


def marked_network(toy_trace: ToyTrace) -> nx.DiGraph:
    base = toy_trace()
    trace = toy_trace(strings=(*base.strings[:-2], 'bad\x00"name\\ <&>\nend\ud800', base.strings[-1]))
    graph = build_graph(trace)
    network = to_networkx(trace, graph)
    mark_critical_path(network, trace, graph, measured_path(trace, graph, 0))
    return network


def test_json_loads_back(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "v100_dlrm_training_rank0.json.gz")
    network = export(trace)
    document = json.loads(draw_graph_json(network))
    assert (document["format"], document["version"]) == ("wavecast.graph", "1.0")
    read = nx.node_link_graph(document, edges="edges")
    assert dict(read.nodes(data=True)) == dict(network.nodes(data=True))
    assert list(read.edges(data=True)) == list(network.edges(data=True))


def test_graphml_loads_back(toy_trace: ToyTrace) -> None:
    network = marked_network(toy_trace)
    read = nx.parse_graphml(draw_graphml(network))
    assert read.is_directed()
    assert read.graph["capture"] == network.graph["capture"]
    name = read.nodes["kernel:3"].pop("name")
    assert network.nodes["kernel:3"].pop("name").startswith("bad\x00")
    assert name == 'bad�"name\\ <&>�end�'
    assert dict(read.nodes(data=True)) == dict(network.nodes(data=True))
    assert kinds(read) == kinds(network)
    assert [facts[ON_PATH] for *_, facts in read.edges(data=True)] == [
        facts[ON_PATH] for *_, facts in network.edges(data=True)
    ]


def test_dot_has_a_line_per_node_and_edge(toy_trace: ToyTrace) -> None:
    network = marked_network(toy_trace)
    lines = draw_dot(network).splitlines()
    assert lines[0] == "digraph wavecast {"
    assert lines[-1] == "}"
    assert sum('" -> "' in line for line in lines) == network.number_of_edges()
    assert len(lines) == 3 + len(network) + network.number_of_edges()
    (strange,) = [line for line in lines if line.startswith('"kernel:3"')]
    assert 'name="bad�\\"name\\\\ <&>\\nend�"' in strange
    assert "#c00000" not in strange
    assert all("#c00000" in line for line in lines if line.startswith(('"iteration:0:end', '"call:3" -> "iteration')))


def test_an_empty_network_can_be_written() -> None:
    network = nx.DiGraph(format="wavecast.graph", version="1.0")
    assert nx.node_link_graph(json.loads(draw_graph_json(network)), edges="edges").nodes == network.nodes
    assert len(nx.parse_graphml(draw_graphml(network))) == 0


def test_lags_and_bindings_are_those_of_the_rules(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "v100_dlrm_training_rank0.json.gz")
    graph = build_graph(trace)
    network = to_networkx(trace, graph)
    held = [facts for *_, facts in network.edges(data=True) if facts.get("binds")]
    assert len(held) == int(np.sum(graph.binding >= -1)) - len(graph.lanes) + int(
        np.sum(graph.binding[[lane.begin for lane in graph.lanes]] != -1)
    )
    assert all("lag_ns" in facts for facts in held)
