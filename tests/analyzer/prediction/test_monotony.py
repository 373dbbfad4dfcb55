"""A GPU that is better in some figure is not slower, but for the ops that benchmarks/check/monotony.csv names."""

from __future__ import annotations

import csv
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from wavecast.formats.files.open import load_trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

TABLE = Path(__file__).parents[3] / "benchmarks" / "check" / "monotony.csv"
with TABLE.open(encoding="utf-8", newline="") as file:
    NAMES = sorted({row["trace"] for row in csv.DictReader(file)})
WITNESSES = [name if "-shapes." in name else pytest.param(name, marks=pytest.mark.data) for name in NAMES]
LIKE = 1.02
"""By how much a ratio may exceed the known one: beyond, it is another slowdown."""
SLICE = (
    "bert_base-training-fp32-b16",
    "dcgan-training-bf16-b64",
    "ddpm_unet-inference-bf16-b32",
    "dlrm-training-fp32-b2048",
    "gpt2_small-training-bf16-b4",
    "resnet50-training-fp32-b32",
    "seq2seq-inference-fp32-b64",
)
GPUS = (
    "Tesla P40",
    "Tesla V100 PCIe 16GB",
    "Tesla T4",
    "A40",
    "A100 SXM4 40GB",
    "L4",
    "H100 SXM5 80GB",
    "Instinct MI300X",
)
CATALOG = load_catalog()


@pytest.fixture
def monotony(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(root_dir))
    return import_module("benchmarks.check.monotony")


@pytest.mark.parametrize("name", WITNESSES)
def test_known_slowdowns_are_neither_gone_nor_worse(
    monotony: Any, root_dir: Path, request: pytest.FixtureRequest, name: str
) -> None:
    folder = root_dir / "samples"
    if not (folder / name).exists():
        folder = request.getfixturevalue("data_dir") / "traces"
    rows = [row for row in monotony.read_known().values() if row.trace == name]
    for key, ratio in monotony.today(load_trace(folder / name), rows).items():
        row = next(row for row in rows if row.key == key)
        assert ratio > row.slack, f"{row} is gone: write the table again"
        assert ratio <= row.ratio * LIKE, f"{row} is worse, {ratio:.3f}"


@pytest.mark.parametrize("name", SLICE)
def test_no_other_op_or_iteration_is_slower_on_a_better_gpu(monotony: Any, root_dir: Path, name: str) -> None:
    trace, known = load_trace(root_dir / "samples" / f"{name}-shapes.json.gz"), monotony.read_known()
    cases = [(figure, factor) for figure in monotony.FIGURES for factor in monotony.FACTORS]
    every = [gpu for gpu in CATALOG.gpus if not gpu.is_package]
    found = [
        *monotony.sweep(trace, name, [find_gpu(CATALOG, gpu) for gpu in GPUS], cases),
        *monotony.sweep_pairs(trace, name, every),
    ]
    assert {item.figure for item in found} == {*monotony.FIGURES, monotony.CATALOGUE}
    for item in monotony.worst_of(found).values():
        assert item.key in known, f"{item} is new"
        assert item.ratio <= known[item.key].ratio * LIKE, f"{item} is worse than {known[item.key]}"


def test_every_figure_makes_a_gpu_better(monotony: Any) -> None:
    better_gpus = import_module("benchmarks.check.better_gpus")
    gpu = find_gpu(CATALOG, "A100 SXM4 80GB")
    for figure in better_gpus.FIGURES:
        assert better_gpus.dominated_pairs([gpu, better_gpus.better(gpu, figure, 1.02)]) == [(0, 1)], figure
    for item in CATALOG.gpus:
        assert better_gpus.better(item, "SMs", 1.001).sm_count > item.sm_count


def test_pairs_of_the_catalogue_are_of_one_architecture(monotony: Any) -> None:
    better_gpus = import_module("benchmarks.check.better_gpus")
    names = ("A100 PCIe 40GB", "A100 SXM4 80GB", "A40", "H100 SXM5 80GB", "H200 SXM 141GB")
    pairs = better_gpus.dominated_pairs([find_gpu(CATALOG, name) for name in names])
    assert [(names[one], names[other]) for one, other in pairs] == [
        ("A100 PCIe 40GB", "A100 SXM4 80GB"),
        ("H100 SXM5 80GB", "H200 SXM 141GB"),
    ]


def test_a_slower_prediction_is_found(
    monotony: Any, root_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A sweep whose better GPUs are worse ones finds ops and iterations; they are written, and then known."""
    better_gpus = import_module("benchmarks.check.better_gpus")
    sample = root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz"
    for name, value in {
        "better": lambda gpu, figure, factor: better_gpus.better(gpu, figure, 1 / factor),
        "FIGURES": {"bandwidth": None},
        "FACTORS": (2.0,),
        "TABLE": tmp_path / "known.csv",
        "sweep_pairs": lambda *_: (),
    }.items():
        monkeypatch.setattr(monotony, name, value)
    monkeypatch.setattr("sys.argv", ["monotony", str(sample), "--gpus", "Tesla T4"])
    with pytest.raises(SystemExit) as ended:
        monotony.main()
    assert ended.value.code == 1
    assert "vector elementwise" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["monotony", str(sample), "--gpus", "Tesla T4", "--write"])
    monotony.main()
    known = monotony.read_known(tmp_path / "known.csv")
    assert known["vector elementwise", "bandwidth"].ratio == pytest.approx(1.9, abs=0.15)
    assert monotony.ITERATION in {family for family, _ in known}
