"""What the importer makes of small files, one behaviour each."""

from __future__ import annotations

import gc
import json
from typing import Any

import numpy as np
import pytest
from wavecast.errors import TraceError
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.signature import UNKNOWN, Signature, TensorSpec
from wavecast.formats.trace.tables import KernelKind, Phase, SyncKind, Trace

Event = dict[str, Any]


def event(cat: str, name: str, ts: Any, dur: Any, tid: Any = 1, pid: Any = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def op(name: str, ts: Any, dur: Any, **more: Any) -> Event:
    return event("cpu_op", name, ts, dur, **more)


def call(
    ts: Any, dur: Any, correlation: Any, name: Any = "cudaLaunchKernel", cat: Any = "cuda_runtime", **more: Any
) -> Event:
    return event(cat, name, ts, dur, correlation=correlation, **more)


def kernel(
    ts: Any,
    dur: Any,
    correlation: Any,
    name: Any = "gemm",
    cat: Any = "kernel",
    device: Any = 0,
    stream: Any = 7,
    **more: Any,
) -> Event:
    return event(cat, name, ts, dur, pid=0, tid=stream, device=device, stream=stream, correlation=correlation, **more)


def mark(name: str, ts: Any, dur: Any, tid: Any = 1) -> Event:
    return event("user_annotation", name, ts, dur, tid=tid)


def shaped(
    name: str, ts: Any, dur: Any, types: list[Any], dims: Any, concrete: Any = None, strides: Any = None, **more: Any
) -> Event:
    inputs = {"Input type": types, "Input Dims": dims, "Concrete Inputs": concrete, "Input Strides": strides}
    args = {key: value for key, value in inputs.items() if value is not None}
    return {**op(name, ts, dur, **more), "args": args}


def load(*events: Any, **top: Any) -> Trace:
    return import_kineto(json.dumps({"schemaVersion": 1, "traceEvents": list(events), **top}).encode())


def op_names(trace: Trace) -> list[str]:
    return [trace.strings[name] for name in trace.ops.name]


def op_name(trace: Trace, row: int) -> str | None:
    return None if row == -1 else trace.strings[trace.ops.name[row]]


def test_times_are_relative_to_the_earliest_event_in_exact_ns() -> None:
    trace = load(
        op("aten::mm", 1683564901548726.123, 4.001),
        call(1683564901548727, 1, 5),
        kernel(1683564901548730.5, 2.25, 5),
    )
    assert trace.ops.start_ns.tolist() == [0]
    assert trace.ops.duration_ns.tolist() == [4001]
    assert trace.meta.clock_resolution_ns == 1


def test_whole_microseconds_are_a_coarser_clock() -> None:
    assert load(op("aten::mm", 10, 4), baseTimeNanoseconds=5).meta.clock_resolution_ns == 1000


@pytest.mark.parametrize("wrap", [lambda events: events, lambda events: {"a": {"b": [1]}, "traceEvents": events}])
@pytest.mark.parametrize("indent", [None, 1, 4])
def test_lists_objects_and_any_whitespace(wrap: Any, indent: Any) -> None:
    events = [op("aten::mm", 1, 4), op("aten::t", 2, 1)]
    trace = import_kineto(json.dumps(wrap(events), indent=indent).encode())
    assert op_names(trace) == ["aten::mm", "aten::t"]


def test_top_level_keys_count_wherever_they_stand() -> None:
    before = {"deviceProperties": [{"id": 0, "name": "A GPU", "numSms": 5}], "cuda_runtime_version": 12040}
    after = {"distributedInfo": {"rank": 3, "world_size": 8, "nccl_version": "2.27.5"}, "cuda_driver_version": 12090}
    document = before | {"traceEvents": [op("a", 1, 1), call(1, 0.5, 1), kernel(2, 1, 1)]} | after
    first = import_kineto(json.dumps(document).encode())
    second = import_kineto(json.dumps(dict(reversed(document.items()))).encode())
    assert first == second
    assert (first.meta.cuda_version, first.meta.driver_version) == ("12.4", "12.9")
    assert (first.meta.rank, first.meta.world_size, first.meta.nccl_version) == (3, 8, "2.27.5")
    assert [(device.name, device.sm_count) for device in first.devices] == [("A GPU", 5)]


def test_nesting_follows_threads_and_the_longer_of_equal_starts_is_outer() -> None:
    trace = load(
        op("inner", 10, 2),
        op("outer", 10, 10),
        op("other thread", 11, 3, tid=2),
        op("deep", 10, 1),
        op("same span, later in the file", 10, 1),
    )
    parents = {op_name(trace, row): op_name(trace, parent) for row, parent in enumerate(trace.ops.parent)}
    assert parents == {
        "outer": None,
        "inner": "outer",
        "deep": "inner",
        "same span, later in the file": "deep",
        "other thread": None,
    }
    assert trace.ops.thread.tolist() == [0, 0, 0, 0, 1]


def test_crossing_ops_are_counted_and_not_nested() -> None:
    trace = load(op("a", 0, 10), op("b", 5, 10), op("c", 12, 1))
    assert [op_name(trace, parent) for parent in trace.ops.parent] == [None, None, "b"]
    assert trace.quality.ops_with_crossed_nesting == 1


def test_kernels_belong_to_the_innermost_op_around_their_launch() -> None:
    trace = load(
        op("aten::linear", 0, 20),
        op("aten::addmm", 5, 10),
        op("aten::addmm", 5, 10, tid=9),
        call(6, 2, 77, **{"External id": 3}),
        call(14, 4, 78),
        call(30, 1, 79),
        kernel(40, 5, 77, **{"External id": 1}),
        kernel(46, 5, 78),
        kernel(55, 5, 79),
        kernel(61, 5, 80),
    )
    assert [op_name(trace, row) for row in trace.kernels.op] == ["aten::addmm", "aten::linear", None, None]
    assert trace.ops.thread[trace.kernels.op[0]] == 0
    assert trace.kernels.call.tolist() == [0, 1, 2, -1]
    assert (trace.quality.kernels_without_call, trace.quality.kernels_without_op) == (1, 1)


def test_one_graph_launch_has_many_kernels() -> None:
    trace = load(
        op("graph", 0, 9),
        call(1, 5, 4, name="cudaGraphLaunch"),
        *(kernel(20 + at, 1, 4) for at in range(5)),
    )
    assert trace.kernels.call.tolist() == [0] * 5
    assert trace.kernels.op.tolist() == [0] * 5


@pytest.mark.parametrize("shared", [True, False])
def test_driver_launches_and_runtime_calls_around_them(shared: Any) -> None:
    runtime, driver = (8, 8) if shared else (7, 8)
    trace = load(
        op("triton", 0, 9),
        call(1, 6, runtime),
        call(2, 4, driver, name="cuLaunchKernel", cat="cuda_driver"),
        kernel(20, 1, 8),
    )
    assert trace.calls.duration_ns[trace.kernels.call[0]] == (6000 if shared else 4000)
    assert trace.kernels.op.tolist() == [0]


def test_a_launch_is_preferred_to_another_call_with_its_correlation() -> None:
    trace = load(call(1, 1, 8, name="cudaFuncGetAttributes"), call(3, 1, 8), kernel(20, 1, 8))
    assert trace.kernels.call.tolist() == [1]


def test_kinds_launch_configurations_and_copies() -> None:
    launch = {"grid": [2, 3, 4], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024}
    trace = load(
        call(1, 1, 1),
        kernel(10, 1, 1, **launch, **{"est. achieved occupancy %": 31.6}),
        kernel(20, 1, 1, name="Memcpy HtoD", cat="gpu_memcpy", bytes="4096"),
        kernel(30, 1, 1, name="Memset (Device)", cat="gpu_memset", bytes=64),
        kernel(40, 1, 1, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        kernel(50, 1, 1, name="custom", **{"Collective name": "allreduce"}),
        kernel(60, 1, 1, stream=2**32 - 1, grid="4,5,6", block=[1, 2]),
    )
    kinds = [KernelKind.KERNEL, KernelKind.MEMCPY, KernelKind.MEMSET, KernelKind.COLLECTIVE, KernelKind.COLLECTIVE, 0]
    assert trace.kernels.kind.tolist() == kinds
    assert trace.kernels.grid.tolist() == [[2, 3, 4]] + [[0, 0, 0]] * 5
    assert trace.kernels.block[0].tolist() == [128, 1, 1]
    assert (trace.kernels.registers[0], trace.kernels.shared_memory_bytes[0]) == (32, 1024)
    assert trace.kernels.recorded_occupancy_percent.tolist() == [32, -1, -1, -1, -1, -1]
    assert trace.kernels.size_bytes.tolist() == [-1, 4096, 64, -1, -1, -1]
    assert trace.kernels.stream.tolist() == [7, 7, 7, 7, 7, -1]


@pytest.mark.parametrize(
    ("name", "grid"), [("hipExtModuleLaunchKernel", [4, 1, 64]), ("hipModuleLaunchKernel", [784, 1, 64])]
)
def test_a_grid_that_counts_threads_is_turned_into_blocks(name: str, grid: list[int]) -> None:
    hip = {"grid": [784, 1, 64], "block": [256, 1, 1], "kernel": "transpose"}
    trace = load(
        call(1, 1, 1, name=name, **hip),
        call(3, 1, 2, name=name, **hip),
        kernel(10, 1, 1),
        kernel(12, 1, 9, grid=[784, 1, 1]),
    )
    assert trace.kernels.grid.tolist() == [grid, [784, 1, 1]]
    assert trace.calls.grid.tolist() == [[0, 0, 0], grid]


def test_rocm_launch_configurations_come_from_the_call() -> None:
    hip = {"grid": [5, 1, 1], "block": [256, 1, 1], "shared memory": 512, "kernel": "gemm"}
    trace = load(call(1, 1, 1, name="hipLaunchKernel", **hip), kernel(10, 1, 1), kernel(12, 1, 1, grid=[9, 1, 1]))
    assert trace.kernels.grid.tolist() == [[5, 1, 1], [9, 1, 1]]
    assert trace.kernels.block.tolist() == [[256, 1, 1]] * 2
    assert trace.kernels.shared_memory_bytes.tolist() == [512, 512]


def test_several_gpus_in_one_file() -> None:
    properties = [{"id": number, "name": f"GPU {number}"} for number in range(4)]
    trace = load(call(1, 1, 1), kernel(5, 2, 1, device=1), kernel(6, 2, 1, device=3), deviceProperties=properties)
    assert trace.kernels.device.tolist() == [1, 3]
    assert [(device.index, device.name) for device in trace.devices] == [(1, "GPU 1"), (3, "GPU 3")]


def test_the_only_visible_gpu_is_the_one_that_ran() -> None:
    trace = load(call(1, 1, 1), kernel(5, 2, 1, device=6), deviceProperties=[{"id": 0, "name": "GPU"}])
    assert [device.index for device in trace.devices] == [6]


@pytest.mark.parametrize("size", [85e9, "85000000000", 85_000_000_000])
def test_numbers_of_a_device_may_be_written_as_floats_or_texts(size: float | str) -> None:
    properties = [{"id": 0, "name": "GPU", "totalGlobalMem": size, "numSms": 132.0}]
    (device,) = load(call(1, 1, 1), kernel(5, 2, 1), deviceProperties=properties).devices
    assert (device.memory_bytes, device.sm_count) == (85_000_000_000, 132)


def test_syncs_name_what_they_wait_for() -> None:
    def sync(kind: Any, correlation: Any, stream: Any, **more: Any) -> Event:
        return event("cuda_sync", kind, 30, 2, cuda_sync_kind=kind, correlation=correlation, stream=stream, **more)

    wait = {"wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 3, "wait_on_cuda_event_id": 9}
    none = {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": 2**64 - 1}
    trace = load(
        call(1, 1, 3, name="cudaEventRecord"),
        call(5, 1, 4, name="cudaStreamWaitEvent"),
        sync("Stream Wait Event", 4, 24, **wait),
        sync("Event Sync", 5, 2**32 - 1, **none),
        sync("Context Sync", 6, -1),
        sync("Stream Synchronize", 6, 7),
        sync("A new kind", 6, 7),
    )
    syncs = trace.syncs
    assert syncs.kind.tolist() == [SyncKind.STREAM_WAIT_EVENT, SyncKind.EVENT, SyncKind.DEVICE, SyncKind.STREAM]
    assert syncs.call.tolist() == [1, -1, -1, -1]
    assert syncs.record_call.tolist() == [0, -1, -1, -1]
    assert syncs.stream.tolist() == [24, -1, -1, 7]
    assert syncs.waited_stream.tolist() == [20, -1, -1, -1]
    assert trace.quality.events_dropped == 1


def signature_of(types: list[Any], dims: Any, concrete: Any = None, strides: Any = None) -> Signature:
    trace = load(shaped("aten::op", 1, 1, types, dims, concrete, strides))
    return trace.signatures[int(trace.ops.signature[0])]


F32 = TensorSpec("float32", (2, 3), (3, 1))


@pytest.mark.parametrize(
    ("types", "dims", "strides", "concrete", "arguments"),
    [
        (["float", "long int"], [[2, 3], []], [[3, 1], []], ["", ""], (F32, TensorSpec("int64", (), ()))),
        (["c10::BFloat16"], [[4]], None, None, (TensorSpec("bfloat16", (4,)),)),
        (["c10::Float8_e4m3fn"], [[4]], [[1]], None, (TensorSpec("float8_e4m3fn", (4,), (1,)),)),
        (["c10::complex<float>"], [[4]], [[1]], None, (TensorSpec("complex64", (4,), (1,)),)),
        (["unsigned char", "signed char", "bool", "long", "int", "short int", "double", "c10::Half"], [[1]] * 8, None,
         None, tuple(TensorSpec(name, (1,)) for name in (
             "uint8", "int8", "bool", "int64", "int32", "int16", "float64", "float16"))),
        (["TensorList", "float"], [[[2, 3], [1]], [5]], [[[3, 1], [1]], [1]], ["", ""],
         ((F32, TensorSpec("float32", (1,), (1,))), TensorSpec("float32", (5,), (1,)))),
        (["TensorList", "Scalar"], [[], []], None, None, (UNKNOWN, UNKNOWN)),
        (["Scalar"] * 5, [[]] * 5, [[]] * 5, ["True", "-3", "1.5e-05", "0.", "-inf"],
         (True, -3, 1.5e-05, 0.0, float("-inf"))),
        (["ScalarList"] * 3, [[]] * 3, [[]] * 3, ["[1, -1]", "[]", "[True, 0.5]"], ((1, -1), (), (True, 0.5))),
        (["", "Scalar", ""], [[], [], []], [[], [], []], ["", "", "tanh"], (None, UNKNOWN, "tanh")),
        (["", ""], [[], []], None, None, (UNKNOWN, UNKNOWN)),
        (["Scalar", "ScalarList", "Scalar"], [[]] * 3, None, ["/home/me/data.bin", "[a, b]", "nan"], (UNKNOWN,) * 3),
        ([], [], [], [], ()),
    ],
)  # fmt: skip
def test_inputs_become_signatures(types: list[Any], dims: Any, strides: Any, concrete: Any, arguments: Any) -> None:
    assert signature_of(types, dims, concrete, strides).arguments == arguments


def test_equal_values_of_different_types_are_different_signatures() -> None:
    texts = ["1", "True", "1.0", "1"]
    trace = load(*(shaped("aten::op", at, 1, ["Scalar"], [[]], [text]) for at, text in enumerate(texts)))
    assert trace.ops.signature.tolist() == [0, 1, 2, 0]
    assert [repr(signature.arguments) for signature in trace.signatures] == ["(1,)", "(True,)", "(1.0,)"]


def test_a_list_of_tensors_without_dtype_takes_the_usual_one() -> None:
    half = shaped("aten::relu", 1, 1, ["c10::Half"], [[8]])
    trace = load(half, half, shaped("aten::x", 3, 1, ["float"], [[8]]), shaped("cat", 5, 1, ["TensorList"], [[[1]]]))
    assert trace.signatures[trace.ops.signature[3]].arguments == ((TensorSpec("float16", (1,)),),)


MAKER = "aten::_sparse_coo_tensor_with_dims_and_tensors"


def made(at: int, count: int, sizes: str = "[9, 4]") -> Event:
    """The op that makes a sparse tensor of values [count, 4]."""
    types = ["Scalar", "Scalar", "ScalarList", "long int", "float"]
    strides = [[], [], [], [count, 1], [4, 1]]
    return shaped(MAKER, at, 1, types, [[], [], [], [1, count], [count, 4]], ["1", "1", sizes, "", ""], strides)


@pytest.mark.parametrize(
    ("makers", "strides", "stored"),
    [
        ([made(1, 3)], [[4, 1], []], [None, (3, 4)]),
        ([made(1, 3), made(3, 6)], [[4, 1], []], [None, (4, 4)]),  # which of the two is not known: their mean
        ([made(1, 3), made(3, 6, "[7, 4]")], [[4, 1], []], [None, (3, 4)]),
        ([made(1, 3)], [[4, 1], [4, 1]], [None, None]),
        ([], [[4, 1], []], [None, None]),
    ],
)
def test_tensors_without_strides_are_sparse_where_some_op_made_one(makers: Any, strides: Any, stored: Any) -> None:
    trace = load(*makers, shaped("aten::add_", 9, 1, ["float"] * 2, [[9, 4]] * 2, strides=strides))
    assert [item.stored for item in trace.signatures[trace.ops.signature[-1]].tensors()] == stored


def test_strides_of_many_dims_are_read_though_their_product_is_no_count() -> None:
    dims, strides = [8, 4, 7, 4, 7, 192], [150_528, 37_632, 5_376, 1_344, 192, 1]
    trace = load(shaped("aten::clone", 9, 1, ["float", "Scalar"], [dims, []], strides=[strides, []]))
    (tensor,) = trace.signatures[trace.ops.signature[-1]].tensors()
    assert tensor.strides == tuple(strides)


def test_tensors_of_a_file_without_strides_are_not_called_sparse() -> None:
    maker = made(1, 3)
    del maker["args"]["Input Strides"]
    trace = load(maker, shaped("aten::add_", 9, 1, ["float"] * 2, [[9, 4]] * 2))
    assert [item.stored for item in trace.signatures[trace.ops.signature[-1]].tensors()] == [None, None]


FLOATS, HALVES, BOTH = ["float"] * 2, ["c10::BFloat16"] * 2, ["c10::BFloat16", "float"]


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        (("aten::linear", FLOATS), ("aten::linear", HALVES), "bfloat16"),
        (("aten::linear", BOTH), ("aten::linear", HALVES), "bfloat16"),
        (("aten::linear", FLOATS), ("aten::linear", ["c10::Half"] * 2), "float16"),
        (("aten::linear", HALVES), ("aten::linear", HALVES), None),  # nothing was cast
        (("aten::linear", FLOATS), ("aten::addmm", HALVES), None),  # the user's own cast
        (("aten::softmax", HALVES), ("aten::softmax", FLOATS), None),  # says that there is autocast, not to what
        (("aten::mul", ["float", "float"]), ("aten::mul", ["double", "double"]), None),
    ],
)
def test_casts_inside_an_op_tell_the_dtype_of_autocast(outer: Any, inner: Any, expected: str | None) -> None:
    dims = [[4, 4], [4, 4]]
    trace = load(shaped(outer[0], 0, 10, outer[1], dims), shaped(inner[0], 1, 8, inner[1], dims))
    assert trace.meta.precision.autocast_dtype == expected


def test_two_dtypes_of_autocast_or_other_shapes_tell_none() -> None:
    both = [[4, 4], [4, 4]]
    calls = [shaped("aten::linear", at, 10, FLOATS, both) for at in (0, 20)]
    half = shaped("aten::linear", 21, 8, ["c10::Half"] * 2, both)
    assert load(*calls, shaped("aten::linear", 1, 8, HALVES, both), half).meta.precision.autocast_dtype is None
    other = shaped("aten::linear", 1, 8, HALVES, [[4, 4], [2, 8]])
    assert load(calls[0], other).meta.precision.autocast_dtype is None


@pytest.mark.parametrize("dims", ["text", [[-1]], [["a"]], {"0": 1}, [[1], [2]]])
def test_shapes_of_an_unknown_form_are_missing_shapes(dims: Any) -> None:
    trace = load(shaped("a", 1, 1, ["float"], dims), shaped("b", 3, 1, ["float"], [[1]]), op("c", 5, 1))
    assert trace.ops.signature.tolist() == [-1, 0, -1]
    assert trace.quality.ops_without_shapes == 2


ENGINE = "autograd::engine::evaluate_function: "


def training() -> list[Event]:
    """A step whose forward ops share sequence numbers: 4 is taken by aten::t, 5 by aten::addmm."""

    def numbered(name: str, ts: Any, dur: Any, number: int, thread: int, tid: Any = 1) -> Event:
        return op(name, ts, dur, tid=tid, **{"Sequence number": number, "Fwd thread id": thread})

    return [
        mark("ProfilerStep#1", 0, 300),
        event("python_function", "nn.Module: Net_0", 5, 90),
        event("python_function", "nn.Module: Linear_1", 9, 50),
        numbered("aten::linear", 10, 40, 4, 0),
        numbered("aten::t", 12, 4, 4, 0),
        op("aten::transpose", 13, 1),
        numbered("aten::addmm", 20, 10, 5, 0),
        numbered(f"{ENGINE}AddmmBackward0", 110, 20, 5, 1, tid=2),
        numbered("AddmmBackward0", 111, 15, 5, 1, tid=2),
        op("aten::mm", 112, 5, tid=2),
        op(f"{ENGINE}torch::autograd::AccumulateGrad", 131, 2, tid=2),
        numbered(f"{ENGINE}TBackward0", 140, 8, 4, 1, tid=2),
        numbered("aten::relu", 141, 2, 4, 0, tid=2),
        op("final callback", 150, 5, tid=2),
        mark("Optimizer.step#SGD.step", 200, 50),
        op("aten::_foreach_add_", 210, 10),
        mark("Optimizer.zero_grad#SGD.zero_grad", 260, 10),
        op("aten::zero_", 262, 2),
        op("aten::_fused_adamw_", 280, 2),
    ]


def test_phases() -> None:
    trace = load(*training())
    phases = dict(zip(op_names(trace), trace.ops.phase.tolist(), strict=True))
    forward = {"aten::linear", "aten::t", "aten::transpose", "aten::addmm"}
    optimizer = {"aten::_foreach_add_", "aten::_fused_adamw_"}
    for name, phase in phases.items():
        others = Phase.OTHER if name == "aten::zero_" else Phase.BACKWARD
        expected = Phase.FORWARD if name in forward else Phase.OPTIMIZER if name in optimizer else others
        assert phase == expected, name
    assert trace.meta.workload.mode == "training"


def test_an_optimizer_step_in_a_backward_hook_is_the_optimizers() -> None:
    trace = load(op(f"{ENGINE}X", 0, 50), mark("Optimizer.step#SGD.step", 10, 20), op("aten::add_", 12, 3))
    assert trace.ops.phase.tolist() == [Phase.BACKWARD, Phase.OPTIMIZER]


def test_backward_ops_link_to_the_forward_leaf_and_take_its_module() -> None:
    trace = load(*training())
    forward = {op_name(trace, row): op_name(trace, to) for row, to in enumerate(trace.ops.forward) if to != -1}
    assert forward == {
        f"{ENGINE}AddmmBackward0": "aten::addmm",
        "AddmmBackward0": "aten::addmm",
        f"{ENGINE}TBackward0": "aten::t",
    }
    module = {op_name(trace, row): trace.strings[path] for row, path in enumerate(trace.ops.module) if path != -1}
    inside = {"aten::linear", "aten::t", "aten::transpose", "aten::addmm", "AddmmBackward0", "aten::mm", "aten::relu"}
    assert module == dict.fromkeys(inside | {f"{ENGINE}AddmmBackward0", f"{ENGINE}TBackward0"}, "Net_0.Linear_1")


def test_arrows_decide_where_sequence_numbers_are_ambiguous() -> None:
    numbers = {"Sequence number": 3, "Fwd thread id": 0}

    def arrow(ph: Any, ts: Any, tid: Any) -> Event:
        return {"ph": ph, "cat": "fwdbwd", "name": "fwdbwd", "id": 6, "pid": 1, "tid": tid, "ts": ts}

    trace = load(
        op("first thread's", 10, 5, tid=1, **numbers),
        op("second thread's", 12, 5, tid=2, **numbers),
        op(f"{ENGINE}X", 50, 9, tid=3, **{"Sequence number": 3, "Fwd thread id": 1}),
        op("X", 51, 5, tid=3, **{"Sequence number": 3, "Fwd thread id": 1}),
        arrow("s", 10, 1),
        arrow("f", 51, 3),
    )
    assert [op_name(trace, row) for row in trace.ops.forward] == [None, None, "first thread's", "first thread's"]


def test_memory_events() -> None:
    def allocation(ts: Any, address: Any, size: int, kind: Any = 1, tid: Any = 1, **more: Any) -> Event:
        args = {"Addr": address, "Bytes": size, "Device Type": kind, "Device Id": 0, **more}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts, "args": args}

    total = {"Total Allocated": 300, "Total Reserved": 500}
    trace = load(
        op("aten::empty", 10, 10),
        allocation(15, 139926520725504, 256, **total),
        allocation(30, 139926520725504, -256),
        allocation(12, 2**64 - 16, 64, kind=0),
        allocation(16, 77, 64, kind=6, tid=5),
    )
    memory = trace.memory
    assert memory.time_ns.tolist() == [2000, 5000, 6000, 20000]
    assert memory.block.tolist() == [0, 1, 2, 1]
    assert memory.device.tolist() == [-1, 0, 0, 0]
    assert memory.size_bytes.tolist() == [64, 256, 64, -256]
    assert memory.op.tolist() == [0, 0, -1, -1]
    assert memory.allocated_bytes.tolist() == [-1, 300, -1, -1]
    assert memory.reserved_bytes.tolist() == [-1, 500, -1, -1]
    assert trace.meta.has_memory


def test_collectives_come_from_ops_and_otherwise_from_kernels() -> None:
    group = {"Process Group Name": "secret-group", "Group size": 8, "Process Group Ranks": "[0, 1]"}
    reduce = {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 10, "Out msg nelems": 11, **group}
    gather = {"Collective name": "_allgather_base", "dtype": "Odd type", "Process Group Name": "1", "Group size": 2}
    trace = load(
        op("record_param_comms", 0, 10, **reduce),
        call(1, 1, 1),
        kernel(20, 5, 1, name="ncclKernel", **reduce),
        op("vllm::all_gather", 12, 5),
        call(13, 1, 2),
        kernel(30, 5, 2, name="ncclKernel", **gather),
    )
    collectives = trace.collectives
    assert [trace.strings[name] for name in collectives.name] == ["allreduce", "_allgather_base"]
    assert [op_name(trace, row) for row in collectives.op] == ["record_param_comms", "vllm::all_gather"]
    assert trace.strings[collectives.dtype[0]] == "bfloat16"
    assert collectives.dtype[1] == -1
    assert collectives.group.tolist() == [0, 1]
    assert collectives.in_element_count.tolist() == [10, -1]
    assert collectives.out_element_count.tolist() == [11, -1]
    assert collectives.group_size.tolist() == [8, 2]


@pytest.mark.parametrize("count", [1, 2])
def test_without_a_report_collectives_are_the_ops_of_process_groups(count: int) -> None:
    tensors = [["TensorList", "", "Scalar"], ["", "TensorList", "Scalar"], ["float", "float", "Scalar"]]
    trace = load(
        shaped("c10d::allreduce_", 0, 5, tensors[0], [[[6], [4]], [], []]),
        shaped("c10d::allgather_", 10, 5, tensors[1], [[], [[10]], []]),
        shaped("c10d::_allgather_base_", 20, 5, tensors[2], [[20], [10], []]),
        shaped("c10d::recv_", 30, 5, tensors[0], [[[7]], [], []]),
        op("c10d::barrier", 40, 5),
        op("c10d::other", 50, 5),
        distributedInfo={"rank": 0, "world_size": 2, "pg_count": count},
    )
    found, is_alone = trace.collectives, count == 1
    names = ["allreduce", "allgather", "_allgather_base", "recv", "barrier"]
    assert [trace.strings[name] for name in found.name] == names
    assert [op_name(trace, row) for row in found.op] == op_names(trace)[:5]
    assert found.in_element_count.tolist() == [10, 10, 10, 0, 0]
    assert found.out_element_count.tolist() == [10, 20 if is_alone else -1, 20, 7, 0]
    assert found.group_size.tolist() == [2 if is_alone else -1] * 5
    assert found.group.tolist() == [0 if is_alone else -1] * 5
    assert [trace.strings[dtype] if dtype >= 0 else None for dtype in found.dtype] == [
        None,
        None,
        "float32",
        None,
        None,
    ]


def test_iterations_follow_the_profilers_steps() -> None:
    trace = load(
        mark("ProfilerStep#7", 100, 50),
        mark("ProfilerStep#8", 150, 50),
        mark("ProfilerStep#8", 160, 10),
        mark("ProfilerStep#7", 100, 70, tid=4),
        event("gpu_user_annotation", "ProfilerStep#7", 500, 900),
        call(120, 1, 1),
        kernel(140, 60, 1),
        call(155, 1, 2),
        kernel(200, 70, 2),
        op("a", 110, 5),
    )
    iterations = trace.iterations
    assert iterations.start_ns.tolist() == [0, 100_000]
    assert iterations.end_ns.tolist() == [100_000, 170_000]
    assert iterations.cpu_start_ns.tolist() == [0, 50_000]
    assert iterations.cpu_end_ns.tolist() == [50_000, 100_000]


def test_without_steps_the_iteration_is_everything() -> None:
    trace = load(op("a", 10, 5), call(11, 1, 1), kernel(30, 10, 1))
    assert (trace.iterations.start_ns.tolist(), trace.iterations.end_ns.tolist()) == ([0], [30_000])


def test_unusable_events_are_dropped_and_counted() -> None:
    bad = [op("no ts", 1, 1), op("no dur", 1, 1), op("negative", 1, -1), op("text", "soon", 1), op("null", None, 1)]
    del bad[0]["ts"], bad[1]["dur"]
    trace = load(op("good", 5, 1), *bad, kernel(7, -3, 1), op("string", "6.5", "1"))
    assert op_names(trace) == ["good", "string"]
    assert trace.quality.events_dropped == 6
    assert np.all(trace.ops.duration_ns == 1000)


def test_events_far_from_the_recording_are_dropped_and_counted() -> None:
    now = 1683564901548726
    trace = load(
        op("aten::mm", now, 9),
        op("at zero", 0, 5, **{"Collective name": "allreduce"}),
        op("too long", now + 1, 10**13),
        call(now + 1, 1, 1),
        kernel(now + 5, 2, 1),
        kernel(0, 2, 1, **{"Collective name": "allreduce"}),
    )
    assert op_names(trace) == ["aten::mm"]
    assert trace.kernels.start_ns.tolist() == [5000]
    assert len(trace.collectives.op) == 0
    assert trace.quality.events_dropped == 3


def test_the_garbage_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    load(op("a", 1, 1))
    assert gc.isenabled()
    gc.disable()
    try:
        load(op("a", 1, 1))
        assert not gc.isenabled()
        gc.enable()
        with pytest.raises(TraceError):
            load()
        assert gc.isenabled()
    finally:
        gc.enable()


def test_no_secret_survives() -> None:
    secret = "hunter2"  # noqa: S105
    home = f"/home/{secret}/train.py"
    named = {secret: secret, "stream": secret, "kernel_file": home, "grid": f"grid({secret})"}
    trace = load(
        op("aten::mm", 1, 5, **named),
        shaped("aten::x", 8, 1, ["Scalar", secret, "ScalarList"], [[], [3], []], [secret, "", f"[{secret}]"]),
        shaped("aten::y", 12, 1, [secret], [[]], [home]),
        mark(secret, 1, 2),
        mark(f"ProfilerStep#{secret}", 1, 30),
        mark(f"Optimizer.step#{secret}", 1, 2),
        event("python_function", f"{home}(3): {secret}", 1, 9),
        event("python_function", f"nn.Module: {home}", 1, 9),
        event("gpu_user_annotation", secret, 1, 2),
        event(secret, secret, 1, 2),
        {"ph": "M", "name": "process_labels", "pid": secret, "tid": secret, "args": {"labels": secret}},
        call(2, 1, 1, src=secret, kernel=secret),
        kernel(20, 1, 1, name=f"triton<{home}:12>", context=secret, **{"Process Group Name": secret}),
        kernel(22, 1, 1, **{"Collective name": home, "Process Group Name": secret, "dtype": home}),
        metadata={"env": {"TOKEN": secret}, "host": secret, "user": secret},
        traceName=home,
        **{"distributedInfo": {"backend": secret, "pg_config": [{"pg_desc": secret}], "nccl_version": secret}},
    )
    assert len(trace.ops.name) == 3
    assert secret not in repr(trace)
    assert secret not in " ".join(trace.strings)
    assert "triton<<path>:12>" in trace.strings


LISTS, SENT, GOT = ("TensorList", "TensorList"), ("", "TensorList"), ("TensorList", "")


@pytest.mark.parametrize(
    ("names", "types", "dims", "sides"),
    [
        ("allreduce_ allreduce_coalesced_ broadcast_ reduce_", GOT, [[[6], [4]], []], (10, 10)),
        ("allreduce_ broadcast_", LISTS, [[[6]], [[5]]], (6, 6)),
        ("allgather_", SENT, [[], [[10]]], (10, 30)),
        ("reduce_scatter_", GOT, [[[10]], []], (30, 10)),
        ("_allgather_base_ _reduce_scatter_base_ alltoall_base_", ("float", "float"), [[20], [10]], (10, 20)),
        ("allgather_coalesced_ allgather_into_tensor_coalesced_", LISTS, [[[9], [3]], [[4]]], (4, 12)),
        ("reduce_scatter_tensor_coalesced_ alltoall_ gather_ scatter_", LISTS, [[[9], [3]], [[4]]], (4, 12)),
        ("send", GOT, [[[7]], []], (7, 0)),
        ("recv_ recv_any_source_", GOT, [[[7]], []], (0, 7)),
        ("barrier", LISTS, [[[7]], [[3]]], (0, 0)),
        ("send", ("", ""), [[], []], (-1, 0)),
    ],
)
def test_each_collective_of_three_ranks_sends_and_receives_what_its_schema_says(
    names: str, types: tuple[str, str], dims: list[Any], sides: tuple[int, int]
) -> None:
    ops = [shaped(f"c10d::{name}", 10 * at, 5, list(types), dims) for at, name in enumerate(names.split())]
    found = load(*ops, distributedInfo={"rank": 0, "world_size": 3, "pg_count": 1}).collectives
    assert found.in_element_count.tolist() == [sides[0]] * len(ops)
    assert found.out_element_count.tolist() == [sides[1]] * len(ops)
    assert found.group_size.tolist() == [3] * len(ops)


def test_what_is_not_linked_is_counted() -> None:
    trace = load(
        op("a", 0, 5),
        call(1, 1, 1),
        call(20, 1, 2),
        call(22, 1, 3),
        call(24, 1, 4),
        *(kernel(30 + at, 1, correlation) for at, correlation in enumerate((1, 2, 3, 4, 8, 9))),
    )
    assert trace.kernels.call.tolist() == [0, 1, 2, 3, -1, -1]
    assert trace.kernels.op.tolist() == [0, -1, -1, -1, -1, -1]
    assert trace.quality.kernels_without_call == 2
    assert trace.quality.kernels_without_op == 3
    assert trace.quality.ops_without_shapes == 1


def test_callbacks_of_the_engine_are_backward_on_its_own_threads_alone() -> None:
    """DDP's last all-reduce has no engine call around it; the main thread, which was differentiated, is no such one."""
    linked = {"Sequence number": 3, "Fwd thread id": 1}
    engine = "autograd::engine::evaluate_function: Backward"
    trace = load(
        op("forward", 0, 5, **{"Sequence number": 3}),
        op(engine, 10, 5, tid=2, **linked),
        op("callback", 20, 5, tid=2),
        op("later", 20, 5),
        op("elsewhere", 20, 5, tid=3),
    )
    phases = dict(zip(op_names(trace), (Phase(phase) for phase in trace.ops.phase.tolist()), strict=True))
    assert phases == {
        "forward": Phase.FORWARD,
        engine: Phase.BACKWARD,
        "callback": Phase.BACKWARD,
        "later": Phase.FORWARD,
        "elsewhere": Phase.FORWARD,
    }
    alone = load(op(engine, 10, 5), op("callback", 20, 5))  # nothing says which threads were differentiated
    assert alone.ops.phase.tolist() == [Phase.BACKWARD, Phase.FORWARD]


def test_a_call_between_those_that_launch_is_no_kernels_launch() -> None:
    trace = load(op("a", 0, 50), call(1, 1, 2), call(3, 1, 9), kernel(10, 1, 9), kernel(20, 1, 5), kernel(30, 1, 2))
    assert trace.kernels.call.tolist() == [1, -1, 0]


def test_a_device_has_a_capability_if_both_its_numbers_are_told() -> None:
    properties = [
        {"id": 0, "name": "One", "computeMajor": 8, "computeMinor": 6},
        {"id": 1, "name": "Two", "computeMajor": 9},
        {"id": 2, "name": "Three", "computeMinor": 0},
    ]
    events = [call(1, 1, 1), *(kernel(2 + at, 1, 1, device=at) for at in range(3))]
    found = load(op("a", 0, 9), *events, deviceProperties=properties).devices
    assert [device.compute_capability for device in found] == ["8.6", None, None]


def test_one_op_with_shapes_and_one_backward_op_say_what_was_recorded() -> None:
    engine = "autograd::engine::evaluate_function: Backward"
    plain = op("aten::t", 10, 4)
    assert not load(plain).meta.has_shapes
    assert load(plain).meta.workload.mode is None
    trace = load(shaped("aten::mm", 1, 4, ["float"], [[2, 3]]), plain, op(engine, 20, 5, tid=2))
    assert trace.meta.has_shapes
    assert trace.meta.workload.mode == "training"


def test_addresses_of_a_device_are_blocks_of_their_own_however_large() -> None:
    def allocation(ts: int, address: int) -> Event:
        args = {"Addr": address, "Bytes": 256, "Device Type": 1, "Device Id": 0}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": args}

    addresses = (2**63 - 1, 2**62, 2**63, 2**64 - 16, 2**62)
    trace = load(
        op("a", 0, 50, **{"External id": 2**63}), *(allocation(10 + at, to) for at, to in enumerate(addresses))
    )
    assert trace.memory.block.tolist() == [0, 1, 2, 2, 1]  # what no signed integer holds is one unknown block


def test_scalars_are_kept_as_far_as_integers_of_64_bits_go() -> None:
    texts = ["1000", "-1000", str(2**63 - 1), str(-(2**63)), str(2**63), str(-(2**63) - 1)]
    found = signature_of(["Scalar"] * 6, [[]] * 6, texts).arguments
    assert found == (1000, -1000, 2**63 - 1, -(2**63), UNKNOWN, UNKNOWN)


def test_occupancies_are_whole_percents_from_zero_up() -> None:
    told = (0, 37.6, -1, 2**15 - 1, 2**15, "much", None)
    events = [kernel(10 + at, 1, 1, **{"est. achieved occupancy %": value}) for at, value in enumerate(told)]
    trace = load(op("a", 0, 9), call(1, 1, 1), *events)
    assert trace.kernels.recorded_occupancy_percent.tolist() == [0, 38, -1, 2**15 - 1, -1, -1, -1]


def test_without_stacks_and_memory_events_a_trace_holds_none() -> None:
    meta = load(op("a", 0, 9)).meta
    assert (meta.has_stacks, meta.has_memory) == (False, False)


@pytest.mark.parametrize("device", [-5, 2**15])
def test_a_device_out_of_range_is_an_error_beside_others_in_it(device: int) -> None:
    with pytest.raises(TraceError, match=rf"device.*found {device}, expected 0 to 32767"):
        load(op("a", 0, 9), kernel(10, 1, 1, device=0), kernel(12, 1, 1, device=device))


def test_ops_computed_again_in_backward_answer_only_where_no_forward_op_does() -> None:
    """Of one number: the last forward op to start, though one of backward itself starts later."""
    asks = {"Sequence number": 3, "Fwd thread id": 1}
    trace = load(
        op("forward", 10, 5, **{"Sequence number": 3}),
        op(f"{ENGINE}Checkpoint", 30, 9, tid=2, **{"Sequence number": 2, "Fwd thread id": 1}),
        op("again", 32, 2, tid=2, **{"Sequence number": 3}),
        op("alone", 35, 2, tid=2, **{"Sequence number": 4}),
        op(f"{ENGINE}X", 50, 9, tid=2, **asks),
        op(f"{ENGINE}Y", 60, 9, tid=2, **{"Sequence number": 4, "Fwd thread id": 2}),
    )
    forward = {op_name(trace, row): op_name(trace, to) for row, to in enumerate(trace.ops.forward) if to != -1}
    assert forward == {f"{ENGINE}X": "forward", f"{ENGINE}Y": "alone"}


def test_spans_of_modules_are_no_ops_but_say_where_ops_are() -> None:
    trace = load(
        op("wavecast.module: Net_0", 0, 50),
        op("aten::mm", 10, 5),
        op("aten::t", 60, 5),
        {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 70, "dur": 1},
    )
    assert op_names(trace) == ["aten::mm", "aten::t", ""]
    assert [None if path == -1 else trace.strings[path] for path in trace.ops.module] == ["Net_0", None, None]


def test_an_op_that_outlasts_the_clearing_of_gradients_is_no_part_of_it() -> None:
    trace = load(mark("Optimizer.zero_grad#SGD.zero_grad", 10, 10), op("aten::zero_", 12, 5), op("other", 18, 5))
    assert trace.ops.phase.tolist() == [Phase.OTHER, Phase.FORWARD]


def test_backward_ops_look_for_forward_ops_that_began_before_them_by_any_number() -> None:
    asks = {"Sequence number": 0, "Fwd thread id": 1}
    inside = op("inside", 52, 2, tid=2, **{"Sequence number": 0})
    alone = load(op(f"{ENGINE}X", 50, 9, tid=2, **asks), inside)
    assert alone.ops.forward.tolist() == [-1, -1]
    trace = load(op("forward", 0, 5, **{"Sequence number": 0}), op(f"{ENGINE}X", 50, 9, tid=2, **asks), inside)
    assert trace.ops.forward.tolist() == [-1, 0, -1]


def test_a_collective_without_its_usual_arguments_has_no_known_sides() -> None:
    ops = [shaped(f"c10d::{name}", 10 * at, 5, [], []) for at, name in enumerate(("broadcast_", "send", "recv_"))]
    found = load(*ops, distributedInfo={"rank": 0, "world_size": 3, "pg_count": 1}).collectives
    assert found.in_element_count.tolist() == [-1, -1, 0]
    assert found.out_element_count.tolist() == [-1, 0, -1]


def test_tensors_of_a_list_have_dtypes_of_their_own_where_told() -> None:
    ints = TensorSpec("int64", (3,))
    assert signature_of([["float", "long int"]], [[[2], [3]]]).arguments == ((TensorSpec("float32", (2,)), ints),)
    assert signature_of([["long int"], "float"], [[[2], [3]], [5]]).arguments == (
        (TensorSpec("float32", (2,)), TensorSpec("float32", (3,))),
        TensorSpec("float32", (5,)),
    )


def test_what_stands_there_twice_counts_once() -> None:
    once = [{**op("aten::mm", 1, 9), "args": {"External id": 1}}, call(2, 2, 5), kernel(20, 5, 5)]
    apart = [kernel(30, 5, 5), {**op("aten::mm", 1, 9), "args": {"External id": 2}}]
    trace = load(*once, *once, *apart)
    assert (len(trace.ops.name), len(trace.calls.name), len(trace.kernels.name)) == (2, 1, 2)
    assert trace.quality.events_dropped == 3


def test_a_gpu_whose_clock_is_behind_is_refused() -> None:
    launches = [item for at in range(4) for item in (call(2e9 + at, 1, at + 1), kernel(1e9 + at, 1, at + 1))]
    with pytest.raises(TraceError, match=r"4 of 4 kernels begin before their launch, by 1e\+03 s: the clocks"):
        load(*launches)


@pytest.mark.parametrize("number", [7, 2**31 - 1])
def test_a_correlation_that_many_launches_share_was_never_set(number: int) -> None:
    pairs = [(call(10 * at, 2, number), kernel(10 * at + 5, 4, number)) for at in range(1, 7)]
    assert load(*(item for pair in pairs for item in pair)).kernels.call.tolist() == [-1] * 6
