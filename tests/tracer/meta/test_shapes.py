"""What a shape-only recording holds."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves
from wavecast.analyzer.memory import describe_memory
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.axis.change import with_batch
from wavecast.formats.trace.column import MISSING
from wavecast.formats.trace.signature import UNKNOWN, TensorSpec
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.tracer import trace_iteration

FUSES_RMS_NORM = pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="older torch runs it as several ops on a GPU, too"
)


def record(step: Any, **options: Any) -> Any:
    return trace_iteration(step, device="meta", **options)


def build_training(module: Any, batch_size: Any, dtype: torch.dtype = torch.float32) -> Any:
    with torch.device("meta"):
        model, batch = module.build().to(dtype), module.make_batch(batch_size)
    batch = [item.to(dtype) if item.is_floating_point() else item for item in batch]
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        module.compute_loss(model, *batch).backward()
        optimizer.step()

    return step


@cache
def recorded_training(module: Any, dtype: torch.dtype) -> Any:
    """Record a step of two samples."""
    return record(build_training(module, 2, dtype))


@pytest.mark.parametrize(
    ("name", "parameter_count"),
    [
        ("resnet50", 25_557_032),
        ("bert_base", 109_482_240 + 2 * 768 + 2),  # the published encoder with pooler, and a head of two classes
        ("gpt2_small", 124_439_808),
        ("vit_b16", 86_567_656),
        ("dcgan", 3_576_704 + 2_765_568),
        ("dlrm", 540_201_232 + 475_985),  # the tables, and the two perceptrons
        ("ddpm_unet", 35_746_307),
    ],
)
def test_architectures_have_the_published_number_of_parameters(
    load_model: Callable[[str], Any], name: str, parameter_count: int
) -> None:
    with torch.device("meta"):
        model = load_model(name).build()
    assert sum(item.numel() for item in model.parameters()) == parameter_count


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        (
            "resnet50",
            torch.float32,
            {
                "aten::convolution": 53,
                "aten::convolution_backward": 53,
                "aten::native_batch_norm": 53,
                "aten::native_batch_norm_backward": 53,
                "aten::max_pool2d_with_indices": 1,
                "aten::addmm": 1,
            },
        ),
        (
            "bert_base",
            torch.float32,
            {
                "aten::_scaled_dot_product_efficient_attention": 12,
                "aten::_scaled_dot_product_efficient_attention_backward": 12,
                "aten::native_layer_norm": 25,
                "aten::native_layer_norm_backward": 25,
                "aten::gelu_backward": 12,
                "aten::native_dropout": 26,
                "aten::addmm": 12 * 6 + 2,
            },
        ),
        (
            "gpt2_small",
            torch.bfloat16,
            {
                "aten::_scaled_dot_product_flash_attention": 12,
                "aten::_scaled_dot_product_flash_attention_backward": 12,
                "aten::addmm": 12 * 4,
                "aten::mm": 1 + 2 * (12 * 4 + 1),
                "aten::native_dropout_backward": 25,
            },
        ),
        ("vit_b16", torch.float32, {"aten::convolution": 1, "aten::addmm": 12 * 4 + 1, "aten::native_dropout": 0}),
        ("dlrm", torch.float32, {"aten::_embedding_bag": 26, "aten::bmm": 3, "aten::addmm": 7}),
        ("seq2seq", torch.float32, {"aten::_cudnn_rnn": 2, "aten::_cudnn_rnn_backward": 2, "aten::addmm": 1}),
        ("dcgan", torch.float32, {"aten::convolution": 5 + 3 * 5}),
    ],
)
def test_training_issues_the_ops_that_the_architecture_has(
    load_model: Callable[[str], Any],
    op_counts: Callable[[Trace], Counter[str]],
    name: str,
    dtype: torch.dtype,
    expected: Any,
) -> None:
    found = op_counts(recorded_training(load_model(name), dtype))
    assert {op: found[op] for op in expected} == expected


def test_the_trace_says_what_it_is(training_step: Callable[..., Any]) -> None:
    trace = record(training_step(), name="small", batch_size=4, samples_per_iteration=4)
    assert (trace.meta.capture, trace.meta.has_shapes, trace.meta.source_format) == ("shapes", True, "wavecast")
    assert trace.meta.framework == f"torch {torch.__version__.split('+')[0]}"
    assert (trace.meta.workload.name, trace.meta.workload.mode) == ("small", "training")
    assert (trace.meta.workload.batch_size, trace.meta.workload.samples_per_iteration) == (4, 4)
    assert not trace.is_measured
    assert len(trace.iterations.start_ns) == 0
    assert (trace.ops.duration_ns == MISSING).all()


def test_signatures_hold_the_schema_order_with_defaults_and_results(training_step: Callable[..., Any]) -> None:
    trace = record(training_step())
    signatures = {
        trace.strings[n]: trace.signatures[s] for n, s in zip(trace.ops.name, trace.ops.signature, strict=True)
    }
    convolution = signatures["aten::convolution"]
    image, weight = convolution.arguments[:2]
    assert image == TensorSpec("float32", (4, 3, 8, 8), (192, 64, 8, 1))
    assert weight.shape == (8, 3, 3, 3)
    assert convolution.arguments[3:] == ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    assert convolution.results == (TensorSpec("float32", (4, 8, 6, 6), (288, 36, 6, 1)),)
    assert signatures["aten::addmm"].arguments[3:] == (1, 1)  # beta and alpha, which the call left out
    assert signatures["aten::_log_softmax"].arguments[1:] == (1, False)


def test_phases_follow_the_step(training_step: Callable[..., Any], op_names: Callable[..., list[str]]) -> None:
    trace = record(training_step())
    assert op_names(trace, Phase.FORWARD)[0] == "aten::convolution"
    assert "aten::convolution_backward" in op_names(trace, Phase.BACKWARD)
    assert all(not name.endswith("_backward") for name in op_names(trace, Phase.FORWARD))
    assert op_names(trace, Phase.OTHER)[0] == "aten::_foreach_norm"  # gradient clipping
    optimizer = op_names(trace, Phase.OPTIMIZER)
    assert optimizer
    assert all(name.startswith("aten::_foreach_") for name in optimizer)
    assert (np.diff(trace.ops.phase[trace.ops.phase != Phase.OTHER]) >= 0).all()


def test_inference_has_forward_ops_only(training_step: Callable[..., Any], op_names: Callable[..., list[str]]) -> None:
    model = training_step().model.eval()

    def predict() -> Any:
        with torch.inference_mode():
            return model(torch.randn(2, 3, 8, 8))

    trace = record(predict)
    assert trace.meta.workload.mode == "inference"
    assert set(trace.ops.phase) == {Phase.FORWARD}
    assert "aten::native_dropout" not in op_names(trace)


@pytest.mark.parametrize("name", ["bert_base", "seq2seq"])
def test_inference_mode_gives_the_ops_of_no_grad(
    load_model: Callable[[str], Any], op_names: Callable[..., list[str]], name: str
) -> None:
    module = load_model(name)
    with torch.device("meta"):
        model, batch = module.build().eval(), module.make_batch(2)

    def predict(context: Any) -> None:
        with context():
            module.predict(model, *batch)

    in_inference_mode = record(lambda: predict(torch.inference_mode))
    assert op_names(in_inference_mode) == op_names(record(lambda: predict(torch.no_grad)))


def test_backward_ops_link_to_the_forward_op_and_its_module(load_model: Callable[[str], Any]) -> None:
    trace = recorded_training(load_model("resnet50"), torch.float32)
    name_of = {index: trace.strings[name] for index, name in enumerate(trace.ops.name)}
    rows = [index for index, name in name_of.items() if name == "aten::convolution_backward"]
    forward = trace.ops.forward[rows]
    assert {name_of[index] for index in forward} == {"aten::convolution"}
    assert len(set(forward)) == 53
    assert (trace.ops.sequence[rows] == trace.ops.sequence[forward]).all()
    assert (trace.ops.module[rows] == trace.ops.module[forward]).all()
    paths = {trace.strings[index] for index in trace.ops.module[rows]}
    assert {"ResNet50.stem.0", "ResNet50.blocks.15.conv3", "ResNet50.blocks.3.downsample.0"} < paths


def test_a_module_outside_its_caller_is_named_by_its_class() -> None:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [torch.nn.ReLU()]

        def forward(self, data: Any) -> Any:
            return self.hidden[0](data)

    model = Holder()
    trace = record(lambda: model(torch.ones(2)))
    assert [trace.strings[index] for index in trace.ops.module if index != MISSING] == ["Holder.ReLU"]


def test_operands_tell_storages_apart(op_names: Callable[..., list[str]]) -> None:
    with torch.device("meta"):
        weight, data = torch.zeros(8, 8), torch.zeros(2, 8)

    def step() -> Any:
        first = data @ weight.t()
        return first.view(-1).add_(1) @ torch.zeros(16)

    trace = record(step)
    names = op_names(trace)
    assert names == ["aten::t", "aten::mm", "aten::view", "aten::add_", "aten::zeros", "aten::dot"]
    storage = [trace.tensors.storage[index] for index in trace.operands.tensor]
    uses = list(zip(trace.operands.op, trace.operands.is_output, storage, strict=True))
    of = {(names[op], bool(out)): [s for o, f, s in uses if (o, f) == (op, out)] for op, out, _ in uses}
    assert of["aten::t", False] == of["aten::t", True] == of["aten::mm", False][1:]
    assert of["aten::mm", True] == of["aten::view", True] == of["aten::add_", True] == of["aten::dot", False][:1]
    assert len(set(trace.tensors.storage)) == 5
    assert trace.tensors.element_count[trace.operands.tensor[0]] == 64


def test_freed_storages_are_not_mistaken_for_new_ones() -> None:
    def step() -> None:
        for _ in range(50):
            torch.ones(3)

    trace = record(step)
    assert len(set(trace.tensors.storage)) == 50


def test_checkpointed_layers_run_again_in_backward() -> None:
    with torch.device("meta"):
        model, data = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()), torch.randn(4, 8)

    def step() -> None:
        torch.utils.checkpoint.checkpoint(model, data, use_reentrant=False).sum().backward()

    trace = record(step)
    is_addmm = np.array([trace.strings[name] == "aten::addmm" for name in trace.ops.name])
    assert list(trace.ops.phase[is_addmm]) == [Phase.FORWARD, Phase.BACKWARD]
    assert {trace.strings[index] for index in trace.ops.module[is_addmm]} == {"Sequential.0"}


def test_an_optimizer_that_steps_inside_backward_is_the_optimizer(op_names: Callable[..., list[str]]) -> None:
    with torch.device("meta"):
        weight = torch.nn.Parameter(torch.ones(8, 8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    trace = record(lambda: (torch.ones(4, 8) @ weight).sum().backward())
    assert op_names(trace, Phase.OPTIMIZER) == ["aten::_foreach_add_"]


@pytest.mark.parametrize("fused", [True, False])
def test_optimizers_keep_their_counters_on_the_host(op_names: Callable[..., list[str]], fused: bool) -> None:
    def step() -> None:
        weight = torch.nn.Parameter(torch.ones(8, 8))
        optimizer = torch.optim.Adam([weight], fused=fused, foreach=not fused)
        weight.sum().backward()
        optimizer.step()

    names = op_names(record(step), Phase.OPTIMIZER)
    assert ("aten::_fused_adam_" in names) == fused
    assert ("aten::_foreach_addcdiv_" in names) == (not fused)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda x: functional.dropout(x, 0.1), "aten::native_dropout"),
        pytest.param(lambda x: functional.rms_norm(x, (8,)), "aten::_fused_rms_norm", marks=FUSES_RMS_NORM),
        (functional.silu, "aten::silu"),
        (lambda x: torch.nn.GRU(8, 4, device="meta")(x)[0], "aten::_cudnn_rnn"),
        (lambda x: torch.nn.RNN(8, 4, device="meta")(x)[0], "aten::_cudnn_rnn"),
        (lambda x: torch.nn.LSTM(8, 4, proj_size=2, device="meta")(x)[0], "aten::_cudnn_rnn"),
        (lambda x: torch.nn.GRUCell(8, 4, device="meta")(x[0]), "aten::_thnn_fused_gru_cell"),
        (lambda x: torch.nn.LSTMCell(8, 4, bias=False, device="meta")(x[0])[0], "aten::_thnn_fused_lstm_cell"),
    ],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_ops_that_cuda_runs_whole_are_whole(
    op_names: Callable[..., list[str]], run: Any, expected: Any, mode: Any
) -> None:
    def step() -> None:
        with mode():
            run(torch.ones(5, 3, 8))

    assert expected in op_names(record(step))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (functional.mish, "aten::mish_backward"),
        (functional.silu, "aten::silu_backward"),
        pytest.param(lambda x: functional.rms_norm(x, (8,)), "aten::_fused_rms_norm_backward", marks=FUSES_RMS_NORM),
        (torch.nn.GRUCell(8, 4, device="meta"), "aten::_thnn_fused_gru_cell_backward"),
        (lambda x: torch.nn.LSTMCell(8, 4, device="meta")(x)[0], "aten::_thnn_fused_lstm_cell_backward_impl"),
    ],
)
def test_backward_ops_that_cuda_runs_whole_are_whole(
    op_names: Callable[..., list[str]], run: Any, expected: Any
) -> None:
    names = op_names(record(lambda: run(torch.ones(3, 8, requires_grad=True)).sum().backward()))
    assert expected in names


@pytest.mark.parametrize("cell", [torch.nn.GRUCell, torch.nn.LSTMCell])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_cells_are_shaped_like_what_they_are_of(cell: Any, bias: bool) -> None:
    with torch.device("meta"):
        module, x = cell(8, 4, bias=bias), torch.ones(3, 8, requires_grad=True)

    def step() -> None:
        states = module(x)
        states = module(x, states)  # whose gradients come with the second one's
        (sum(state.sum() for state in states) if isinstance(states, tuple) else states.sum()).backward()

    record(step)
    leaves = [x, *module.parameters()]
    assert [leaf.grad.shape for leaf in leaves if leaf.grad is not None] == [leaf.shape for leaf in leaves]


def test_wrapper_subclasses_show_the_ops_on_what_they_wrap(op_names: Callable[..., list[str]]) -> None:
    with torch.device("meta"):
        pair = TwoTensor(torch.ones(3, 3), torch.ones(3, 3))
    assert op_names(record(lambda: pair @ pair)) == ["aten::mm", "aten::mm"]


def test_long_lists_of_scalars_are_left_out() -> None:
    with torch.device("meta"):
        model = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(20))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        sum(layer(torch.ones(2, 2)).sum() for layer in model).backward()
        optimizer.step()

    trace = record(step)
    numbers = zip(trace.ops.name, trace.ops.signature, strict=True)
    signatures = {trace.strings[name]: trace.signatures[signature] for name, signature in numbers}
    assert signatures["aten::_foreach_addcdiv_"].arguments[3] is UNKNOWN
    assert len(signatures["aten::_foreach_addcdiv_"].tensors()) == 3 * 40


def test_the_same_step_gives_the_same_trace(training_step: Callable[..., Any]) -> None:
    assert record(training_step()) == record(training_step())


def test_one_warm_up_run_makes_the_optimizer_state(training_step: Callable[..., Any]) -> None:
    calls = []
    step = training_step()

    def count() -> None:
        calls.append(1)
        step()

    record(count)
    assert len(calls) == 2
    record(lambda: calls.append(1), warmup=0)
    assert len(calls) == 3


def lives(trace: Trace) -> list[tuple[str, str, int]]:
    """Return what is allocated and freed, with the op, in order."""
    memory, names = trace.memory, [trace.strings[name].removeprefix("aten::") for name in trace.ops.name.tolist()]
    assert (memory.time_ns == MISSING).all()
    events = zip(memory.size_bytes.tolist(), memory.op.tolist(), strict=True)
    return [("new" if size > 0 else "gone", names[op], abs(size)) for size, op in events]


def test_storages_are_recorded_from_the_op_that_returns_them_until_they_are_dropped() -> None:
    weight = torch.empty(4, 4, device="meta")
    kept: list[torch.Tensor] = []

    def step() -> None:
        with torch.no_grad():
            first = weight.relu()  # 64 bytes
            view = first.view(16)[:4]
            del first
            wide = view.double()  # 32
            del view
            wide.add_(1)
            torch.empty(0, device="meta")
            wide.sum()  # 8, dropped at once
            wide.sqrt()  # 32, dropped at once
            kept.append(wide)

    assert lives(record(step, warmup=0)) == [
        ("new", "relu", 64), ("new", "_to_copy", 32), ("gone", "_to_copy", 64), ("new", "sum", 8), ("gone", "sum", 8),
        ("new", "sqrt", 32), ("gone", "sqrt", 32),
    ]  # fmt: skip


def test_what_autograd_saves_is_dropped_as_backward_goes() -> None:
    weight = torch.empty(8, 8, device="meta", requires_grad=True)

    def step() -> None:
        weight.grad = None
        data = torch.empty(4, 8, device="meta")
        (data @ weight).exp().sigmoid().sum().backward()

    trace = record(step, warmup=1)
    events = lives(trace)
    assert events.index(("gone", "sigmoid_backward", 128)) > events.index(("new", "sigmoid_backward", 128))
    assert ("gone", "mul", 128) in events  # exp's result, saved for its backward, which multiplies
    held = sum(size if kind == "new" else -size for kind, _, size in events)
    assert held == 8 * 8 * 4  # the gradient


def test_storages_that_die_with_the_step_are_seen_to_and_those_that_it_leaves_not() -> None:
    kept: list[torch.Tensor] = []

    def step() -> None:
        local = torch.ones(4, device="meta")
        kept[:] = [local * 2]

    trace = record(step)
    rows = trace.memory
    assert rows.size_bytes.tolist() == [16, 16, -16]  # what is kept has no end, though it has one afterwards
    assert rows.op.tolist() == [0, 1, 1]
    kept.clear()
    assert rows.size_bytes.tolist() == [16, 16, -16]


def test_the_recorder_keeps_no_storage_alive_and_confuses_none_that_reuse_an_address() -> None:
    def step() -> None:
        for _ in range(50):
            torch.empty(1 << 40, device="meta")

    trace = record(step, warmup=0)
    assert trace.memory.block.tolist() == [number for number in range(50) for _ in range(2)]
    assert len(trace.tensors.storage) == 50


@pytest.mark.parametrize(("name", "mode"), [("gpt2_small", "training"), ("resnet50", "inference")])
def test_memory_at_another_batch_size_is_that_of_a_recording_there(
    load_model: Callable[[str], Any], name: str, mode: str
) -> None:
    module = load_model(name)

    def recorded(batch_size: int) -> Trace:
        step = build_training(module, batch_size)
        if mode == "inference":
            with torch.device("meta"):
                model, batch = module.build().eval(), module.make_batch(batch_size)
            step = torch.no_grad()(lambda: module.predict(model, *batch))
        return trace_iteration(step, device="meta", batch_size=batch_size)

    def peak(trace: Trace) -> int:
        use = describe_memory(trace, select_window(trace))
        assert use is not None
        return use.peak_bytes

    small, large = recorded(2), recorded(8)
    assert peak(with_batch(small, 8).trace) == peak(large) > 1.1 * peak(small)


def test_the_peak_is_the_one_that_torch_tracks(load_model: Callable[[str], Any]) -> None:
    step, tracker = build_training(load_model("dlrm"), 64), MemTracker()
    cells = [cell.cell_contents for cell in step.__closure__]
    for item in tree_leaves(cells):
        if isinstance(item, torch.nn.Module | torch.optim.Optimizer | torch.Tensor):
            tracker.track_external(item)

    def watched() -> None:
        tracker.reset_mod_stats()
        step()

    with tracker:
        trace = record(watched)
    use = describe_memory(trace, select_window(trace))
    assert use is not None
    tracked = tracker.get_tracker_snapshot("peak")[torch.device("meta")]["Total"]
    assert use.peak_bytes == pytest.approx(tracked, rel=1e-4)  # the tracker does not round up to 512 bytes


_BILLION = """
import re, torch
from pathlib import Path
from torch import nn
from wavecast.tracer import trace_iteration

with torch.device("meta"):
    layers = [nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, dropout=0.1) for _ in range(20)]
    model, data = nn.Sequential(*layers), torch.randn(8, 2048, 2048)
optimizer = torch.optim.AdamW(model.parameters())

def step():
    optimizer.zero_grad()
    model(data).sum().backward()
    optimizer.step()

trace = trace_iteration(step, device="meta")
count = sum(item.numel() for item in model.parameters())
# The kernel's own count: getrusage also counts what the process that started this one held.
peak_kib = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(count, len(trace.ops.name), peak_kib)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory off Linux")
def test_a_billion_parameters_need_no_memory() -> None:
    result = subprocess.run([sys.executable, "-c", _BILLION], capture_output=True, text=True, check=True)
    parameter_count, op_count, peak_kib = map(int, result.stdout.split())
    assert parameter_count > 1_000_000_000
    assert op_count > 20 * 30
    assert peak_kib < 1.5e6
