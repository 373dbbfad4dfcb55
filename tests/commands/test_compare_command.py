"""The compare command: what it says, and its exit status."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from wavecast.analyzer.iteration.decision.electricity import JobEnergy, PowerDraw
from wavecast.analyzer.questions.compare.report import GpuChange, Verdict
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.codec import encode

Run = Callable[..., Result]
_ALIKE = (("gpt2_small-training", "b4"), ("bert_base-training", "b16"))


@pytest.fixture
def slow_file(tmp_path: Path, trace_file: Path) -> Path:
    """The small trace, every time in it three times as long."""
    trace = load_trace(trace_file)
    tables = {name: _slower(getattr(trace, name)) for name in ("ops", "calls", "kernels", "iterations")}
    path = tmp_path / "slow.json"
    path.write_bytes(encode(replace(trace, **tables)))
    return path


def _slower(table: Any) -> Any:
    times = [item.name for item in fields(table) if item.name.endswith("_ns")]
    longer = {name: getattr(table, name) * np.where(getattr(table, name) < 0, 1, 3) for name in times}
    return replace(table, **longer)


def test_the_same_passes(run: Run, trace_file: Path) -> None:
    result = run("compare", trace_file, trace_file, "--max-slowdown", "0%", "--strict")
    assert result.exit_code == 0
    assert "nothing: the same ops on the same sizes" in result.stdout


def test_a_slowdown_fails_and_says_percentages(run: Run, trace_file: Path, slow_file: Path) -> None:
    result = run("compare", trace_file, slow_file, "--max-slowdown", "3%", "--strict", "--format", "json")
    assert result.exit_code == 1
    assert re.search(r"^Error: 200 % slower on .*, more than 3 %$", result.stderr, re.MULTILINE)
    assert json.loads(result.stdout)["exit_status"] == 1
    assert run("compare", slow_file, trace_file, "--max-slowdown", "3%", "--strict").exit_code == 0


def test_another_gpu_than_the_measured_one(run: Run, trace_file: Path) -> None:
    result = run("compare", trace_file, trace_file, "--on", "h100 sxm,a100", "--format", "json")
    assert result.exit_code == 0
    assert all(gpu["change"] == 0 for gpu in json.loads(result.stdout)["gpus"])


def test_markdown_folds_the_causes(run: Run, trace_file: Path, slow_file: Path, trace_bytes: bytes) -> None:
    other = slow_file.with_name("other.json")
    other.write_bytes(trace_bytes.replace(b"aten::relu", b"aten::gelu"))
    result = run("compare", trace_file, other, "--format", "markdown")
    assert "relu → gelu" in result.stdout
    assert result.stdout.count("<details>") == result.stdout.count("</details>") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-slowdown", "nan"),
        ("--max-slowdown", "-1%"),
        ("--max-memory-growth", "much"),
        ("--on", "no such gpu"),
        ("--top", "-1"),
    ],
)
def test_bad_options_are_refused(arguments: tuple[str, ...], run: Run, trace_file: Path) -> None:
    result = run("compare", trace_file, trace_file, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr


def test_bad_files_are_refused(run: Run, trace_file: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_bytes(b"")
    for other in (empty, tmp_path, tmp_path / "missing.json"):
        assert run("compare", trace_file, other).exit_code == 2
    assert run("compare", "-", "-").exit_code == 2


def energy_of(time_ns: float) -> JobEnergy:
    draw = PowerDraw(idle_w=60.0, work_j=3e-6, limit_w=400.0, half_width=0.2)
    return JobEnergy(power=draw, time_ns=time_ns, low_ns=None, high_ns=None, gpu_count=1, host_gpu_count=1)


def test_the_interval_decides_unless_strict() -> None:
    change = GpuChange(
        gpu="x",
        old_measured=False,
        new_measured=False,
        old_ns=100.0,
        new_ns=110.0,
        change_low=0.02,
        change_high=0.2,
        same_old_ns=0.0,
        same_new_ns=0.0,
        rest_ns=0.0,
        old_fits=True,
        new_fits=False,
        is_tight=False,
        old_energy=energy_of(100.0),
        new_energy=energy_of(110.0),
    )
    assert change.verdict(0.2) is Verdict.PASSED
    assert change.verdict(0.03) is Verdict.UNCERTAIN
    assert change.verdict(0.01) is Verdict.FAILED
    assert replace(change, change_low=None).verdict(0.01) is Verdict.UNCERTAIN
    assert change.no_longer_fits
    assert not replace(change, old_fits=None).no_longer_fits


def test_the_commands_of_the_documented_pipelines_run(
    run: Run, trace_bytes: bytes, tmp_path: Path, root_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (root_dir / "docs" / "reference" / "compare.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [
        line for block in blocks for line in re.findall(r"wavecast (compare .*) > report.md$", block, re.MULTILINE)
    ]
    assert len(blocks) == len(lines) == 2
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        (tmp_path / f"{name}.json.gz").write_bytes(trace_bytes)
    for line in lines:
        result = run(*shlex.split(line))
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("✓")


@pytest.fixture
def pair(root_dir: Path) -> tuple[Path, Path]:
    """GPT-2 in bfloat16, and the same in float32: slower, and twice the memory."""
    old, new = (root_dir / "samples" / f"gpt2_small-training-{name}-b4-shapes.json.gz" for name in ("bf16", "fp32"))
    return old, new


def little_gpu(folder: Path, gib: float) -> tuple[str, ...]:
    """Return the options for an L40S of so much memory."""
    path = folder / "little.toml"
    path.write_text(f'[[gpu]]\nname = "Little"\nbased_on = "L40S"\nmemory = {{ size_gib = {gib} }}\n')
    return "--gpu-file", str(path), "--on", "little"


def test_what_no_longer_fits_fails_without_a_limit_of_time(run: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = pair
    options = little_gpu(tmp_path, 5.4)
    result = run("compare", old, new, *options, "--on", "l40s")
    assert result.exit_code == 1
    assert result.stderr == "Error: the iteration no longer fits the memory of Little\n"
    assert "; no longer fits Little" in result.stdout.splitlines()[0]
    assert re.search(r"^Little .* yes → no *$", result.stdout, re.MULTILINE)
    assert re.search(r"^L40S .* yes *$", result.stdout, re.MULTILINE)
    assert run("compare", new, old, *options).exit_code == 0
    assert run("compare", new, new, *options).exit_code == 0  # it did not fit before


def test_what_may_no_longer_fit_fails_where_it_is_strict(run: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    options = little_gpu(tmp_path, 7.0)
    result = run("compare", *pair, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "; may no longer fit Little" in result.stdout.splitlines()[0]
    assert re.search(r"^Little .* yes → no \(tight\) *$", result.stdout, re.MULTILINE)
    strict = run("compare", *pair, *options, "--strict")
    assert (strict.exit_code, strict.stderr) == (1, "Error: the iteration no longer fits the memory of Little\n")


def test_more_memory_than_allowed_fails(run: Run, pair: tuple[Path, Path]) -> None:
    result = run("compare", *pair, "--on", "l40s", "--max-memory-growth", "50%")
    assert result.exit_code == 1
    assert re.fullmatch(r"Error: peak memory grows by 9\d\.\d %, more than 50 %\n", result.stderr)
    assert run("compare", *pair, "--on", "l40s", "--max-memory-growth", "120").exit_code == 0


def test_strict_gates_on_the_prediction_and_not_on_the_end_of_its_interval(run: Run, pair: tuple[Path, Path]) -> None:
    (gpu,) = json.loads(run("compare", *pair, "--on", "l40s", "--format", "json").stdout)["gpus"]
    between = f"{100 * (gpu['change_low'] + gpu['change']) / 2}%"
    loose = run("compare", *pair, "--on", "l40s", "--max-slowdown", between)
    assert (loose.exit_code, loose.stderr) == (0, "")
    assert "may be slower, not certain" in loose.stdout
    strict = run("compare", *pair, "--on", "l40s", "--max-slowdown", between, "--strict")
    assert strict.exit_code == 1
    assert re.fullmatch(r"Error: \d+ % slower on L40S, more than \d+ %\n", strict.stderr)
    beyond = f"{100 * gpu['change_low'] - 1}%"
    assert run("compare", *pair, "--on", "l40s", "--max-slowdown", beyond).exit_code == 1


def test_a_change_that_may_be_none_is_headed_as_not_certain(run: Run, root_dir: Path) -> None:
    old, new = (root_dir / f"samples/{name}-bf16-{batch}-shapes.json.gz" for name, batch in _ALIKE)
    (gpu,) = json.loads(run("compare", old, new, "--on", "l40s", "--format", "json").stdout)["gpus"]
    assert gpu["change_low"] < 0 < gpu["change_high"]
    heads = [run("compare", *files, "--on", "l40s").stdout.splitlines()[0] for files in ((old, new), (new, old))]
    assert all(re.fullmatch(r"\d+\.\d % (slower|faster), not certain, on L40S", head) for head in heads)


def test_rows_may_be_measured_on_one_side_and_predicted_on_the_other(run: Run, root_dir: Path) -> None:
    old, new = (root_dir / "samples" / f"bert_small-inference-bf16-b1-{gpu}.json.gz" for gpu in ("h100", "mi300x"))
    options = ("--on", "h100 sxm", "--on", "mi300x", "--on", "l40s", "--max-slowdown", "3%")
    result = run("compare", old, new, *options)
    words = {
        "H100 SXM5 80GB": ("measured", "predicted"),
        "Instinct MI300X": ("predicted", "measured"),
        "L40S": ("predicted", "predicted"),
    }
    for gpu, (one, other) in words.items():
        basis = one if one == other else f"{one} / {other}"
        assert re.search(rf"^{gpu} .*  {basis}  ", result.stdout, re.MULTILINE)
        said = f"on {gpu} the old iteration is {one} and the new one {other}"
        assert (said in result.stdout) == (one != other)
    document = json.loads(run("compare", old, new, *options, "--format", "json").stdout)
    assert [(row["old_measured"], row["new_measured"]) for row in document["gpus"]] == [
        (True, False), (False, True), (False, False)
    ]  # fmt: skip
