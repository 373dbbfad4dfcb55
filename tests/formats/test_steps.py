"""What marks an iteration: by each kind of mark, and what belongs to none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.iteration.warnings import warn
from wavecast.analyzer.recorded.choice import choose_iteration
from wavecast.analyzer.recorded.no_iteration import describe_outside
from wavecast.analyzer.recorded.overview import describe_trace
from wavecast.analyzer.recorded.window import working_iterations
from wavecast.errors import TraceError
from wavecast.formats.kineto import import_kineto
from wavecast.formats.recording.ranges import read_mark
from wavecast.formats.trace.tables import ServingKind, Trace
from wavecast.records import replace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
Event = dict[str, Any]
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


class Recorder:
    """Writes events as a profiler does: each op launches a kernel, which the GPU runs after all before it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.gpu = 0.0
        self.count = 0

    def op(self, ts: float, dur: float = 100, *, kernel: str = GEMM, late: float = 45, pid: Any = 100) -> None:
        self.count += 1
        begin = max(ts + late, self.gpu)
        self.gpu = begin + dur
        for cat, name, start, length, owner, args in (
            ("cpu_op", "aten::mm", ts, 20, pid, {"Input Dims": [[4096, 4096], [4096, 4096]],
             "Input type": ["c10::BFloat16", "c10::BFloat16"]}),
            ("cuda_runtime", "cudaLaunchKernel", ts + 5, 5, pid, {"correlation": self.count}),
            ("kernel", kernel, begin, dur, 0, {"correlation": self.count, "device": 0, "stream": 7}),
        ):  # fmt: skip
            event = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "pid": owner, "tid": 100}
            self.events.append({**event, "args": args})

    def span(self, name: str, ts: float, dur: float) -> None:
        event = {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": dur, "pid": 100, "tid": 100}
        self.events.append({**event, "args": {}})

    def trace(self) -> Trace:
        return import_kineto(json.dumps({"schemaVersion": 1, "traceEvents": self.events}).encode())


def lengths_us(trace: Trace) -> list[float]:
    return [float(length) / 1e3 for length in trace.iterations.end_ns - trace.iterations.start_ns]


def test_pauses_between_steps_belong_to_none() -> None:
    recorder = Recorder()
    for number, begin in ((6, 0), (13, 7e6), (20, 14e6)):
        recorder.span(f"ProfilerStep#{number}", begin, 1090)
        for at in range(10):
            recorder.op(begin + 10 + 30 * at)
    trace = recorder.trace()
    assert trace.meta.iterations_by == "the profiler's steps"
    assert lengths_us(trace) == [1055, 1055, 1055]


@pytest.mark.parametrize("known", ["calls", "numbers", "neither"])
def test_optimizer_steps_end_iterations(known: str) -> None:
    """Where launches are known, where the profiler's numbers tell the ops of kernels, and where nothing does."""
    recorder = Recorder()
    for step in range(5):
        begin = 1200.0 * step
        recorder.span("Optimizer.zero_grad#SGD.zero_grad", begin, 8)
        for at in range(9):
            recorder.op(begin + 10 + 30 * at)
        recorder.span("Optimizer.step#SGD.step", begin + 400, 60)
        recorder.op(begin + 410, 50, kernel="multi_tensor_apply_kernel")
    if known != "calls":
        recorder.events = [event for event in recorder.events if event["cat"] != "cuda_runtime"]
    for at, event in enumerate(event for event in recorder.events if event["cat"] in ("cpu_op", "kernel")):
        event["args"]["External id"] = at // 2 + 100 if known == "numbers" else 0
    trace = recorder.trace()
    assert trace.meta.iterations_by == "optimizer steps"
    assert lengths_us(trace)[-4:] == [1200] * 4
    assert known == "neither" or lengths_us(trace)[0] == 995


@pytest.mark.parametrize(("first_count", "extra", "length_us"), [(3, 0, 2000), (3, 1, 2000), (5, 1, 1000)])
def test_a_turn_of_two_optimizers_is_one_iteration(first_count: int, extra: int, length_us: int) -> None:
    """A discriminator's steps and a generator's, and two optimizers that step one right after the other.

    One step with an op more changes nothing; steps that are all alike but for it take no turns.
    """
    recorder = Recorder()
    for step in range(6):
        for at in range(first_count):
            recorder.op(2000.0 * step + 100 * at, 50)
        recorder.span("Optimizer.step#Adam.step", 2000 * step + 600, 60)
        for at in range(5 + extra * (step == 2)):
            recorder.op(2000.0 * step + 1000 + 100 * at, 50)
        recorder.span("Optimizer.step#Adam.step", 2000 * step + 1600, 60)
        recorder.span("Optimizer.step#SGD.step", 2000 * step + 1700, 60)
    lengths = lengths_us(recorder.trace())
    assert (len(lengths), round(sum(lengths[-4:]) / 4, -2)) == (12000 // length_us, length_us)


@pytest.mark.parametrize(
    ("name", "by", "kind"),
    [
        ("execute_context_2(1024)_generation_0(0)", "steps of the server", ServingKind.PREFILL),
        ("execute_context_0(0)_generation_8(8)", "steps of the server", ServingKind.DECODE),
        ("execute_128_context_1(sq8sk8)_generation_3(sq3sk9)", "steps of the server", ServingKind.MIXED),
        ("execute_new_0_cached_4", "steps of the server", ServingKind.DECODE),
        ("step[DECODE bs=8]", "steps of the server", ServingKind.DECODE),
        ("step[EXTEND bs=1 toks=512]", "steps of the server", ServingKind.PREFILL),
        ("[Executor] _forward_step 12: 0 ctx reqs, 3 gen reqs", "steps of the server", ServingKind.DECODE),
        ("denoising_step_7", "denoising steps", ServingKind.UNTOLD),
        ("train_step 7", "annotations that number steps", ServingKind.UNTOLD),
        ("my step of epoch 1", "an annotation that repeats", ServingKind.UNTOLD),
    ],
)  # fmt: skip
def test_annotations_mark_iterations(name: str, by: str, kind: ServingKind) -> None:
    recorder = Recorder()
    for step in range(4):
        recorder.span(name, 1000 * step, 400)
        for at in range(3):
            recorder.op(1000.0 * step + 20 + 100 * at)
    trace = recorder.trace()
    assert trace.meta.iterations_by == by
    assert lengths_us(trace)[1:] == [1000, 1000, 1000]
    assert set(trace.iterations.kind.tolist()) == {kind}
    kept = {trace.strings[at] if at >= 0 else "" for at in trace.iterations.annotation.tolist()}
    assert kept == ({name} if by == "steps of the server" else {""})


def test_a_servers_step_that_names_anything_else_is_not_kept() -> None:
    recorder = Recorder()
    for step in range(4):
        recorder.span("step[DECODE bs=8 user=ann]", 1000 * step, 400)
        recorder.op(1000.0 * step + 20)
    trace = recorder.trace()
    assert trace.iterations.kind.tolist() == [ServingKind.DECODE] * 4
    assert not any("ann" in text for text in trace.strings)


def test_what_libraries_annotate_marks_no_iteration() -> None:
    assert read_mark("nccl:all_reduce") is None
    recorder = Recorder()
    for step in range(4):
        recorder.span("DistributedDataParallel.forward", 1000 * step, 400)
        recorder.op(1000.0 * step + 20)
    assert len(recorder.trace().iterations.start_ns) == 1


def test_an_annotation_alone_marks_iterations_of_two_sizes() -> None:
    recorder = Recorder()
    for step in range(8):
        recorder.span("train_batch", 1000 * step, 990)
        for at in range(6 + step % 2):
            recorder.op(1000.0 * step + 20 + 100 * at)
    assert len(lengths_us(recorder.trace())) == 8


def test_an_annotation_of_a_part_marks_no_iteration() -> None:
    recorder = Recorder()
    for step in range(4):
        recorder.span("forward", 1000 * step, 100)
        for at in range(5):
            recorder.op(1000.0 * step + 20 + 100 * at)
    assert recorder.trace().meta.iterations_by is None


@pytest.mark.parametrize("pass_count", [1, 4])
def test_annotations_that_take_turns_are_an_iteration(pass_count: int) -> None:
    """As DeepSpeed's engine annotates, with gradients that add up over several passes: its step runs after each."""
    recorder = Recorder()
    for step in range(5):
        begin = 4000.0 * step
        for at in range(pass_count):
            for part, count in (("forward", 2), ("backward", 3), ("step", at == pass_count - 1)):
                recorder.span(f"Engine.{part}", begin, 90)
                for number in range(count):
                    recorder.op(begin + 30 * number, 50)
                begin += 100
    trace = recorder.trace()
    assert trace.meta.iterations_by == "an annotation that repeats"
    assert lengths_us(trace)[1:] == [4000] * 4


@pytest.mark.parametrize(
    ("parts", "loose_count", "expected"),
    [
        pytest.param([["forward", "backward", "step"]] * 6, 0, 6, id="counts-that-vary"),
        pytest.param([["embed", "attention", "mlp", "attention", "mlp", "head"]], 0, 1, id="parts-of-one"),
        pytest.param([["attention", "mlp"] * 5] * 3, 2, 3, id="parts-before-what-none-marks"),
    ],
)
def test_parts_that_launch_differently_are_no_iterations(
    parts: list[list[str]], loose_count: int, expected: int
) -> None:
    recorder, begin, counts = Recorder(), 0.0, (2, 4, 3, 5, 4, 2, 6)
    for step in parts:
        for at, part in enumerate([*step, *["loose"] * loose_count]):
            count = counts[int(begin // 300) % 7] if loose_count == 0 else 2
            for number in range(count):
                recorder.op(begin + 30 * number, 40, kernel=f"kernel_{at}_{count}")
            if part != "loose":
                recorder.span(part, begin, 290)
            begin += 300
    assert len(lengths_us(recorder.trace())) == expected


@pytest.mark.parametrize("name", ["execute_context_0(0)_generation_8(8)", "iteration 3", "denoising step 3"])
def test_what_runs_between_all_steps_belongs_to_the_one_before(name: str) -> None:
    """Sampling, or a backward pass, outside of the annotation; a pause after each third belongs to none."""
    recorder = Recorder()
    for step in range(9):
        begin = 1000.0 * step + 1e6 * (step // 3)
        recorder.span(name, begin, 100)
        for at in range(6):
            recorder.op(begin + 30 * at, 50)
    trace = recorder.trace()
    assert lengths_us(trace)[1:3] == [1000, 1000]
    assert max(lengths_us(trace)) == 1000
    assert describe_trace(trace).kernel_count == 6


def test_work_in_no_iteration_is_said() -> None:
    recorder = Recorder()
    for step in range(5):
        recorder.span(f"denoising step {step}", 1000 * step, 900)
        for at in range(4):
            recorder.op(1000.0 * step + 50 * at)
    assert list(describe_outside(recorder.trace())) == []
    for at in range(5):
        recorder.op(6000 + 50.0 * at)
    assert list(describe_outside(recorder.trace())) == [
        "20% of the file's GPU time was launched in none of its iterations and is left out"
    ]
    own = recorder.trace()
    assert not list(describe_outside(replace(own, meta=replace(own.meta, source_format="wavecast"))))


def test_work_without_launches_in_no_iteration_is_said() -> None:
    recorder = Recorder()
    recorder.span("ProfilerStep#2", 100, 100)
    for at in range(6):
        recorder.op(100.0 + 10 * at, 50, late=-40 if at == 0 else 0)
    events = [event for event in recorder.events if event["cat"] != "cuda_runtime"]
    trace = import_kineto(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    found = list(describe_outside(trace))
    assert found == ["50% of the file's GPU time ran in none of its iterations and is left out"]


def test_numbered_parts_of_an_iteration_mark_none() -> None:
    recorder = Recorder()
    for step in range(16):
        recorder.span(f"micro_step {step % 4}", 500.0 * step, 400)
        for at in range(4):
            recorder.op(500.0 * step + 50 * at, 40, kernel=f"kernel_{step % 4}")
    assert lengths_us(recorder.trace())[:-1] == pytest.approx([2000] * 3, abs=0.01)


def test_an_iteration_that_is_recorded_as_too_long_makes_no_other_idle() -> None:
    recorder = Recorder()
    for step in range(6):
        recorder.span(f"ProfilerStep#{step}", 1000 * step, 999)
        for at in range(5):
            recorder.op(1000.0 * step + 20 + 30 * at)
    recorder.events[-1]["dur"] = 8e6
    assert working_iterations(recorder.trace()).tolist() == list(range(6))


@pytest.mark.parametrize("count", [3, 7])
def test_kernels_that_repeat_from_first_to_last_are_iterations(count: int) -> None:
    recorder = Recorder()
    for step in range(count):
        for at in range(6):
            recorder.op(1000.0 * step + 100 * at, kernel=f"kernel_{max(at, 2)}")
    trace = recorder.trace()
    assert trace.meta.iterations_by == "kernels that repeat"
    assert len(trace.iterations.start_ns) == count
    assert lengths_us(trace)[:-1] == pytest.approx([1000] * (count - 1), abs=0.01)
    assert describe_trace(trace).kernel_count == 6


def test_kernels_that_repeat_after_others_that_warm_up_are_iterations() -> None:
    recorder = Recorder()
    for at, kernel in enumerate(["warm"] * 4 + ["a", "a", "b", "c"] * 6):
        recorder.op(100.0 * at, 60, kernel=kernel)
    assert len(recorder.trace().iterations.start_ns) == 6


@pytest.mark.parametrize("names", [("a", "a", "b", "b"), ("a", "b", "c", "d")])
def test_repetitions_that_may_be_iterations_are_pointed_out(names: tuple[str, ...]) -> None:
    """Two kinds of kernels, and kernels whose grid grows from token to token."""
    recorder = Recorder()
    for at in range(32):
        recorder.op(100.0 * at, 60, kernel=names[at % 4])
        recorder.events[-1]["args"]["grid"] = [1 + (at // 4 if names[3] == "d" else 0), 1, 1]
    trace = recorder.trace()
    assert (len(trace.iterations.start_ns), trace.meta.repetitions) == (1, 8)


def test_what_one_launch_of_a_graph_runs_is_in_one_iteration() -> None:
    recorder = Recorder()
    for at in range(24):
        recorder.op(100.0 * at, 60, kernel=f"kernel_{at % 6}")
    for at, event in enumerate(event for event in recorder.events if event["cat"] == "kernel"):
        event["args"]["correlation"] = 1 + at // 12
    trace = recorder.trace()
    assert (len(trace.iterations.start_ns), trace.meta.repetitions) == (1, 4)


@pytest.mark.parametrize(("more", "found"), [([], 2), (["head"], None)])
def test_the_same_kernels_twice_are_pointed_out_where_nothing_else_ran(more: list[str], found: int | None) -> None:
    recorder = Recorder()
    for at, name in enumerate([*[f"kernel_{at}" for _ in range(2) for at in range(6)], *more]):
        recorder.op(100.0 * at, 60, kernel=name)
    trace = recorder.trace()
    assert (len(trace.iterations.start_ns), trace.meta.repetitions) == (1, found)


def test_layers_are_no_iterations_and_are_pointed_out() -> None:
    recorder = Recorder()
    names = ["embedding", *[f"layer_{at}" for _ in range(12) for at in range(6)], "norm", "head"]
    for at, name in enumerate(names):
        recorder.op(100.0 * at, 60, kernel=name)
    trace = recorder.trace()
    assert (len(trace.iterations.start_ns), trace.meta.repetitions) == (1, 12)


def test_a_gpu_behind_its_host_begins_with_the_first_kernel() -> None:
    recorder = Recorder()
    for at in range(10):
        recorder.op(10 + 30.0 * at, late=149_990 if at == 0 else 45)
    assert lengths_us(recorder.trace()) == [1000]


def merged(*pids: Any, shift: int = 0) -> bytes:
    """Return a file of two ranks: one of products, the other of sums, which take less time."""
    events: list[Event] = []
    for rank, pid in enumerate(pids):
        recorder = Recorder()
        recorder.count = rank * shift
        for at in range(10):
            recorder.op(10 + 30 * at, 30 if rank else 100, kernel="sum" if rank else GEMM, pid=pid)
        for event in recorder.events:
            is_named = event["cat"] == "kernel" and isinstance(pid, str)
            events.append({**event, "pid": f"{pid.partition(' ')[0]} 0"} if is_named else event)
    return json.dumps({"traceEvents": events}).encode()


@pytest.mark.parametrize(
    ("data", "others"), [(merged("[TP00] 100", "[TP01] 100"), "[TP01]"), (merged(100, 101, shift=100), "process 101")]
)
def test_one_process_of_a_merged_file_is_read(data: bytes, others: str) -> None:
    trace = import_kineto(data)
    assert trace.meta.left_out == others
    assert [trace.strings[name] for name in set(trace.kernels.name.tolist())] == [GEMM]
    assert trace.kernels.duration_ns.sum() == 1_000_000
    assert sorted(trace.kernels.call.tolist()) == list(range(10))


def test_a_merged_file_whose_kernels_are_nobodys_is_refused() -> None:
    with pytest.raises(TraceError, match=r"merged file of 2 processes \(100, 101\).*give the file of one rank"):
        import_kineto(merged(100, 101))


@pytest.mark.parametrize("name", ["rank ", "worker_", "local_rank=", "gpu"])
def test_ranks_that_a_number_alone_tells_apart_are_two(name: str) -> None:
    events = json.loads(merged("rank", "rank"))["traceEvents"]
    for at, event in enumerate(events):
        event["pid"] = f"{name}{at // 30}"
        event["args"]["correlation"] = at // 3 + 1
    trace = import_kineto(json.dumps({"traceEvents": events}).encode())
    assert (trace.meta.left_out, len(trace.ops.name), len(trace.kernels.name)) == (f"{name}1", 10, 10)


@pytest.mark.parametrize("rank_count", [2, 8])
def test_ranks_of_one_process_number_in_a_file_are_refused(rank_count: int) -> None:
    """As in containers, where each is process 1."""
    events: list[Event] = []
    for rank in range(rank_count):
        recorder = Recorder()
        for at in range(10):
            recorder.op(10 + 300 * at + 29 * rank, 25 + rank)
        events += recorder.events
    with pytest.raises(TraceError, match=r"several recordings in one file: 10 correlation ids .*wavecast ranks"):
        import_kineto(json.dumps({"traceEvents": events}).encode())


def test_a_driver_call_right_after_the_runtime_one_is_no_other_recording() -> None:
    recorder = Recorder()
    for at in range(10):
        recorder.op(10 + 300 * at)
    launches = [event for event in recorder.events if event["cat"] == "cuda_runtime"]
    recorder.events += [{**event, "name": "cuLaunchKernel", "ts": event["ts"] + event["dur"]} for event in launches]
    assert len(recorder.trace().kernels.name) == 10


def test_a_step_that_lasts_no_time_beside_a_kernel_of_an_earlier_one_is_not_chosen() -> None:
    recorder = Recorder()
    for step in range(8):
        recorder.span(f"ProfilerStep#{step}", 1000.0 * step, 999)
        for at in range(6):
            recorder.op(1000.0 * step + 20 + 100 * at)
    kernels = [event for event in recorder.events if event["cat"] == "kernel"]
    kernels[5]["dur"], kernels[5]["args"]["stream"] = 5e6, 9
    assert working_iterations(recorder.trace()).tolist() == [0]


@pytest.mark.parametrize("count", [1, 3])
def test_compilation_in_a_step_is_known_and_not_chosen_where_others_are(count: int) -> None:
    recorder = Recorder()
    for step in range(count):
        begin, wait = (0.0, 9e5) if step == 0 else (1e6 + 1000.0 * step, 0)
        recorder.span(f"ProfilerStep#{step}", begin, wait + (1e5 if step == 0 and count > 1 else 999))
        if step == 0:
            recorder.span("_compile.compile_inner (dynamo_timed)", begin + 10, wait)
            recorder.span("OutputGraph.call_user_compiler (dynamo_timed)", begin + 20, wait / 2)
        recorder.op(begin + wait + 20)
    trace = recorder.trace()
    assert trace.iterations.compiling_ns[0] == 9e8
    assert working_iterations(trace).tolist() == ([0] if count == 1 else [1, 2])


def test_steps_that_evaluate_between_those_that_train_are_not_chosen() -> None:
    recorder = Recorder()
    for number in range(6):
        begin = 2000.0 * number
        recorder.span(f"ProfilerStep#{number}", begin, 1900)
        for at in range(8):
            recorder.op(begin + 10 + 30 * at)
        if number % 3 == 2:
            backward = {"cat": "cpu_op", "name": "autograd::engine::evaluate_function: MmBackward0", "args": {}}
            recorder.events.append({"ph": "X", "ts": begin + 300, "dur": 50, "pid": 100, "tid": 100, **backward})
            recorder.op(begin + 310)
    trace = recorder.trace()
    assert working_iterations(trace).tolist() == [2, 5]
    chosen = choose_iteration(trace)[1]
    assert (chosen.index, chosen.evaluating) == (2, (0, 1, 3, 4))
    assert choose_iteration(trace, 3)[1].index == 3
    h100 = find_gpu(CATALOG, "H100 SXM5 80GB")

    def said(iteration: int | str | None) -> str:
        return "\n".join(warn(run_analysis(trace, CATALOG, targets=[h100], source=h100, iteration=iteration)))

    assert "iterations 0, 1, 3, 4 of 6 evaluate the model, without gradients, and do not count" in said(None)
    assert "iteration 3 evaluates the model, without gradients, while others train it" in said(3)
    assert "evaluate" not in said("all")
