"""The timeline: what lies where, on the recording's side and on the prediction's, and what the viewer's file says."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import Graph
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.predict import predict_measured
from wavecast.analyzer.prediction.prediction import METHODS
from wavecast.analyzer.prediction.workload import measured_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay.causes import durations_ns, occupation
from wavecast.analyzer.replay.engine import Timing, measured_timing, replay
from wavecast.analyzer.replay.forecast import kernel_rows
from wavecast.analyzer.replay.iterations import iteration_position, iteration_spans
from wavecast.analyzer.replay.paths import measured_path, replayed_path
from wavecast.analyzer.timeline.build import build_timeline
from wavecast.analyzer.timeline.events import timeline_events
from wavecast.analyzer.timeline.sides import measured_side, predicted_side
from wavecast.analyzer.timeline.slices import (
    ArrowKind,
    SliceKind,
    Timeline,
    TrackKind,
    kernel_notes,
    no_notes,
    op_notes,
)
from wavecast.arrays import Floats
from wavecast.formats.files.open import load_trace
from wavecast.formats.perfetto.timeline import encode_events
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import CallTable, IterationTable, KernelTable, Meta, OpTable, Phase, Trace
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu

BUSY_QUERY = """
WITH side AS (SELECT upid, s.ts, s.ts + s.dur AS e, s.category FROM slice s
              JOIN thread_track t ON s.track_id = t.id JOIN thread USING (utid)),
     iteration AS (SELECT upid, ts AS a, e AS b FROM side WHERE category = 'iteration'),
     gpu AS (SELECT upid, max(ts, a) AS s, min(e, b) AS e FROM side JOIN iteration USING (upid)
             WHERE category IN ('kernel', 'memcpy', 'memset', 'collective') AND e > a AND ts < b),
     run AS (SELECT *, max(e) OVER (PARTITION BY upid ORDER BY s, e
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM gpu)
SELECT name, sum(max(0, e - max(s, coalesce(before, s)))) AS busy_ns FROM run JOIN process USING (upid) GROUP BY upid
"""
"""GPU-busy time of the iteration on each side; runs as it is in ui.perfetto.dev's query box."""

REAL = [
    "h100_vit_small_inference",
    "mi300x_resnet_checkpointed_training",
    "v100_convnet_ddp_training",
    "a100_80gb_training",
    "v100_dlrm_training_rank1",
    "b200_eager_inference",
]


def training_trace(**changes: Any) -> Trace:
    """Two steps on two threads, the GPU behind the host; an op in an op, a kernel over another on its stream."""
    values: dict[str, Any] = {
        "meta": Meta(producer="/home/somebody/bin/recorder", framework="torch 2.13.0"),
        "strings": ("aten::linear", "aten::addmm", "AddmmBackward0", "cudaLaunchKernel", "gemm_fp16", "my_kernel"),
        "iterations": build_table(
            IterationTable,
            2,
            start_ns=[0, 30_000],
            end_ns=[30_000, 60_000],
            cpu_start_ns=[0, 14_000],
            cpu_end_ns=[13_000, 27_000],
        ),
        "ops": build_table(
            OpTable,
            6,
            name=[0, 1, 2, 0, 1, 2],
            thread=[0, 0, 1, 0, 0, 1],
            start_ns=[1_000, 2_000, 8_000, 15_000, 16_000, 22_000],
            duration_ns=[5_000, 3_000, 4_000, 5_000, 3_000, 4_000],
            parent=[-1, 0, -1, -1, 3, -1],
            phase=[Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD] * 2,
            forward=[-1, -1, 1, -1, -1, 4],
        ),
        "calls": build_table(
            CallTable,
            4,
            name=[3] * 4,
            thread=[0, 1, 0, 1],
            start_ns=[3_000, 9_000, 17_000, 23_000],
            duration_ns=[1_000] * 4,
            op=[1, 2, 4, 5],
        ),
        "kernels": build_table(
            KernelTable,
            4,
            name=[4, 5, 4, 5],
            stream=[7] * 4,
            start_ns=[6_000, 19_000, 30_500, 44_000],
            duration_ns=[12_000, 11_000, 14_000, 16_000],
            call=[0, 1, 2, 3],
            op=[1, 2, 4, 5],
        ),
    }
    return Trace(**(values | changes))


def scaled(graph: Graph, factor: float, host_ratio: float = 1.0) -> Timing:
    timing = measured_timing(graph, graph.residual_ns)
    return replace(timing, factor=np.full((1, 1), factor), host_ratio=np.full(1, host_ratio))


def both_sides(trace: Trace, timing_of: Callable[[Graph], Timing]) -> tuple[Timeline, Graph, Floats]:
    graph, window = build_graph(trace), select_window(trace)
    timing = timing_of(graph)
    end = replay(graph, timing)[:, 0]
    measured = measured_side(trace, graph, "A", path=measured_path(trace, graph, window.index))
    predicted = predicted_side(
        trace,
        graph,
        "B",
        notes=no_notes(len(graph.nodes.row)),
        timing=timing,
        end_ns=end,
        path=replayed_path(trace, graph, timing, end, window.index),
    )
    return build_timeline(window, (measured, predicted)), graph, end


def of_side(timeline: Timeline, process: int, *kinds: SliceKind) -> np.ndarray[Any, Any]:
    side = np.array([track.process for track in timeline.tracks])[timeline.slices.track]
    return np.flatnonzero((side == process) & np.isin(timeline.slices.kind, kinds))


def database(text: bytes) -> sqlite3.Connection:
    """The tables of Perfetto's trace processor that the query reads, filled from the file alone."""
    events = json.loads(text)["traceEvents"]
    store = sqlite3.connect(":memory:")
    store.executescript(
        "CREATE TABLE process (upid, name); CREATE TABLE thread (utid, upid); CREATE TABLE thread_track (id, utid);"
        "CREATE TABLE slice (track_id, ts, dur, category);"
    )
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            store.execute("INSERT INTO process VALUES (?, ?)", (event["pid"], event["args"]["name"]))
        if event["ph"] == "M" and event["name"] == "thread_name":
            store.execute("INSERT INTO thread VALUES (?, ?)", (event["tid"], event["pid"]))
            store.execute("INSERT INTO thread_track VALUES (?, ?)", (event["tid"], event["tid"]))
    rows = [
        (event["tid"], round(event["ts"] * 1000), round(event["dur"] * 1000), event["cat"])
        for event in events
        if event["ph"] == "X"
    ]
    store.executemany("INSERT INTO slice VALUES (?, ?, ?, ?)", rows)
    return store


def busy_by_side(timeline: Timeline) -> dict[str, int]:
    with database(encode_events(timeline_events(timeline))) as store:
        return dict(store.execute(BUSY_QUERY).fetchall())


def reported_busy_ns(trace: Trace, graph: Graph, timing: Timing, end_ns: Floats) -> float:
    start, finish = iteration_spans(trace, graph, end_ns[:, None])
    at = iteration_position(trace, select_window(trace).index)
    return float(occupation(graph, timing, end_ns[:, None], start[at], finish[at]).busy_ns[0])


def test_the_same_times_give_the_same_slices_on_both_sides() -> None:
    timeline, _, _ = both_sides(training_trace(), lambda graph: scaled(graph, 1.0))
    slices = timeline.slices
    for kind in SliceKind:
        measured, predicted = of_side(timeline, 0, kind), of_side(timeline, 1, kind)
        for name in ("kind", "row", "start_ns", "duration_ns", "is_critical", "in_iteration"):
            assert np.array_equal(getattr(slices, name)[measured], getattr(slices, name)[predicted]), (kind, name)


def test_the_recording_is_shown_as_it_was() -> None:
    trace = training_trace()
    timeline, _, _ = both_sides(trace, lambda graph: scaled(graph, 0.5))
    slices, rows = timeline.slices, of_side(timeline, 0, SliceKind.KERNEL)
    inside = rows[slices.in_iteration[rows]]
    index = select_window(trace).index
    assert index is not None
    zero = int(trace.iterations.start_ns[index]) - timeline.processes[0].start_ns
    assert slices.row[inside].tolist() == select_window(trace).kernel_rows.tolist()
    assert (slices.start_ns[inside] + zero).tolist() == trace.kernels.start_ns[slices.row[inside]].tolist()
    assert slices.duration_ns[inside].tolist() == trace.kernels.duration_ns[slices.row[inside]].tolist()


def test_iterations_start_at_one_instant_and_nothing_before_zero() -> None:
    timeline, _, _ = both_sides(training_trace(), lambda graph: scaled(graph, 0.25))
    assert len({process.start_ns for process in timeline.processes}) == 1
    assert timeline.slices.start_ns.min() == 0
    for number, process in enumerate(timeline.processes):
        rows = of_side(timeline, number, SliceKind.ITERATION)
        assert timeline.slices.duration_ns[rows].tolist() == [process.iteration_ns]


@pytest.mark.parametrize(("factor", "host_ratio"), [(0.5, 1.0), (3.0, 1.0), (1.0, 0.3), (0.1, 2.0), (0.0, 0.0)])
def test_ops_stay_inside_their_parents_and_calls_inside_their_ops(factor: float, host_ratio: float) -> None:
    trace = training_trace()
    timeline, _, _ = both_sides(trace, lambda graph: scaled(graph, factor, host_ratio))
    slices = timeline.slices
    assert (slices.duration_ns >= 0).all()
    for process in (0, 1):
        ops, calls = of_side(timeline, process, SliceKind.OP), of_side(timeline, process, SliceKind.CALL)
        at = dict(zip(slices.row[ops].tolist(), ops.tolist(), strict=True))
        pairs = [(at[row], at.get(int(trace.ops.parent[row]))) for row in at]
        pairs += [(int(call), at.get(int(trace.calls.op[slices.row[call]]))) for call in calls]
        for inner, outer in pairs:
            if outer is not None:
                assert slices.start_ns[outer] <= slices.start_ns[inner]
                assert slices.end_ns[inner] <= slices.end_ns[outer]
                assert slices.track[inner] == slices.track[outer]


def test_predicted_kernels_last_as_long_as_replayed() -> None:
    trace = training_trace()
    timeline, _, _ = both_sides(trace, lambda graph: scaled(graph, 0.5))
    rows = of_side(timeline, 1, SliceKind.KERNEL)
    rows = rows[timeline.slices.in_iteration[rows]]
    expected = trace.kernels.duration_ns[timeline.slices.row[rows]] * 0.5
    assert timeline.slices.duration_ns[rows] == pytest.approx(expected, abs=1)


def test_kernels_that_overlap_on_a_stream_get_a_second_track() -> None:
    table = training_trace().kernels
    trace = training_trace(kernels=replace(table, start_ns=np.array([6_000, 12_000, 30_500, 36_000])))
    timeline, _, _ = both_sides(trace, lambda graph: scaled(graph, 1.0))
    names = [track.name for track in timeline.tracks if track.process == 0 and track.kind is TrackKind.STREAM]
    assert names == ["stream 7", "stream 7 (2)"]
    encode_events(timeline_events(timeline))  # raises where slices cross


def test_arrows_join_launches_with_kernels_and_forward_with_backward() -> None:
    trace = training_trace()
    timeline, _, _ = both_sides(trace, lambda graph: scaled(graph, 0.5))
    slices, arrows = timeline.slices, timeline.arrows
    launch = arrows.kind == ArrowKind.LAUNCH
    source, target = arrows.source[launch], arrows.target[launch]
    assert (slices.kind[source] == SliceKind.CALL).all()
    assert slices.row[source].tolist() == trace.kernels.call[slices.row[target]].tolist()
    assert (slices.start_ns[source] <= slices.start_ns[target]).all()
    back = zip(slices.row[arrows.source[~launch]].tolist(), slices.row[arrows.target[~launch]].tolist(), strict=True)
    assert set(back) == {(1, 2), (4, 5)}


def test_the_critical_path_fills_the_iteration_without_gap() -> None:
    timeline, _, _ = both_sides(training_trace(), lambda graph: scaled(graph, 0.5))
    slices = timeline.slices
    for number, process in enumerate(timeline.processes):
        steps = of_side(timeline, number, SliceKind.STEP)
        steps = steps[np.lexsort((slices.end_ns[steps], slices.start_ns[steps]))]
        assert slices.start_ns[steps[0]] == process.start_ns
        assert slices.end_ns[steps[-1]] == process.end_ns
        assert all(slices.end_ns[one] == slices.start_ns[two] for one, two in pairwise(steps.tolist()))
        on_path = set(slices.node[steps].tolist()) - {-1}
        gpu = of_side(timeline, number, SliceKind.KERNEL)
        assert set(slices.node[gpu[slices.is_critical[gpu]]].tolist()) <= on_path
        assert slices.is_critical[gpu].any()


def test_the_query_returns_the_busy_time_of_the_report() -> None:
    trace = training_trace()
    timeline, graph, end = both_sides(trace, lambda graph: scaled(graph, 0.5))
    busy = busy_by_side(timeline)
    measured = reported_busy_ns(trace, graph, measured_timing(graph, graph.residual_ns), graph.nodes.end_ns)
    assert measured > 0
    assert busy["measured on A"] == measured
    assert busy["predicted on B"] == pytest.approx(reported_busy_ns(trace, graph, scaled(graph, 0.5), end), abs=4)


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_real_timelines_are_legal_and_add_up(name: str, data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / f"{name}.json.gz")
    timeline, graph, end = both_sides(trace, lambda graph: scaled(graph, 0.5))
    busy = busy_by_side(timeline)
    assert busy["measured on A"] == reported_busy_ns(
        trace, graph, measured_timing(graph, graph.residual_ns), graph.nodes.end_ns
    )
    kernels = int(timeline.slices.is_gpu.sum())
    assert busy["predicted on B"] == pytest.approx(reported_busy_ns(trace, graph, scaled(graph, 0.5), end), abs=kernels)


def test_predicted_kernels_say_how_their_time_came_about(
    toy_trace: Callable[..., Trace], gpu: Callable[..., Gpu]
) -> None:
    trace, source, target = toy_trace(), gpu(), gpu(name="Target", memory_bandwidth_bytes_per_s=2e12)
    graph, window = build_graph(trace), select_window(trace)
    workload = measured_workload(trace, window)
    prediction = predict_measured(trace, workload, build_fleet([source]), build_fleet([target]), load_library())
    timing = scaled(graph, 0.5)
    duration = durations_ns(graph, timing)
    rows = kernel_rows(graph, trace, workload)
    notes = kernel_notes(workload, prediction, 0, rows, duration)
    end_ns = replay(graph, timing)[:, 0]
    sides = (
        measured_side(trace, graph, "Base", notes=op_notes(workload, rows)),
        predicted_side(trace, graph, "Target", notes=notes, timing=timing, end_ns=end_ns),
    )
    events = json.loads(encode_events(timeline_events(build_timeline(window, sides))))["traceEvents"]
    said = {(event["pid"], event["args"].get("op")): event for event in events if event.get("cat") == "kernel"}
    product = said[2, "aten::mm"]["args"]
    row = next(row for row, op in enumerate(workload.op.tolist()) if op == 1)
    width = prediction.half_width[row, 0]
    assert product["shapes"] == "float16[4096,4096] float16[4096,4096]"
    assert product["family"] == "matmul"
    assert product["measured_us"] == 1000
    assert product["method"] == METHODS[prediction.method[row, 0]].value
    assert product["reason"] == prediction.reason[row]
    assert product["bound_by"] == "compute"
    assert product["bound_us"] == pytest.approx(prediction.bounds.lower_ns[row, 0] / 1000, abs=1e-3)
    assert product["low_us"] == pytest.approx(500 * np.exp(-width), rel=1e-4)
    assert product["high_us"] == pytest.approx(500 * np.exp(width), rel=1e-4)
    assert said[2, "aten::mm"]["dur"] == pytest.approx(500, abs=1e-3)
    assert said[2, None]["name"] == "my_kernel"
    assert said[1, "aten::mm"]["args"]["family"] == "matmul"
    assert "method" not in said[1, "aten::mm"]["args"]


def test_a_thread_that_nothing_ties_to_the_others_may_come_early() -> None:
    trace = training_trace()
    ops, calls = trace.ops, trace.calls
    loose = replace(
        trace,
        ops=replace(ops, thread=np.array([0, 0, 2, 0, 0, 2]), start_ns=np.array([1, 2, 1, 15, 16, 14]) * 1_000),
        calls=replace(calls, thread=np.array([0, 2, 0, 2]), start_ns=np.array([3, 2, 17, 15]) * 1_000),
        iterations=replace(trace.iterations, profiled=np.array([False, True])),
    )
    timeline, graph, _ = both_sides(loose, lambda graph: scaled(graph, 4.0, 0.5))
    assert sum(lane.is_host for lane in graph.lanes) == 2
    assert timeline.slices.start_ns.min() == 0
    encode_events(timeline_events(timeline))


def test_nothing_but_the_tables_leaves_the_trace() -> None:
    timeline, _, _ = both_sides(training_trace(), lambda graph: scaled(graph, 0.5))
    text = encode_events(timeline_events(timeline)).decode()
    assert "aten::linear" in text
    assert "/home" not in text
    assert "torch 2.13.0" not in text


def test_an_unnamed_iteration_and_an_empty_trace_are_drawn() -> None:
    whole = training_trace(iterations=build_table(IterationTable, 0))
    for trace in (whole, Trace()):
        timeline, _, _ = both_sides(trace, lambda graph: scaled(graph, 1.0))
        assert len(timeline.processes) == 2
        encode_events(timeline_events(timeline))
