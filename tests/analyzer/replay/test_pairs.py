"""The replay across machines: kernel times of one in the recording of another, against the other's own iteration."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.data


@pytest.fixture
def replay_pairs(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(root_dir))
    return import_module("benchmarks.check.replay_pairs")


def test_kernels_of_another_machine_give_its_iteration(replay_pairs: ModuleType, data_dir: Path) -> None:
    found = list(replay_pairs.compare_all(data_dir / "traces"))
    by_host: dict[str, list[float]] = {}
    for item in found[:-1]:
        by_host.setdefault(item.host, []).append(abs(item.error))
    assert {host: len(errors) for host, errors in by_host.items()} == {
        "not given": 4, "CPU ops": 4, "ops": 4, "other model": 4, "iteration": 4,
    }  # fmt: skip
    assert max(by_host["iteration"]) <= 0.01
    assert max(by_host["CPU ops"]) <= 0.04
    assert max(by_host["ops"]) <= 0.05
    assert max(by_host["not given"]) <= 0.12
    assert min(by_host["not given"]) > 0.05  # the hosts do differ


def test_collectives_of_another_rank_give_its_iteration(replay_pairs: ModuleType, data_dir: Path) -> None:
    ranks = list(replay_pairs.compare_all(data_dir / "traces"))[-1]
    assert ranks.source_ns < 0.75 * ranks.target_ns
    assert abs(ranks.error) <= 0.01
