"""The host's small formulas, each against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.host.costs import costs_of_table, lead_keys, spellings
from wavecast.analyzer.host.named import load_anchor, usual_mix
from wavecast.analyzer.host.recorded_speed import kind_of_call, sum_between, winsorised
from wavecast.analyzer.host.speed import KindSpeeds, speeds_between
from wavecast.analyzer.host.timeline import script_speed_of
from wavecast.formats.files.constants import read_constants
from wavecast.formats.trace.meta import HostTimes
from wavecast.formats.trace.tables import Phase

TABLE: dict[str, Any] = {
    "reference_host": "a",
    "op_ns": {"aten::add": [1000, 50], "aten::relu": [3000, 9]},
    "family_op_ns": {"elementwise": 2000},
    "other_op_ns": 4000,
    "custom_op_ns": 9000,
    "lead_ns": {
        "forward": [100, 1],
        "forward/opens": [90, 1],
        "forward/any/aten::add": [80, 1],
        "forward/opens/aten::add": [70, 1],
        "forward/any/aten::t>aten::add": [60, 1],
        "forward/opens/aten::t>aten::add": [50, 1],
        "backward": [200, 1],
    },
    "launch_ns": 10,
    "copy_ns": 20,
    "sync_ns": 30,
    "before_launch_ratio": 0.5,
    "kernel_count": {},
}


@pytest.mark.parametrize(
    ("name", "expected_ns"),
    [
        ("aten::add", 1000),
        ("aten::add_", 1000),
        ("aten::add.Tensor", 1000),
        ("aten::mul", 2000),
        ("aten::no_such_op", 4000),
        ("mylib::add", 9000),
        ("mylib::fused", 9000),
    ],
)
def test_an_op_costs_what_it_or_its_kind_does(name: str, expected_ns: float) -> None:
    costs = costs_of_table(TABLE)
    assert costs.op_cost_ns(name) == expected_ns
    assert costs.at_speed(4.0).op_cost_ns(name) == expected_ns / 4
    assert costs.at_speed(4.0).before_launch_ratio == 0.5


def test_the_most_specific_kind_of_lead_that_is_known_counts() -> None:
    lead_ns = dict(TABLE["lead_ns"])
    for key in list(lead_keys("aten::t", "aten::add_", Phase.FORWARD, "opens")):
        if key in lead_ns:
            costs = costs_of_table(TABLE | {"lead_ns": lead_ns})
            assert costs.lead_cost_ns("aten::t", "aten::add_", Phase.FORWARD, "opens") == lead_ns.pop(key)[0]
    assert set(lead_ns) == {"backward"}
    costs = costs_of_table(TABLE)
    assert costs.lead_cost_ns("aten::t", "aten::add", Phase.FORWARD, "inside") == 60
    assert costs.lead_cost_ns("aten::mm", "aten::add", Phase.FORWARD, "inside") == 80
    assert costs.lead_cost_ns("", "aten::mm", Phase.FORWARD, "inside") == 100
    assert costs.lead_cost_ns("aten::t", "aten::add", Phase.BACKWARD, "inside") == 200


def test_spellings_go_from_the_name_to_the_same_work() -> None:
    assert spellings("aten::add_.Tensor") == ("aten::add_.Tensor", "aten::add_", "aten::add")
    assert spellings("aten::cudnn_convolution")[-1] == "aten::convolution"


def test_a_mix_of_work_takes_the_harmonic_mean_of_speeds() -> None:
    speeds = KindSpeeds(ratios={"python": 4.0, "launch": 1.0}, spread=0.0)
    assert speeds.over({"python": 8.0, "launch": 3.0}) == pytest.approx(11 / 5)
    assert speeds.over({"python": 8.0, "dispatch": 100.0}) == pytest.approx(4.0)
    assert speeds.over({"python": 0.0}) == pytest.approx(2.0)  # nothing known: the middle of the two


def test_speeds_of_kinds_are_the_first_time_over_the_second() -> None:
    before = HostTimes(python_ns=900.0, dispatch_ns=50.0, launch_ns=70.0, spread=0.3)
    found = speeds_between(before, HostTimes(python_ns=300.0, dispatch_ns=100.0, module_ns=5.0, spread=0.4))
    assert found is not None
    assert found.ratios == {"python": 3.0, "dispatch": 0.5}
    assert found.spread == pytest.approx(0.5)
    far = speeds_between(before, HostTimes(python_ns=1.0))
    assert far is not None
    assert far.ratios == {"python": 100.0}
    assert speeds_between(before, HostTimes(module_ns=5.0)) is None


def test_python_is_as_fast_as_on_the_usual_host_of_such_ops() -> None:
    usual = read_constants("host_speeds")["usual_over_reference"]
    mix = usual_mix(2.0)
    assert mix["dispatch"] == mix["launch"] == mix["allocation"] == 2.0
    assert {mix[kind] for kind in ("python", "module", "autograd", "optimizer")} == {2 * usual["ops"] / usual["lead"]}
    anchor = load_anchor()
    assert anchor.times.python_ns is not None
    lead_ratio = anchor.ops_ratio * usual["ops"] / usual["lead"]
    assert script_speed_of(replace(anchor.times, python_ns=anchor.times.python_ns)) == pytest.approx(1 / lead_ratio)
    assert script_speed_of(HostTimes(python_ns=1e12)) == 100.0
    assert script_speed_of(HostTimes(python_ns=1e-3)) == 0.01


def test_sums_take_the_first_instant_and_leave_the_last() -> None:
    at, values = np.array([0, 10, 20, 30]), np.array([1.0, 2.0, 4.0, 8.0])
    found = sum_between(at, values, np.array([0.0, 10.0, 11.0, 40.0]), np.array([10.0, 30.0, 31.0, 50.0]))
    assert found.tolist() == [1.0, 6.0, 12.0, 0.0]


def test_what_was_interrupted_counts_as_five_times_the_usual() -> None:
    assert winsorised(np.array([2.0, 2.0, 2.0, 2.0, 9.0])) == pytest.approx(17 / 5)
    assert winsorised(np.array([2.0, 2.0, 2.0, 2.0, 99.0])) == pytest.approx(18 / 5)
    assert winsorised(np.array([0.0, 0.0, 0.0, 0.0, 10.0])) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaGraphLaunch", "graph"),
        ("cudaLaunchKernelExC", "launch"),
        ("hipModuleLaunchKernel", "launch"),
        ("cudaMemcpyAsync", "copy"),
        ("cudaMemcpy", "memory"),
        ("cudaMalloc", "memory"),
        ("cudaStreamSynchronize", "sync"),
        ("cudaEventRecord", "other"),
    ],
)
def test_calls_are_told_apart_by_name(name: str, kind: str) -> None:
    assert kind_of_call(name) == kind
