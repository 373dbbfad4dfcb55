"""`wavecast replay --run`: what it prints with and without a GPU, what it refuses, and that it alone needs torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from wavecast.formats.column import build_table, row_count
from wavecast.formats.files import load_trace, save_trace
from wavecast.formats.trace import Device, KernelTable

torch = pytest.importorskip("torch")

from wavecast.tracer.rerun import local  # noqa: E402 (needs torch)
from wavecast.tracer.rerun.record import LocalDevice  # noqa: E402

Run = Callable[..., Result]
ON_CPU = ("--run", "--device", "cpu", "--seconds", 5)


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the CPU call itself a GPU."""

    def pretend(name: str) -> None:
        device = LocalDevice(torch_name="cpu", device=Device(name=name), is_gpu=True)
        monkeypatch.setattr(local, "find_device", lambda _name: device)

    return pretend


def test_on_a_cpu_nothing_is_predicted(run: Run, trace_file: Path) -> None:
    table, document = run("replay", trace_file, *ON_CPU), run("replay", trace_file, *ON_CPU, "--format", "json")
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


def test_on_another_gpu_the_prediction_is_checked(
    run: Run, trace_file: Path, pretend_gpu: Callable[[str], None]
) -> None:
    pretend_gpu("NVIDIA L4")
    result = run("replay", trace_file, "--run", "--seconds", 5)
    assert result.exit_code == 0, result.output
    for part in ("for L4", "on A100 SXM4 80GB", "within the 90 % interval", "predicted", "recorded /", "1 call"):
        assert part in result.stdout
    document = json.loads(run("replay", trace_file, "--run", "--seconds", 5, "--format", "json").stdout)
    assert document["gpu"] == "L4"
    assert document["total"]["predicted_ns"] > 0
    assert document["total"]["figures"]["rows"] == document["total"]["op_count"]


def test_the_predictions_are_those_of_analyze(run: Run, root_dir: Path, pretend_gpu: Callable[[str], None]) -> None:
    pretend_gpu("Tesla T4")
    path = root_dir / "samples" / "dcgan-inference-fp32-b64-shapes.json.gz"
    checked = json.loads(run("replay", path, "--run", "--seconds", 0.2, "--format", "json").stdout)
    report = json.loads(run("analyze", path, "--to", "T4", "--format", "json").stdout)
    row = next(item for item in report["predictions"] if item["gpu"] == checked["gpu"])
    assert checked["iteration"]["predicted_ns"] == pytest.approx(row["iteration_ns"])
    assert checked["iteration"]["predicted_kernels_ns"] == pytest.approx(row["gpu_busy_ns"])


def test_the_limit_is_on_the_prediction(run: Run, trace_file: Path, pretend_gpu: Callable[[str], None]) -> None:
    assert run("replay", trace_file, *ON_CPU, "--max-error", 1e9).exit_code == 1  # nothing is predicted
    pretend_gpu("NVIDIA L4")
    options = ("--run", "--seconds", 5, "--max-error")
    assert run("replay", trace_file, *options, 1e9).exit_code == 0
    failed = run("replay", trace_file, *options, 0)
    assert failed.exit_code == 1
    assert "the prediction is off by" in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_a_gpu_that_the_catalogue_lacks_can_be_named(
    run: Run, trace_file: Path, pretend_gpu: Callable[[str], None]
) -> None:
    pretend_gpu("Voodoo 5")
    unknown = run("replay", trace_file, "--run", "--seconds", 5)
    assert "not catalogued" in unknown.stdout
    named = run("replay", trace_file, "--run", "--seconds", 5, "--to", "L40S")
    assert "for L40S" in named.stdout


def test_top_and_output(run: Run, trace_file: Path, tmp_path: Path) -> None:
    assert "Ops by" not in run("replay", trace_file, *ON_CPU, "--top", 0).stdout
    path = tmp_path / "rerun.json"
    assert run("replay", trace_file, *ON_CPU, "-o", path).stdout == ""
    assert json.loads(path.read_text(encoding="utf-8"))["version"] == "1.0"


def test_a_trace_of_which_nothing_can_be_run(run: Run, trace_file: Path, tmp_path: Path) -> None:
    trace, path = load_trace(trace_file), tmp_path / "bare.json"
    unshaped = replace(trace.ops, signature=trace.ops.signature * 0 - 1)
    save_trace(replace(trace, ops=unshaped), path)
    result = run("replay", path, *ON_CPU)
    assert result.exit_code == 0, result.output
    assert "none could be re-run" in result.stdout
    assert "its shapes were not recorded" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--run", "--figure", "figure.svg"), ("--figure", "leave out")),
        (("--run", "--stretch", 1, 3), ("--stretch", "leave out")),
        (("--run", "--device", "cuda:99"), ("--device cuda:99",)),
        (("--run", "--device", "npu"), ("--device npu", "expected cuda")),
        (("--run", "--seconds", "nan"), ("--seconds nan",)),
        (("--run", "--device", "cpu", "--to", "L40S"), ("--to", "CPUs")),
        (("--run", "--device", "cpu", "--from", "H1O0"), ("H1O0",)),
        (("--run", "--max-error", "nan"), ("--max-error nan",)),
        (("--seconds", 5), ("--seconds", "add --run")),
        (("--device", "cpu"), ("--device", "add --run")),
        (("--top", 3), ("--top", "add --run")),
    ],
)
def test_refusals(options: tuple[object, ...], words: tuple[str, ...], run: Run, trace_file: Path) -> None:
    result = run("replay", trace_file, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in words)


def test_an_empty_trace_is_refused(run: Run, trace_file: Path, tmp_path: Path) -> None:
    trace, path = load_trace(trace_file), tmp_path / "empty.json"
    nothing = replace(trace, ops=build_table(type(trace.ops), 0), kernels=build_table(KernelTable, 0))
    assert row_count(nothing.ops) == 0
    save_trace(replace(nothing, calls=build_table(type(trace.calls), 0)), path)
    result = run("replay", path, *ON_CPU)
    assert result.exit_code == 2
    assert "no ops and no kernels" in result.stderr


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--run"], 1)])
def test_only_a_rerun_needs_torch(options: list[str], status: int, trace_file: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.argv = ['wavecast', 'replay', {str(trace_file)!r}, *{options!r}]\n"
        "from wavecast.__main__ import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == status, result.stderr
    assert ("pip install 'wavecast[tracer]'" in result.stderr) == bool(options)
    assert result.stderr.count("\n") <= 1
