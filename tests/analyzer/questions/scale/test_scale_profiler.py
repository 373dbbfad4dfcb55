"""Plans from files of PyTorch's profiler, which do not tell tensors apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast import load_trace
from wavecast.analyzer.questions.scale.parts import PlanPart
from wavecast.analyzer.questions.scale.report import PlanPrediction
from wavecast.analyzer.questions.scale.scale import scale_trace
from wavecast.analyzer.whatif.parallel.derive import derive_ranks
from wavecast.analyzer.whatif.parallel.layers import find_layers
from wavecast.analyzer.whatif.parallel.parameters import find_parameters
from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
from wavecast.analyzer.whatif.parallel.unidentified import identify_gradients
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.errors import InputError
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.formats.trace.validate import validate
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
LAYERS, WIDTH, BATCH = 3, 1024, 64
STEP_NS = 4_000_000
WEIGHT, BIAS = [WIDTH, WIDTH], [WIDTH]
SIZE = WIDTH * WIDTH + WIDTH
"""Of a layer's parameters."""


class Profile:
    """Writes events of one training step of linear layers, as the profiler does: op in op, kernel by correlation."""

    def __init__(self, *, shapes: bool = True, sums: bool = True, optimizer: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self.now, self.busy, self.launched = 100.0, 0.0, 0
        self.shapes, self.sums = shapes, sums
        self._add("user_annotation", "ProfilerStep#3", 100.0, STEP_NS / 1e3)
        for layer in range(LAYERS):
            self.op("aten::linear", [[BATCH, WIDTH], WEIGHT, BIAS], 1, lambda at=layer: self._product(at), number=layer)
        for layer in reversed(range(LAYERS)):
            self.op("AddmmBackward0", [[BATCH, WIDTH]], 2, self._gradient_products, number=layer, is_backward=True)
            for shape in (BIAS, WEIGHT) if sums else ():
                name = "torch::autograd::AccumulateGrad"
                wrapper = f"autograd::engine::evaluate_function: {name}"
                self.op(wrapper, [], 2, lambda shape=shape, name=name: self.op(name, [shape], 2))
        if optimizer:
            self.op("Optimizer.step#SGD.step", [], 1, self._step, category="user_annotation")

    def op(
        self,
        name: str,
        shapes: list[Any],
        thread: int,
        inside: Any = None,
        *,
        kernel: float = 0.0,
        number: int | None = None,
        is_backward: bool = False,
        category: str = "cpu_op",
    ) -> None:
        start = self.now
        self.now += 2.0
        if inside is not None:
            inside()
        if kernel:
            self._launch(kernel, thread)
        self.now += 2.0
        args: dict[str, Any] = {}
        if self.shapes and shapes:
            lists = [bool(item) and isinstance(item[0], list) for item in shapes]
            kinds = ["TensorList" if is_list else "float" for is_list in lists]
            args = {"Input Dims": shapes, "Input type": kinds}
        if number is not None:
            args |= {"Sequence number": number, "Fwd thread id": int(is_backward)}
        self._add(category, name, start, self.now - start, tid=thread, args=args)

    def save(self, path: Path) -> Path:
        device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "computeMajor": 8, "computeMinor": 0}
        document = {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": self.events}
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def _product(self, layer: int) -> None:
        self.op("aten::addmm", [BIAS, [BATCH, WIDTH], WEIGHT], 1, kernel=300.0, number=layer)

    def _gradient_products(self) -> None:
        self.op("aten::mm", [[BATCH, WIDTH], WEIGHT], 2, kernel=300.0)
        self.op("aten::mm", [[WIDTH, BATCH], [BATCH, WIDTH]], 2, kernel=300.0)

    def _step(self) -> None:
        if self.sums:
            for _ in range(LAYERS):
                for shape in (WEIGHT, BIAS):
                    self.op("aten::add_", [shape, shape], 1, kernel=20.0)
        else:
            tensors = [WEIGHT, BIAS] * LAYERS
            self.op("aten::_foreach_add_", [tensors, tensors], 1, kernel=100.0)

    def _launch(self, length: float, thread: int) -> None:
        self.launched += 1
        args = {"correlation": self.launched}
        self._add("cuda_runtime", "cudaLaunchKernel", self.now, 1.0, tid=thread, args=args)
        self.busy = max(self.busy, self.now + 3.0)
        where = {"device": 0, "stream": 7, "grid": [64, 1, 1], "block": [128, 1, 1], **args}
        self._add("kernel", "ampere_sgemm_128x64_tn", self.busy, length, pid=0, tid=7, args=where)
        self.busy += length
        self.now += 1.0

    def _add(self, category: str, name: str, start: float, length: float, **more: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}
        self.events.append(event | more)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return load_trace(Profile().save(tmp_path_factory.mktemp("profile") / "step.json"))


def ask(trace: Trace, plan: str, gpu: str = "A100 SXM4 80GB") -> PlanPrediction:
    return scale_trace(
        trace, CATALOG, targets=[find_gpu(CATALOG, gpu)], plans=[plan], scenario=Scenario(recorded_batch_size=BATCH)
    ).predictions[0]


def test_gradients_are_what_autograd_adds_up(measured: Trace) -> None:
    told = identify_gradients(measured)
    validate(told)
    parameters = find_parameters(told)
    assert parameters.has_gradient.all()
    assert sorted(parameters.element_count.tolist()) == sorted([WIDTH * WIDTH, WIDTH] * LAYERS)
    names = {told.strings[told.ops.name[op]] for op in parameters.ready_op.tolist()}
    assert names == {"torch::autograd::AccumulateGrad"}


def test_optimizer_tells_what_autograd_does_not(tmp_path: Path) -> None:
    trace = load_trace(Profile(sums=False).save(tmp_path / "step.json"))
    parameters = find_parameters(identify_gradients(trace))
    assert parameters.element_count.sum() == LAYERS * SIZE
    assert (np.sort(parameters.ready_op)[:-1] < np.sort(parameters.ready_op)[1:]).sum() > LAYERS / 2


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_replicas_add_up_every_gradient_once(measured: Trace, zero: int) -> None:
    (rank,) = derive_ranks(measured, ParallelPlan(dp=8, zero=zero))
    validate(rank.trace)
    table, strings = rank.trace.collectives, rank.trace.strings
    names = np.array([strings[name] for name in table.name])
    assert set(names.tolist()) == ({"reduce_scatter", "all_gather"} if zero else {"all_reduce"})
    reduced = table.in_element_count[names != "all_gather"]
    assert reduced.sum() == LAYERS * SIZE
    assert len(reduced) > 1  # a bucket as soon as it is full


def test_one_gpu_takes_what_was_measured(measured: Trace) -> None:
    window_ns = float(measured.iterations.end_ns[0] - measured.iterations.start_ns[0])
    one = ask(measured, "dp=1")
    assert one.iteration_ns == pytest.approx(window_ns, rel=1e-3)
    assert one.parts_ns[PlanPart.COMPUTE] == pytest.approx(3 * LAYERS * 300e3, rel=0.02)  # each nested product once
    assert one.parts_ns[PlanPart.OPTIMIZER] == pytest.approx(2 * LAYERS * 20e3, rel=0.1)
    eight = ask(measured, "dp=8")
    assert window_ns * 0.99 < eight.iteration_ns < window_ns * 2.0


def test_sharded_parameters_go_by_the_profilers_modules(measured: Trace) -> None:
    """A module is named by its class and a number among it: the root has one as well."""
    ops, first = measured.ops, len(measured.strings)
    module = np.where((ops.sequence >= 0) & (ops.phase == Phase.FORWARD), first + ops.sequence, -1)
    named = tuple(f"Net_0.Stack_0.Block_{layer}" for layer in range(LAYERS))
    trace = replace(
        measured, strings=(*measured.strings, *named), ops=replace(ops, module=module.astype(ops.module.dtype))
    )
    found = find_layers(trace)
    assert (found.count, found.is_named) == (LAYERS, True)
    (rank,) = derive_ranks(trace, ParallelPlan(fsdp=8))
    validate(rank.trace)
    names = np.array([rank.trace.strings[name] for name in rank.trace.collectives.name])
    assert rank.trace.collectives.in_element_count[names == "reduce_scatter"].sum() == LAYERS * SIZE
    assert (names == "all_gather").sum() == 2 * LAYERS  # before forward, and again before backward


def test_what_a_profiler_does_not_tell_is_refused_in_a_line(measured: Trace, tmp_path: Path) -> None:
    for plan in ("tp=2", "cp=2", "pp=2", "fsdp=8"):
        with pytest.raises(InputError, match="wavecast record") as refused:
            ask(measured, plan)
        assert "\n" not in str(refused.value)
    nothing = load_trace(Profile(sums=False, optimizer=False).save(tmp_path / "step.json"))
    with pytest.raises(InputError, match="how large gradients are"):
        ask(nothing, "dp=8")


def test_warns_of_how_gradients_are_told(measured: Trace) -> None:
    report = scale_trace(
        measured,
        CATALOG,
        targets=[find_gpu(CATALOG, "H100 SXM5 80GB")],
        plans=["dp=8"],
        scenario=Scenario(recorded_batch_size=BATCH),
    )
    assert any("does not tell tensors apart" in warning for warning in report.warnings)
