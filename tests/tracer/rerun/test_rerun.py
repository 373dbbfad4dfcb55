"""Re-running ops: which overload, which operands, which calls; and that nothing else of the process changes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.measured.rerun import LocalDevice, Rerun
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec
from wavecast.formats.trace.tables import Device, Meta, OpTable, Precision, Trace
from wavecast.tracer import trace_iteration
from wavecast.tracer.op_sweep.timing import GRAPH, Timed
from wavecast.tracer.rerun import execute, local, operands, schema
from wavecast.tracer.rerun.execute import choose_calls, rerun_ops
from wavecast.tracer.rerun.fills import NOISE, Content, Fill
from wavecast.tracer.rerun.local import find_device
from wavecast.tracer.rerun.operands import Operands, TooLargeError, make_tensor
from wavecast.tracer.rerun.schema import UnfitError, bind

CPU = LocalDevice(torch_name="cpu", device=Device(name="a CPU"), is_gpu=False)
PLENTY = 1e12
Op = tuple[str, tuple[Argument, ...] | None, int]
"""Name, arguments (None: not recorded) and the row of the op around it."""


def floats(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(dtype, shape)


def integers(*shape: int) -> TensorSpec:
    return TensorSpec("int64", shape)


def build_trace(*ops: Op, capture: str = "measured", precision: Precision | None = None) -> Trace:
    names = list(dict.fromkeys(name for name, _, _ in ops))
    signatures = list(dict.fromkeys(Signature(arguments) for _, arguments, _ in ops if arguments is not None))
    return Trace(
        meta=Meta(capture=capture, precision=precision or Precision()),
        strings=tuple(names),
        signatures=tuple(signatures),
        ops=build_table(
            OpTable,
            len(ops),
            name=[names.index(name) for name, _, _ in ops],
            signature=[-1 if item is None else signatures.index(Signature(item)) for _, item, _ in ops],
            parent=[parent for _, _, parent in ops],
        ),
    )


def rerun(trace: Trace, leaves: Sequence[int], weights: Sequence[float] | None = None, **options: Any) -> Rerun:
    """Re-run ops on the CPU, in as much time as they take."""
    counts = np.array(weights if weights is not None else [1.0] * len(leaves))
    settings: dict[str, Any] = {"local": CPU, "seconds": inf} | options
    return rerun_ops(trace, np.array(leaves, dtype=np.int64), counts, **settings)


def run_alone(name: str, *arguments: Argument) -> Any:
    """Call the op once on made-up tensors of the CPU."""
    with torch.no_grad():
        return Operands(torch.device("cpu"), PLENTY).prepare(bind(name, arguments, device_type="cpu"))()


@pytest.mark.parametrize(
    ("name", "arguments", "overload", "values"),
    [
        ("aten::add", (floats(4), floats(4), 1), "Tensor", {"alpha": 1}),
        ("aten::add", (floats(4), 2.5, 1), "Scalar", {"other": 2.5}),
        ("aten::mul", (floats(4), floats(), floats(4)), "out", {}),
        ("aten::sum", (floats(4, 2), (0,), True, None), "dim_IntList", {"dim": [0], "keepdim": True}),
        ("aten::sum", (floats(4, 2), None), "default", {"dtype": None}),
        ("aten::gelu", (floats(4), None), "default", {"approximate": "none"}),
        ("aten::max_pool2d", (floats(1, 1, 4, 4), 2), "default", {"kernel_size": [2, 2], "ceil_mode": False}),
        ("aten::_to_copy", (floats(4), 15, None, None, None, False, None), "default", {"dtype": torch.bfloat16}),
        ("aten::_to_copy", (floats(4), "float16", "strided", "cuda", None, False, None), "default",
         {"dtype": torch.float16, "device": schema.Local.DEVICE}),
        ("aten::ones_like", (floats(4), None, None, None, False, 1), "default",
         {"memory_format": torch.preserve_format}),
        ("aten::arange", (8, None, None, "meta", False), "default", {"device": schema.Local.DEVICE}),
        ("aten::_foreach_mul_", ((floats(4), floats(2)), UNKNOWN), "ScalarList", {"scalars": [1.0, 1.0]}),
        ("aten::_foreach_mul_", ((floats(4), floats(2)), 0.9), "Scalar", {"scalar": 0.9}),
        ("aten::clamp", (floats(4), UNKNOWN, UNKNOWN), "default", {"min": 1, "max": 1}),
        ("aten::pow", (floats(4), 2), "Tensor_Scalar", {"exponent": 2}),
        ("aten::where", (TensorSpec("bool", (4,)), floats(4), 0.0), "ScalarOther", {}),
        ("aten::add.Tensor", (floats(4), floats(4)), "Tensor", {"alpha": 1}),
        ("aten::_fused_adamw_", (*[(floats(4),)] * 4, UNKNOWN, (floats(),), 1e-3, 0.9, 0.99, 0.0, 1e-8, False, False),
         "default", {"max_exp_avg_sqs": [], "grad_scale": None}),
    ],
)  # fmt: skip
def test_the_overload_is_found_by_what_was_recorded(
    name: str, arguments: tuple[Argument, ...], overload: str, values: dict[str, Any]
) -> None:
    bound = bind(name, arguments, device_type="cpu")
    assert bound.overload._overloadname == overload
    assert {key: bound.values[key] for key in values} == values


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("vllm::moe_forward", (floats(4),), "PyTorch's own"),
        ("triton_poi_fused_0", (floats(4),), "PyTorch's own"),
        ("c10d::allreduce_", (floats(4),), "PyTorch's own"),
        ("aten::from_file", ("/etc/passwd", None, 8, None, None, "cpu", None), "never run"),
        ("aten::save", (floats(4), "weights.pt"), "never run"),
        ("aten::manual_seed", (1,), "never run"),
        ("aten::set_", (floats(4), floats(4)), "never run"),
        ("aten::resize_", (floats(4), (8,), None), "never run"),
        ("aten::_assert_async", (TensorSpec("bool", ()),), "never run"),
        ("aten::sparse_coo_tensor", (integers(1, 4), floats(4)), "never run"),
        ("aten::_dyn_quant_matmul_4bit", (floats(4, 4), floats(4, 4), 0, 0, 0), "never run"),
        ("aten::__and__", (integers(4), 1), "never run"),
        ("aten::einsum", ("ij,jk->ik", (floats(2, 2), floats(2, 2)), None), "free text"),
        ("aten::to", (floats(4), None, None, None, None, False, False, None), "nothing of its own"),
        ("aten::lstm", (floats(2, 3, 4), (floats(1, 3, 4),) * 2, (floats(16, 4),) * 2, False, 1, 0.0, True, False,
                        False), "nothing of its own"),
        ("aten::_local_scalar_dense", (floats(),), "to the host"),
        ("aten::_to_copy", (floats(4), None, None, "cpu", None, False, None), "between host and device"),
        ("aten::no_such_op", (floats(4),), "no such op"),
        ("aten::mm", (floats(2, 2), UNKNOWN), "'mat2' was not recorded"),
        ("aten::mm", (floats(2, 2), floats(2, 2, dtype="unknown")), "dtype of its argument 'mat2'"),
        ("aten::cat", (UNKNOWN, 0), "'tensors' was not recorded"),
        ("aten::pow", (floats(4), UNKNOWN), "'exponent' was not recorded"),
        ("aten::_to_copy", (floats(4), UNKNOWN, None, None, None, False, None), "'dtype' was not recorded"),
        ("aten::mm", (floats(2, 2), floats(2, 2), 3, 4, 5), "5 arguments"),
        ("aten::mm", (floats(2, 2), (1, 2)), "'mat2' is no Tensor"),
        ("aten::_cudnn_rnn_flatten_weight", ((floats(4),), 1, 4, 2, 4, 0, 1, False, False), "no kernel of it for cpu"),
    ],
)  # fmt: skip
def test_what_is_never_run_has_a_reason(name: str, arguments: tuple[Argument, ...], reason: str) -> None:
    with pytest.raises(UnfitError, match=reason):
        bind(name, arguments, device_type="cpu")


def test_a_sparse_operand_is_not_made_up() -> None:
    table = TensorSpec("float32", (1000, 4), None, (20, 4))
    with pytest.raises(UnfitError, match="sparse"):
        run_alone("aten::add_", floats(1000, 4), table, 1)


TRICKY = [
    ("aten::embedding", (floats(1, 8), integers(64), -1, False, False)),
    ("aten::embedding_dense_backward", (floats(64, 8), integers(64), 3, -1, False)),
    ("aten::_embedding_bag", (floats(5, 8), integers(64), integers(16), False, 0, False, None, False, -1)),
    ("aten::index_select", (floats(3, 8), 1, integers(64))),
    ("aten::gather", (floats(3, 8), 0, integers(3, 8), False)),
    ("aten::scatter_add_", (floats(2, 8), 0, integers(2, 8), floats(2, 8))),
    ("aten::take", (floats(2, 3), integers(64))),
    ("aten::index", (floats(2, 9, 3), (integers(64), integers(64)))),
    ("aten::index", (floats(64, 3), (TensorSpec("bool", (64,)),))),
    ("aten::index_put_", (floats(9, 2, 3), (integers(64), integers(64)), floats(9, 64), True)),
    ("aten::nll_loss_forward", (floats(64, 2), integers(64), None, 1, -100)),
    ("aten::cross_entropy_loss", (floats(64, 2), integers(64), None, 1, -100, 0.0)),
    ("aten::nll_loss2d_forward", (floats(2, 2, 8, 8), integers(2, 8, 8), None, 1, -100)),
    ("aten::binary_cross_entropy", (floats(64), floats(64), None, 1)),
    ("aten::bernoulli_", (floats(64), floats(64), None)),
    ("aten::multinomial", (floats(64), 4, False, None)),
    ("aten::floor_divide", (integers(64), integers(64))),
    ("aten::remainder", (integers(64), integers(64))),
    ("aten::max_pool2d_with_indices_backward",
     (floats(2, 3, 4, 4), floats(2, 3, 8, 8), (2, 2), (2, 2), (0, 0), (1, 1), False, integers(2, 3, 4, 4))),
    ("aten::_ctc_loss", (floats(9, 2, 5), integers(2, 3), integers(2), integers(2), 0, False)),
    ("aten::one_hot", (integers(64), 7)),
    ("aten::_scaled_dot_product_flash_attention", (floats(1, 2, 8, 4), floats(1, 2, 8, 4), floats(1, 2, 8, 4), 0.1)),
    ("aten::_scaled_dot_product_efficient_attention_backward",
     (*[floats(1, 2, 8, 4)] * 4, None, floats(1, 2, 8, 4), floats(1, 2, 8), integers(), integers(), 0.1,
      (True, True, True, False), False, None)),
    ("aten::_fused_adamw_",
     ((floats(4),), (floats(4),), (floats(4),), (floats(4),), (), (floats(),), 1e-3, 0.9, 0.99, 0.0, 1e-8, False,
      False, None, None)),
]  # fmt: skip
"""Ops whose integers must be in range, or whose numbers must be probabilities or above zero."""


@pytest.mark.parametrize(("name", "arguments"), TRICKY, ids=[f"{at}-{name}" for at, (name, _) in enumerate(TRICKY)])
def test_made_up_operands_are_valid(name: str, arguments: tuple[Argument, ...]) -> None:
    for result in operands_of(run_alone(name, *arguments)):
        assert not bool(result.isnan().any())


def operands_of(results: Any) -> Iterator[torch.Tensor]:
    for item in results if isinstance(results, tuple | list) else (results,):
        if isinstance(item, torch.Tensor):
            yield item


def test_logarithms_get_positive_numbers() -> None:
    for name in ("aten::log", "aten::sqrt_", "aten::rsqrt", "aten::log2"):
        assert bool(run_alone(name, floats(1000)).isfinite().all())


def test_gaps_before_indices_are_found_by_the_shape_of_what_is_written() -> None:
    bound = bind("aten::index_put_", (floats(5, 7, 3), (integers(4),), floats(5, 7, 4)), device_type="cpu")
    _, indices, _, _ = Operands(torch.device("cpu"), PLENTY).prepare(bound).args  # type: ignore[attr-defined]
    assert indices[:2] == [None, None]
    assert int(indices[2].max()) < 3


def test_gaps_before_indices_are_found_by_the_shape_of_what_was_read(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "dlrm-inference-fp32-b2048-shapes.json.gz")
    rows = [row for row, name in enumerate(trace.ops.name) if trace.strings[name] == "aten::index"]
    (problem,) = choose_calls(trace, np.array(rows), "cpu").problems
    assert problem.bound is not None
    (result,) = operands_of(Operands(torch.device("cpu"), PLENTY).prepare(problem.bound)())
    assert tuple(result.shape) == (2048, 351)


@pytest.mark.parametrize("kind", ["flash", "efficient"])
def test_attention_runs_backward_without_seeds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_has_kernel", lambda *_: True)
    four, one = floats(1, 2, 8, 4), floats(1, 2, 8)
    arguments: dict[str, tuple[Argument, ...]] = {
        "flash": (*[four] * 5, one, None, None, 8, 8, 0.1, True, TensorSpec("uint64", (2,)), TensorSpec("uint64", ())),
        "efficient": (*[four] * 4, None, four, one, integers(), integers(), 0.1, (True,) * 4, False, None),
    }
    bound = bind(f"aten::_scaled_dot_product_{kind}_attention_backward", arguments[kind], device_type="cuda")
    call: Any = Operands(torch.device("cpu"), PLENTY).prepare(bound)
    names = [parameter.name for parameter in bound.overload._schema.arguments]
    assert call.args[names.index("dropout_p")] == 0.0
    assert all(item is None or not isinstance(item, TensorSpec) for item in call.args)


def test_pooling_scatters_to_where_it_took_from() -> None:
    (_, arguments) = next(item for item in TRICKY if item[0].startswith("aten::max_pool2d"))
    bound = bind("aten::max_pool2d_with_indices_backward", arguments, device_type="cpu")
    call: Any = Operands(torch.device("cpu"), PLENTY).prepare(bound)
    indices = call.args[-1]
    rows, columns = indices // 8 // 2, indices % 8 // 2
    assert torch.equal(rows, torch.arange(4)[:, None].expand(2, 3, 4, 4))
    assert torch.equal(columns, torch.arange(4).expand(2, 3, 4, 4))


def test_operands_of_one_call_are_apart_and_those_of_equal_calls_the_same() -> None:
    pool = Operands(torch.device("cpu"), PLENTY)
    bound = bind("aten::add", (floats(4), floats(4), 1), device_type="cpu")
    left, right = pool.prepare(bound).args  # type: ignore[attr-defined]
    assert left.data_ptr() != right.data_ptr()
    assert pool.prepare(bound).args[0] is left  # type: ignore[attr-defined]


DTYPES = ("float32", "bfloat16", "float64", "float8_e4m3fn", "int64", "uint8", "uint16", "bool", "complex64")


@given(
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    order=st.randoms(use_true_random=False),
    dtype=st.sampled_from(DTYPES),
    fill=st.sampled_from([*map(Fill, Content), Fill(Content.INDEX, 3), Fill(Content.STEPS, 5)]),
)
def test_a_tensor_has_the_recorded_layout(shape: tuple[int, ...], order: Any, dtype: str, fill: Fill) -> None:
    high = fill if fill.content is not Content.INDEX else Fill(Content.INDEX, max(fill.high, 1))
    axes = list(range(len(shape)))
    order.shuffle(axes)
    strides = [0] * len(shape)
    step = 1
    for axis in axes:
        strides[axis] = step if order.random() < 0.8 else 0  # 0: expanded
        step *= max(shape[axis], 1)
    tensor = make_tensor(TensorSpec(dtype, shape, tuple(strides)), high, torch.device("cpu"))
    assert (tuple(tensor.shape), tensor.stride(), str(tensor.dtype)) == (shape, tuple(strides), f"torch.{dtype}")


def test_what_does_not_fit_is_refused_before_it_is_made() -> None:
    pool = Operands(torch.device("cpu"), 1000.0)
    huge = bind("aten::mm", (floats(1 << 20, 1 << 20), floats(1 << 20, 1)), device_type="cpu")
    grows = bind("aten::zeros", ((1 << 40,), "float32", None, "cuda", None), device_type="cpu")
    outer = bind("aten::outer", (floats(50), floats(50)), device_type="cpu")
    for bound in (huge, grows, outer):
        with pytest.raises(TooLargeError):
            pool.check_size(bound, PLENTY)
    pool.check_size(bind("aten::outer", (floats(5), floats(5)), device_type="cpu"), PLENTY)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::neg", (floats(1 << 32),)),
        ("aten::mm", (floats(1 << 15, 1 << 15), floats(1 << 15, 1 << 15))),
        ("aten::zeros", ((1 << 33,), "float32", None, "cuda", None)),
    ],
)
def test_what_no_machine_does_in_the_time_left_is_refused_before_it_is_made(name: str, arguments: Any) -> None:
    pool, bound = Operands(torch.device("cpu"), 1e15), bind(name, arguments, device_type="cpu")
    with pytest.raises(UnfitError, match="longer than the time budget"):
        pool.check_size(bound, 1.0)
    pool.check_size(bound, 1e3)


def test_ops_without_room_beside_others_get_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "memory_limit", lambda _device: 4_500.0)
    trace = build_trace(
        ("aten::neg", (floats(500),), -1), ("aten::neg", (floats(400),), -1), ("aten::neg", (floats(900),), -1)
    )
    found = rerun(trace, [0, 1, 2])
    assert [bool(reason) for reason in found.reason] == [False, False, True]
    assert found.reason[2] == "does not fit in memory"
    assert found.whole is not None
    assert found.whole.call_count == 2


LINEAR: tuple[Argument, ...] = (floats(8, 4), floats(6, 4), floats(6))
ADDMM: tuple[Argument, ...] = (floats(6), floats(8, 4), TensorSpec("float32", (4, 6), (1, 4)), 1, 1)


def test_the_outermost_op_that_can_be_called_stands_for_those_inside() -> None:
    conv: tuple[Argument, ...] = (floats(1, 3, 8, 8), floats(4, 3, 3, 3), floats(4), (1, 1), (0, 0), (1, 1), 1)
    trace = build_trace(
        ("Torch-Compiled Region: 0/0", None, -1),
        ("aten::linear", LINEAR, 0),
        ("aten::addmm", ADDMM, 1),
        ("aten::conv2d", conv, -1),
        ("aten::miopen_convolution", (*conv[:3], (0, 0), (1, 1), (1, 1), 1, False, False), 3),
        ("aten::add_", (floats(1, 4, 6, 6), floats(1, 4, 1, 1), 1), 4),
        ("aten::linear", LINEAR, -1),
        ("aten::relu", None, -1),
    )
    calls = choose_calls(trace, np.array([2, 4, 5, -1, 6, 2, 7]), "cpu")
    assert calls.op_of_call.tolist() == [1, 3, 6, 7]
    assert calls.call_of_leaf.tolist() == [0, 1, 1, -1, 2, 0, 3]
    assert calls.problem_of_call.tolist() == [0, 1, 0, 2]
    assert [problem.reason for problem in calls.problems] == ["", "", "its shapes were not recorded"]


def test_every_call_is_timed_or_has_a_reason() -> None:
    trace = build_trace(
        ("aten::linear", LINEAR, -1),
        ("aten::mm", (floats(2, 3), floats(4, 5)), -1),
        ("aten::linear", LINEAR, -1),
        ("vllm::rotary_embedding", LINEAR, -1),
    )
    found = rerun(trace, [0, 1, 2, 3])
    assert found.problem_of_call.tolist() == [0, 1, 0, 2]
    assert np.isfinite(found.time_ns).tolist() == [True, False, False]
    assert found.time_ns[0] > 0
    assert found.timing[0] == "host_min5"
    assert found.reason[1].startswith("failed: mat1 and mat2 shapes cannot be multiplied")
    assert found.whole is not None
    assert found.whole.call_count == 2
    assert found.whole.parts_ns == pytest.approx(2 * found.time_ns[0])
    assert (found.whole.device_ns, found.whole.graph_ns) == (None, None)


def test_the_heaviest_ops_come_first_and_the_rest_is_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(execute, "time", clock)
    monkeypatch.setattr(execute, "time_call", clock.time_call)
    clock.install(monkeypatch)
    names = ("aten::neg", "aten::abs", "aten::exp", "aten::sin")
    trace = build_trace(*((name, (floats(4),), -1) for name in names))
    found = rerun(trace, [0, 1, 2, 3], [1.0, 5.0, 9.0, 3.0], seconds=10.0)
    assert clock.ran[0] == "exp"
    assert [bool(timing) for timing in found.timing] == [False, True, True, False]
    assert {found.reason[0], found.reason[3]} == {execute.OUT_OF_TIME}
    assert found.timing[1] == execute.ONCE
    assert found.time_ns[2] == pytest.approx(4e9)


class Clock:
    """`time` as far as a re-run reads it; every op takes four seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ran: list[str] = []

    def monotonic(self) -> float:
        return self.now_s

    def perf_counter_ns(self) -> int:
        return round(self.now_s * 1e9)

    def time_call(self, *_: object) -> Any:
        raise AssertionError("there is no time to repeat a call")

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def prepare(_self: Operands, bound: schema.Bound) -> Callable[[], None]:
            def run() -> None:
                self.now_s += 4.0
                self.ran.append(bound.name)

            return run

        monkeypatch.setattr(Operands, "prepare", prepare)


def test_nothing_of_the_process_changes(training_step: Callable[..., Any]) -> None:
    trace = trace_iteration(training_step("cpu"), device="cpu", warmup=1, repeats=1)
    before = torch.get_rng_state(), torch.get_float32_matmul_precision(), torch.get_num_threads()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = rerun(trace, [row for row in range(len(trace.ops.name)) if trace.ops.parent[row] < 0])
    after = torch.get_rng_state(), torch.get_float32_matmul_precision(), torch.get_num_threads()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert torch.is_grad_enabled()
    assert not warned
    assert np.isfinite(found.time_ns).any()
    assert not [reason for reason in found.reason if reason.startswith("failed")]


def test_a_step_recorded_on_the_cpu_runs_again(training_step: Callable[..., Any]) -> None:
    trace = trace_iteration(training_step("cpu"), device="cpu", warmup=1, repeats=1)
    children = set(trace.ops.parent.tolist())
    leaves = [row for row in range(len(trace.ops.name)) if row not in children]
    calls = choose_calls(trace, np.array(leaves), "cpu")
    names = {
        trace.strings[trace.ops.name[problem.op]]: problem.reason for problem in calls.problems if problem.bound is None
    }
    assert {"aten::linear", "aten::conv2d", "aten::convolution_backward"} <= {
        trace.strings[trace.ops.name[problem.op]] for problem in calls.problems if problem.bound is not None
    }
    assert not [name for name, reason in names.items() if name.startswith("aten::") and "not recorded" in reason]


SAMPLES = ("bert_base-training-bf16-b16", "dlrm-training-fp32-b2048", "ddpm_unet-training-bf16-b32",
           "gpt2_small-training-fp32-b4", "resnet50-training-bf16-b32", "seq2seq-training-fp32-b64")  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_every_op_of_the_samples_can_be_called_on_a_gpu(
    name: str, root_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_has_kernel", lambda *_: True)
    trace = load_trace(root_dir / "samples" / f"{name}-shapes.json.gz")
    calls = choose_calls(trace, np.arange(len(trace.ops.name)), "cuda")
    refused = {trace.strings[trace.ops.name[item.op]]: item.reason for item in calls.problems if item.bound is None}
    assert not refused


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    ["h100_bert_small_inference", "h100_vit_small_inference", "mi300x_bert_small_inference",
     "mi300x_vit_small_inference"],
)  # fmt: skip
def test_nearly_all_time_of_eager_recordings_can_be_run(
    name: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_has_kernel", lambda *_: True)
    trace = load_trace(data_dir / "traces" / f"{name}.json.gz")
    calls = choose_calls(trace, trace.kernels.op.astype(np.int64), "cuda")
    can_run = np.array([problem.bound is not None for problem in calls.problems])
    share = trace.kernels.duration_ns[can_run[calls.problem_of_call[calls.call_of_leaf]]].sum()
    assert share / trace.kernels.duration_ns.sum() > 0.99


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "tpu", "meta", "mps"])
def test_a_device_that_is_not_here_is_refused(name: str) -> None:
    if torch.cuda.is_available() and name == "cuda":
        pytest.skip("there is one")
    with pytest.raises(InputError, match=f"device={name!r}"):
        find_device(name)


class FakeStreams:
    """torch.cuda as far as a re-run uses it: tensors stay on the CPU, every call takes 7 µs of the device's time."""

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.now_us, self.calls, self.fails_at = 0.0, 0, fails_at
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_us = gpu.now_us

            def elapsed_time(self, end: Any) -> float:
                return float(end.at_us - self.at_us) * 1e-3

        self.Event = Event

    def synchronize(self, _device: object = None) -> None:
        if self.fails_at is not None and self.calls >= self.fails_at:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def run(self) -> None:
        self.calls += 1
        self.now_us += 7.0

    def empty_cache(self) -> None:
        pass


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalDevice]:
    """Make re-runs believe in a GPU; returns what gives it a failure."""

    def install(**options: Any) -> LocalDevice:
        streams = FakeStreams(**options)

        def time_call(call: Callable[[], object], device: str) -> Any:
            assert device == "cuda"
            before_us = streams.now_us
            call()
            return Timed(streams.now_us - before_us, GRAPH)

        def prepare(_self: Operands, _bound: schema.Bound) -> Callable[[], None]:
            return streams.run

        monkeypatch.setattr(torch, "cuda", streams)
        monkeypatch.setattr(execute, "time_call", time_call)
        monkeypatch.setattr(execute, "memory_limit", lambda _device: PLENTY)
        monkeypatch.setattr(execute, "undisturbed", lambda *_: torch.no_grad())
        monkeypatch.setattr(execute, "WARM_UP_S", 0.0)
        monkeypatch.setattr(schema, "_has_kernel", lambda *_: True)
        monkeypatch.setattr(Operands, "prepare", prepare)
        return LocalDevice(torch_name="cuda:0", device=Device(name="NVIDIA L4"), is_gpu=True)

    return install


def test_a_gpu_is_timed_by_graph_and_as_a_whole(fake_gpu: Callable[..., LocalDevice]) -> None:
    trace = build_trace(("aten::linear", LINEAR, -1), ("aten::neg", (floats(4),), -1), ("aten::linear", LINEAR, -1))
    found = rerun(trace, [0, 1, 2], local=fake_gpu())
    assert found.is_gpu
    assert found.time_ns.tolist() == [7e3, 7e3]
    assert set(found.timing) == {"graph_mean"}
    assert found.whole is not None
    assert found.whole.device_ns == pytest.approx(21e3)
    assert found.whole.graph_ns == pytest.approx(21e3)
    assert found.whole.parts_ns == pytest.approx(21e3)
    assert found.whole.elapsed_ns > 0


def test_a_gpu_that_fails_takes_no_more_calls(fake_gpu: Callable[..., LocalDevice]) -> None:
    trace = build_trace(*((name, (floats(4),), -1) for name in ("aten::neg", "aten::abs", "aten::exp")))
    found = rerun(trace, [0, 1, 2], [3.0, 2.0, 1.0], local=fake_gpu(fails_at=5))
    assert np.isfinite(found.time_ns).tolist() == [True, False, False]
    assert "device-side assert" in found.reason[1]
    assert found.reason[2] == execute.BROKEN
    assert found.whole is None


def test_the_recorded_precision_is_set_and_taken_back() -> None:
    before = torch.get_float32_matmul_precision()
    wanted = before == "highest"
    with local._precision(Precision(matmul_tf32=wanted)):
        assert (torch.get_float32_matmul_precision() != "highest") == wanted
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(KeyError), local._precision(Precision(matmul_tf32=wanted)):
        raise KeyError
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("limit", "share"), [("max", 0.5), (str(1 << 30), 0.25)])
def test_a_container_may_have_less_memory_than_its_host(
    limit: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 29}\n")
    monkeypatch.setattr(operands, "_CONTAINER", tmp_path)
    monkeypatch.setattr(os, "sysconf", lambda name: (1 << 30) if name == "SC_AVPHYS_PAGES" else 1)
    assert operands.memory_limit(torch.device("cpu")) == share * (1 << 30)


def test_noise_is_shared_by_shape_alone() -> None:
    tensor = operands.make_tensor(floats(1000), NOISE, torch.device("cpu"))
    assert abs(float(tensor.mean())) < 0.5
    assert 0.5 < float(tensor.std()) < 2


def test_what_autocast_converted_runs_in_the_dtypes_that_it_chose() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 5))
        trace = trace_iteration(lambda: layers(torch.ones(2, 3, 8, 8)), device="cpu", warmup=0, repeats=0)
    leaves = np.flatnonzero(~np.isin(np.arange(len(trace.ops.name)), trace.ops.parent))
    found = rerun(trace, leaves.tolist())
    ran = [(trace.strings[trace.ops.name[op]], trace.signatures[trace.ops.signature[op]]) for op in found.op]
    heavy = {name: [item.dtype for item in signature.arguments[:3] if isinstance(item, TensorSpec)]
             for name, signature in ran if name in ("aten::conv2d", "aten::linear")}  # fmt: skip
    assert heavy == dict.fromkeys(("aten::conv2d", "aten::linear"), ["bfloat16"] * 3)
    assert not any(found.reason)
    assert np.isfinite(found.time_ns).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
class TestOnGpu:
    """What no fake can show: kernels, graphs, and that recorded and re-run times agree."""

    def test_a_recording_is_confirmed(self, training_step: Callable[..., Any]) -> None:
        trace = trace_iteration(training_step("cuda"), warmup=3, repeats=3)
        leaves = trace.kernels.op.astype(np.int64)
        found = rerun_ops(trace, leaves, trace.kernels.duration_ns.astype(np.float64), find_device("cuda"))
        assert found.is_gpu
        assert np.isfinite(found.time_ns).mean() > 0.8
        assert found.whole is not None
        assert found.whole.device_ns is not None
        known = found.call_of_leaf >= 0
        timed = np.isfinite(found.time_ns[found.problem_of_call])
        recorded_ns = trace.kernels.duration_ns[known][timed[found.call_of_leaf[known]]].sum()
        rerun_ns = np.nansum(found.time_ns[found.problem_of_call])
        assert 0.3 < recorded_ns / rerun_ns < 3

    @pytest.mark.parametrize("name", SAMPLES)
    def test_the_samples_run(self, name: str, root_dir: Path) -> None:
        trace = load_trace(root_dir / "samples" / f"{name}-shapes.json.gz")
        leaves = np.arange(len(trace.ops.name))
        found = rerun_ops(trace, leaves, np.ones(len(leaves)), find_device("cuda"), seconds=inf)
        failed = {trace.strings[trace.ops.name[op]]: reason for op, reason in zip(found.op, found.reason, strict=True)}
        assert not [reason for reason in failed.values() if reason.startswith("failed")]

    @pytest.mark.parametrize(("name", "arguments"), TRICKY, ids=[str(at) for at, _ in enumerate(TRICKY)])
    def test_made_up_operands_are_valid(self, name: str, arguments: tuple[Argument, ...]) -> None:
        bound = bind(name, arguments, device_type="cuda")
        with torch.no_grad():
            Operands(torch.device("cuda"), PLENTY).prepare(bound)()
        torch.cuda.synchronize()
