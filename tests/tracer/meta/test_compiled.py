"""Compiled functions in shape-only recordings: run eagerly, marked, and left as they were."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import wavecast
from torch import nn
from torch._dynamo import eval_frame
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.recorded.compiled import find_compiled
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.fusion.kernels import generate_kernels
from wavecast.analyzer.work.lookup import explained_ops
from wavecast.formats.trace.column import MISSING
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.tracer import trace_iteration

BACKWARD = "CompiledFunctionBackward"
DATA = torch.empty(4, 8, device="meta")

pytestmark = pytest.mark.filterwarnings(
    r"ignore:`torch\.jit:DeprecationWarning"
)  # torch's own, on loading its compiler


def record(step: Callable[[], object], **options: Any) -> Trace:
    return trace_iteration(step, device="meta", **options)


def region(number: int) -> str:
    return f"Torch-Compiled Region: {number}/0"


def is_region(name: str) -> bool:
    return name.startswith("Torch-Compiled Region") or name == BACKWARD


def outline(trace: Trace) -> list[tuple[str | None, list[str]]]:
    """Return runs of ops with the name of the row around them; without views, `empty` and regions' own rows.

    Checkpoints of torch before 2.12 create two empty tensors of their own.
    """
    names = [trace.strings[name] for name in trace.ops.name]
    parents = [(parent, names[parent] if parent >= 0 else None) for parent in trace.ops.parent.tolist()]
    told = [
        (*around, name.removeprefix("aten::"))
        for around, name in zip(parents, names, strict=True)
        if not is_region(name) and name not in ("aten::t", "aten::view", "aten::expand", "aten::empty")
    ]
    return [(key[1], [item[2] for item in items]) for key, items in groupby(told, key=lambda item: item[:2])]


def meta(module: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return module()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def run_backward(module: Any, model: Any, data: Any) -> None:
    module.compute_loss(model, *data).backward()


def training(model: Callable[..., torch.Tensor], parameters: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(DATA).sum().backward()
        optimizer.step()

    return step


OPTIONS: list[dict[str, Any]] = [
    {},
    {"mode": "reduce-overhead"},
    {"mode": "max-autotune"},
    {"fullgraph": True},
    {"dynamic": True},
    {"backend": "aot_eager"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("warmup", [0, 1])
def test_a_compiled_training_step_has_its_eager_ops_within_two_regions(options: dict[str, Any], warmup: int) -> None:
    model = meta(perceptron)
    found = outline(record(training(torch.compile(model, **options), model), warmup=warmup))
    assert found == [
        (region(0), ["addmm", "relu", "addmm"]),
        (None, ["sum", "ones_like"]),
        (BACKWARD, ["mm", "mm", "sum", "threshold_backward", "mm", "sum"]),
        (None, ["_foreach_add_"]),
    ]


def test_regions_have_the_phase_of_their_ops_and_backward_ones_their_forward() -> None:
    model = meta(perceptron)
    ops = (trace := record(training(torch.compile(model), model))).ops
    first, second = (trace.strings.index(name) for name in (region(0), BACKWARD))
    forward, backward = ((ops.name == name).nonzero()[0].item() for name in (first, second))
    assert (ops.phase[forward], ops.phase[backward]) == (Phase.FORWARD, Phase.BACKWARD)
    assert (ops.forward[forward], ops.forward[backward]) == (MISSING, forward)
    assert all(parent < row for row, parent in enumerate(ops.parent.tolist()))
    assert all(ops.thread[row] == ops.thread[parent] for row, parent in enumerate(ops.parent.tolist()) if parent >= 0)


@pytest.mark.parametrize("name", ["gpt2_small", "resnet50"])
def test_architectures_have_the_same_ops_compiled(load_model: Any, op_counts: Any, name: str) -> None:
    module = load_model(name)
    with torch.device("meta"):
        model, data = module.build(), module.make_batch(2)
    counts = []
    for run in (model, torch.compile(model)):
        model.zero_grad()
        counts.append(op_counts(record(partial(run_backward, module, run, data), warmup=0)))
    assert counts[1] - counts[0] == Counter({region(0): 1, BACKWARD: 1})
    assert not counts[0] - counts[1]


def test_modules_are_named_without_the_wrapper_of_the_compiler() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(8, 8)
            self.inside = torch.compile(nn.Sequential(nn.Linear(8, 8)))
            self.in_place = nn.Linear(8, 8)
            self.in_place.compile()

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return self.in_place(self.inside(self.before(data)))  # type: ignore[no-any-return]

    model = meta(Model)
    paths = []
    for run in (model, torch.compile(model)):
        trace = record(partial(run, DATA))
        rows = [row for row, name in enumerate(trace.ops.name) if trace.strings[name] == "aten::addmm"]
        paths.append([trace.strings[trace.ops.module[row]] for row in rows])
    assert paths == [["Model.before", "Model.inside.0", "Model.in_place"]] * 2


def test_a_compiled_function_in_an_eager_model_is_a_region_at_each_call() -> None:
    scale = torch.compile(lambda data: data.mul(2).relu())
    shift = torch.compile(lambda data: data.add(1))
    assert outline(record(lambda: shift(scale(scale(DATA).neg())))) == [
        (region(0), ["mul", "relu"]),
        (None, ["neg"]),
        (region(0), ["mul", "relu"]),
        (region(1), ["add"]),
    ]


def test_a_compiled_function_inside_another_is_part_of_it() -> None:
    inner = torch.compile(lambda data: data.relu())
    outer = torch.compile(lambda data: inner(data.neg()).exp())
    assert outline(record(lambda: outer(DATA))) == [(region(0), ["neg", "relu", "exp"])]


def test_graphs_end_where_the_code_breaks_them() -> None:
    def broken(data: torch.Tensor) -> torch.Tensor:
        data = data.neg()
        torch._dynamo.graph_break()
        return data.relu()

    assert outline(record(lambda: torch.compile(broken)(DATA))) == [(region(0), ["neg"]), (region(1), ["relu"])]


def test_disabled_functions_stay_outside() -> None:
    eager = torch.compiler.disable(lambda data: data.exp())

    @torch.compile
    def compiled(data: torch.Tensor) -> torch.Tensor:
        return eager(data.neg()).relu()  # type: ignore[no-any-return]

    expected = [(region(0), ["neg"]), (None, ["exp"]), (region(1), ["relu"])]
    assert outline(record(lambda: compiled(DATA))) == expected


def test_disabled_functions_of_torch_stay_inside() -> None:
    def compiled(data: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda item: item.exp().relu(), data.neg(), use_reentrant=False)  # type: ignore[no-any-return]

    data = DATA.clone().requires_grad_()
    found = outline(record(lambda: torch.compile(compiled)(data).sum().backward(), warmup=0))
    assert found[0] == (region(0), ["neg", "exp", "relu"])
    assert found[2] == (BACKWARD, ["exp", "relu", "threshold_backward", "mul", "neg"])


def test_a_compiled_function_that_is_recomputed_is_entered_again_in_backward() -> None:
    compiled = torch.compile(lambda item: item.exp().relu())
    data = DATA.clone().requires_grad_()
    step = lambda: checkpoint(compiled, data.neg(), use_reentrant=False).sum().backward()  # noqa: E731
    assert outline(record(step, warmup=0)) == [
        (None, ["neg"]),
        (region(0), ["exp", "relu"]),
        (None, ["sum", "ones_like"]),
        (region(0), ["exp", "relu"]),
        (BACKWARD, ["threshold_backward", "mul"]),
        (None, ["neg"]),
    ]


def test_a_compiled_step_is_compiled_up_to_its_backward() -> None:
    model = meta(perceptron)

    @torch.compile
    def step() -> None:
        model(DATA).sum().backward()

    found = outline(record(step))
    assert [around for around, _ in found] == [region(0), BACKWARD]
    assert found[1][1].count("add_") == 4  # the gradients of two runs


def test_gradients_that_are_accumulated_do_not_cut_a_region() -> None:
    model = meta(perceptron)
    compiled = torch.compile(model)
    found = outline(record(lambda: compiled(DATA).sum().backward()))
    assert [around for around, _ in found] == [region(0), None, BACKWARD]
    assert found[2][1].count("add_") == 4


def test_a_compiled_optimizer_step_is_a_region() -> None:
    model = meta(perceptron)
    optimizer = torch.optim.AdamW(model.parameters())
    update = torch.compile(optimizer.step)

    def step() -> None:
        model(DATA).sum().backward()
        update()

    trace = record(step)
    around, names = outline(trace)[-1]
    assert around == region(0)
    assert all(name.startswith("_foreach_") for name in names)
    assert trace.ops.phase[trace.ops.parent.max()] == Phase.OPTIMIZER


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch 2.5 has no stance")
def test_functions_that_the_user_keeps_from_compiling_are_no_regions() -> None:
    compiled = torch.compile(lambda data: data.neg())

    def step() -> None:
        with torch.compiler.set_stance("force_eager"):
            compiled(DATA)

    assert outline(record(step)) == [(None, ["neg"])]


def test_the_compiler_is_left_as_it_was() -> None:
    names = ("set_eval_frame", "_maybe_set_eval_frame", "set_fullgraph_compiled_frame_count", "_stance")
    compiled_graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Any:
        compiled_graphs.append(graph)
        return graph.forward

    def fail(data: torch.Tensor) -> None:
        data.neg()
        raise ValueError("of the user's own")

    before = [getattr(eval_frame, name, None) for name in names], torch.compile, torch._dynamo.graph_break
    compiled = torch.compile(lambda data: data.neg(), backend=backend)
    compiled(torch.ones(2))
    record(lambda: compiled(DATA))
    with pytest.raises(ValueError, match="of the user's own"):
        record(lambda: torch.compile(fail)(DATA))
    assert ([getattr(eval_frame, name, None) for name in names], torch.compile, torch._dynamo.graph_break) == before
    assert len(compiled_graphs) == 1
    compiled(torch.ones(2))
    assert len(compiled_graphs) == 1  # its cache is as it was
    compiled(torch.ones(2, dtype=torch.float64))
    assert len(compiled_graphs) == 2  # and it compiles
    assert outline(record(DATA.neg)) == [(None, ["neg"])]


def test_a_step_may_be_the_first_to_load_the_compiler() -> None:
    program = """if True:
        import sys, torch
        from wavecast.tracer.meta.compiled import compiled_functions_eager
        original = torch.compile
        assert "torch._dynamo" not in sys.modules
        with compiled_functions_eager():
            assert "torch._dynamo" not in sys.modules
            calls = []
            def work(data):
                calls.append(torch.compiler.is_compiling())
                return data.neg()
            torch.compile(work, backend="eager")(torch.ones(2))
        from torch._dynamo import eval_frame
        assert calls == [False] and torch.compile is original
        assert eval_frame.set_eval_frame.__module__ != "wavecast.tracer.meta.compiled"
        torch.compile(work, backend="eager")(torch.ones(2))
        assert calls[-1] is True, calls
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Norm(nn.Module):
    """RMS norm as language models write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data * torch.rsqrt(data.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """A decoder's block: attention and a gated perceptron, each after a norm."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([Norm(width), Norm(width)])
        self.attention = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(4)])
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        batch, length, width = data.shape
        normed = self.norms[0](data)
        query, key, value = (
            layer(normed).view(batch, length, self.heads, -1).transpose(1, 2) for layer in self.attention[:3]
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        data = data + self.attention[3](attended.transpose(1, 2).reshape(batch, length, width))
        normed = self.norms[1](data)
        return data + self.down(functional.silu(self.gate(normed)) * self.up(normed))  # type: ignore[no-any-return]


def test_the_kernels_of_a_compiled_block_are_those_that_were_measured(data_dir: Path) -> None:
    measured = wavecast.load_trace(data_dir / "traces" / "mi300x_torch_compile_triton.json.gz")
    names = [measured.strings[measured.ops.name[op]] for op in measured.kernels.op.tolist()]
    model = meta(Block).to(torch.bfloat16)
    data = torch.empty(2, 16, 64, dtype=torch.bfloat16, device="meta")

    def step() -> None:
        with torch.no_grad():
            torch.compile(model)(data)

    trace = record(step)
    region = find_compiled(trace).region
    generated = generate_kernels(trace, shape_workload(trace, select_window(trace)), region)
    merged = {op for kernel in generated for op in kernel.ops} - {kernel.carrier for kernel in generated}
    kernels = [trace.strings[trace.ops.name[op]] for op in explained_ops(trace).tolist() if op not in merged]
    called = {"aten::mm": "aten::mm"} | {
        name: "attention" for name in (*names, *kernels) if "attention" in name
    }  # everything else is generated
    assert [called.get(name, "generated") for name in kernels] == [called.get(name, "generated") for name in names]
    assert sum(name.startswith("triton") for name in names) == 4
