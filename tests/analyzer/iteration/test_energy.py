"""The energy of an iteration and of a run, and what is paid for it."""

from __future__ import annotations

from functools import cache
from math import nan
from pathlib import Path
from typing import Any

import pytest
import wavecast
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.iteration.decision.electricity import Electricity, PowerDraw
from wavecast.analyzer.iteration.report import GpuPrediction
from wavecast.analyzer.page.page import Chart
from wavecast.analyzer.questions.analyze.page.front_charts import chart_energy

SAMPLES = Path(__file__).parents[3] / "samples"
GPT = SAMPLES / "gpt2_small-inference-bf16-b4-shapes.json.gz"
DRAW = PowerDraw(idle_w=60.0, work_j=3.0, limit_w=400.0, half_width=0.25)
TIMES = st.floats(min_value=1e3, max_value=1e12)


@cache
def analyzed(*to: str, **asked: Any) -> wavecast.IterationReport:
    return wavecast.analyze(GPT, to=list(to), ops=True, **asked)


def row_of(*to: str, **asked: Any) -> GpuPrediction:
    return analyzed(*to, **asked).report.predictions[0]


@settings(max_examples=40)
@given(time_ns=TIMES, shorter=st.floats(min_value=0.1, max_value=1.0), longer=st.floats(min_value=1.0, max_value=10.0))
def test_a_board_draws_between_idling_and_its_limit(time_ns: float, shorter: float, longer: float) -> None:
    energy = DRAW.joule(time_ns)
    low, high = DRAW.interval_j(time_ns, time_ns * shorter, time_ns * longer)
    assert DRAW.idle_w * time_ns * 1e-9 <= energy <= DRAW.limit_w * time_ns * 1e-9 * 1.000001
    assert 0 < low <= energy <= high * 1.000001
    assert high <= max(DRAW.limit_w * 1e-9 * time_ns * longer, energy) * 1.000001


def test_a_longer_wait_adds_what_idles_alone() -> None:
    assert DRAW.joule(110e6) - DRAW.joule(100e6) == pytest.approx(60.0 * 0.01)
    narrow = DRAW.interval_j(100e6, 100e6, 100e6)
    wide = DRAW.interval_j(100e6, 50e6, 200e6)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_limit_is_the_iterations_and_not_a_kernels() -> None:
    """A board that idles half the time may draw more than its limit in the other half; one that does not may not."""
    draw = PowerDraw(idle_w=100.0, work_j=7.0, limit_w=700.0, half_width=0.2)
    assert draw.switched_j(20e6) == pytest.approx(7.0, rel=0.02)
    assert 0.9 * 6.0 < draw.switched_j(10e6) < 6.0
    assert draw.switched_j(0.0) == 0.0


def test_ops_and_waiting_add_up_to_the_iteration() -> None:
    report = analyzed("A100 SXM4 80GB").report
    row = report.predictions[0]
    power, energy = row.power, row.energy_j
    assert power is not None
    assert energy is not None
    waiting = power.idle_w * (row.iteration_ns - sum(op.predicted_ns for op in report.ops)) * 1e-9
    assert sum(op.energy_j or nan for op in report.ops) + waiting == pytest.approx(energy, rel=1e-6)
    assert row.mean_power_w == pytest.approx(energy / row.iteration_ns * 1e9)
    assert row.samples_per_j == pytest.approx(4 / energy)


def test_a_cap_saves_energy_and_never_exceeds_itself() -> None:
    free, capped = row_of("A100 SXM4 80GB"), row_of("A100 SXM4 80GB@200W")
    assert capped.mean_power_w is not None
    assert free.mean_power_w is not None
    assert capped.mean_power_w <= 200 < free.mean_power_w
    assert capped.iteration_ns > free.iteration_ns


def test_a_cap_slows_arithmetic_and_not_the_memory() -> None:
    """ResNet-50 on an A40 takes 1.07 times as long at 200 W, and 0.78 of the joules (`board_power.csv`)."""
    trace = SAMPLES / "resnet50-training-fp32-b32-shapes.json.gz"
    free, capped = wavecast.analyze(trace, to=["A40", "A40@200W"]).report.predictions
    assert 1.02 < capped.gpu_busy_ns / free.gpu_busy_ns < 1.15
    assert capped.energy_j is not None
    assert free.energy_j is not None
    assert capped.energy_j < 0.9 * free.energy_j


def test_a_faster_host_saves_what_idles() -> None:
    slow, fast = row_of("H100 SXM5", host=0.5), row_of("H100 SXM5", host=4.0)
    assert slow.power is not None
    assert slow.energy_j is not None
    assert fast.energy_j is not None
    saved = slow.power.idle_w * (slow.iteration_ns - fast.iteration_ns) * 1e-9
    assert saved <= slow.energy_j - fast.energy_j <= 1.2 * saved  # the limit holds a shorter iteration back a little


def test_merged_kernels_move_less() -> None:
    trace = SAMPLES / "resnet50-inference-fp32-b32-shapes.json.gz"
    plain, merged = (
        wavecast.analyze(trace, to="A100 SXM4 80GB", fuse_elementwise=fuses).report.predictions[0]
        for fuses in (False, True)
    )
    assert merged.power is not None
    assert plain.power is not None
    assert merged.power.work_j < plain.power.work_j


def test_an_observed_time_moves_the_energy() -> None:
    seen = row_of("A100 SXM4 80GB")
    corrected = wavecast.analyze(GPT, to="A100 SXM4 80GB", observed={"A100 SXM4 80GB": "20 ms"}).report.predictions[0]
    assert seen.power is not None
    assert corrected.energy_j == pytest.approx(seen.power.joule(20e6), rel=1e-6)


def test_a_run_is_billed_for_host_and_site() -> None:
    goal = "1000000 iterations"
    board = row_of("L4", goal=goal, electricity=0.2, carbon=400)
    site = row_of("L4", goal=goal, pue=1.5, host_watts=100.0)
    assert board.total is not None
    assert site.total is not None
    assert board.energy_j is not None
    assert board.total.energy_kwh is not None
    assert board.total.energy_kwh == pytest.approx(board.energy_j * 1e6 / 3.6e6)
    assert board.total.electricity_usd == pytest.approx(0.2 * board.total.energy_kwh)
    assert board.total.co2_kg == pytest.approx(0.4 * board.total.energy_kwh)
    host_kwh = 100.0 * board.iteration_ns * 1e-9 * 1e6 / 3.6e6
    assert site.total.energy_kwh == pytest.approx(1.5 * (board.total.energy_kwh + host_kwh))
    assert (site.total.electricity_usd, site.total.co2_kg) == (None, None)


def test_energy_is_an_order() -> None:
    rows = analyzed(sort="energy").report.predictions
    joules = [row.billed_j or nan for row in rows if row.fits is not False]
    assert joules == pytest.approx(sorted(joules), rel=1e-3)
    assert len(joules) > 100
    by_host = analyzed(sort="energy", host_watts=2000.0).report.predictions
    assert by_host[0].iteration_ns < rows[0].iteration_ns


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"pue": 0.9}, r"pue 0.9: expected the site's power"),
        ({"pue": nan}, r"pue nan"),
        ({"host_w": -1.0}, r"host_watts -1.0: expected watts"),
        ({"usd_per_kwh": 120.0}, r"electricity 120.0: expected \$ per kWh"),
        ({"usd_per_kwh": True}, r"electricity True"),
        ({"usd_per_kwh": "0.1"}, r"electricity '0.1'"),
        ({"co2_g_per_kwh": float("inf")}, r"carbon inf"),
    ],
)
def test_what_electricity_cannot_mean_is_refused(asked: dict[str, Any], expected: str) -> None:
    with pytest.raises(wavecast.InputError, match=expected):
        Electricity(**asked)


def test_the_chart_is_drawn_where_energy_is_asked_about() -> None:
    asked = analyzed("H100 SXM5", "L4", "T4", sort="energy")
    titles = [block.title for block in asked.illustrated_page().blocks if isinstance(block, Chart)]
    assert "Energy against time" in titles
    chart = chart_energy(asked.report)
    assert chart is not None
    best = {row["gpu"] for row in chart.rows if row["best"]}
    least = min(asked.report.predictions, key=lambda row: row.billed_j or nan)
    fastest = min(asked.report.predictions, key=lambda row: row.iteration_ns)
    assert {least.gpu, fastest.gpu} <= best
    assert all(row["low"] < row["joule"] < row["high"] for row in chart.rows)
    assert chart_energy(analyzed("H100 SXM5", "L4", "T4").report) is None
