"""Which rule moves which kernel, and why."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from wavecast.analyzer.prediction.ratio_widths import width_of
from wavecast.analyzer.prediction.ratios import RULES, Facts, choose_rules
from wavecast.analyzer.work import VARYING_FAMILIES

CASES = [
    ("is_modelled is_varying has_work rate_known launch_known", "model", "anchored at the measured time"),
    ("is_copy crosses_host", "pcie", "PCIe bandwidths"),
    ("is_copy joins_gpus", "link", "copy between GPUs"),
    ("is_collective launch_known", "link", "waiting for other ranks is inside"),
    ("is_copy", "bandwidth", "copy or fill on the device"),
    ("is_varying has_work rate_known launch_known", "bound", "ratio of rooflines"),
    ("is_varying rate_known launch_known", "compute", "unit known from the kernel's name"),
    ("is_varying launch_known", "guess", "FP32 peak rates"),
    ("launch_known has_work", "wave", "whole waves (many, to another warp size), intensity from shapes"),
    ("launch_known", "wave", "whole waves (many, to another warp size), intensity unknown, that of its kind taken"),
    ("has_work", "wave", "launch not recorded, many waves taken, intensity from shapes"),
    ("", "wave", "launch not recorded, many waves taken, intensity unknown"),
]


def facts_of(*rows: str) -> Facts:
    """Each row by the names of what holds of it."""
    return Facts(**{item.name: np.array([item.name in row.split() for row in rows]) for item in fields(Facts)})


@pytest.mark.parametrize(("known", "rule", "reason"), CASES)
def test_the_first_rule_that_holds_is_taken(known: str, rule: str, reason: str) -> None:
    numbers, reasons = choose_rules(facts_of(known))
    assert RULES[numbers[0]].name == rule
    assert reason in reasons[0]


def test_rows_are_judged_one_by_one() -> None:
    numbers, reasons = choose_rules(facts_of(*(known for known, _, _ in CASES)))
    assert [RULES[number].name for number in numbers.tolist()] == [rule for _, rule, _ in CASES]
    assert all(part in reason for (_, _, part), reason in zip(CASES, reasons, strict=True))


def test_every_rule_has_a_width_of_its_own_name() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        widths = [width_of(rule.name, family) for family in VARYING_FAMILIES]
        assert np.isnan(widths).all() == (rule.half_width is None)
