"""The page on the replay shows what the benchmarks print."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.data
@pytest.mark.parametrize("benchmark_name", ["replay_fidelity", "replay_pairs"])
def test_the_page_shows_what_the_benchmark_prints(
    benchmark_name: str,
    data_dir: Path,
    root_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(root_dir))
    monkeypatch.setattr(sys, "argv", [benchmark_name, str(data_dir / "traces")])
    import_module(f"benchmarks.check.{benchmark_name}").main()
    shown = (root_dir / "docs" / "evidence" / "replay.md").read_text(encoding="utf-8").splitlines()
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(printed) > 10
    assert [line for line in printed if line not in shown] == []
