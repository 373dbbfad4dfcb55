"""Compiled regions in recordings of shapes: what is merged, what the host pays, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast import load_trace
from wavecast.analyzer.host.costs import load_host_costs
from wavecast.analyzer.host.timeline import synthesize_timeline
from wavecast.analyzer.iteration.analyze import report_on, run_analysis
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.questions.analyze.page.headline import background
from wavecast.analyzer.questions.scale.scale import scale_trace
from wavecast.analyzer.recorded.compiled import CompiledCode, find_compiled
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay.engine import replay
from wavecast.analyzer.whatif.fusion.kernels import generate_kernels
from wavecast.analyzer.whatif.fusion.values import split_count
from wavecast.analyzer.whatif.scenario import Scenario, TargetPrecision
from wavecast.formats.trace.column import MISSING, Table, build_table, columns, row_count
from wavecast.formats.trace.signature import Signature, TensorSpec, flatten_tensors
from wavecast.formats.trace.tables import Meta, OperandTable, OpTable, Phase, TensorTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Catalog, Gpu
from wavecast.specs.match import find_gpu

REGION, BACKWARD = "Torch-Compiled Region: 0/0", "CompiledFunctionBackward"
X = TensorSpec("float32", (64, 16, 32, 32))
C = TensorSpec("float32", (16,))
SMALL = TensorSpec("float32", (64, 16, 1, 1))
ROWS = TensorSpec("float32", (4096, 4096))
KERNEL = TensorSpec("float32", (16, 16, 3, 3))
CONVOLUTION = Signature((X, KERNEL, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1), (X,))
ONE, TWO = Signature((X,), (X,)), Signature((X, X, 1), (X,))
NORM = Signature((X, C, C, C, C, False, 0.1, 1e-5), (X, TensorSpec("float32", (0,)), TensorSpec("float32", (0,))))
TRAINED_NORM = Signature((X, C, C, C, C, True, 0.1, 1e-5), (X, C, C))
CAST = Signature((X, "float16"), (TensorSpec("float16", X.shape),))
MEAN = Signature((X, (0, 2, 3), True, None), (TensorSpec("float32", (1, 16, 1, 1)),))
ROW_MEAN = Signature((X, (-1, -2), True, None), (SMALL,))
SMALLER = Signature((SMALL,), (SMALL,))
GATE = Signature((X, SMALL), (X,))
DROPOUT = Signature((X, 0.1, True), (X, TensorSpec("bool", X.shape)))
LAYER_NORM = Signature((ROWS, (4096,), None, None, 1e-5), (ROWS, ROWS, ROWS))


PARTS = split_count(16, X.element_count // 16, is_rows=True)  # what lies together is reduced


@dataclass(frozen=True)
class Op:
    """One op with the tensors it reads and writes, by number."""

    name: str
    signature: Signature
    reads: tuple[int, ...]
    writes: int
    region: int = 0


def build(ops: Sequence[Op]) -> Trace:
    """Record the ops, each region in a row of its own before its first op."""
    names, rows, number = ["float32"], list[tuple[str, Op | None, int]](), dict[int, int]()
    for op in ops:
        if op.region not in number and op.region != MISSING:
            number[op.region] = len(rows)
            rows.append((REGION, None, MISSING))
        rows.append((f"aten::{op.name}", op, number.get(op.region, MISSING)))
    names = list(dict.fromkeys((*names, *(row[0] for row in rows))))
    signatures = list(dict.fromkeys(row[1].signature for row in rows if row[1]))
    results = {op.writes: flatten_tensors(op.signature.results)[0] for op in ops}
    given = {item: X for op in ops for item in op.reads} | results
    used = [
        (at, item, written)
        for at, (_, op, _) in enumerate(rows)
        if op
        for item, written in (*((item, False) for item in op.reads), (op.writes, True))
    ]
    return Trace(
        meta=Meta(capture="shapes"),
        strings=tuple(names),
        signatures=tuple(signatures),
        ops=build_table(
            OpTable,
            len(rows),
            name=[names.index(name) for name, _, _ in rows],
            signature=[signatures.index(op.signature) if op else MISSING for _, op, _ in rows],
            parent=[parent for _, _, parent in rows],
            phase=[0] * len(rows),
        ),
        tensors=build_table(
            TensorTable,
            max(given) + 1,
            storage=list(range(max(given) + 1)),
            dtype=[0] * (max(given) + 1),
            element_count=[given[item].element_count if item in given else 0 for item in range(max(given) + 1)],
        ),
        operands=build_table(
            OperandTable,
            len(used),
            op=[at for at, _, _ in used],
            tensor=[item for _, item, _ in used],
            is_output=[written for _, _, written in used],
        ),
    )


def groups_of(ops: Sequence[Op]) -> list[list[str]]:
    trace = build(ops)
    found = generate_kernels(trace, shape_workload(trace, select_window(trace)), find_compiled(trace).region)
    names = [[trace.strings[trace.ops.name[op]].removeprefix("aten::") for op in kernel.ops] for kernel in found]
    return [group for group in names if len(group) > 1]


def relu(reads: int, writes: int, region: int = 0) -> Op:
    return Op("relu", ONE, (reads,), writes, region)


def add(left: int, right: int, writes: int) -> Op:
    return Op("add", TWO, (left, right), writes)


def conv(reads: int, writes: int) -> Op:
    return Op("convolution", CONVOLUTION, (reads,), writes)


def norm(reads: int, writes: int) -> Op:
    return Op("native_batch_norm", NORM, (reads,), writes)


@pytest.mark.parametrize(
    ("ops", "merged"),
    [
        ([conv(0, 1), norm(1, 2), relu(2, 3)], [["native_batch_norm", "relu"]]),
        # both branches of a residual block end in the addition, whatever runs in between
        (
            [conv(0, 1), norm(1, 2), conv(0, 3), norm(3, 4), add(2, 4, 5), relu(5, 6)],
            [["native_batch_norm", "native_batch_norm", "add", "relu"]],
        ),
        # the addition needs a convolution of what it reads: one kernel would wait for itself
        ([relu(0, 1), conv(1, 2), add(1, 2, 3), relu(3, 4)], [["add", "relu"]]),
        ([Op("_to_copy", CAST, (0,), 1), Op("native_dropout", DROPOUT, (1,), 2)], [["_to_copy", "native_dropout"]]),
        # batch norm that trains reduces first; both its kernels compute what comes before, which nothing else reads
        (
            [relu(0, 1), Op("native_batch_norm", TRAINED_NORM, (1,), 2), relu(2, 3)],
            [["relu", "native_batch_norm"], ["relu", "native_batch_norm", "relu"]],
        ),
        # a reduction ends a kernel: what reads its result waits, unless it uses it on the row that was reduced
        (
            [relu(0, 1), Op("mean", MEAN, (1,), 2), Op("mul", GATE, (1, 2), 3), relu(3, 4)],
            [["relu", "mean"], ["relu", "mul", "relu"]],
        ),
        (
            [relu(0, 1), Op("mean", ROW_MEAN, (1,), 2), Op("rsqrt", SMALLER, (2,), 3), Op("mul", GATE, (0, 3), 4)],
            [["relu", "mean", "rsqrt", "mul"]],
        ),
        # a running total over rows is a loop that what comes before and after fits
        (
            [relu(0, 1), Op("cumsum", Signature((X, 3), (X,)), (1,), 2), relu(2, 3)],
            [["relu", "cumsum", "relu"]],
        ),
        ([relu(0, 1), relu(1, 2, region=1)], []),
        ([relu(0, 1, region=MISSING), relu(1, 2, region=MISSING)], []),
        # two readers of one tensor share the reading
        ([relu(0, 1), relu(0, 2)], [["relu", "relu"]]),
        # a product needs its operands in memory, and what follows reads its result from there
        ([relu(0, 1), conv(1, 2), relu(2, 3), add(0, 3, 4)], [["relu", "add"]]),
    ],
)
def test_what_the_compiler_computes_by_one_kernel(ops: list[Op], merged: list[list[str]]) -> None:
    assert sorted(groups_of(ops)) == sorted(merged)


def test_rows_of_any_length_are_merged_with_what_is_around_them() -> None:
    add_rows = Signature((ROWS, ROWS, 1), (ROWS,))
    ops = [
        Op("add", add_rows, (0, 1), 2),
        Op("native_layer_norm", LAYER_NORM, (2,), 3),
        Op("relu", Signature((ROWS,), (ROWS,)), (3,), 4),
    ]
    assert groups_of(ops) == [["add", "native_layer_norm", "relu"]]


def bytes_of(ops: Sequence[Op]) -> list[tuple[float, float]]:
    """Return what each kernel reads and writes, in tensors of the size of `X`."""
    trace = build(ops)
    found = generate_kernels(trace, shape_workload(trace, select_window(trace)), find_compiled(trace).region)
    size = 4.0 * X.element_count
    return [(kernel.work.read_bytes / size, kernel.work.written_bytes / size) for kernel in found]


@pytest.mark.parametrize(
    ("ops", "moved"),
    [
        ([relu(0, 1), relu(1, 2), relu(2, 3)], [(1, 1)]),
        # what a product reads is written, what the kernel goes on with is not read again
        ([relu(0, 1), conv(1, 2), relu(1, 3)], [(1, 2)]),
        # a reduction reads all and writes rows
        ([relu(0, 1), Op("mean", ROW_MEAN, (1,), 2)], [(1, SMALL.element_count / X.element_count)]),
        # computed again by the second reader, not kept between
        (
            [relu(0, 1), Op("mean", ROW_MEAN, (1,), 2), Op("mul", GATE, (1, 2), 3)],
            [(1, 1)],
        ),
        # too few results for a GPU: a kernel reduces parts, a second one these
        (
            [Op("mean", MEAN, (0,), 1)],
            [(1, 16 * PARTS / X.element_count), (16 * PARTS / X.element_count, 16 / X.element_count)],
        ),
    ],
)
def test_a_kernel_reads_and_writes_each_buffer_once(ops: list[Op], moved: list[tuple[float, float]]) -> None:
    assert np.array(bytes_of(ops)) == pytest.approx(np.array(moved), rel=1e-4)


def test_what_many_read_is_kept_and_what_few_read_is_computed_again() -> None:
    many = [add(number, number + 1, 20 + number) for number in range(4)]
    deep = [Op("add", TWO, (20, 21), 30), Op("add", TWO, (22, 23), 31), Op("add", TWO, (30, 31), 32)]
    readers = [relu(32, 40), conv(40, 41), Op("add", TWO, (41, 32), 42)]
    kernels = groups_of([*many, *deep, *readers])
    assert [group.count("add") for group in kernels if "relu" in group] == [7]
    assert kernels[-1] != ["add"] * 8  # the sum of five tensors is read, not computed anew
    assert sum(group.count("add") for group in kernels) == 7


def predict(trace: Trace, gpu: Gpu, scenario: Scenario | None = None) -> Analysis:
    return run_analysis(trace, Catalog(gpus=(gpu,)), library=Library(fitted={}), scenario=scenario)


def test_merged_kernels_take_the_share_of_the_bytes_that_is_left(gpu: Callable[..., Gpu]) -> None:
    ops = [relu(0, 1), relu(1, 2), relu(2, 3), relu(3, 4)]
    eager, compiled = (
        predict(build([replace(op, region=region) for op in ops]), gpu(memory_bandwidth_bytes_per_s=1e9))
        for region in (MISSING, 0)
    )
    busy = [result.forecast.busy_ns[0] for result in (eager, compiled)]
    assert busy[1] == pytest.approx(busy[0] / 4, rel=1e-3)  # 4 reads and 4 writes become one of each
    assert (eager.compiled, compiled.compiled) == (None, CompiledCode(region_count=1, kernels_merged=3))


def insert_regions(trace: Trace, *phases: Phase) -> Trace:
    """Enclose the ops of each phase by a region, as a recording of a compiled model has them."""
    ops, names = trace.ops, {Phase.FORWARD: REGION, Phase.BACKWARD: BACKWARD}
    first = [int(np.flatnonzero(ops.phase == phase)[0]) for phase in phases]
    number = np.arange(row_count(ops)) + np.searchsorted(first, np.arange(row_count(ops)), side="right")
    rows = np.array(first) + np.arange(len(first))

    def renumbered(table: Table) -> dict[str, Any]:
        return {
            spec.name: np.append(number, MISSING)[getattr(table, spec.name)]
            for spec in columns(table)
            if spec.refers_to == "ops"
        }

    inserted = {spec.name: np.insert(getattr(ops, spec.name), first, MISSING, axis=0) for spec in columns(ops)}
    inserted |= {name: np.insert(column, first, MISSING) for name, column in renumbered(ops).items()}
    strings = (*trace.strings, *(names[phase] for phase in phases))
    for at, (row, phase) in enumerate(zip(rows, phases, strict=True)):
        inserted["parent"][(inserted["phase"] == phase) & (inserted["parent"] == MISSING)] = row
        inserted["parent"][row], inserted["phase"][row] = MISSING, phase
        inserted["name"][row], inserted["thread"][row] = len(trace.strings) + at, 0
    return replace(
        trace,
        strings=strings,
        ops=build_table(OpTable, len(number) + len(first), **inserted),
        operands=replace(trace.operands, **renumbered(trace.operands)),
        memory=replace(trace.memory, **renumbered(trace.memory)),
    )


SAMPLES = ["resnet50-training-fp32-b32", "resnet50-inference-bf16-b32", "bert_base-training-fp32-b16"]


@pytest.mark.parametrize("name", SAMPLES)
def test_compiled_samples_are_no_slower_than_eager_ones(root_dir: Path, name: str) -> None:
    eager = load_trace(root_dir / "samples" / f"{name}-shapes.json.gz")
    phases = (Phase.FORWARD, Phase.BACKWARD) if "training" in name else (Phase.FORWARD,)
    compiled = insert_regions(eager, *phases)
    gpus = [find_gpu(load_catalog(), gpu) for gpu in ("H100 SXM", "T4")]
    cases = [run_analysis(trace, load_catalog(), targets=gpus) for trace in (eager, compiled)]
    assert cases[1].compiled is not None
    assert cases[1].compiled.region_count == len(phases)
    assert cases[1].compiled.kernels_merged > 10
    # In fp32, cuDNN's Fourier tiles take NCHW alone: convolutions lose by the compiler's layout.
    most = 1.05 if name.startswith("resnet50-training-fp32") else 1.0
    assert np.all(cases[1].forecast.busy_ns < most * cases[0].forecast.busy_ns)
    assert np.all(cases[1].forecast.iteration_ns < most * cases[0].forecast.iteration_ns)


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(batch_size=64),
        Scenario(precision=TargetPrecision.BF16),
        Scenario(cuda_graph=True),
        Scenario(fuse_elementwise=True),
    ],
    ids=str,
)
def test_other_questions_combine_with_regions(root_dir: Path, scenario: Scenario, gpu: Callable[..., Gpu]) -> None:
    eager = load_trace(root_dir / "samples" / "resnet50-training-fp32-b32-shapes.json.gz")
    compiled = insert_regions(eager, Phase.FORWARD, Phase.BACKWARD)
    plain, asked = predict(compiled, gpu()), predict(compiled, gpu(), scenario)
    ratio = asked.forecast.busy_ns[0] / predict(eager, gpu(), scenario).forecast.busy_ns[0]
    assert ratio <= 1.05, ratio  # batch norms of few channels are two kernels each way, channels innermost
    assert asked.compiled is not None
    assert plain.compiled is not None
    assert asked.compiled.region_count == 2
    assert asked.compiled.kernels_merged >= plain.compiled.kernels_merged


def test_merging_everything_merges_as_in_a_region(root_dir: Path, gpu: Callable[..., Gpu]) -> None:
    eager = load_trace(root_dir / "samples" / "resnet50-inference-fp32-b32-shapes.json.gz")
    slow = gpu(memory_bandwidth_bytes_per_s=1e10)
    merged = predict(eager, slow, Scenario(fuse_elementwise=True)).forecast.busy_ns[0]
    assert merged == pytest.approx(predict(insert_regions(eager, Phase.FORWARD), slow).forecast.busy_ns[0])


@pytest.mark.parametrize("name", ["resnet50-training-fp32-b32", "gpt2_small-inference-bf16-b4"])
def test_listed_kernels_add_up_to_the_busy_time_and_are_named_by_their_ops(
    root_dir: Path, name: str, gpu: Callable[..., Gpu]
) -> None:
    trace = load_trace(root_dir / "samples" / f"{name}-shapes.json.gz")
    result = predict(trace, gpu(), Scenario(fuse_elementwise=True))
    ops = report_on(result, op_limit=None).ops
    assert sum(op.predicted_ns for op in ops) == pytest.approx(result.forecast.busy_ns[0], rel=1e-3)
    assert sum(op.share for op in ops) == pytest.approx(1.0)
    assert any(" + " in op.op for op in ops)
    alone = {op.op for op in report_on(predict(trace, gpu()), op_limit=None).ops}
    assert alone.isdisjoint(op.op for op in ops if " + " in op.op)


def test_listed_chains_of_a_recording_add_up_to_the_busy_time(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "vit_small-inference-bf16-b4-h100.json.gz")
    result = run_analysis(trace, load_catalog(), scenario=Scenario(fuse_elementwise=True))
    column = [gpu.name for gpu in result.prediction.fleet.gpus].index("H100 SXM5 80GB")
    ops = report_on(result, op_limit=None).ops
    assert any(" + " in op.op for op in ops)
    assert sum(op.predicted_ns for op in ops) == pytest.approx(result.forecast.busy_ns[column], rel=0.02)
    assert sum(op.count for op in ops) == len(result.window.kernel_rows) - 25


def test_nothing_is_merged_where_a_cpu_or_a_gpu_ran_the_compiled_code(data_dir: Path, gpu: Callable[..., Gpu]) -> None:
    measured = load_trace(data_dir / "traces" / "mi300x_torch_compile_triton.json.gz")
    assert any(name.startswith("Torch-Compiled Region") for name in measured.strings)
    assert run_analysis(measured, load_catalog()).compiled is None
    timed = replace(build([relu(0, 1), relu(1, 2)]), meta=Meta(capture="cpu"))
    assert predict(timed, gpu()).compiled is None


def test_the_host_pays_for_the_region_and_for_each_generated_kernel() -> None:
    costs = load_host_costs()
    multiply = Op("mm", Signature((ROWS, ROWS), (ROWS,)), (1,), 2)
    trace = build([relu(0, 1), multiply, Op("view", ONE, (2,), 3), relu(3, 4)])
    timed = synthesize_timeline(trace, costs)
    lead = costs.lead_cost_ns("", REGION, Phase.FORWARD, "any")
    generated, called = costs.compiled_kernel_ns, costs.op_cost_ns("aten::mm") + costs.launch_ns
    starts = lead + costs.compiled_call_ns + np.cumsum([0, generated, called, 0])
    assert timed.ops.start_ns.tolist() == [round(lead), *np.rint(starts).tolist()]
    assert timed.ops.duration_ns[1:] == pytest.approx([generated, called, 0, generated], abs=1)
    assert timed.ops.start_ns[0] + timed.ops.duration_ns[0] == timed.iterations.end_ns[0]


def test_a_scenario_that_compiles_all_costs_the_host_what_a_region_does(gpu: Callable[..., Gpu]) -> None:
    multiply = Op("mm", Signature((ROWS, ROWS), (ROWS,)), (1,), 2)
    ops = [relu(0, 1), multiply, Op("view", ONE, (2,), 3), relu(3, 4), relu(4, 5)]
    wrapped, plain = build(ops), build([replace(op, region=MISSING) for op in ops])
    costs = load_host_costs()
    recorded, asked = synthesize_timeline(wrapped, costs), synthesize_timeline(plain, costs, is_compiled=True)
    assert np.diff(asked.ops.start_ns).tolist() == np.diff(recorded.ops.start_ns[1:]).tolist()
    fused = Scenario(fuse_elementwise=True, cpu_speed=0.001)
    found, other = predict(plain, gpu(), fused), predict(wrapped, gpu(), replace(fused, fuse_elementwise=False))
    assert found.forecast.iteration_ns[0] == pytest.approx(other.forecast.iteration_ns[0], rel=0.01)


def test_gradients_accumulated_inside_a_region_are_eager_ops() -> None:
    trace = build([relu(0, 1), relu(1, 2), add(2, 5, 6), relu(2, 3)])
    phase, forward = np.full(5, Phase.BACKWARD), np.array([0, 0, 0, MISSING, 0])
    trace = replace(trace, ops=replace(trace.ops, phase=phase.astype(np.int8), forward=forward.astype(np.int32)))
    assert find_compiled(trace).region.tolist() == [MISSING, 0, 0, MISSING, 0]
    costs = load_host_costs()
    timed = synthesize_timeline(trace, costs)
    added = costs.lead_cost_ns("", "aten::add", Phase.BACKWARD, "any") + costs.op_cost_ns("aten::add") + costs.launch_ns
    assert timed.ops.start_ns[4] - timed.ops.start_ns[2] - timed.ops.duration_ns[2] == pytest.approx(added, abs=2)


def test_a_plan_of_one_rank_is_compiled_as_the_recording_is(root_dir: Path) -> None:
    eager = load_trace(root_dir / "samples" / "gpt2_small-training-bf16-b4-shapes.json.gz")
    trace, h100 = insert_regions(eager, Phase.FORWARD), find_gpu(load_catalog(), "H100 SXM5 80GB")
    alone = report_on(run_analysis(trace, load_catalog(), targets=[h100])).predictions[0].iteration_ns
    (row,) = scale_trace(trace, load_catalog(), targets=[h100], plans=["dp=1"]).predictions
    assert row.iteration_ns == pytest.approx(alone, rel=0.01)


def test_the_first_kernels_of_a_stream_begin_with_it_where_they_are_merged(gpu: Callable[..., Gpu]) -> None:
    result = predict(build([relu(0, 1), relu(1, 2)]), gpu())
    assert replay(result.graph, result.forecast.timing).min() >= 0.0


def test_the_headline_tells_of_compiled_regions(gpu: Callable[..., Gpu]) -> None:
    lines = background(report_on(predict(build([relu(0, 1), relu(1, 2)]), gpu())))
    assert (
        "1 compiled region, recorded eagerly and predicted as compiled: 1 pointwise kernel merged into others, "
        "launched by generated code."
    ) in list(lines)
