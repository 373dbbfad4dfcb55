"""Pairs of changed models: what was changed is named, and of what was not nothing is said."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

NAMES = (
    "gpt training, unchanged",
    "sequence doubled",
    "attention written out",
    "layer added to a Sequential",
    "optimizer fused",
    "channels last",
)


@pytest.fixture(scope="session")
def pairs() -> ModuleType:
    pytest.importorskip("torch")
    return import_module(".pairs", __package__)


@pytest.mark.parametrize("name", NAMES)
def test_a_change_is_named(name: str, pairs: ModuleType) -> None:
    (pair,) = [item for item in pairs.PAIRS if item.name == name]
    found = pairs.compare_pair(pair)
    assert pairs.fault(pair, found) == "", [group.cause for group in found.groups]


def test_the_interval_closes_where_nothing_changed(pairs: ModuleType) -> None:
    by_name = {item.name: item for item in pairs.PAIRS}
    (same,) = pairs.compare_pair(by_name["gpt training, unchanged"]).gpus
    assert (same.change, same.change_low, same.change_high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    (longer,) = pairs.compare_pair(by_name["sequence doubled"]).gpus
    assert longer.change_low is not None
    assert longer.change_high is not None
    assert longer.change_low < longer.change < longer.change_high
