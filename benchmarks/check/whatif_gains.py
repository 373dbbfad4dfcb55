"""Print what CUDA graphs and merged pointwise kernels would save on the recorded GPU: one line per measured trace.

    python -m benchmarks.check.whatif_gains TRACE...

The recording's own times are replayed, so only the what-ifs themselves are at work; an iteration is the median one.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from wavecast import load_trace
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import Graph
from wavecast.analyzer.prediction.workload import measured_workload
from wavecast.analyzer.recorded.devices import source_gpu
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay.causes import occupation
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.iterations import iteration_spans
from wavecast.analyzer.whatif.cuda_graph.capture import find_stretches, with_cuda_graph
from wavecast.analyzer.whatif.fusion.fusion import with_fused_elementwise
from wavecast.errors import WavecastError
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog

Floats = np.ndarray


def main(paths: list[Path]) -> None:
    """Print the table."""
    print(f"{'trace':36} {'recorded':>10} {'graphs':>10} {'merged':>10} {'both':>10} {'GPU busy':>9} {'merged':>9}  ms")
    for path in paths:
        print(gains(path.name.partition(".")[0], load_trace(path)))


def gains(name: str, trace: Trace) -> str:
    """Return the line of one trace."""
    window = select_window(trace)
    try:
        architecture = source_gpu(trace, load_catalog(), window).architecture
    except WavecastError:
        architecture = None
    graph = build_graph(trace, architecture=architecture)
    fusion = with_fused_elementwise(graph, trace, measured_workload(trace, window))
    plain = np.ones(len(graph.nodes.row))
    changed = (
        (graph, plain),
        (with_cuda_graph(graph, trace), plain),
        (fusion.graph, fusion.base_ratio),
        (with_cuda_graph(fusion.graph, trace), fusion.base_ratio),
    )
    times = [iteration_ms(trace, item, ratio) for item, ratio in changed]
    stretches = find_stretches(graph, trace)
    return (
        f"{name:36} " + " ".join(f"{total:10.3f}" for total, _ in times) + f" {times[0][1]:9.3f} {times[2][1]:9.3f}  "
        f"{len(stretches.launches)} launches in {len(stretches.sizes)} graphs, "
        f"{fusion.kernels_merged} kernels merged in {fusion.chains} chains"
    )


def iteration_ms(trace: Trace, graph: Graph, ratio: Floats) -> tuple[float, float]:
    """Return the median iteration, and how long the GPU is busy in it."""
    timing = measured_timing(graph, graph.residual_ns)
    timing = replace(timing, base_ns=timing.base_ns * ratio)
    end = replay(graph, timing)
    start, finish = iteration_spans(trace, graph, end)
    length = (finish - start)[:, 0]
    at = int(np.argsort(length, kind="stable")[(len(length) - 1) // 2])
    return float(length[at]) / 1e6, float(occupation(graph, timing, end, start[at], finish[at]).busy_ns[0]) / 1e6


if __name__ == "__main__":
    main([Path(item) for item in sys.argv[1:]])
