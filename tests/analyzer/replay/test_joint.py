"""Ranks replayed as one graph: exact however often they wait for each other."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import Graph
from wavecast.analyzer.replay.engine import Timing, measured_timing
from wavecast.analyzer.replay.joint import JointReplay, join_ranks, replay_jointly
from wavecast.formats.kineto import import_kineto

STEPS, TRANSFER_NS = 300, 50_000.0


def build_rank(compute_us: list[int]) -> tuple[Graph, Timing, np.ndarray[Any, Any]]:
    """A rank whose kernels compute and reduce in turn on one stream, all launched at the start."""
    events, now = [], 2 * len(compute_us) * 2
    for step, length in enumerate(compute_us):
        for at, (name, took) in enumerate((("gemm", length), ("ncclDevKernel_AllReduce", int(TRANSFER_NS / 1e3)))):
            call = 2 * step + at
            where = {"device": 0, "stream": 7, "correlation": call + 1}
            launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
            events.append({**launch, "ts": 2 * call, "dur": 1, "args": {"correlation": call + 1}})
            kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7}
            events.append({**kernel, "ts": now, "dur": took, "args": where})
            now += took
    trace = import_kineto(json.dumps({"traceEvents": events}).encode())
    graph = build_graph(trace)
    nodes = np.flatnonzero(graph.nodes.is_gpu)[1::2]
    return graph, measured_timing(graph, graph.residual_ns), nodes


def replay_ranks(compute_us: list[list[int]], clocks: list[float], heeded: list[bool] | None = None) -> JointReplay:
    ranks = [build_rank(lengths) for lengths in compute_us]
    joined = join_ranks([graph for graph, _, _ in ranks], [nodes for _, _, nodes in ranks])
    counts = None if heeded is None else np.array(heeded)
    transfer = np.full(len(compute_us[0]), TRANSFER_NS)
    return replay_jointly(joined, [timing for _, timing, _ in ranks], transfer, np.array(clocks), counts)


def test_the_latest_rank_holds_each_collective_over_hundreds_of_turns() -> None:
    drawn = np.random.default_rng(7).integers(20, 90, (3, STEPS))
    found = replay_ranks(drawn.tolist(), [0.0] * 3)
    slowest = drawn.max(axis=0)
    assert found.waiting_ns == pytest.approx((slowest - drawn).T * 1e3, abs=1.0)
    length = found.end_ns[0].max() - replay_ranks([drawn[0].tolist()], [0.0]).end_ns[0].max()
    assert length == pytest.approx((slowest - drawn[0]).sum() * 1e3, abs=1.0)


def test_collectives_end_at_once_whatever_clocks_say() -> None:
    clocks = [0.0, 5e5, -3e5]
    found = replay_ranks([[30] * 5, [20] * 5, [40] * 5], clocks)
    ends = [end.max() - clock for end, clock in zip(found.end_ns, clocks, strict=True)]
    assert ends == pytest.approx([ends[0]] * 3, abs=1.0)
    assert found.waiting_ns[0] == pytest.approx([310e3, 820e3, 0.0], abs=1.0)  # the last one began 0.3 ms later
    assert found.waiting_ns[1:] == pytest.approx(np.tile([10e3, 20e3, 0.0], (4, 1)), abs=1.0)


def test_nobody_waits_for_a_rank_that_is_not_heeded_but_it_waits_itself() -> None:
    found = replay_ranks([[20] * 9, [20] * 9, [90] * 9], [0.0, 0.0, 0.0], [True, True, False])
    assert found.waiting_ns[:, :2] == pytest.approx(0.0, abs=1.0)
    alone = replay_ranks([[20] * 9], [0.0])
    assert found.end_ns[0].max() == pytest.approx(alone.end_ns[0].max(), abs=1.0)
    early = replay_ranks([[20] * 9, [90] * 9, [30] * 9], [0.0, 0.0, 0.0], [True, True, False])
    assert early.waiting_ns[:, 2] == pytest.approx(60e3, abs=1.0)
