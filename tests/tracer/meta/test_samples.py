"""The committed samples: readable, small, and described."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavecast.formats.files.open import load_trace

EVERY = sorted((Path(__file__).parents[3] / "samples").glob("*-shapes.json.gz"))
RANKS = [path for path in EVERY if "-rank" in path.name]
SAMPLES = [path for path in EVERY if path not in RANKS]


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


@pytest.mark.parametrize("path", RANKS, ids=lambda path: path.name)
def test_the_sample_of_a_rank_is_what_its_name_says(path: Path) -> None:
    trace = load_trace(path)
    assert f"-rank{trace.meta.rank}of{trace.meta.world_size}-" in path.name
    assert trace.meta.capture == "shapes"
    assert len(trace.collectives.op) > 0
    assert set(trace.collectives.group.tolist()) <= set(range(len(trace.groups.size)))
    assert path.stat().st_size < 150_000


def test_every_model_is_in_the_readme(root_dir: Path) -> None:
    text = (root_dir / "samples" / "README.md").read_text()
    for path in EVERY:
        if path in RANKS:
            assert f"`{path.name.split('-')[0]}-" in text
            continue
        assert f"`{path.name.split('-')[0]}`" in text
