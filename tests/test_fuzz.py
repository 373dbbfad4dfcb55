"""A slice of the fuzzer's inputs, and that what it starts from is valid."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from wavecast.__main__ import wavecast

INPUTS = 60
"""Some seconds; `.ci/full` draws more."""
FIRST_SEED = 1

ROOT = Path(__file__).parent.parent


def test_a_slice_of_the_inputs_ends_as_it_should() -> None:
    pytest.importorskip("pyarrow")
    drawn = ["--inputs", str(INPUTS), "--seed", str(FIRST_SEED), "--jobs", "2", "--verbose"]
    words = [sys.executable, "-m", "benchmarks.check.fuzz", *drawn]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"{INPUTS} inputs, 0 faults" in done.stdout


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    pytest.importorskip("pyarrow")
    monkeypatch.syspath_prepend(str(ROOT))
    found: tuple[Any, ...] = import_module("benchmarks.check.fuzz.seeds").build_seeds()
    return found


def test_what_the_fuzzer_changes_is_valid(seeds: tuple[Any, ...], tmp_path: Path) -> None:
    """Otherwise it would only ever see refusals."""
    for number, seed in enumerate(seeds):
        path = tmp_path / str(number) / seed.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(seed.data)
        words = {
            "profile": ["analyze", str(path), "--from", "a100 sxm4 80gb", "--to", "L40S"],
            "trace": ["analyze", str(path), "--to", "L40S"],
            "gpus": ["catalog", "--gpu-file", str(path)],
            "table": ["score", str(tmp_path / str(number))],
        }.get(seed.kind.value)
        if words is not None:
            result = CliRunner().invoke(wavecast, words)
            assert result.exit_code == 0, f"{seed.name}: {result.output}"


def test_the_same_number_gives_the_same_input(seeds: tuple[Any, ...], tmp_path: Path) -> None:
    """Whatever was drawn before, in the same process."""
    draw_input = import_module("benchmarks.check.fuzz.guard").draw_input
    first, again = ([draw_input(number, 1, seeds, tmp_path) for number in range(100)] for _ in range(2))
    assert first == again


def test_batch_answers_within_the_process(
    seeds: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the stand-in for its workers."""
    workers = import_module("wavecast.analyzer.questions.batch.workers")
    monkeypatch.setattr(workers, "answer_on_processes", workers.answer_on_processes)  # put back afterwards
    import_module("benchmarks.check.fuzz.__main__")._import_once()
    path = tmp_path / "a.json.gz"
    path.write_bytes(next(seed.data for seed in seeds if seed.kind.value == "trace"))
    words = ["batch", str(path), "--to", "L40S", "-o", str(tmp_path / "r.csv"), "--jobs", "1"]
    result = CliRunner().invoke(wavecast, words)
    assert result.exit_code == 0, result.output
