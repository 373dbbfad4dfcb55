"""What-ifs on the graph of real recordings: nothing starts later, and as much is gained as there is to gain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from wavecast import load_trace
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import Graph
from wavecast.analyzer.graph.latencies import generation_latencies
from wavecast.analyzer.host.costs import load_host_costs
from wavecast.analyzer.host.timeline import synthesize_timeline
from wavecast.analyzer.prediction.workload import GpuWorkload, measured_workload, shape_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay.engine import Timing, measured_timing, replay
from wavecast.analyzer.replay.forecast import kernel_rows
from wavecast.analyzer.replay.iterations import iteration_spans
from wavecast.analyzer.whatif.cuda_graph.capture import with_cuda_graph
from wavecast.analyzer.whatif.fusion.fusion import with_fused_elementwise
from wavecast.formats.trace.tables import Trace

REAL = (
    "h100_vit_small_inference",
    "b200_eager_inference",
    "mi300x_resnet_checkpointed_training",
    "v100_dlrm_training_rank0",
    "a100_80gb_training",
)
ARCHITECTURES = ("Volta", "Turing", "Ampere", "Hopper", "Blackwell", "CDNA")


@dataclass(frozen=True)
class Real:
    """A real trace, its graph, and the graph changed in three ways, each with what its kernels' times become."""

    trace: Trace
    graph: Graph
    workload: GpuWorkload
    changed: tuple[tuple[Graph, Any], ...]


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest, data_dir: Path) -> Real:
    trace = load_trace(data_dir / "traces" / f"{request.param}.json.gz")
    graph, workload = build_graph(trace), measured_workload(trace, select_window(trace))
    fusion = with_fused_elementwise(graph, trace, workload)
    both = with_cuda_graph(fusion.graph, trace)
    changed = ((with_cuda_graph(graph, trace), 1.0), (fusion.graph, fusion.base_ratio), (both, fusion.base_ratio))
    return Real(trace, graph, workload, changed)


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1 << 30),
    speed=st.floats(0.02, 50),
    host=st.floats(0.05, 20),
    gpu=st.sampled_from(ARCHITECTURES),
)
def test_no_gpu_does_anything_later(real: Real, seed: int, speed: float, host: float, gpu: str) -> None:
    rng = np.random.default_rng(seed)
    timing = Timing(
        base_ns=real.graph.nodes.cost_ns,
        factor=np.exp(rng.normal(np.log(speed), 1.0, (len(real.workload.op) + 1, 1))),
        factor_row=kernel_rows(real.graph, real.trace, real.workload),
        latency_ns=np.maximum(real.graph.latency_ns, generation_latencies(gpu))[:, None],
        host_ratio=np.array([host]),
        residual_ns=real.graph.residual_ns,
    )
    before = replay(real.graph, timing)
    for graph, ratio in real.changed:
        changed = replace(timing, base_ns=timing.base_ns * ratio, residual_ns=graph.residual_ns)
        later = replay(graph, changed) - before
        assert later.max() <= 1.0


def iteration_ns(trace: Trace, graph: Graph) -> float:
    timing = measured_timing(graph, graph.residual_ns)
    start, end = iteration_spans(trace, graph, replay(graph, timing))
    return float((end[-1] - start[0])[0])


def test_what_delayed_a_merged_kernel_is_gone(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "v100_dlrm_training_rank0.json.gz")
    graph = build_graph(trace, architecture="Volta")
    fusion = with_fused_elementwise(graph, trace, measured_workload(trace, select_window(trace)))
    assert np.any(graph.residual_ns[fusion.is_merged] > 0)
    assert np.all(fusion.graph.residual_ns[fusion.is_merged] <= 0)
    assert np.array_equal(fusion.graph.residual_ns[fusion.base_ratio == 1], graph.residual_ns[fusion.base_ratio == 1])


def test_launch_bound_inference_comes_near_its_gpu_time(data_dir: Path) -> None:
    for name, kept_ratio in (("h100_bert_small_inference", 0.25), ("h100_vit_small_inference", 0.25)):
        trace = load_trace(data_dir / "traces" / f"{name}.json.gz")
        graph = build_graph(trace, architecture="Hopper")
        captured = with_cuda_graph(graph, trace)
        busy = float(graph.nodes.cost_ns[graph.nodes.is_gpu].sum())
        host = float((captured.nodes.lag_ns + captured.nodes.cost_ns)[~graph.nodes.is_gpu].sum())
        after = iteration_ns(trace, captured)
        assert after < kept_ratio * iteration_ns(trace, graph)
        assert busy < after < 1.1 * (busy + host)


def test_gpu_bound_training_gains_nothing(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "v100_convnet_ddp_training.json.gz")
    graph = build_graph(trace, architecture="Volta")
    assert iteration_ns(trace, with_cuda_graph(graph, trace)) == pytest.approx(iteration_ns(trace, graph), rel=0.01)


def test_inference_merges_batch_norm_with_what_follows(root_dir: Path) -> None:
    shapes = load_trace(root_dir / "samples" / "resnet50-inference-bf16-b32-shapes.json.gz")
    trace = synthesize_timeline(shapes, load_host_costs())
    graph = build_graph(trace)
    fusion = with_fused_elementwise(graph, trace, shape_workload(trace, select_window(trace)))
    # Of 53 convolutions with batch norm, the 4 on shortcuts are followed by another convolution; 16 add the shortcut.
    assert (fusion.chains, fusion.kernels_merged) == (49, 65)
    timing = replace(measured_timing(graph, np.zeros(len(graph.nodes.row))), base_ns=np.full(len(graph.nodes.row), 1e4))
    replayed = [
        replay(item, replace(timing, base_ns=timing.base_ns * ratio))
        for item, ratio in ((graph, 1.0), (fusion.graph, fusion.base_ratio))
    ]
    assert np.all(replayed[1] <= replayed[0])
