"""`wavecast rerun`: what it prints with and without a GPU, what it refuses, its old name; it alone needs torch.

The ops run on the CPU, in as much time as they take: `CpuRunner` stands between the command and the tracer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from wavecast.__main__ import wavecast
from wavecast.formats.files.open import load_trace, save_trace
from wavecast.formats.measured.rerun import LocalDevice, Rerun
from wavecast.formats.trace.column import build_table, row_count
from wavecast.formats.trace.tables import Device, KernelTable

torch = pytest.importorskip("torch")

from wavecast.tracer.rerun import find_device, rerun_ops  # noqa: E402 (needs torch)

Run = Callable[..., Result]
ON_CPU = ("--device", "cpu")


@dataclass
class CpuRunner:
    """Run ops on the CPU, which calls itself the GPU of a name; the time that is asked for is written down only."""

    gpu: str | None = None
    seconds: float = inf
    asked: list[float] = field(default_factory=list)

    def find_device(self, name: str | None) -> LocalDevice:
        if self.gpu is None:
            return find_device(name)
        return LocalDevice(torch_name="cpu", device=Device(name=self.gpu), is_gpu=True)

    def rerun_ops(self, *arguments: Any, seconds: float, **options: Any) -> Rerun:
        self.asked.append(seconds)
        return rerun_ops(*arguments, seconds=self.seconds, **options)


def invoke(runner: CpuRunner, *words: object) -> Result:
    environment = {"COLUMNS": None, "NO_COLOR": None, "FORCE_COLOR": None}
    return CliRunner().invoke(wavecast, list(map(str, words)), env=environment, obj=lambda: runner)


def rerun(trace: Path, *options: object, gpu: str | None = None) -> Result:
    return invoke(CpuRunner(gpu), "rerun", trace, *options)


def test_a_page_compares_the_ops(trace_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs vl-convert-python")
    page = tmp_path / "rerun.html"
    assert rerun(trace_file, "-o", page, gpu="NVIDIA L4").exit_code == 0
    assert "Families of ops that were re-run" in page.read_text("utf-8")
    assert rerun(trace_file, "--format", "markdown", gpu="NVIDIA L4").stdout.startswith("- **re-run**: ")


def test_on_a_cpu_nothing_is_predicted(trace_file: Path) -> None:
    table, document = rerun(trace_file, *ON_CPU), rerun(trace_file, *ON_CPU, "--format", "json")
    assert (table.exit_code, document.exit_code) == (0, 0), table.output
    for part in ("a CPU", "no predictions for CPUs", "aten::relu", "nothing about any GPU", "Not re-run", "failed"):
        assert part in table.stdout
    assert "recorded /" not in table.stdout
    found = json.loads(document.stdout)
    assert found["format"] == "wavecast.rerun"
    assert (found["is_gpu"], found["gpu"], found["capture"]) == (False, None, "measured")
    assert found["source"] == "A100 SXM4 80GB"
    assert found["rerun_call_count"] == sum(item["count"] for item in found["ops"] if item["rerun_ns"] is not None)
    timed = {item["op"]: item["rerun_ns"] is not None for item in found["ops"]}
    assert timed == {"aten::linear": False, "aten::relu": True}  # its arguments are those of the addmm inside


def test_on_another_gpu_the_prediction_is_checked(trace_file: Path) -> None:
    result = rerun(trace_file, gpu="NVIDIA L4")
    assert result.exit_code == 0, result.output
    for part in ("for L4", "on A100 SXM4 80GB", "within the 90 % interval", "predicted", "recorded /", "1 call"):
        assert part in result.stdout
    document = json.loads(rerun(trace_file, "--format", "json", gpu="NVIDIA L4").stdout)
    assert document["gpu"] == "L4"
    assert document["total"]["predicted_ns"] > 0
    assert document["total"]["figures"]["rows"] == document["total"]["op_count"]


def test_the_predictions_are_those_of_analyze(run: Run, root_dir: Path) -> None:
    path = root_dir / "samples" / "dcgan-inference-fp32-b64-shapes.json.gz"
    no_time = CpuRunner("Tesla T4", seconds=0.0)
    checked = json.loads(invoke(no_time, "rerun", path, "--format", "json").stdout)
    report = json.loads(run("analyze", path, "--to", "T4", "--format", "json").stdout)
    row = next(item for item in report["predictions"] if item["gpu"] == checked["gpu"])
    assert checked["iteration"]["predicted_ns"] == pytest.approx(row["iteration_ns"])
    assert checked["iteration"]["predicted_kernels_ns"] == pytest.approx(row["gpu_busy_ns"])
    assert checked["rerun_call_count"] == 0
    assert {item["reason"] for item in checked["left_out"]} >= {"the time budget was over"}


def test_the_limit_is_on_the_prediction(trace_file: Path) -> None:
    unpredicted = rerun(trace_file, *ON_CPU, "--max-error", 1e9)
    assert unpredicted.exit_code == 1
    assert "nothing was predicted" in unpredicted.stderr
    assert rerun(trace_file, "--max-error", 1e9, gpu="NVIDIA L4").exit_code == 0
    failed = rerun(trace_file, "--max-error", 0, gpu="NVIDIA L4")
    assert failed.exit_code == 1
    assert "the prediction is off by" in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_a_gpu_that_the_catalogue_lacks_can_be_named(trace_file: Path) -> None:
    assert "not catalogued" in rerun(trace_file, gpu="Voodoo 5").stdout
    assert "for L40S" in rerun(trace_file, "--to", "L40S", gpu="Voodoo 5").stdout


def test_top_and_output(trace_file: Path, tmp_path: Path) -> None:
    assert "Ops by" in rerun(trace_file, *ON_CPU).stdout
    assert "Ops by" not in rerun(trace_file, *ON_CPU, "--top", 0).stdout
    path = tmp_path / "rerun.json"
    assert rerun(trace_file, *ON_CPU, "-o", path).stdout == ""
    assert json.loads(path.read_text(encoding="utf-8"))["version"] == "1.0"


@pytest.mark.parametrize(("options", "expected_s"), [((), 60.0), (("--seconds", 7), 7.0)])
def test_the_time_asked_for_is_handed_on(options: tuple[object, ...], expected_s: float, trace_file: Path) -> None:
    runner = CpuRunner()
    assert invoke(runner, "rerun", trace_file, *ON_CPU, *options).exit_code == 0
    assert runner.asked == [expected_s]


def test_a_trace_of_which_nothing_can_be_run(trace_file: Path, tmp_path: Path) -> None:
    trace, path = load_trace(trace_file), tmp_path / "bare.json"
    unshaped = replace(trace.ops, signature=trace.ops.signature * 0 - 1)
    save_trace(replace(trace, ops=unshaped), path)
    result = rerun(path, *ON_CPU)
    assert result.exit_code == 0, result.output
    assert "none could be re-run" in result.stdout
    assert "its shapes were not recorded" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("rerun", "--device", "cuda:99"), ("--device cuda:99",)),
        (("rerun", "--device", "npu"), ("--device npu", "expected cuda")),
        (("rerun", "--seconds", "nan"), ("--seconds nan",)),
        (("rerun", "--device", "cpu", "--to", "L40S"), ("--to", "CPUs")),
        (("rerun", "--device", "cpu", "--from", "H1O0"), ("H1O0",)),
        (("rerun", "--max-error", "nan"), ("--max-error nan",)),
    ],
)
def test_refusals(options: tuple[str, ...], words: tuple[str, ...], run: Run, trace_file: Path) -> None:
    command, *others = options
    result = run(command, trace_file, *others)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in words)


def test_an_empty_trace_is_refused(trace_file: Path, tmp_path: Path) -> None:
    trace, path = load_trace(trace_file), tmp_path / "empty.json"
    nothing = replace(trace, ops=build_table(type(trace.ops), 0), kernels=build_table(KernelTable, 0))
    assert row_count(nothing.ops) == 0
    save_trace(replace(nothing, calls=build_table(type(trace.calls), 0)), path)
    result = rerun(path, *ON_CPU)
    assert result.exit_code == 2
    assert "no ops and no kernels" in result.stderr


@pytest.mark.parametrize(("command", "status"), [("replay", 0), ("rerun", 1)])
def test_only_a_rerun_needs_torch(command: str, status: int, trace_file: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.argv = ['wavecast', {command!r}, {str(trace_file)!r}]\n"
        "from wavecast.__main__ import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == status, result.stderr
    assert ("pip install 'wavecast[tracer]'" in result.stderr) == (command == "rerun")
    assert result.stderr.count("\n") <= 1
