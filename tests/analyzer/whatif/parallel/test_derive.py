"""What ranks of a plan run: collectives, pieces, recomputation and the optimizer's part, from one GPU's recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wavecast import load_trace
from wavecast.analyzer.recorded.graphs import is_replayed
from wavecast.analyzer.whatif.parallel.derive import derive_ranks
from wavecast.analyzer.whatif.parallel.layers import NO_LAYER, find_layers
from wavecast.analyzer.whatif.parallel.mesh import axis_group
from wavecast.analyzer.whatif.parallel.parameters import find_parameters, owners_of_tail
from wavecast.analyzer.whatif.parallel.pieces import count_layers
from wavecast.analyzer.whatif.parallel.plan import ParallelPlan, PipelineSchedule, RecomputeMode
from wavecast.analyzer.whatif.parallel.ranks import RankTrace
from wavecast.errors import InputError
from wavecast.formats.trace.column import row_count
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.formats.trace.validate import validate

SAMPLES = Path(__file__).parents[4] / "samples"
PARAMETERS = 124_439_808
"""Of GPT-2 small, whose head is its embedding."""


def load(name: str) -> Trace:
    return load_trace(SAMPLES / f"{name}-shapes.json.gz")


@pytest.fixture(scope="module")
def gpt2() -> Trace:
    return load("gpt2_small-training-bf16-b4")


def collectives(rank: RankTrace) -> dict[str, tuple[int, int]]:
    """Return how many collectives of each kind there are, and the elements that they take."""
    table, strings = rank.trace.collectives, rank.trace.strings
    names = np.array([strings[name] for name in table.name])
    return {
        name: (int((names == name).sum()), int(table.in_element_count[names == name].sum()))
        for name in np.unique(names)
    }


def names_of(trace: Trace) -> list[str]:
    return [trace.strings[name] for name in trace.ops.name]


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        ("gpt2_small-training-bf16-b4", 12, PARAMETERS),
        ("vit_b16-training-bf16-b32", 12, 86_567_656),
        ("resnet50-training-bf16-b32", 20, 25_557_032),
        ("seq2seq-training-bf16-b64", 32, None),
    ],
)
def test_layers_and_parameters(name: str, layers: int, parameters: int | None) -> None:
    trace = load(name)
    found, held = find_layers(trace), find_parameters(trace)
    assert found.count == layers
    assert held.has_gradient.all()
    assert parameters is None or held.element_count.sum() == parameters
    backward = np.flatnonzero((trace.ops.phase == Phase.BACKWARD) & (trace.ops.forward >= 0))
    assert np.array_equal(found.of_op[backward], found.of_op[trace.ops.forward[backward]])
    owner = owners_of_tail(trace, held)
    assert len(set(np.bincount(owner[owner >= 0]).tolist())) == 1  # each parameter has as many tensors as the others


def test_one_gpu_runs_the_recording(gpt2: Trace) -> None:
    (rank,) = derive_ranks(gpt2, ParallelPlan())
    assert np.array_equal(rank.trace.ops.name, gpt2.ops.name)
    assert np.array_equal(rank.source_op, np.arange(row_count(gpt2.ops)))
    assert (rank.is_last == (find_layers(gpt2).of_op == NO_LAYER)).all()


def test_replicas_add_up_every_gradient_once(gpt2: Trace) -> None:
    (rank,) = derive_ranks(gpt2, ParallelPlan(dp=8))
    validate(rank.trace)
    (found,) = collectives(rank).values()
    assert found[1] == PARAMETERS
    assert found[0] > 3
    assert rank.is_last[rank.trace.collectives.op].all()
    assert rank.trace.groups.size.tolist() == [8]


def test_zero_parts_gradients_and_gathers_parameters(gpt2: Trace) -> None:
    (rank,) = derive_ranks(gpt2, ParallelPlan(dp=8, zero=1))
    found = collectives(rank)
    assert found["reduce_scatter"][1] == pytest.approx(PARAMETERS, rel=1e-6)
    assert found["all_gather"][1] == pytest.approx(PARAMETERS / 8, rel=1e-6)
    updates = [row for row, name in enumerate(names_of(rank.trace)) if "addcdiv" in name]
    tensors = rank.trace.signatures[rank.trace.ops.signature[updates[0]]].tensors()
    whole = gpt2.signatures[gpt2.ops.signature[rank.source_op[updates[0]]]].tensors()
    assert sum(spec.element_count for spec in tensors) == pytest.approx(
        sum(spec.element_count for spec in whole) / 8, rel=1e-3
    )


def test_sharded_parameters_are_gathered_per_layer_and_pass(gpt2: Trace) -> None:
    (rank,) = derive_ranks(gpt2, ParallelPlan(fsdp=4))
    validate(rank.trace)
    found = collectives(rank)
    assert found["all_gather"][0] == 12 + 12 + 1  # the embedding, which is the head, stays gathered
    assert found["reduce_scatter"][0] == 12 + 1
    assert found["reduce_scatter"][1] == pytest.approx(PARAMETERS, rel=1e-3)
    assert not rank.is_last[rank.trace.collectives.op].any()
    assert np.cumsum(rank.trace.memory.size_bytes).min() >= 0


def test_gathers_come_as_many_layers_ahead_as_asked(gpt2: Trace) -> None:
    def first_waits(prefetch: int) -> list[str]:
        (rank,) = derive_ranks(gpt2, ParallelPlan(fsdp=4, prefetch=prefetch))
        names = names_of(rank.trace)
        return [name for name in names if "all_gather" in name or "wait" in name][:6]

    gather, wait = "_c10d_functional::all_gather_into_tensor", "_c10d_functional::wait_tensor"
    assert first_waits(0) == [gather, wait] * 3
    assert first_waits(2)[:4] == [gather, wait, gather, gather]


def test_replicas_of_shards_add_up_their_parts(gpt2: Trace) -> None:
    (rank,) = derive_ranks(gpt2, ParallelPlan(fsdp=4, dp=2))
    found = collectives(rank)
    assert found["all_reduce"][1] == pytest.approx(PARAMETERS / 4, rel=1e-3)
    sizes = dict(
        zip((rank.trace.strings[name] for name in rank.trace.groups.name), rank.trace.groups.size, strict=True)
    )
    assert sizes == {"cp_fsdp": 4, "dp": 2}


def test_pieces_hold_all_layers_once(gpt2: Trace) -> None:
    ranks = derive_ranks(gpt2, ParallelPlan(pp=4))
    assert [rank.pieces for rank in ranks] == [(0,), (1, 2), (3,)]
    tail = find_layers(gpt2).of_op == NO_LAYER
    passes = sum(len(rank.pieces) * int((~tail[rank.source_op[rank.source_op >= 0]]).sum()) for rank in ranks)
    assert passes == int((~tail).sum())
    hidden = 4 * 1024 * 768 * 2
    assert [rank.sent_bytes for rank in ranks] == [hidden, hidden, 0]
    for rank in ranks:
        validate(rank.trace)
        assert np.cumsum(rank.trace.memory.size_bytes).min() >= 0


def test_every_stage_has_its_part_of_a_graph() -> None:
    """The stages after the first were launched kernel by kernel: a decode step under pp=2 took three times as long."""
    trace = load("gpt2_small-inference-bf16-b4")
    parent, names = np.maximum(trace.ops.parent, 0), trace.ops.name.copy()
    parent[0], names[0] = -1, len(trace.strings)
    trace = replace(
        trace, strings=(*trace.strings, "cudaGraphLaunch"), ops=replace(trace.ops, name=names, parent=parent)
    )
    ranks = derive_ranks(trace, ParallelPlan(pp=4))
    assert [is_replayed(rank.trace) for rank in ranks] == [True] * 3


def test_layers_run_again_before_their_backward(gpt2: Trace) -> None:
    (plain,) = derive_ranks(gpt2, ParallelPlan())
    (again,) = derive_ranks(gpt2, ParallelPlan(recompute=RecomputeMode.FULL))
    validate(again.trace)
    layers = find_layers(gpt2)
    forward = (layers.of_op >= 0) & (layers.of_op < layers.count) & (gpt2.ops.phase == Phase.FORWARD)
    repeated = np.bincount(again.source_op, minlength=row_count(gpt2.ops))
    assert np.array_equal(repeated == 2, forward)
    # What a layer saves is dropped: half-way through, less is held.
    peaks = [np.cumsum(rank.trace.memory.size_bytes).max() for rank in (plain, again)]
    assert peaks[1] < 0.7 * peaks[0]


def test_checkpoints_that_stop_early_leave_out_what_no_backward_reads(gpt2: Trace) -> None:
    (whole,), (early,) = (
        derive_ranks(gpt2, ParallelPlan(recompute=mode)) for mode in (RecomputeMode.FULL, RecomputeMode.EARLY)
    )
    validate(early.trace)
    fewer = np.bincount(whole.source_op) - np.bincount(early.source_op)
    left_out = [gpt2.strings[name] for name in gpt2.ops.name[fewer > 0].tolist()]
    # Before each layer's last sum stands a dropout, whose mask is kept.
    assert left_out == ["aten::add"] * find_layers(gpt2).count


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (ParallelPlan(pp=13), "12 layers, too few for 13 pieces"),
        (ParallelPlan(vp=2), "expected pp=2"),
        (ParallelPlan(zero=3, dp=2), "3 is fsdp"),
        (ParallelPlan(pp=2, vp=2, micro_batches=3, schedule=PipelineSchedule.INTERLEAVED), "multiples of its 2"),
        (ParallelPlan(ep=3, dp=4), "expected a divisor"),
        (ParallelPlan(dp=0), "dp: expected 1 or more, got 0"),
    ],
)
def test_what_cannot_be_is_refused(gpt2: Trace, plan: ParallelPlan, words: str) -> None:
    with pytest.raises(InputError, match=words):
        derive_ranks(gpt2, plan)


def test_inference_has_no_gradients() -> None:
    trace = load("gpt2_small-inference-bf16-b4")
    (rank,) = derive_ranks(trace, ParallelPlan(dp=8))
    assert row_count(rank.trace.collectives) == 0
    with pytest.raises(InputError, match="no backward pass"):
        derive_ranks(trace, ParallelPlan(dp=8, zero=1))


def test_uneven_counts() -> None:
    assert count_layers(126, 8) == (15, 16, 16, 16, 16, 16, 16, 15)


def test_groups_of_the_mesh() -> None:
    plan = ParallelPlan(tp=2, cp=2, fsdp=2, dp=2, pp=2, ep=4)
    assert axis_group(plan, ("tp",), 5).ranks == (4, 5)
    assert axis_group(plan, ("cp", "fsdp")).ranks == (0, 2, 4, 6)
    assert axis_group(plan, ("dp",)).ranks == (0, 8)
    assert axis_group(plan, ("pp",), 3).ranks == (3, 19)
    assert axis_group(plan, ("ep",)).ranks == (0, 1, 2, 3)
    assert axis_group(replace(plan, sp=False), ("ep",)).ranks == (0, 2, 4, 6)
    assert axis_group(plan, ("edp",)).ranks == (0, 4, 8, 12)
    assert axis_group(replace(plan, sp=False), ("edp",)).ranks == (0, 8)
    shared = axis_group(plan, ("tp", "fsdp"))
    assert (shared.ranks, shared.run, shared.stride) == ((0, 1, 4, 5), 2, 4)
