"""Recorded graphs of networks as op calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wavecast.analyzer.measurements.fx_graph import FxNode, calls_of
from wavecast.analyzer.measurements.networks import NODES, FxNetwork, layer_of, load_samples, read_nodes
from wavecast.analyzer.measurements.samples import read_table
from wavecast.analyzer.models.vector.problems import WARP_SOFTMAX_COLUMNS, VectorKernel
from wavecast.analyzer.questions.score.end_to_end import NETWORKS, OP_SUM, build_trace, score_networks
from wavecast.analyzer.questions.score.weights import choose_weights
from wavecast.analyzer.work import work_of

from .conftest import build_library


def node(function: str, *inputs: tuple[int, ...], output: tuple[int, ...] | None = None, **changes: Any) -> FxNode:
    values: dict[str, Any] = {
        "name": function,
        "kind": "call_function",
        "target": f"<built-in function {function}>",
        "op_name": "misc",
        "inputs": inputs,
        "output": output or inputs[0],
        "dtype": "float32",
    }
    return FxNode(**(values | changes))


def method(name: str, *inputs: tuple[int, ...], output: tuple[int, ...], **changes: Any) -> FxNode:
    return node(name, *inputs, output=output, kind="call_method", target=name, **changes)


def module(op_name: str, *inputs: tuple[int, ...], output: tuple[int, ...], **changes: Any) -> FxNode:
    return node(op_name, *inputs, output=output, kind="call_module", target="net.part", op_name=op_name, **changes)


def ops(*nodes: FxNode, is_training: bool = False) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    found = [call for _, calls in calls_of(nodes, is_training=is_training) for call in calls or ()]
    return [(call.op, tuple(tensor.shape for tensor in call.signature.tensors())) for call in found]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (node("add", (2, 3), (2, 3)), ("aten::add", ((2, 3), (2, 3)))),
        (node("truediv", (2, 3), (1,)), ("aten::div", ((2, 3),))),
        (node("max", (2, 3), (1,)), ("aten::maximum", ((2, 3), ()))),
        (node("where", (1, 3), (2, 3), (1,), output=(2, 3)), ("aten::where", ((1, 3), (2, 3), ()))),
        (node("addmm", (5,), (2, 3), (3, 5), output=(2, 5)), ("aten::addmm", ((5,), (2, 3), (3, 5)))),
        (module("Linear", (4, 2, 3), output=(4, 2, 5)), ("aten::addmm", ((5,), (8, 3), (3, 5)))),
        (
            node("", (4, 3), output=(4, 5), kind="call_module", target="lm_head", op_name="Linear"),
            ("aten::mm", ((4, 3), (3, 5))),
        ),
        (module("VECln", (4, 3), output=(4, 3)), ("aten::native_layer_norm", ((4, 3), (3,), (3,)))),
        (module("misc", (4, 7), output=(4, 7, 3)), ("aten::embedding", ((28, 3), (4, 7)))),
        (node("softmax", (4, 3)), ("aten::_softmax", ((4, 3),))),
    ],
)
def test_a_node_calls_one_op(given: FxNode, expected: tuple[str, tuple[tuple[int, ...], ...]]) -> None:
    assert ops(given) == [expected]
    ((_, calls),) = calls_of([given], is_training=False)
    assert calls
    work = work_of(calls[0].op, calls[0].signature)
    assert work is not None
    assert work.moved_bytes > 0


@pytest.mark.parametrize(
    "given",
    [
        node("add", (1,), output=(1,), dtype=None),
        method("size", (2, 3), output=(1,), dtype=None),
        method("view", (2, 3), output=(6,)),
        node("getitem", (2, 3), output=(1, 2, 3)),
        method("to", (2, 3), output=(2, 3)),
        module("dropout", (2, 3), output=(2, 3)),
        method("contiguous", (2, 3), output=(2, 3)),
    ],
)
def test_nodes_that_launch_nothing(given: FxNode) -> None:
    assert ops(given) == []


def test_what_nobody_knows_is_none() -> None:
    assert [calls for _, calls in calls_of([node("fft", (8, 8))], is_training=False)] == [None]


def test_contiguous_copies_what_a_permutation_left() -> None:
    permuted = method("permute", (2, 5, 3, 4), output=(2, 3, 5, 4))
    copied = method("contiguous", (2, 3, 5, 4), output=(2, 3, 5, 4))
    assert ops(permuted, copied, copied) == [("aten::clone", ((2, 3, 5, 4),))]


def test_matmul_copies_permuted_batches() -> None:
    permuted = method("permute", (2, 5, 3, 4), output=(2, 3, 5, 4))
    product = node("matmul", (2, 3, 6, 5), (2, 3, 5, 4), output=(2, 3, 6, 4))
    assert ops(permuted, product) == [
        ("aten::clone", ((2, 3, 5, 4),)),
        ("aten::bmm", ((6, 6, 5), (6, 5, 4))),
    ]


def test_a_cast_converts_what_the_shape_was_last() -> None:
    made, cast = node("sub", (2, 3)), method("to", (2, 3), output=(2, 3), dtype="bool")
    ((op, _),) = ops(made, cast)[1:]
    assert op == "aten::_to_copy"


def test_training_adds_the_backward_and_the_accumulation() -> None:
    linear = module("Linear", (4, 3), output=(4, 5), accumulated=(15, 5))
    assert ops(linear, is_training=True) == [
        ("aten::addmm", ((5,), (4, 3), (3, 5))),
        ("aten::mm", ((4, 5), (5, 3))),
        ("aten::mm", ((3, 4), (4, 5))),
        ("aten::sum", ((4, 5),)),
        ("aten::add", ((15,), (15,))),
        ("aten::add", ((5,), (5,))),
    ]


def test_a_layer_without_a_bias_has_both_gradients_and_no_sum() -> None:
    head = node("", (4, 3), output=(4, 5), kind="call_module", target="lm_head", op_name="Linear")
    assert [op for op, _ in ops(head, is_training=True)] == ["aten::mm"] * 3


def test_the_layer_ends_before_the_final_norm() -> None:
    names = ["embed", "h_0_ln", "h_0_mlp", "add", "final_norm", "head"]
    kinds = ["VECadd", "VECln", "Linear", "VECadd", "VECln", "Linear"]
    nodes = [module(kind, (4, 4), output=(4, 4), name=name) for name, kind in zip(names, kinds, strict=True)]
    nodes[3] = node("add", (4, 4), (4, 4))
    assert layer_of(nodes) == range(1, 4)
    nodes[4] = module("Linear", (4, 4), output=(4, 4), name="pooler")
    assert layer_of(nodes) == range(1, 3)
    assert layer_of(nodes[3:]) == range(0)


def test_a_layer_counts_as_often_as_the_network_has_it() -> None:
    nodes = (node("add", (2, 2), (2, 2)), module("VECln", (2, 2), output=(2, 2)), node("fft", (8, 8)))
    trace, unknown = build_trace(FxNetwork(nodes=nodes, layer=range(1, 3)), 5, name="n", batch=2, mode="inf")
    names = [trace.strings[row] for row in trace.ops.name.tolist()]
    assert names.count("aten::add") == 1
    assert names.count("aten::native_layer_norm") == 5
    assert unknown == 5


@pytest.mark.data
def test_layers_times_their_number_are_the_sums_that_the_table_holds(data_dir: Path) -> None:
    """The table's sums of measured ops say which nodes upstream took for the layer."""
    nodes, networks = read_table(data_dir / NODES), read_table(data_dir / NETWORKS)
    measured: dict[tuple[object, ...], list[tuple[int, float]]] = {}
    keys = ("gpu", "model", "mode", "seqlen", "batch", "variant")
    for row in range(len(nodes["gpu"])):
        key = tuple(nodes[name][row] for name in keys)
        measured.setdefault(key, []).append((int(nodes["idx"][row]), float(nodes["measured_fw_ms"][row])))
    graphs = read_nodes(data_dir / NODES)
    checked = 0
    for row in range(len(networks["gpu"])):
        key = tuple(networks[name][row] for name in keys)
        if key not in graphs:
            continue
        times = [time for _, time in sorted(measured[key])]
        layer = graphs[key].layer
        total = sum(times) + (networks["num_layer"][row] - 1) * sum(times[layer.start : layer.stop])
        assert total == pytest.approx(networks["opsum_fw_ms"][row], rel=1e-4)
        checked += 1
    assert checked == 45


@pytest.mark.data
def test_every_node_of_the_public_networks_is_known(data_dir: Path) -> None:
    rows = score_networks(data_dir, choose_weights(load=build_library))
    assert len(rows) == 45
    assert {row.unmodelled_nodes for row in rows} == {0}
    for row in rows:
        assert 0.3 < row.predicted_ns / row.measured_ns < 1.0, "nothing but rooflines predicts here"
        if "neusight_roofline" in row.baselines_ns:
            assert row.predicted_ns / row.baselines_ns["neusight_roofline"] == pytest.approx(1.0, abs=0.1)
        assert OP_SUM in row.baselines_ns


@pytest.mark.data
def test_long_rows_of_softmax_ran_in_networks_as_older_torch_runs_them(data_dir: Path) -> None:
    """torch 2.1 read them three times; torch 2.4, which ran on MI100, keeps a row in shared memory."""
    (vector,) = (item for item in load_samples(data_dir) if item.model == "vector")
    is_held = vector.problems.kind == VectorKernel.HELD_SOFTMAX
    assert {vector.gpus[row].name for row in vector.gpu[is_held]} == {"Instinct MI100"}
    is_read = vector.problems.kind == VectorKernel.SOFTMAX
    assert (vector.problems.columns[is_read] > WARP_SOFTMAX_COLUMNS).any()
