"""The energy of jobs: on one GPU as analyze has it, on many with all that waits, links and whole machines."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import wavecast
from wavecast.analyzer.iteration.decision.electricity import Electricity, JobEnergy, PowerDraw, whole_machines
from wavecast.analyzer.questions.scale.report import PlanPrediction

SAMPLES = Path(__file__).parents[3] / "samples"
GPT = SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz"
GPU = "H100 SXM5"
DRAW = PowerDraw(idle_w=100.0, work_j=5.0, limit_w=700.0, half_width=0.2)


def job(draw: PowerDraw = DRAW, gpu_count: int = 8, host_gpu_count: int = 8, **asked: float) -> JobEnergy:
    return JobEnergy(
        power=draw.of_job(gpu_count),
        time_ns=10e6,
        low_ns=8e6,
        high_ns=13e6,
        gpu_count=gpu_count,
        host_gpu_count=host_gpu_count,
        samples=64.0,
        tokens=6400.0,
        electricity=Electricity(**asked),
    )


@cache
def plan(words: str) -> PlanPrediction:
    return wavecast.scale(GPT, to=GPU, plan=words).report.predictions[0]


def energy_of(words: str) -> JobEnergy:
    found = plan(words).energy
    assert found is not None
    return found


def test_a_plan_of_one_gpu_draws_what_analyze_says() -> None:
    alone = wavecast.analyze(GPT, to=GPU).report.predictions[0].power
    assert alone is not None
    found = energy_of("dp=1").power
    assert found.idle_w == pytest.approx(alone.idle_w)
    assert found.limit_w == pytest.approx(alone.limit_w)
    assert found.work_j == pytest.approx(alone.work_j, rel=0.02)
    assert found.link_j == found.network_w == 0


def test_replicas_switch_as_much_each_and_wait_together() -> None:
    one, eight = energy_of("dp=1"), energy_of("dp=8")
    assert eight.power.idle_w == pytest.approx(8 * one.power.idle_w)
    assert 8 * one.power.work_j <= eight.power.work_j <= 8.5 * one.power.work_j  # their gradients are added up, too
    assert eight.power.link_j > 0
    assert eight.power.network_w == 0
    assert energy_of("dp=16").power.network_w == pytest.approx(16 * 97, rel=0.01)


def test_stages_share_the_work_and_idle_in_bubbles() -> None:
    whole, staged = energy_of("dp=4"), energy_of("pp=4")
    assert staged.samples == whole.samples
    assert staged.power.work_j == pytest.approx(whole.power.work_j, rel=0.15)
    assert staged.time_ns > whole.time_ns
    assert staged.energy_j > whole.energy_j


def test_what_is_paid_for_adds_hosts_of_whole_machines_and_the_site() -> None:
    plain, asked = job(), job(gpu_count=12, host_gpu_count=16, usd_per_kwh=0.2, pue=1.5, host_w=50.0)
    assert plain.billed_j == plain.energy_j == pytest.approx(8 * DRAW.joule(10e6))
    assert asked.billed_j == pytest.approx((12 * DRAW.joule(10e6) + 16 * 50.0 * 0.01) * 1.5)
    assert asked.electricity_usd == pytest.approx(asked.billed_j / 3.6e6 * 0.2)
    assert asked.electricity_usd_per_day == pytest.approx(asked.kwh_per_day * 0.2)
    assert asked.kwh_per_day == pytest.approx(asked.billed_j / 0.01 * 24 / 1000)
    assert asked.joule_per_token == pytest.approx(asked.billed_j / 6400)
    assert asked.billed_low_j < asked.billed_j < asked.billed_high_j
    assert plain.co2_kg_per_day is None
    assert job(co2_g_per_kwh=400.0).co2_kg_per_day == pytest.approx(0.4 * plain.kwh_per_day)
    assert [whole_machines(count, 8) for count in (1, 8, 9)] == [8, 8, 16]


def test_links_widen_the_interval_by_their_share() -> None:
    sending = PowerDraw(
        idle_w=100.0, work_j=5.0, limit_w=700.0, half_width=0.2, link_j=3.0, network_w=300.0, link_half_width=0.7
    )
    plain, linked = job(), job(sending)
    assert linked.sending_j == pytest.approx(8 * 6.0)
    assert linked.energy_j == pytest.approx(plain.energy_j + linked.sending_j)
    assert linked.energy_high_j / linked.energy_j > plain.energy_high_j / plain.energy_j


def test_plans_are_listed_by_energy_where_that_is_asked() -> None:
    found = wavecast.scale(
        GPT, to=[GPU, "A100 SXM4 80GB"], gpus=8, plan=["dp=8", "pp=4"], sort="energy", electricity=0.12
    )
    rows = found.report.predictions
    paid = [row.energy.joule_per_sample for row in rows if row.energy is not None]
    assert [row.rank_by_energy for row in rows] == [1, 2, 3, 4]
    assert paid == sorted(paid, key=lambda value: value or 0.0)
    assert found.report.fastest.rank_by_time == 1
    assert "Least energy per sample: " in found.draw("markdown")
    with pytest.raises(wavecast.InputError, match="sort='speed': expected one of time, cost, memory, energy"):
        wavecast.scale(GPT, to=GPU, gpus=8, plan="dp=8", sort="speed")


@pytest.mark.parametrize(("sample", "leaves"), [("fsdp8-rank0of8", False), ("fsdp8-tp2-rank0of16", True)])
def test_a_recorded_rank_counts_what_its_collectives_send(sample: str, *, leaves: bool) -> None:
    trace = SAMPLES / f"llama_block-training-bf16-b1-{sample}-shapes.json.gz"
    row = wavecast.analyze(trace, to=GPU).report.predictions[0]
    assert row.power is not None
    assert row.energy_j is not None
    assert row.power.link_j > 0
    assert (row.power.network_w > 0) is leaves
    assert 0 < row.power.sending_j(row.iteration_ns) < 0.5 * row.energy_j
