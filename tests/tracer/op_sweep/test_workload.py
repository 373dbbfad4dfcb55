"""A trace's calls become rows of the measurement tables, and run as they were recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec
from wavecast.formats.trace.tables import Meta, OpTable, Precision, Trace
from wavecast.tracer.op_sweep.cases import Case
from wavecast.tracer.op_sweep.sweep import SweepLimits, plan_workload
from wavecast.tracer.op_sweep.workload import trace_cases

CPU = torch.device("cpu")
ATTENTION = "aten::_scaled_dot_product_flash_attention"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"


def spec(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> TensorSpec:
    contiguous = tuple(torch.empty(shape, device="meta").stride())
    return TensorSpec(dtype, shape, strides or contiguous)


def turned(*shape: int, dtype: str = "float32") -> TensorSpec:
    """What .t() of a contiguous tensor gives."""
    *batch, rows, columns = shape
    strides = (1, rows) if not batch else (rows * columns, 1, rows)
    return TensorSpec(dtype, shape, strides)


def trace_of(*calls: tuple[str, tuple[Argument, ...]], tf32: bool | None = None) -> Trace:
    names = tuple(dict.fromkeys(name for name, _ in calls))
    signatures = tuple(dict.fromkeys(Signature(arguments) for _, arguments in calls))
    return Trace(
        meta=Meta(precision=Precision(matmul_tf32=tf32, cudnn_tf32=tf32)),
        strings=names,
        signatures=signatures,
        ops=build_table(
            OpTable,
            len(calls),
            name=[names.index(name) for name, _ in calls],
            signature=[signatures.index(Signature(arguments)) for _, arguments in calls],
        ),
    )


def only_case(name: str, *arguments: Argument, tf32: bool | None = None) -> Case | None:
    found = [case for cases in trace_cases(trace_of((name, arguments), tf32=tf32)).values() for case in cases]
    assert len(found) <= 1
    return found[0] if found else None


QUERY, KEY = spec(2, 8, 16, 32, dtype="bfloat16"), spec(2, 4, 16, 32, dtype="bfloat16")
ONE = spec(2, 8, 1, 32, dtype="bfloat16")
IMAGE, WEIGHT = spec(2, 8, 14, 14), spec(16, 8, 3, 3)
PAIR = (1, 1)
CONVOLUTION = {"batch": 2, "c_in": 8, "c_out": 16, "kernel_size": 3, "input_size": 14, "stride": 1, "padding": 1}


@pytest.mark.parametrize(
    ("name", "arguments", "row", "shape"),
    [
        ("aten::mm", (spec(8, 64), turned(64, 24)), {"op": "linear", "m": 8, "n": 24, "k": 64}, (8, 24)),
        ("aten::mm", (spec(8, 64), spec(64, 24)), {"op": "mm_nn", "m": 8, "n": 24, "k": 64}, (8, 24)),
        ("aten::mm", (turned(8, 64), spec(64, 24)), {"op": "mm_tn", "m": 8, "n": 24, "k": 64}, (8, 24)),
        ("aten::addmm", (spec(24), spec(8, 64), turned(64, 24), 1, 1), {"op": "linear", "n": 24}, (8, 24)),
        ("aten::bmm", (spec(3, 8, 64), turned(3, 64, 24)), {"op": "bmm", "batch": 3, "m": 8, "k": 64}, (3, 8, 24)),
        (
            "aten::mm",
            (spec(8, 64, dtype="bfloat16"), turned(64, 24, dtype="bfloat16")),
            {"op": "mm", "dtype": "bf16"},
            (8, 24),
        ),
        (ATTENTION, (QUERY, KEY, KEY, 0.1, True), {"phase": "context", "heads": 8, "kv_heads": 4}, (2, 8, 16, 32)),
        (ATTENTION, (QUERY, KEY, KEY, 0.0, False), {"phase": "encoder", "seq_q": 16, "head_dim": 32}, (2, 8, 16, 32)),
        (ATTENTION, (ONE, KEY, KEY, 0.0, False), {"phase": "generation", "seq_q": 1, "seq_kv": 16}, (2, 8, 1, 32)),
        (EFFICIENT, (QUERY, QUERY, QUERY, None, False, 0.0, True), {"phase": "context"}, (2, 8, 16, 32)),
        ("aten::convolution", (IMAGE, WEIGHT, None, PAIR, PAIR, PAIR, False, (0, 0), 1), CONVOLUTION, (2, 16, 14, 14)),
        ("aten::relu_", (IMAGE,), {"op": "relu", "rows": 2 * 8 * 14, "cols": 14}, (2 * 8 * 14, 14)),
        ("aten::add", (IMAGE, IMAGE, 1), {"op": "add", "rows": 2 * 8 * 14}, (2 * 8 * 14, 14)),
        ("aten::mul", (IMAGE, 0.5), {"op": "mul_scalar", "cols": 14}, (2 * 8 * 14, 14)),
        ("aten::div", (IMAGE, spec()), {"op": "div_scalar", "cols": 14}, (2 * 8 * 14, 14)),
        ("aten::_softmax", (spec(4, 8, 32), 2, False), {"op": "softmax", "rows": 32, "cols": 32}, (32, 32)),
        (
            "aten::native_layer_norm",
            (spec(4, 8, 32), (8, 32), spec(8, 32), spec(8, 32), 1e-5),
            {"op": "layernorm", "rows": 4, "cols": 256},
            (4, 256),
        ),
        (
            "aten::embedding",
            (spec(100, 32), spec(4, 8, dtype="int64"), -1, False, False),
            {"op": "embedding", "rows": 32, "cols": 32},
            (32, 32),
        ),
    ],
)
def test_a_call_becomes_a_row_and_runs(
    name: str, arguments: tuple[Argument, ...], row: dict[str, Any], shape: tuple[int, ...]
) -> None:
    case = only_case(name, *arguments)
    assert case is not None
    assert {key: case.row[key] for key in row} == row
    result = case.build(CPU)()
    assert isinstance(result, torch.Tensor)
    assert tuple(result.shape) == shape


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::mm", (spec(8, 64, dtype="float64"), turned(64, 24, dtype="float64"))),
        ("aten::mm", (spec(8, 64), turned(64, 24, dtype="bfloat16"))),
        ("aten::mm", (spec(0, 64), turned(64, 24))),
        ("aten::mm", (spec(8, 64),)),
        ("aten::mm", (spec(64), spec(64))),
        ("aten::mm", (UNKNOWN, UNKNOWN)),
        (ATTENTION, (*[spec(2, 8, 16, 32)] * 3, 0.0, False)),
        (EFFICIENT, (QUERY, QUERY, QUERY, spec(2, 8, 16, 16), False, 0.0, False)),
        ("aten::convolution", (IMAGE, WEIGHT, None, PAIR, PAIR, PAIR, True, (0, 0), 1)),
        ("aten::convolution", (IMAGE, spec(8, 1, 3, 3), None, PAIR, PAIR, PAIR, False, (0, 0), 8)),
        ("aten::convolution", (IMAGE, spec(16, 8, 3, 1), None, PAIR, (1, 0), PAIR, False, (0, 0), 1)),
        ("aten::convolution", (IMAGE, WEIGHT, None, PAIR, PAIR, (2, 2), False, (0, 0), 1)),
        ("aten::add", (IMAGE, spec(14), 1)),
        ("aten::add", (spec(8, 64), turned(8, 64), 1)),
        ("aten::relu", (spec(8, 64, strides=(128, 1)),)),
        ("aten::_softmax", (spec(4, 8, 32), 1, False)),
        ("aten::native_layer_norm", (spec(4, 32), (32,), None, None, 1e-5)),
        ("aten::embedding", (spec(100, 32), spec(0, dtype="int64"))),
        ("aten::cumsum", (spec(4, 32), 1)),
    ],
)
def test_what_the_tables_cannot_hold_is_left_out(name: str, arguments: tuple[Argument, ...]) -> None:
    assert only_case(name, *arguments) is None


@pytest.mark.parametrize(("tf32", "dtype"), [(True, "tf32"), (False, "fp32"), (None, "fp32")])
def test_fp32_products_follow_the_recorded_switch(tf32: bool | None, dtype: str) -> None:
    for arguments in ((spec(8, 64), turned(64, 24)), (IMAGE, WEIGHT, None, PAIR, PAIR, PAIR, False, (0, 0), 1)):
        case = only_case("aten::mm" if len(arguments) == 2 else "aten::convolution", *arguments, tf32=tf32)
        assert case is not None
        assert case.row["dtype"] == dtype
    old = trace_cases(trace_of(("aten::mm", (spec(8, 64), turned(64, 24))), tf32=tf32), has_tf32=False)
    assert old["matmul"][0].row["dtype"] == "fp32"
    relu = only_case("aten::relu", IMAGE, tf32=tf32)
    assert relu is not None
    assert relu.row["dtype"] == "fp32"


def test_operands_lie_as_they_were_recorded() -> None:
    packed = spec(8, 64, strides=(192, 1))  # one of three in a packed projection
    case = only_case("aten::mm", packed, turned(64, 24))
    assert case is not None
    run: Any = case.build(CPU)
    tensors = next(cell.cell_contents for cell in run.__closure__ if isinstance(cell.cell_contents, list))
    assert [tensor.stride() for tensor in tensors] == [(192, 1), (1, 64)]


def test_calls_are_counted_once_and_the_longest_come_first() -> None:
    large, small = (spec(64, 64), turned(64, 64)), (spec(16, 16), turned(16, 16))
    trace = trace_of(*[("aten::mm", small)] * 3, ("aten::mm", large), ("aten::relu", (IMAGE,)))
    assert [case.row["m"] for case in trace_cases(trace)["matmul"]] == [64, 16]
    often = trace_of(*[("aten::mm", small)] * 99, ("aten::mm", large))
    assert [case.row["m"] for case in trace_cases(often)["matmul"]] == [16, 64]


def test_a_plan_keeps_own_calls_where_there_is_memory_and_fills_up() -> None:
    own_cases = trace_cases(trace_of(("aten::mm", (spec(8, 64), turned(64, 24))), ("aten::relu", (IMAGE,))))
    plan = plan_workload(own_cases, ("vector", "matmul"), None, SweepLimits(flops=1.0), is_limited=False)
    assert list(plan) == ["vector", "matmul"]
    own, others = plan["matmul"]
    assert own.limits.flops > 1e30
    assert others.limits.flops == 1.0
    assert others.limits.row_count == 49
    assert next(others.cases).row["dtype"] == "fp32"
    assert plan_workload(own_cases, ("matmul",), ["bf16"], SweepLimits(), is_limited=False) == {}
    assert (
        plan_workload(own_cases, ("matmul",), None, SweepLimits(flops=1.0), is_limited=True)["matmul"][0].limits.flops
        == 1.0
    )


def test_most_ops_of_a_sample_can_be_measured(root_dir: Any) -> None:
    trace = load_trace(root_dir / "samples" / "resnet50-training-bf16-b32-shapes.json.gz")
    counts = {family: len(cases) for family, cases in trace_cases(trace).items()}
    assert counts == {"convolution": 23, "vector": 17, "matmul": 3}
