"""The synthetic host: a timeline for a trace of shapes alone."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import wavecast
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.host.costs import HostCosts, load_host_costs
from wavecast.analyzer.host.launches import multi_tensor_launches
from wavecast.analyzer.host.named import load_anchor, reference_speed, usual_mix
from wavecast.analyzer.host.timeline import script_speed_of, script_time, synthesize_timeline
from wavecast.errors import InputError
from wavecast.formats.measured.host_file import REFERENCE_HOST
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.column import build_table, columns, row_count
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import HostTimes, KernelKind, Meta, OpTable, Phase, Trace

NAMES = ("aten::linear", "aten::t", "aten::addmm", "aten::add", "aten::_local_scalar_dense", "aten::mm", "mine::op")
LINEAR, T, ADDMM, ADD, READ, MM, MINE = range(len(NAMES))
MATRIX = TensorSpec("float32", (8, 8))
CALL = Signature((MATRIX, MATRIX, MATRIX), (MATRIX,))


def build_costs(**changes: Any) -> HostCosts:
    values: dict[str, Any] = {
        "host": "toy",
        "op_ns": {"aten::add": 1_000.0, "aten::addmm": 4_000.0, "aten::t": 500.0, "aten::linear": 6_000.0},
        "family_op_ns": {"matmul": 3_000.0},
        "other_op_ns": 2_000.0,
        "custom_op_ns": 9_000.0,
        "lead_ns": {"forward": 100.0, "backward": 200.0, "optimizer": 300.0, "forward/any/aten::add>aten::add": 50.0},
        "launch_ns": 5_000.0,
        "copy_ns": 7_000.0,
        "sync_ns": 1_500.0,
        "before_launch_ratio": 0.5,
        "kernel_count": {"aten::addmm": 2.0},
    }
    return HostCosts(**(values | changes))


def shapes(*names: int, **columns: list[int]) -> Trace:
    count = len(names)
    return Trace(
        meta=Meta(capture="shapes"),
        strings=NAMES,
        signatures=(CALL,),
        ops=build_table(OpTable, count, name=names, **({"signature": [0] * count, "phase": [0] * count} | columns)),
    )


def eager(trace: Trace, **changes: Any) -> Trace:
    return synthesize_timeline(trace, build_costs(**changes))


def test_an_op_takes_its_lead_its_own_time_and_its_launches() -> None:
    timed = eager(shapes(ADD, ADD, ADDMM))
    assert timed.ops.start_ns.tolist() == [100, 100 + 6_000 + 50, 6_150 + 6_000 + 100]
    assert timed.ops.duration_ns.tolist() == [1_000 + 5_000, 6_000, 4_000 + 2 * 5_000]
    assert timed.iterations.end_ns.tolist() == [12_250 + 14_000]
    # Half of addmm's own time, a launch, a quarter, a launch, a quarter.
    assert timed.calls.start_ns.tolist()[2:] == [12_250 + 2_000, 12_250 + 2_000 + 5_000 + 1_000]
    assert timed.kernels.start_ns.tolist()[2:] == [12_250 + 7_000, 12_250 + 13_000]
    assert timed.kernels.op.tolist() == [0, 1, 2, 2]
    assert timed.kernels.call.tolist() == [0, 1, 2, 3]


def test_views_launch_nothing_and_unknown_ops_one_kernel() -> None:
    assert eager(shapes(T, MINE)).kernels.op.tolist() == [1]


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("aten::add", 1_000.0),
        ("aten::add.Tensor", 1_000.0),
        ("aten::add_", 1_000.0),
        ("aten::mm", 3_000.0),
        ("mine::op", 9_000.0),
        ("aten::mystery", 2_000.0),
    ],
)
def test_a_cost_is_found_by_name_then_family_then_overall(name: str, cost: float) -> None:
    assert build_costs().op_cost_ns(name) == cost


def test_nested_ops_keep_what_their_children_leave() -> None:
    timed = eager(shapes(LINEAR, T, ADDMM, ADD, parent=[-1, 0, 0, -1]))
    start, end = timed.ops.start_ns, timed.ops.start_ns + timed.ops.duration_ns
    # linear 6 µs, of which t 0.5 and addmm 4; addmm's launches come on top.
    assert timed.ops.duration_ns.tolist() == [6_000 + 10_000, 500, 14_000, 6_000]
    assert start[0] <= start[1] < end[1] <= start[2] < end[2] <= end[0] < start[3]


def test_reading_a_value_copies_it_to_the_host_and_waits() -> None:
    timed = eager(shapes(ADD, READ))
    names = [timed.strings[name] for name in timed.calls.name.tolist()]
    assert names == ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"]
    assert timed.kernels.kind.tolist() == [KernelKind.KERNEL, KernelKind.MEMCPY]
    assert timed.calls.op.tolist() == [0, 1, 1]
    assert timed.calls.duration_ns.tolist() == [5_000, 7_000, 1_500]


def test_backward_runs_on_the_autograd_thread_and_never_beside_the_main_one() -> None:
    phases = [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    timed = eager(shapes(ADD, MM, MM, ADD, phase=[int(phase) for phase in phases]))
    assert timed.ops.thread.tolist() == [0, 1, 1, 0]
    assert timed.calls.thread.tolist() == [0, 1, 1, 0]
    end = timed.ops.start_ns + timed.ops.duration_ns
    assert (timed.ops.start_ns[1:] >= end[:-1]).all()


def test_a_host_twice_as_fast_takes_half_the_time() -> None:
    trace = shapes(ADD, ADDMM, READ, MINE)
    slow = synthesize_timeline(trace, build_costs())
    fast = synthesize_timeline(trace, build_costs().at_speed(2.0))
    assert fast.iterations.end_ns[0] == slow.iterations.end_ns[0] / 2


def test_a_measured_trace_is_refused() -> None:
    with pytest.raises(InputError, match="measured kernels"):
        eager(eager(shapes(ADD)))


def test_a_child_before_its_parent_is_refused() -> None:
    with pytest.raises(InputError, match=r"\$\.ops\.parent\[0\]"):
        eager(shapes(ADD, LINEAR, parent=[1, -1]))


def test_a_trace_without_ops_takes_no_time() -> None:
    assert eager(shapes()).iterations.end_ns.tolist() == [0]


@st.composite
def trees(draw: st.DrawFn) -> Trace:
    """Draw properly nested ops in order of start."""
    stack: list[int] = []
    parents = []
    for row in range(draw(st.integers(1, 25))):
        del stack[draw(st.integers(0, len(stack))) :]
        parents.append(stack[-1] if stack else -1)
        stack.append(row)
    count = len(parents)
    names = draw(st.lists(st.integers(0, len(NAMES) - 1), min_size=count, max_size=count))
    phases = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return shapes(*names, parent=parents, phase=phases)


@given(trees())
@settings(max_examples=50, deadline=None)
def test_whatever_nests_stays_nested_and_nothing_overlaps(trace: Trace) -> None:
    timed = eager(trace)
    ops, calls = timed.ops, timed.calls
    end = ops.start_ns + ops.duration_ns
    assert (np.diff(ops.start_ns) >= 0).all()
    for row, parent in enumerate(ops.parent.tolist()):
        if parent >= 0:
            assert ops.start_ns[parent] <= ops.start_ns[row] <= end[row] <= end[parent]
            assert ops.thread[parent] == ops.thread[row]
    call_end = calls.start_ns + calls.duration_ns
    assert (calls.start_ns[1:] >= call_end[:-1]).all()
    assert (calls.start_ns >= ops.start_ns[calls.op]).all()
    assert (call_end <= end[calls.op]).all()
    assert (timed.kernels.start_ns == call_end[timed.kernels.call]).all()
    assert (timed.kernels.op == calls.op[timed.kernels.call]).all()
    assert end.max() <= timed.iterations.cpu_end_ns[0]
    assert decode(encode(timed)) == timed


@given(trees())
@settings(max_examples=50, deadline=None)
def test_nothing_else_of_the_trace_changes(trace: Trace) -> None:
    timed = eager(trace)
    assert timed == eager(trace)
    for spec in columns(OpTable):
        if spec.name not in ("start_ns", "duration_ns", "thread"):
            assert np.array_equal(getattr(timed.ops, spec.name), getattr(trace.ops, spec.name))
    assert timed.strings[: len(trace.strings)] == trace.strings
    assert (timed.signatures, timed.meta) == (trace.signatures, trace.meta)


def tensors(*sizes: int) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec("float32", (size,)) for size in sizes)


@pytest.mark.parametrize(
    ("lists", "is_in_place", "launches"),
    [
        ((tensors(*[8] * 110),), True, 1),
        ((tensors(*[8] * 111),), True, 2),
        ((tensors(*[8] * 65),), False, 2),  # two lists with the result
        ((tensors(65_536 * 320),), True, 1),
        ((tensors(65_536 * 320 + 1),), True, 2),
        ((tensors(65_536 * 319, 65_536 * 2),), True, 2),
        ((tensors(0, 0),), True, 0),
        ((), True, 0),
    ],
)
def test_multi_tensor_ops_launch_by_tensors_and_chunks(
    lists: tuple[tuple[TensorSpec, ...], ...], is_in_place: bool, launches: int
) -> None:
    assert multi_tensor_launches(Signature(lists), is_in_place=is_in_place) == launches


def chunk_by_chunk(sizes: list[int], most_tensors: int) -> int:
    """Count launches as torch's loop does: one chunk after the other."""
    launches = tensors_in = blocks = 0
    for size in sizes:
        chunks = -(-size // 65_536)
        tensors_in += chunks > 0
        for chunk in range(chunks):
            blocks += 1
            is_last = chunk == chunks - 1
            if blocks == 320 or (tensors_in == most_tensors and is_last):
                launches, blocks, tensors_in = launches + 1, 0, 0 if is_last else 1
    return launches + (blocks > 0)


@given(st.lists(st.integers(0, 65_536 * 700), max_size=150))
@settings(max_examples=50, deadline=None)
def test_launches_agree_with_a_loop_over_chunks(sizes: list[int]) -> None:
    call = Signature((tensors(*sizes), tensors(*sizes)))
    assert multi_tensor_launches(call, is_in_place=True) == chunk_by_chunk(sizes, 64)


def test_shipped_costs_are_plausible() -> None:
    """A view costs less than a matrix product; no cost is free or longer than a millisecond."""
    costs = load_host_costs()
    assert (
        costs.op_cost_ns("aten::view")
        < costs.op_cost_ns("aten::addmm")
        < costs.op_cost_ns("aten::convolution_backward")
    )
    everything = [*costs.op_ns.values(), *costs.lead_ns.values(), costs.launch_ns, costs.other_op_ns]
    assert min(everything) >= 0
    assert max(everything) < 1e6


@pytest.mark.parametrize(
    "name", ["bert_base-training-fp32-b16", "resnet50-inference-bf16-b32", "seq2seq-training-fp32-b64"]
)
def test_samples_get_a_kernel_for_all_their_work(name: str, root_dir: Any) -> None:
    trace = wavecast.load_trace(root_dir / "samples" / f"{name}-shapes.json.gz")
    timed = synthesize_timeline(trace, load_host_costs())
    launching = np.unique(timed.kernels.op)
    names = {trace.strings[item] for item in trace.ops.name[launching].tolist()}
    assert not names & {"aten::view", "aten::t", "aten::transpose"}
    assert row_count(trace.ops) / 6 < len(launching) < row_count(trace.ops)
    assert timed.meta.capture == "shapes"
    # One to 30 µs of host time per op: eager PyTorch on any machine of the last ten years.
    assert 1e3 < timed.iterations.end_ns[0] / row_count(trace.ops) < 3e4


def test_python_is_moved_from_the_host_that_recorded_to_the_one_of_the_replay(root_dir: Any) -> None:
    """A host whose Python is twice as fast records half the time, which comes to the same on the reference host."""
    trace = wavecast.load_trace(root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz")
    kept = {spec.name: getattr(trace.ops, spec.name) for spec in columns(trace.ops)}

    def length_ns(python_ns: float | None, lead_ns: int) -> float:
        ops = build_table(OpTable, row_count(trace.ops), **(kept | {"lead_ns": np.full(row_count(trace.ops), lead_ns)}))
        told = replace(trace, ops=ops, meta=replace(trace.meta, host=HostTimes(python_ns=python_ns)))
        return wavecast.analyze(told, to="T4").report.predictions[0].iteration_ns

    half, whole = (script_speed_of(HostTimes(python_ns=python_ns)) for python_ns in (3000.0, 6000.0))
    assert whole == pytest.approx(2 * half)
    assert script_speed_of(REFERENCE_HOST) < 1  # it is faster than the host of the H100 recordings
    slow, fast = length_ns(6000.0, 10_000_000), length_ns(3000.0, 5_000_000)
    assert slow == pytest.approx(fast, rel=1e-6)
    assert slow > length_ns(None, 1000)


def timed(trace: Trace, lead_ns: dict[int, int], *, walks: int | None = 6, spread: float | None = None) -> Trace:
    """Return a recording of a script that took such times before some ops."""
    column = np.zeros(row_count(trace.ops), dtype=np.int64)
    column[list(lead_ns)] = list(lead_ns.values())
    meta = replace(trace.meta, script_walks=walks, script_spread=spread)
    return replace(trace, ops=replace(trace.ops, lead_ns=column, loading_ns=np.zeros_like(column)), meta=meta)


@pytest.fixture
def prefill(root_dir: Any) -> Trace:
    return wavecast.load_trace(root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz")


@pytest.mark.parametrize(
    ("lead_ns", "walks", "added_ns", "doubt_ns"),
    [
        (20_000_000, 6, 20_000_000 - 7, 0),
        (1_500_000, 6, (1_500_000 - 7) / 2, 0),  # as much as two gaps of half a script's work
        (900_000, 6, 0, 0),  # what recording leaves between the ops of a plain loop
        (900_000, None, 0, 0),
        (7_000_000, None, 0, 7_000_000 - 7),  # one measurement: nobody knows
        (7_000_000, 2, 0, 7_000_000 - 7),
        (40_000_000, None, 40_000_000 - 7, 0),  # no busy machine does that
    ],
)
def test_the_scripts_own_time_counts_where_it_is_longer_than_what_recording_disturbs(
    prefill: Trace, lead_ns: int, walks: int | None, added_ns: float, doubt_ns: float
) -> None:
    found = script_time(timed(prefill, {10: lead_ns}, walks=walks), np.full(381, 7.0), load_host_costs())
    assert found.added_ns[10] == pytest.approx(added_ns)
    assert found.added_ns.sum() == found.added_ns[10]
    assert found.doubt_ns == pytest.approx(doubt_ns)


@pytest.mark.parametrize("loading_ns", [0, 15_000_000])
def test_of_what_passes_before_ops_from_cpp_only_loaded_data_is_the_scripts_own(
    prefill: Trace, loading_ns: int
) -> None:
    told = timed(prefill, {10: 20_000_000, 11: -1, 12: -1})
    told.ops.loading_ns[10] = loading_ns
    found = script_time(told, np.full(381, 7.0), load_host_costs())
    assert found.added_ns.tolist() == [0.0] * 10 + [loading_ns] + [0.0] * 370
    assert found.doubt_ns == pytest.approx(20_000_000 - 7 - loading_ns)


def test_on_a_host_of_twice_the_speed_the_scripts_own_time_is_half(prefill: Trace) -> None:
    costs, told = load_host_costs(), timed(prefill, {10: 30_000_000, 20: 900_000})
    for speed in (1.0, 2.0, 100.0):
        usual, longer = (synthesize_timeline(item, costs.at_speed(speed)) for item in (prefill, told))
        usual_lead_ns = usual.ops.start_ns[10] - (usual.ops.start_ns + usual.ops.duration_ns)[:10].max()
        longer_ns = longer.iterations.end_ns[0] - usual.iterations.end_ns[0]
        assert longer_ns == pytest.approx(30_000_000 / speed - usual_lead_ns, abs=3)
    endless = timed(prefill, dict.fromkeys(range(381), 2**53))
    with pytest.raises(InputError, match="lead_ns: the times add up"):
        synthesize_timeline(endless, costs)


def test_what_walks_differ_by_makes_the_interval_wider_and_the_time_no_longer(prefill: Trace) -> None:
    lengths, ends = list[float](), list[float]()
    for spread in (0.0, 0.3, None):
        told = timed(prefill, {10: 50_000_000}, spread=spread)
        prediction = wavecast.analyze(told, to="H100-SXM").report.predictions[0]
        lengths.append(prediction.iteration_ns)
        ends.append(prediction.iteration_high_ns or 0.0)
    assert lengths[0] == lengths[1] == lengths[2]
    assert ends[1] > 1.03 * ends[0]
    assert ends[2] == ends[0]


@pytest.mark.parametrize("host", ["1", "2", "100"])
def test_a_ratio_of_hosts_says_nothing_of_what_the_table_of_costs_is_off_by(prefill: Trace, host: str) -> None:
    """From shapes the host's time is the table's, whatever speed it has."""
    told = timed(prefill, {10: 400_000_000})
    prediction = wavecast.analyze(told, to="H100-SXM", host=host).report.predictions[0]
    assert prediction.iteration_high_ns is not None
    assert prediction.iteration_high_ns > (1.2 if host == "1" else 1.1) * prediction.iteration_ns


def test_a_plans_host_takes_the_scripts_own_time_with_it(prefill: Trace) -> None:
    told = timed(prefill, {10: 50_000_000})
    asked: Any = {"to": "H200-SXM", "gpus": 2, "plan": "tp=2", "global_batch": 4}
    lengths = [
        [wavecast.scale(item, **asked, host=host).report.predictions[0].iteration_ns for item in (prefill, told)]
        for host in ("1", "100")
    ]
    assert lengths[0][1] - lengths[0][0] == pytest.approx(50_000_000, rel=0.1)
    assert 0.0 < lengths[1][1] - lengths[1][0] < 1.01 * 500_000


@pytest.mark.parametrize("host", [None, "2"])
def test_recordings_of_one_script_are_compared_on_one_host(prefill: Trace, host: str | None) -> None:
    """One of them says no host, or says that its machine was slower just then: the script's time is the same."""
    told = timed(prefill, {10: 40_000_000}, walks=None)
    machines = (HostTimes(python_ns=6000.0), HostTimes(python_ns=9000.0), HostTimes())
    old, *others = (replace(told, meta=replace(told.meta, host=machine)) for machine in machines)
    for new in others:
        assert wavecast.compare(old, new, on="H100-SXM", host=host).report.gpus[0].change == 0.0
        assert wavecast.compare(new, old, on="H100-SXM", host=host).report.gpus[0].change == 0.0


def test_a_script_timed_beside_its_machines_speed_is_compared_by_that(prefill: Trace) -> None:
    """Twice the time on a machine of half the speed is the same; on one of the same speed it is not."""
    old, same, slower = (
        replace(item, meta=replace(item.meta, host=HostTimes(python_ns=python_ns)))
        for item, python_ns in (
            (timed(prefill, {10: 40_000_000}), 6000.0),
            (timed(prefill, {10: 80_000_000}), 12_000.0),
            (timed(prefill, {10: 80_000_000}), 6000.0),
        )
    )
    changes = [wavecast.compare(old, new, on="H100-SXM").report.gpus[0].change for new in (same, slower)]
    assert changes[0] == pytest.approx(0.0, abs=1e-6)
    assert changes[1] is not None
    assert changes[1] > 0.5


def test_the_overview_tells_a_hosts_speed_beside_the_host_of_the_replay(prefill: Trace) -> None:
    times = {name: time_ns for name, time_ns in asdict(REFERENCE_HOST).items() if isinstance(time_ns, float)}
    halves: dict[str, Any] = {name: time_ns / 2 for name, time_ns in times.items()}
    twice = HostTimes(**halves)
    text = wavecast.overview(replace(prefill, meta=replace(prefill.meta, host=twice)))._repr_markdown_()
    assert f"about {2 * (reference_speed(REFERENCE_HOST) or 0.0):.1f} times as fast as h100-node" in text
    anchor = load_anchor()
    mix = usual_mix(anchor.ops_ratio)
    assert min(mix.values()) < (reference_speed(REFERENCE_HOST) or 0.0) < max(mix.values())
    assert 1 / script_speed_of(REFERENCE_HOST) == pytest.approx(mix["python"])
