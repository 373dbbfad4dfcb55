"""Plans on many GPUs: what is asked, predicted, ranked and searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.memory.fit import fit_on
from wavecast.analyzer.memory.use import MemoryCategory, MemoryMethod, MemoryUse
from wavecast.analyzer.questions.scale.command import PlansReport
from wavecast.analyzer.questions.scale.parts import PlanPart
from wavecast.analyzer.questions.scale.predictor import Batches, PlanOutcome, part_batch
from wavecast.analyzer.questions.scale.report import PlanLimit, ScaleReport
from wavecast.analyzer.questions.scale.rows import limit_of
from wavecast.analyzer.questions.scale.scale import scale_trace
from wavecast.analyzer.questions.scale.search import count_layers, list_plans
from wavecast.analyzer.whatif.parallel.grammar import parse_plan
from wavecast.analyzer.whatif.parallel.plan import ParallelPlan, RecomputeMode
from wavecast.analyzer.whatif.parallel.plan_file import PlanDocument
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fabric import usual_node
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
GIB = 2**30


@pytest.fixture(scope="module")
def trace(root_dir: Path) -> Trace:
    return load_trace(root_dir / "samples" / "gpt2_small-training-bf16-b4-shapes.json.gz")


@pytest.fixture(scope="module")
def gpus() -> list[Gpu]:
    return [find_gpu(CATALOG, "h100 sxm"), find_gpu(CATALOG, "a100 sxm 80gb")]


class Stand:
    """Predict plans in closed form: compute is shared, links cost by width; the model takes 200 GiB unshared."""

    def __init__(self, gpus: Sequence[Gpu], model_bytes: float = 200 * GIB) -> None:
        self.gpus, self.model_bytes, self.asked = gpus, model_bytes, list[ParallelPlan]()

    def __call__(self, document: PlanDocument, batches: Batches) -> PlanOutcome:
        plan = document.plan
        if plan.tp == 16:
            raise InputError(f"tp={plan.tp}: 8 heads cannot be shared by 16 ranks: take fewer")
        self.asked.append(plan)
        again = 4 / 3 if plan.recompute is RecomputeMode.FULL else 1.0
        compute = np.array([1e9, 2e9]) * batches.global_batch * again / plan.ranks
        parts = {part: np.zeros(2) for part in PlanPart}
        parts[PlanPart.COMPUTE] = compute
        parts[PlanPart.TENSOR] = compute * 0.1 * (plan.tp - 1)
        parts[PlanPart.BUBBLE] = compute * (plan.pp - 1) / (batches.micro_batches * plan.vp)
        step = np.sum(list(parts.values()), axis=0)
        held = round(self.model_bytes / (plan.tp * plan.pp * plan.fsdp))
        use = MemoryUse(
            peak_bytes=held,
            highest_bytes=held,
            allocated_peak_bytes=held,
            reserved_peak_bytes=None,
            held={},
            at_op=None,
            method=MemoryMethod.SHAPES_AND_LIFETIMES,
            reason="",
            workspace_count=1,
        )
        return PlanOutcome(
            plan=plan,
            batches=batches,
            step_ns=step,
            low_ns=step * 0.8,
            high_ns=step * 1.25,
            parts_ns=parts,
            fits=fit_on(use, self.gpus),
            held={MemoryCategory.PARAMETERS: held},
        )


def ask(trace: Trace, gpus: Sequence[Gpu], **options: object) -> ScaleReport:
    options = {"predictor": Stand(gpus), "targets": gpus} | options
    return scale_trace(trace, CATALOG, **options)  # type: ignore[arg-type]


def test_what_a_script_may_take_longer_widens_the_interval_of_its_plans(trace: Trace, gpus: list[Gpu]) -> None:
    lead = np.zeros(len(trace.ops.name), dtype=np.int64)
    lead[0] = 200_000_000
    ops = replace(trace.ops, lead_ns=lead)

    def width(spread: float) -> float:
        meta = replace(trace.meta, script_walks=6, script_spread=spread)
        report = scale_trace(replace(trace, ops=ops, meta=meta), CATALOG, targets=gpus[:1], plans=["dp=8"])
        (row,) = report.predictions
        assert row.iteration_low_ns
        assert row.iteration_high_ns
        return float(np.log(row.iteration_high_ns / row.iteration_low_ns))

    assert width(0.5) > width(0.0) + 0.1


def test_what_ranks_do_not_share_is_told(trace: Trace, gpus: list[Gpu]) -> None:
    report = scale_trace(trace, CATALOG, targets=gpus[:1], plans=["tp=3", "dp=2,tp=3"])
    assert [text for text in report.warnings if "tokens" in text] == [
        "tokens are not split between layers: 1024 by 3 ranks"
    ]


def test_plans_are_ranked_by_throughput_and_what_does_not_fit_comes_last(trace: Trace, gpus: list[Gpu]) -> None:
    report = ask(trace, gpus, gpu_counts=[8, 64], plans=["dp=*", "fsdp=*", "tp=8"])
    assert [row.rank_by_time for row in report.predictions] == list(range(1, 13))
    fits = [bool(row.fits) for row in report.predictions]
    assert fits == sorted(fits, reverse=True)
    rates = [row.samples_per_s for row in report.predictions if row.fits]
    assert rates == sorted(rates, reverse=True)
    assert {row.limit for row in report.predictions if not row.fits} == {PlanLimit.MEMORY}
    assert {row.plan for row in report.predictions if not row.fits} == {"dp=8", "dp=64"}
    assert report.predictions[0].plan == "fsdp=64"
    assert report.gpu_counts == (8, 64)


def test_every_gpu_adds_a_recorded_batch_unless_told_otherwise(trace: Trace, gpus: list[Gpu]) -> None:
    grown = ask(trace, gpus, gpu_counts=[8, 64], plans=["fsdp=*"])
    assert {(row.gpu_count, row.global_batch) for row in grown.predictions} == {(8, 32), (64, 256)}
    fixed = ask(trace, gpus, gpu_counts=[8, 64], plans=["fsdp=*"], global_batch=256)
    assert {(row.gpu_count, row.global_batch, row.micro_batches) for row in fixed.predictions} == {
        (8, 256, 8),
        (64, 256, 1),
    }


def test_a_row_adds_up(trace: Trace, gpus: list[Gpu]) -> None:
    row = ask(trace, gpus, plans=["dp=2,fsdp=4,pp=4"]).predictions[0]
    assert row.gpu_count == 32
    assert sum(row.parts_ns.values()) == pytest.approx(row.iteration_ns)
    assert row.samples_per_s == pytest.approx(row.global_batch / row.iteration_ns * 1e9)
    assert row.tokens_per_s_per_gpu == pytest.approx(row.samples_per_s * 1024 / 32)
    price = row.price_usd_per_gpu_hour or 0.0
    assert row.usd_per_iteration == pytest.approx(price * 32 * row.iteration_ns / 3.6e12)
    assert (row.iteration_low_ns or 0) < row.iteration_ns < (row.iteration_high_ns or 0)
    assert row.efficiency is None


def test_scaling_is_beside_the_fewest_gpus(trace: Trace, gpus: list[Gpu]) -> None:
    rows = ask(trace, gpus[:1], gpu_counts=[8, 64], plans=["pp=8"], predictor=Stand(gpus)).predictions
    many, few = rows
    assert few.efficiency is None
    assert many.efficiency == pytest.approx(many.samples_per_s / few.samples_per_s * 8 / 64)


def test_a_limit_on_memory_decides_what_fits(trace: Trace, gpus: list[Gpu]) -> None:
    usual = ask(trace, gpus, gpu_counts=[8], plans=["fsdp=*"])
    tight = ask(trace, gpus, gpu_counts=[8], plans=["fsdp=*"], max_memory_bytes=20 * GIB)
    assert all(row.fits for row in usual.predictions)
    assert {(row.fits, row.limit) for row in tight.predictions} == {(False, PlanLimit.MEMORY)}
    assert {row.memory_usable_bytes for row in tight.predictions} == {20 * GIB}


def test_a_search_finds_plans_that_fit_and_says_what_it_left_out(trace: Trace, gpus: list[Gpu]) -> None:
    stand = Stand(gpus)
    report = ask(trace, gpus, gpu_counts=[64], predictor=stand)
    summary = report.searches[0]
    assert report.predictions[0].fits
    assert summary.predicted <= 20
    assert summary.considered == summary.too_large + summary.outpaced + summary.predicted + sum(summary.failed.values())
    assert len(stand.asked) < 60
    assert {row.gpu for row in report.predictions} == {gpu.name for gpu in gpus}


def test_a_given_plan_and_a_search_go_together(trace: Trace, gpus: list[Gpu]) -> None:
    report = ask(trace, gpus, gpu_counts=[8], plans=["tp=8,sp=off"], search=True)
    assert "tp=8,sp=off" in {row.plan for row in report.predictions}
    assert len({row.plan for row in report.predictions}) > 2


def test_of_several_plans_those_that_cannot_be_are_told(trace: Trace, gpus: list[Gpu]) -> None:
    report = ask(trace, gpus, gpu_counts=[16], plans=["dp=16", "tp=16"])
    assert {row.plan for row in report.predictions} == {"dp=16"}
    assert [text for text in report.warnings if "8 heads" in text] == [
        "left out: tp=16: 8 heads cannot be shared by 16 ranks: take fewer"
    ]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"gpu_counts": [8], "plans": ["tp=16"]}, "do not divide 8"),
        ({"gpu_counts": [16], "plans": ["tp=16"]}, "8 heads cannot be shared by 16 ranks"),
        ({"plans": ["fsdp=*"]}, "expected a number, or gpus"),
        ({}, "add gpus=N"),
        ({"gpu_counts": [0]}, "expected from 1"),
        ({"gpu_counts": [8], "plans": ["dp=8"], "global_batch": 3}, "choose another mb= or global_batch"),
        ({"plans": ["dp=8,mb=1,ga=2"], "global_batch": 64}, "leave out ga"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(
    options: dict[str, object], part: str, trace: Trace, gpus: list[Gpu]
) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*$") as found:
        ask(trace, gpus, **options)
    assert part in str(found.value)


def test_a_rank_of_distributed_code_is_refused(trace: Trace, gpus: list[Gpu]) -> None:
    rank = replace(trace, meta=replace(trace.meta, rank=3, world_size=8))
    with pytest.raises(InputError, match=r"rank 3 of 8.*record the model on one GPU"):
        ask(rank, gpus, gpu_counts=[8])


def test_inference_takes_no_plan_of_training(root_dir: Path, gpus: list[Gpu]) -> None:
    inference = load_trace(root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz")
    for text, word in (("fsdp=8", "fsdp"), ("dp=8,zero=1", "zero"), ("dp=8,recompute=full", "recompute")):
        with pytest.raises(InputError, match=f"{word} is for training"):
            ask(inference, gpus, plans=[text])
    assert ask(inference, gpus, plans=["dp=2,tp=2,pp=2"]).predictions
    found = {row.plan for row in ask(inference, gpus, gpu_counts=[8]).predictions}
    assert not any("fsdp" in plan or "zero" in plan for plan in found)


def test_a_plan_that_cannot_be_is_named_once(root_dir: Path, gpus: list[Gpu]) -> None:
    network = load_trace(root_dir / "samples" / "ddpm_unet-inference-bf16-b32-shapes.json.gz")
    with pytest.raises(InputError, match=r"^tp=2: (?!tp=2)"):
        ask(network, gpus[:1], plans=["tp=2"], predictor=None)


def test_inference_is_one_step_of_the_recorded_batch_per_replica(root_dir: Path, gpus: list[Gpu]) -> None:
    inference = load_trace(root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz")
    report = ask(inference, gpus[:1], plans=["tp=4", "dp=2,tp=2", "pp=4,mb=1"])
    found = {row.plan: (row.global_batch, row.micro_batch, row.micro_batches) for row in report.predictions}
    assert found == {"tp=4": (4, 4, 1), "dp=2,tp=2": (8, 4, 1), "pp=4,mb=1": (4, 1, 4)}
    assert "An iteration is 4 samples on every replica" in PlansReport(name="", report=report).draw("markdown")
    report = ask(inference, gpus[:1], plans=["dp=2,tp=2"], global_batch=32)
    assert (report.predictions[0].micro_batch, report.predictions[0].micro_batches) == (16, 1)
    single = part_batch(ParallelPlan(dp=2), 1, 4, is_training=False)  # its shapes do not tell where a batch stands
    assert (single.micro_batch, single.micro_batches) == (1, 2)


def test_a_stage_of_a_pipeline_may_run_nothing(root_dir: Path, gpus: list[Gpu]) -> None:
    few = load_trace(root_dir / "samples" / "seq2seq-inference-fp32-b64-shapes.json.gz")
    assert all(ask(few, gpus, plans=[f"pp={stages}"], gpu_counts=[stages]).predictions for stages in (2, 4))


def test_a_measured_step_needs_its_gpu(trace: Trace, gpus: list[Gpu]) -> None:
    with pytest.raises(InputError, match=r"say which with source=GPU"):
        scale_trace(trace, CATALOG, targets=gpus, plans=["dp=2"], measured_step_ns=3e7)


def test_a_plan_of_one_gpu_reserves_what_the_recording_does(trace: Trace, gpus: list[Gpu]) -> None:
    row = scale_trace(trace, CATALOG, targets=gpus[:1], gpu_counts=[1], plans=["dp=1"]).predictions[0]
    (alone,) = fit_on(run_analysis(trace, CATALOG, targets=gpus[:1]).memory, gpus[:1])
    assert row.memory_needed_bytes == pytest.approx(alone.needed_bytes, rel=0.001)


def test_plans_are_predicted_from_what_their_ranks_run(trace: Trace, gpus: list[Gpu]) -> None:
    report = scale_trace(trace, CATALOG, targets=gpus, gpu_counts=[8], plans=["dp=8", "fsdp=8", "tp=2", "pp=4,vp=1"])
    rows = {(row.plan, row.gpu): row for row in report.predictions}
    h100 = gpus[0].name
    one, shared, wide, deep = (rows[plan, h100] for plan in ("dp=8", "fsdp=8", "dp=4,tp=2", "dp=2,pp=4"))
    assert shared.memory_needed_bytes < one.memory_needed_bytes  # type: ignore[operator]
    assert wide.parts_ns[PlanPart.TENSOR] > 0
    assert one.parts_ns[PlanPart.TENSOR] == 0
    assert deep.parts_ns[PlanPart.BUBBLE] > 0
    assert all(sum(row.parts_ns.values()) == pytest.approx(row.iteration_ns) for row in report.predictions)


def test_a_measured_step_scales_all_plans(trace: Trace, gpus: list[Gpu]) -> None:
    slow, fast = (
        scale_trace(trace, CATALOG, targets=gpus, plans=["dp=8"], source=gpus[0], measured_step_ns=step_ns)
        for step_ns in (60e6, 30e6)
    )
    for a, b in zip(slow.predictions, fast.predictions, strict=True):
        assert 1.5 < a.iteration_ns / b.iteration_ns < 2.1
    assert slow.measured_step_ns == 60e6


@pytest.mark.parametrize(
    ("parts", "too_large", "expected"),
    [
        ({PlanPart.COMPUTE: 70.0, PlanPart.DATA: 30.0}, False, PlanLimit.COMPUTE),
        (
            {PlanPart.COMPUTE: 60.0, PlanPart.DATA: 15.0, PlanPart.TENSOR: 15.0, PlanPart.BUBBLE: 20.0},
            False,
            PlanLimit.LINK,
        ),
        ({PlanPart.COMPUTE: 60.0, PlanPart.BUBBLE: 40.0}, False, PlanLimit.BUBBLE),
        ({PlanPart.COMPUTE: 30.0, PlanPart.OPTIMIZER: 5.0, PlanPart.HOST: 60.0}, False, PlanLimit.HOST),
        ({PlanPart.COMPUTE: 70.0}, True, PlanLimit.MEMORY),
    ],
)
def test_what_limits_a_plan(parts: dict[PlanPart, float], too_large: bool, expected: PlanLimit) -> None:
    assert limit_of(parts, is_too_large=too_large) is expected


def test_batches_are_parted_evenly() -> None:
    assert part_batch(parse_plan("dp=4"), 8) == Batches(global_batch=32, micro_batch=8, micro_batches=1)
    assert part_batch(parse_plan("dp=2,tp=4,mb=2"), 8) == Batches(global_batch=64, micro_batch=2, micro_batches=16)
    assert part_batch(parse_plan("dp=8"), 8, 16) == Batches(global_batch=16, micro_batch=2, micro_batches=1)
    assert part_batch(parse_plan("dp=2,ga=3"), 4) == Batches(global_batch=24, micro_batch=4, micro_batches=3)


def test_all_plans_of_a_space_take_all_gpus(trace: Trace) -> None:
    layers = count_layers(trace)
    plans = list(list_plans(64, domain=8, layers=layers, recorded_batch=4, is_training=True, machines=[8]))
    assert layers == 12
    assert {plan.ranks for plan in plans} == {64}
    assert {plan.tp for plan in plans} == {1, 2, 4, 8}
    assert {plan.pp for plan in plans} == {1, 2, 4}
    assert {plan.micro_batch for plan in plans} == {None, 1, 2}
    assert len(plans) == len(set(plans))


def test_parameters_are_sharded_within_the_machines_that_there_are() -> None:
    def shards(*gpus: str, count: int = 16, domain: int = 1) -> set[int]:
        machines = [usual_node(find_gpu(CATALOG, gpu)).gpu_count for gpu in gpus]
        plans = list_plans(count, domain=domain, layers=1, recorded_batch=1, is_training=True, machines=machines)
        return {plan.fsdp for plan in plans if plan.dp > 1}

    assert shards("GB200 (per GPU)") == {1, 4}
    assert shards("GB200 (per GPU)", "H100 SXM5 80GB") == {1, 4, 8}
    assert {4, 72} < shards("GB200 (per GPU)", count=144, domain=72)  # a rack's trays share its fast links
