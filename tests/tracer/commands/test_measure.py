"""`wavecast measure`: what it writes, what it refuses, and what an interruption leaves."""

from __future__ import annotations

import getpass
import gzip
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner, Result
from wavecast.__main__ import wavecast
from wavecast.analyzer.measurements.samples import read_table
from wavecast.errors import InputError
from wavecast.formats.files.open import save_trace
from wavecast.formats.measured.ops_file import MeasuredOps, read_ops, save_ops
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import OpTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.tracer.commands import measure as measure_command
from wavecast.tracer.op_sweep import local as local_gpu, sweep, sweep as plan
from wavecast.tracer.op_sweep.cases import Case
from wavecast.tracer.op_sweep.local import default_dtypes, has_tf32, name_gpu

GPU = "H100 SXM5 80GB"
ON_CPU = ("--device", "cpu", "--gpu", "h100 sxm5")
COUNT = 15
OWN_GPU = """
[[gpu]]
name = "Voodoo 5"
based_on = "H100 SXM5 80GB"
"""

Measure = Callable[..., Result]


def run_wavecast(*arguments: object) -> Result:
    return CliRunner().invoke(wavecast, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Measure into out.json.gz calls that take a CPU no time, a few per family: tests end on counts."""
    monkeypatch.setattr(measure_command, "_CPU_FLOPS", 2e6)
    monkeypatch.setattr(measure_command, "_CPU_ELEMENTS", 2e5)
    monkeypatch.setattr(sweep, "SweepLimits", partial(sweep.SweepLimits, row_count=COUNT))
    monkeypatch.setattr(plan, "LEAST_ROWS", 6)
    return partial(run_wavecast, "measure", "-o", tmp_path / "out.json.gz", "--seconds", 1e9)


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """A layer of one workload: a product twice, and another one, both with an activation."""
    wide, narrow = ((TensorSpec("float32", (8, k), (k, 1)), TensorSpec("float32", (k, 24), (1, k))) for k in (64, 16))
    activations = TensorSpec("float32", (8, 24), (24, 1))
    path = tmp_path / "trace.json"
    save_trace(
        Trace(
            strings=("aten::mm", "aten::relu"),
            signatures=(Signature(narrow), Signature(wide), Signature((activations,))),
            ops=build_table(OpTable, 5, name=[0, 1, 0, 1, 0], signature=[0, 2, 0, 2, 1]),
        ),
        path,
    )
    return path


def ops_of(path: Path) -> dict[str, int]:
    return {name: len(columns["dtype"]) for name, (_, columns) in sorted(read_ops(path).tables.items())}


def test_it_measures_what_models_read_and_says_what_next(measure: Measure, tmp_path: Path) -> None:
    found = measure(*ON_CPU)
    assert found.exit_code == 0, found.stderr
    assert found.stdout == ""
    assert ops_of(tmp_path / "out.json.gz") == dict.fromkeys(("attention", "convolution", "matmul", "vector"), COUNT)
    assert set(read_table(tmp_path / "out.json.gz" / "ops" / "matmul.parquet")["gpu"]) == {GPU}
    lines = found.stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines[:4]] == ["matmul", "attention", "convolution", "vector"]
    assert "use them for nothing" in lines[4]
    assert lines[5].endswith(f"next: analyze TRACE --to '{GPU}' --calibration {tmp_path / 'out.json.gz'}")


def test_what_was_measured_is_scored_and_calibrates(measure: Measure, tmp_path: Path, root_dir: Path) -> None:
    trace = root_dir / "samples" / "bert_base-inference-bf16-b16-shapes.json.gz"
    assert measure(*ON_CPU, "--families", "matmul,vector", "--dtypes", "bf16").exit_code == 0
    scored = run_wavecast("score", tmp_path / "out.json.gz").stdout
    assert f"Score of {2 * COUNT} op measurements" in scored
    assert "times of a CPU" in scored
    found = run_wavecast("analyze", trace, "--to", GPU, "--calibration", tmp_path / "out.json.gz", "--format", "json")
    assert found.exit_code == 0, found.stderr
    counts = {item["model"]: item["point_count"] for item in json.loads(found.stdout)["calibration"]}
    assert counts == {"matmul": COUNT, "vector": COUNT}


def test_the_calls_of_a_trace_come_first_and_others_fill_up(measure: Measure, tmp_path: Path, trace_file: Path) -> None:
    found = measure(trace_file, *ON_CPU)
    assert found.exit_code == 0, found.stderr
    assert f"next: analyze {trace_file} --to" in found.stderr
    assert ops_of(tmp_path / "out.json.gz") == {"matmul": 6, "vector": 6}
    table = read_table(tmp_path / "out.json.gz" / "ops" / "matmul.parquet")
    assert set(table["dtype"]) == {"fp32"}
    rows = set(zip(*(table[name].tolist() for name in ("op", "batch", "m", "n", "k")), strict=True))
    assert {("linear", 1, 8, 24, 16), ("linear", 1, 8, 24, 64)} < rows


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "cpu"], "say with --gpu which one"),
        (["--device", "cpu", "--gpu", "H1000"], "no GPU of the catalogue is called 'H1000'; did you mean"),
        (["--families", "matmul,fft"], "fft: expected some of matmul,attention,convolution,vector"),
        (["--dtypes", ","], "nothing: expected some of fp32,tf32,bf16,fp16"),
        (["--seconds", "0"], "0.0 is not in the range x>0"),
        ([*ON_CPU, "--seconds", "nan"], "--seconds nan: expected a time above zero"),
        ([*ON_CPU, "nowhere.json"], "nowhere.json: no such file"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    options: list[str], words: str, measure: Measure, tmp_path: Path
) -> None:
    found = measure(*options)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.splitlines()[-1].startswith("Error: ")
    assert words in found.stderr
    assert not (tmp_path / "out.json.gz").exists()


def test_a_trace_without_calls_that_tables_hold_is_refused(measure: Measure, tmp_path: Path) -> None:
    save_trace(Trace(), tmp_path / "empty.json")
    found = measure(tmp_path / "empty.json", *ON_CPU)
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert "holds no calls that can be measured" in found.stderr


def test_no_time_is_a_failure(measure: Measure, tmp_path: Path) -> None:
    found = measure(*ON_CPU, "--seconds", "5e-324")  # the end is the beginning
    assert found.exit_code == 1
    assert "nothing was measured: give it more time" in found.stderr
    assert not (tmp_path / "out.json.gz").exists()


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (MeasuredOps(gpu="L40S", device="cpu"), "measurements of L40S"),
        (MeasuredOps(gpu=GPU, device="cuda"), "with --device cuda"),
        (None, "expected what 'wavecast measure' writes"),
    ],
)
def test_nothing_else_is_mixed_or_written_over(
    held: MeasuredOps | None, words: str, measure: Measure, tmp_path: Path
) -> None:
    out = tmp_path / "out.json.gz"
    if held is None:
        out.write_bytes(b"mine")
    else:
        save_ops(out, held)
    before = out.read_bytes()
    found = measure(*ON_CPU, "--families", "matmul")
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert words in found.stderr
    assert out.read_bytes() == before


def test_a_second_run_keeps_the_other_families(measure: Measure, tmp_path: Path) -> None:
    for family in ("matmul", "vector"):
        assert measure(*ON_CPU, "--families", family).exit_code == 0
    assert ops_of(tmp_path / "out.json.gz") == {"matmul": COUNT, "vector": COUNT}


def test_a_trace_is_not_written_over(measure: Measure, tmp_path: Path, trace_file: Path) -> None:
    out = tmp_path / "out.json.gz"
    out.hardlink_to(trace_file)
    before = trace_file.read_bytes()
    found = measure(trace_file, *ON_CPU)
    assert (found.exit_code, found.stderr) == (2, f"Error: {out}: TRACE is read from there; name another file for -o\n")
    assert trace_file.read_bytes() == before


@pytest.mark.parametrize("name", [".", "-", "none/out.json"])
def test_what_is_no_place_for_a_file_is_refused(name: str, measure: Measure, tmp_path: Path) -> None:
    found = measure("-o", name if name == "-" else tmp_path / name, *ON_CPU)
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert "cannot be written: name a file" in found.stderr


def test_the_file_names_no_host_user_or_path(
    measure: Measure, tmp_path: Path, trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setattr(torch, "__version__", "2.13.0+built.by.somebody")
    assert measure(trace_file, *ON_CPU).exit_code == 0
    text = gzip.decompress((tmp_path / "out.json.gz").read_bytes()).decode()
    private = (socket.gethostname(), getpass.getuser(), "somebody", str(tmp_path), str(Path.home()), trace_file.stem)
    assert [word for word in private if word.casefold() in text.casefold()] == []
    assert read_ops(tmp_path / "out.json.gz").families["matmul"].torch == "2.13.0"


def test_ctrl_c_keeps_the_families_that_are_done(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> object:
        def build(_device: object) -> None:
            raise KeyboardInterrupt

        yield Case(table="attention", row={"dtype": "fp32"}, build=build, flops=1.0, elements=1.0)  # type: ignore[arg-type]

    monkeypatch.setattr(plan, "FAMILIES", {**sweep.FAMILIES, "attention": interrupted})
    found = measure(*ON_CPU, "--families", "matmul,attention,vector")
    assert found.exit_code == 130
    assert "the families that were done are written" in found.stderr
    assert ops_of(tmp_path / "out.json.gz") == {"matmul": COUNT}


def test_without_torch_it_says_what_to_install(tmp_path: Path) -> None:
    arguments = ["wavecast", "measure", "-o", str(tmp_path / "out.json.gz"), *ON_CPU]
    start = "from wavecast.__main__ import main; main()"
    code = f"import sys; sys.modules['torch'] = None; sys.argv = {arguments}; {start}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr == "Error: measuring needs torch: pip install 'wavecast[measure]'\n"
    assert not (tmp_path / "out.json.gz").exists()


def properties(name: str, sm_count: int, memory_gb: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, multi_processor_count=sm_count, total_memory=memory_gb * 1e9)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (properties("NVIDIA H100 80GB HBM3", 132, 85.0), GPU),
        (properties("NVIDIA Voodoo 5 6000", 4, 0.128), "NVIDIA Voodoo 5 6000"),
        (properties("NVIDIA H100 80GB HBM3", 16, 10.0), InputError),
    ],
)
def test_a_gpu_is_called_as_the_catalogue_or_the_driver_has_it(
    found: SimpleNamespace, expected: str | type[InputError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    if isinstance(expected, str):
        assert name_gpu(load_catalog(), "cuda", None) == expected
        return
    with pytest.raises(expected, match="16 SMs and 10 GB is no GPU of the catalogue, perhaps a part of one"):
        name_gpu(load_catalog(), "cuda", None)


@pytest.mark.parametrize(("capability", "dtypes"), [((7, 0), ["fp32", "fp16"]), ((9, 0), ["fp32", "tf32", "bf16"])])
def test_old_gpus_are_measured_in_what_they_have(
    capability: tuple[int, int], dtypes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert default_dtypes("cuda") == dtypes
    assert has_tf32("cuda") == ("tf32" in dtypes)


def test_a_format_that_the_gpu_lacks_is_refused(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_gpu, "has_tf32", lambda _: False)
    found = measure(*ON_CPU, "--dtypes", "tf32")
    assert (found.exit_code, found.stderr) == (2, "Error: --dtypes: this GPU has no tf32; measure fp32\n")


def test_a_gpu_of_ones_own_file_is_measured_and_calibrated(measure: Measure, tmp_path: Path, root_dir: Path) -> None:
    gpu_file = tmp_path / "mine.toml"
    gpu_file.write_text(OWN_GPU, encoding="utf-8")
    more = ("--gpu-file", gpu_file)
    found = measure("--device", "cpu", "--gpu", "voodoo 5", *more, "--families", "matmul", "--dtypes", "bf16")
    assert found.exit_code == 0, found.stderr
    next_command = found.stderr.splitlines()[-1].partition("next: ")[2]
    assert next_command.endswith(f"--to 'Voodoo 5' --calibration {tmp_path / 'out.json.gz'} --gpu-file {gpu_file}")
    trace = root_dir / "samples" / "bert_base-inference-bf16-b16-shapes.json.gz"
    options = ("--to", "Voodoo 5", "--calibration", tmp_path / "out.json.gz", "--format", "json")
    found = run_wavecast("analyze", trace, *options, *more)
    assert found.exit_code == 0, found.stderr
    assert [(item["gpu"], item["point_count"]) for item in json.loads(found.stdout)["calibration"]] == [
        ("Voodoo 5", COUNT)
    ]
    found = run_wavecast("score", tmp_path / "out.json.gz")
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert "no GPU of the catalogue is called 'Voodoo 5'" in found.stderr


def test_an_unknown_gpu_keeps_its_name_and_says_what_it_needs(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_gpu, "name_gpu", lambda *_: "NVIDIA Voodoo 5 6000")
    found = measure("--device", "cpu", "--families", "vector")
    assert found.exit_code == 0, found.stderr
    assert "'NVIDIA Voodoo 5 6000' is not in the catalogue: describe a GPU of that name in a file" in found.stderr
    assert set(read_table(tmp_path / "out.json.gz" / "ops" / "vector.parquet")["gpu"]) == {"NVIDIA Voodoo 5 6000"}
