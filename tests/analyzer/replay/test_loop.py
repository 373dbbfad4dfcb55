"""What an iteration takes in a loop that runs ahead, from one that was recorded by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.forecast import loop_lengths
from wavecast.analyzer.replay.iterations import iteration_nodes
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.formats.trace.tables import SyncKind, Trace
from wavecast.specs.gpu import Catalog, Gpu

from ...conftest import Recording

COUNT, LATENCY_NS, GAP_NS, RETURN_NS = 10, 1_900, 1_000, 5_000


def recorded(
    recording: Recording, launch_ns: int, kernel_ns: int, *, wait: str = "cudaDeviceSynchronize", timed: bool = True
) -> Trace:
    """Launches one after the other, a kernel each, and the recorder's wait for the last one."""
    free = 0
    for at in range(COUNT):
        begin = max(free + GAP_NS if at else 0, launch_ns * (at + 1) + LATENCY_NS)
        recording.launch(launch_ns * at, launch_ns, begin, kernel_ns)
        free = begin + kernel_ns
    end = launch_ns * COUNT
    if wait:
        call = recording.call(wait, end, free + RETURN_NS - end)
        is_whole = wait == "cudaDeviceSynchronize"
        recording.sync(SyncKind.DEVICE if is_whole else SyncKind.STREAM, call, stream=-1 if is_whole else 7)
        end = free + RETURN_NS
    if timed:
        recording.iteration(0, end, 0, end, profiled=False)
    recording.iteration(0, max(end, free), 0, end)
    return recording.trace()


def lengths(trace: Trace, *host_ratios: float) -> tuple[np.ndarray, np.ndarray]:
    """The loop's and the iteration's lengths with some hosts."""
    graph, count = build_graph(trace, architecture="Hopper"), len(host_ratios)
    timing = measured_timing(graph, graph.residual_ns)
    timing = replace(
        timing,
        factor=np.ones((1, count)),
        latency_ns=np.repeat(timing.latency_ns, count, axis=1),
        host_ratio=np.array(host_ratios),
    )
    iterations, end = iteration_nodes(trace, graph), replay(graph, timing)
    start, finish = (times[-1] for times in iterations.spans(end))
    return loop_lengths(iterations, graph, timing, graph.runs), finish - start


def test_a_busy_gpu_sets_the_pace(recording: Recording) -> None:
    loop, alone = lengths(recorded(recording, 5_000, 20_000), 1.0)
    assert loop[0] == pytest.approx(COUNT * 20_000 + (COUNT - 1) * GAP_NS, rel=0.01)
    assert alone[0] - loop[0] == pytest.approx(5_000 + LATENCY_NS + RETURN_NS, rel=0.1)


def test_a_slow_host_sets_the_pace_until_it_would_wait(recording: Recording) -> None:
    loop, alone = lengths(recorded(recording, 20_000, 5_000), 1.0, 2.0)
    np.testing.assert_allclose(loop, [20_000 * COUNT, 40_000 * COUNT], rtol=0.02)
    assert np.all(alone > loop)


def test_a_wait_within_keeps_the_host_between_the_kernels(recording: Recording) -> None:
    recording.launch(0, 5_000, 6_900, 100_000)
    recording.sync(SyncKind.STREAM, recording.call("cudaStreamSynchronize", 5_000, 106_900), stream=7)
    recording.launch(161_900, 5_000, 168_800, 100_000)  # 50 us after the host knew
    recording.sync(SyncKind.DEVICE, recording.call("cudaDeviceSynchronize", 166_900, 106_900))
    recording.iteration(0, 273_800, 0, 273_800, profiled=False)
    recording.iteration(0, 273_800, 0, 273_800)
    loop, alone = lengths(recording.trace(), 1.0, 2.0)
    np.testing.assert_allclose(loop, [2 * 100_000 + 61_900 + GAP_NS, 2 * 100_000 + 116_900 + GAP_NS], rtol=0.01)
    assert np.all(alone > loop)


def test_what_was_recorded_of_one_host_says_nothing_of_another(recording: Recording, gpu: Callable[..., Gpu]) -> None:
    recorded(recording, 20_000, 5_000, timed=False)
    recording.iteration(0, 150_000, 0, 150_000, profiled=False)
    here, there = (
        run_analysis(
            recording.trace(), Catalog(gpus=(gpu(),)), source=gpu(), library=Library(fitted={}), scenario=scenario
        )
        for scenario in (None, Scenario(cpu_speed=1.0, host_half_width=0.3))
    )
    assert here.slowdown.loop_host_ratio > 1.1
    np.testing.assert_allclose(here.forecast.iteration_ns, there.forecast.iteration_ns)
    assert here.forecast.loop_ns[0] == pytest.approx(there.forecast.loop_ns[0] * here.slowdown.loop_host_ratio, rel=0.1)
    assert here.forecast.loop_ns[0] > 1.1 * there.forecast.loop_ns[0]


@pytest.mark.parametrize(
    ("wait", "timed"), [("", True), ("cudaStreamSynchronize", True), ("cudaDeviceSynchronize", False)]
)
def test_a_recording_that_a_loop_would_not_shorten_says_nothing_else(
    recording: Recording, wait: str, timed: bool
) -> None:
    loop, _ = lengths(recorded(recording, 5_000, 20_000, wait=wait, timed=timed), 1.0)
    assert np.isnan(loop[0])
