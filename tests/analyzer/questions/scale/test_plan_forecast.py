"""Plans predicted from what their ranks run, blind and anchored at a known run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.host.costs import load_host_costs
from wavecast.analyzer.host.timeline import synthesize_timeline
from wavecast.analyzer.models.library import Library, load_library
from wavecast.analyzer.prediction.predict import predict_shapes
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.questions.scale.forecast import PlanForecast, predict_plan
from wavecast.analyzer.questions.scale.known_runs import anchor_at_step, anchor_at_trace, single_rank
from wavecast.analyzer.questions.scale.parts import PlanPart, part_of_group
from wavecast.analyzer.questions.scale.pieces import PlanAnchor, PlanGpus, PlanHost
from wavecast.analyzer.recorded.recording import choose_recording, marked
from wavecast.analyzer.replay.engine import replay
from wavecast.analyzer.replay.forecast import target_timing
from wavecast.analyzer.whatif.parallel.derive import derive_ranks
from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
from wavecast.analyzer.whatif.parallel.shard.shard import shard_tensors
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import Device, IterationTable, KernelTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu


@pytest.fixture(scope="module")
def trained(root_dir: Path) -> Trace:
    return load_trace(root_dir / "samples" / "gpt2_small-training-bf16-b4-shapes.json.gz")


@pytest.fixture(scope="module")
def gpus() -> list[Gpu]:
    return [find_gpu(load_catalog(), name) for name in ("H100 SXM5 80GB", "A100 SXM4 80GB")]


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def forecast(trace: Trace, plan: ParallelPlan, gpus: list[Gpu], library: Library, count: int = 1) -> PlanForecast:
    return predict_plan(derive_ranks(trace, plan), plan, PlanGpus(gpus=gpus, library=library), micro_batches=count)


@pytest.mark.parametrize(
    ("plan", "count", "part"),
    [
        (ParallelPlan(), 1, PlanPart.COMPUTE),
        (ParallelPlan(dp=8), 1, PlanPart.DATA),
        (ParallelPlan(fsdp=8), 2, PlanPart.DATA),
        (ParallelPlan(pp=4), 8, PlanPart.BUBBLE),
        (ParallelPlan(pp=2, vp=2), 4, PlanPart.PIPELINE),
    ],
)
def test_parts_add_up_to_the_step(
    trained: Trace, gpus: list[Gpu], library: Library, plan: ParallelPlan, count: int, part: PlanPart
) -> None:
    found = forecast(trained, plan, gpus, library, count)
    np.testing.assert_allclose(sum(found.parts.values()), found.step_ns)
    assert all(np.all(time_ns >= 0) for time_ns in found.parts.values())
    assert np.all(found.parts[part] > 0)
    assert np.all((found.low_ns < found.step_ns) & (found.step_ns < found.high_ns))


def test_more_micro_batches_take_as_much_longer_as_each_of_them(
    trained: Trace, gpus: list[Gpu], library: Library
) -> None:
    one, two, five = (forecast(trained, ParallelPlan(), gpus, library, count).step_ns for count in (1, 2, 5))
    np.testing.assert_allclose(five - two, 3 * (two - one))


def test_a_plan_of_one_gpu_takes_as_long_as_its_replay(trained: Trace, gpus: list[Gpu], library: Library) -> None:
    timed = synthesize_timeline(trained, load_host_costs())
    graph, workload = build_graph(timed), shape_workload(timed)
    timing = target_timing(graph, timed, workload, predict_shapes(workload, gpus, library), None)
    ends = replay(graph, timing)[graph.nodes.is_gpu].max(axis=0)
    np.testing.assert_allclose(forecast(trained, ParallelPlan(), gpus, library).step_ns, ends, rtol=1e-6)


def test_a_step_that_was_measured_is_predicted_of_its_own_plan(
    trained: Trace, gpus: list[Gpu], library: Library
) -> None:
    plan = ParallelPlan(dp=8)
    ranks = derive_ranks(trained, plan)
    blind = predict_plan(ranks, plan, PlanGpus(gpus=gpus[:1], library=library), micro_batches=4)
    measured_ns = 1.3 * float(blind.step_ns[0])
    anchor = anchor_at_step(measured_ns, ranks, plan, PlanGpus(gpus=gpus[:1], library=library), micro_batches=4)
    found = predict_plan(ranks, plan, PlanGpus(gpus=gpus, library=library, anchor=anchor), micro_batches=4)
    assert found.step_ns[0] == pytest.approx(measured_ns, rel=1e-3)
    assert np.all(found.high_ns / found.step_ns < blind.high_ns / blind.step_ns)


def test_a_step_that_no_speed_of_kernels_explains_is_refused(trained: Trace, gpus: list[Gpu], library: Library) -> None:
    ranks = derive_ranks(trained, ParallelPlan())
    with pytest.raises(InputError, match="check measured_step"):
        anchor_at_step(1.0, ranks, ParallelPlan(), PlanGpus(gpus=gpus[:1], library=library), micro_batches=1)


def as_measured(trace: Trace, gpu: Gpu, library: Library, *, slower: float) -> Trace:
    """Return what a profiler would have recorded on a GPU `slower` than predicted, with a host as fast as ours."""
    timed = synthesize_timeline(trace, load_host_costs())
    graph, workload = build_graph(timed), shape_workload(timed)
    timing = target_timing(graph, timed, workload, predict_shapes(workload, [gpu], library), None)
    timing = replace(timing, factor=timing.factor * slower)
    end = replay(graph, timing)[:, 0]
    at = np.flatnonzero(graph.nodes.is_gpu)
    length = timing.node_ns(at)[:, 0]
    start = np.empty(len(at))
    duration = np.empty(len(at))
    start[graph.nodes.row[at]], duration[graph.nodes.row[at]] = end[at] - length, length
    kernels = {name: getattr(timed.kernels, name) for name in ("name", "kind", "stream", "call", "op")}
    return replace(
        timed,
        meta=replace(timed.meta, capture="measured"),
        devices=(Device(name=gpu.name, sm_count=gpu.sm_count),),
        kernels=build_table(
            KernelTable, len(at), **kernels, start_ns=np.rint(start), duration_ns=np.maximum(np.rint(duration), 1)
        ),
        iterations=build_table(
            IterationTable,
            1,
            start_ns=[0],
            end_ns=[int(end.max())],
            cpu_start_ns=[0],
            cpu_end_ns=timed.iterations.cpu_end_ns,
        ),
    )


@pytest.mark.parametrize("slower", [1.0, 1.4])
def test_a_measured_recording_is_predicted_of_its_own_gpu(
    trained: Trace, gpus: list[Gpu], library: Library, slower: float
) -> None:
    measured = as_measured(trained, gpus[0], library, slower=slower)
    anchor = anchor_at_trace(marked(choose_recording(measured)), gpus[0], gpus, library)
    found = predict_plan(
        [single_rank(trained)], ParallelPlan(), PlanGpus(gpus=gpus, library=library, anchor=anchor), micro_batches=1
    )
    assert found.step_ns[0] == pytest.approx(float(measured.iterations.end_ns[0]), rel=1e-3)
    assert anchor.host_ratio == pytest.approx(1.0, rel=0.1)


def test_an_anchor_leaves_collectives_alone(trained: Trace, gpus: list[Gpu], library: Library) -> None:
    plan = ParallelPlan(dp=8)
    ranks = derive_ranks(trained, plan)
    plain, slow = (
        predict_plan(ranks, plan, PlanGpus(gpus=gpus, library=library, anchor=anchor), micro_batches=1)
        for anchor in (None, PlanAnchor(compute_factor=np.full(1, 4.0)))
    )
    assert np.all(slow.parts[PlanPart.COMPUTE] > 2 * plain.parts[PlanPart.COMPUTE])
    assert np.all(slow.parts[PlanPart.DATA] <= plain.parts[PlanPart.DATA] * 1.001)


def test_graphs_take_the_host_out_of_a_plan(trained: Trace, gpus: list[Gpu], library: Library) -> None:
    plan = ParallelPlan(tp=2)
    ranks = derive_ranks(trained, plan, shard=shard_tensors)
    one_by_one, captured = (
        predict_plan(ranks, plan, PlanGpus(gpus=gpus, library=library, scenario=scenario), micro_batches=1)
        for scenario in (Scenario(), Scenario(cuda_graph=True))
    )
    assert captured.parts[PlanPart.HOST].sum() < 0.5 * one_by_one.parts[PlanPart.HOST].sum()
    assert np.all(captured.step_ns < one_by_one.step_ns)


def test_a_compiler_merges_kernels_of_a_plan_but_not_what_ranks_send(
    trained: Trace, gpus: list[Gpu], library: Library
) -> None:
    plan, both = ParallelPlan(tp=2), Scenario(cuda_graph=True, fuse_elementwise=True)
    ranks = derive_ranks(trained, plan, shard=shard_tensors)
    plain, merged = (
        predict_plan(ranks, plan, PlanGpus(gpus=gpus, library=library, scenario=scenario), micro_batches=1)
        for scenario in (Scenario(cuda_graph=True), both)
    )
    assert np.all(merged.parts[PlanPart.COMPUTE] < 0.95 * plain.parts[PlanPart.COMPUTE])
    assert merged.parts[PlanPart.TENSOR] == pytest.approx(plain.parts[PlanPart.TENSOR], rel=0.25)
    assert all(less.work_j < more.work_j for less, more in zip(merged.power, plain.power, strict=True))


def test_gaps_that_a_gpu_needs_between_kernels_are_no_waits_for_the_host(
    trained: Trace, gpus: list[Gpu], library: Library
) -> None:
    plan = ParallelPlan(tp=2)
    ranks = derive_ranks(trained, plan, shard=shard_tensors)
    fast = PlanHost(speed_ratio=100.0, log_width=0.1)
    place = PlanGpus(gpus=gpus, library=library, host=fast)
    found = predict_plan(ranks, plan, place, micro_batches=1)
    assert np.all(found.parts[PlanPart.HOST] < 0.02 * found.step_ns)


@pytest.mark.parametrize(
    ("plain", "hiding", "part"),
    [
        (ParallelPlan(tp=2), ParallelPlan(tp=2, overlap_tensor=True), PlanPart.TENSOR),
        (ParallelPlan(cp=2), ParallelPlan(cp=2, overlap_context=True), PlanPart.CONTEXT),
    ],
)
def test_a_collective_in_pieces_hides_beside_what_computes_but_for_a_part(
    trained: Trace, gpus: list[Gpu], library: Library, plain: ParallelPlan, hiding: ParallelPlan, part: PlanPart
) -> None:
    ranks = derive_ranks(trained, plain, shard=shard_tensors)
    shown, hidden = (
        predict_plan(ranks, plan, PlanGpus(gpus=gpus, library=library), micro_batches=1).parts[part]
        for plan in (plain, hiding)
    )
    assert np.all((shown / 2 <= hidden * 1.01) & (hidden < shown))


@pytest.mark.parametrize(
    ("name", "part"), [("tp", PlanPart.TENSOR), ("cp", PlanPart.CONTEXT), ("ep", PlanPart.EXPERT), ("", PlanPart.DATA)]
)
def test_groups_tell_their_axis(name: str, part: PlanPart) -> None:
    assert part_of_group(name) is part


def test_a_pipeline_with_a_piece_missing_is_refused(trained: Trace, gpus: list[Gpu], library: Library) -> None:
    with pytest.raises(InputError, match="no rank runs piece 1 of 2"):
        predict_plan([single_rank(trained)], ParallelPlan(pp=2), PlanGpus(gpus=gpus, library=library), micro_batches=2)
