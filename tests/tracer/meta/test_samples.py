"""The committed samples: readable, small, and described."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavecast.formats.files import load_trace

SAMPLES = sorted((Path(__file__).parents[3] / "samples").glob("*-shapes.json.gz"))


def test_there_are_samples_of_training_and_inference() -> None:
    names = {path.name.split("-")[0] for path in SAMPLES}
    assert {"resnet50", "bert_base", "gpt2_small", "vit_b16"} <= names
    for name in names:
        assert {path.name.split("-")[1] for path in SAMPLES if path.name.startswith(name)} == {"training", "inference"}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_sample_is_what_its_name_says(path: Path) -> None:
    model, mode, precision, batch, _ = path.name.split("-")
    trace = load_trace(path)
    workload = trace.meta.workload
    assert (workload.name, workload.mode, f"b{workload.batch_size}") == (model, mode, batch)
    assert trace.meta.capture == "shapes"
    assert path.stat().st_size < 150_000
    widths = {spec.dtype for signature in trace.signatures for spec in signature.tensors()}
    assert ("bfloat16" in widths) == (precision == "bf16")


def test_every_model_is_in_the_readme(root_dir: Path) -> None:
    text = (root_dir / "samples" / "README.md").read_text()
    for path in SAMPLES:
        assert f"`{path.name.split('-')[0]}`" in text
