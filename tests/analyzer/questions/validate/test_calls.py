"""What tells that two calls are the same, whatever recorded them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from wavecast.analyzer.prediction.workload import measured_workload, shape_workload
from wavecast.analyzer.questions.validate.calls import OpCalls, list_calls
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.trace.column import Interner, build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import Device, KernelTable, OpTable, Trace

IMAGE, FILTERS = TensorSpec("float16", (4, 3, 224, 224)), TensorSpec("float16", (768, 3, 16, 16))
ROWS, WEIGHTS, BIAS = (TensorSpec("float16", shape) for shape in ((32, 64), (64, 128), (128,)))
ONE = TensorSpec("float16", ())
CUDNN = ("aten::cudnn_convolution", (IMAGE, FILTERS, (0, 0), (16, 16), (1, 1), 1, False, False, True))
MIOPEN = ("aten::miopen_convolution", (IMAGE, FILTERS, None, (0, 0), (16, 16), (1, 1), 1, False, False))
MM = ("aten::mm", (ROWS, WEIGHTS))
ADDMM = ("aten::addmm", (BIAS, ROWS, WEIGHTS))


def trace_of(*ops: tuple[str, Sequence[object]], parents: Sequence[int] | None = None, timed: bool = False) -> Trace:
    """Ops in order; with `timed`, one kernel for each op that encloses none."""
    count = len(ops)
    parent = list(parents or [-1] * count)
    leaves = [row for row in range(count) if row not in parent] if timed else []
    return Trace(
        devices=(Device(name="NVIDIA A100-SXM4-80GB"),),
        strings=(*(name for name, _ in ops), "kernel"),
        signatures=tuple(Signature(tuple(arguments)) for _, arguments in ops),  # type: ignore[arg-type]
        ops=build_table(OpTable, count, name=range(count), signature=range(count), parent=parent),
        kernels=build_table(
            KernelTable,
            len(leaves),
            name=[count] * len(leaves),
            op=leaves,
            start_ns=[100 * row for row in leaves],
            duration_ns=[10] * len(leaves),
        ),
    )


def calls_of(trace: Trace, keys: Interner[Hashable]) -> OpCalls:
    window = select_window(trace)
    workload = measured_workload(trace, window) if len(window.kernel_rows) else shape_workload(trace, window)
    return list_calls(trace, workload, window.kernel_rows, keys)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(CUDNN, MIOPEN, id="libraries"),
        pytest.param(("aten::relu_", (ROWS,)), ("aten::relu", (ROWS,)), id="in place"),
        pytest.param(("aten::mul.Tensor", (ROWS, ONE)), ("aten::mul", (ROWS, 2.0)), id="numbers as tensors"),
        pytest.param(("mine::cudnn_thing", (ROWS,)), ("mine::miopen_thing", (ROWS,)), id="unknown, of libraries"),
    ],
)
def test_the_same_problem(left: tuple[str, Sequence[object]], right: tuple[str, Sequence[object]]) -> None:
    keys = Interner[Hashable]()
    assert calls_of(trace_of(left), keys).key.tolist() == calls_of(trace_of(right), keys).key.tolist() != []


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(MM, ("aten::mm", (TensorSpec("float16", (32, 65)), TensorSpec("float16", (65, 128)))), id="shape"),
        pytest.param(MM, ("aten::mm", tuple(TensorSpec("float32", item.shape) for item in MM[1])), id="type"),
        pytest.param(("aten::relu", (ROWS,)), ("aten::gelu", (ROWS,)), id="op"),
        pytest.param(("aten::sum", (ROWS, [1])), ("aten::amax", (ROWS, [1])), id="reduction"),
    ],
)
def test_other_problems(left: tuple[str, Sequence[object]], right: tuple[str, Sequence[object]]) -> None:
    keys = Interner[Hashable]()
    assert calls_of(trace_of(left), keys).key.tolist() != calls_of(trace_of(right), keys).key.tolist()


def test_kernels_belong_to_the_op_that_explains_them() -> None:
    trace = trace_of(
        ("aten::linear", (ROWS, WEIGHTS, BIAS)), ADDMM, ("mine::setup", ()), parents=[-1, 0, 1], timed=True
    )
    calls = calls_of(trace, Interner[Hashable]())
    assert calls.op.tolist() == [1]  # the product, not what it calls
    assert calls.enclosing.tolist() == [0]
    assert calls.part_item.tolist() == [0]


def test_a_timed_and_an_untimed_recording_agree() -> None:
    keys = Interner[Hashable]()
    timed, untimed = (calls_of(trace_of(ADDMM, CUDNN, MM, timed=timed), keys) for timed in (True, False))
    assert timed.key.tolist() == untimed.key.tolist()
    assert (timed.kernel >= 0).all()
    assert (untimed.kernel == -1).all()


def test_kernels_without_an_op_are_known_by_name() -> None:
    def lone(name: str, kind: int, size: int) -> Trace:
        table = build_table(KernelTable, 1, name=[0], kind=[kind], size_bytes=[size], start_ns=[0], duration_ns=[10])
        return Trace(devices=(Device(name="T4"),), strings=(name,), kernels=table)

    keys = Interner[Hashable]()
    number = {case: calls_of(lone(*case), keys).key.tolist() for case in [
        ("spam", 0, -1), ("eggs", 0, -1), ("Memcpy HtoD", 1, 64), ("CopyHostToDevice", 1, 64), ("Memcpy HtoD", 1, 65),
    ]}  # fmt: skip
    assert number["spam", 0, -1] != number["eggs", 0, -1]
    assert number["Memcpy HtoD", 1, 64] == number["CopyHostToDevice", 1, 64] != number["Memcpy HtoD", 1, 65]


def test_work_without_a_formula_weighs_nothing() -> None:
    calls = calls_of(trace_of(("mine::op", (ROWS,)), MM), Interner[Hashable]())
    assert np.array_equal(calls.work_key >= 0, [False, True])
