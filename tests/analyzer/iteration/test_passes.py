"""Gradients that are accumulated: what an iteration's samples are, and which batch a what-if may change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import wavecast
from wavecast.formats.trace.tables import Trace

ASKED: Any = {"to": "H100-SXM"}


@pytest.fixture(scope="module")
def accumulating() -> Trace:
    """Four passes over eight samples, then the optimizer's step."""
    layers = torch.nn.Linear(64, 256, device="meta"), torch.nn.GELU(), torch.nn.Linear(256, 64, device="meta")
    model = torch.nn.Sequential(*layers)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        for _ in range(4):
            model(torch.randn(8, 64, device="meta")).square().mean().backward()
        sgd.step()
        sgd.zero_grad()

    return wavecast.record(step, device="meta", host_times=False)


@pytest.mark.parametrize(("from_batch", "samples"), [(8, 32), (32, 32)])
def test_the_batch_of_a_pass_is_noticed(accumulating: Trace, from_batch: int, samples: int) -> None:
    answer = wavecast.analyze(accumulating, **ASKED, from_batch=from_batch)
    row = answer.report.predictions[0]
    assert row.samples_per_s == pytest.approx(samples / row.iteration_ns * 1e9)
    assert any("4 passes" in text for text in answer.report.warnings) == (from_batch == 8)
    run = wavecast.analyze(accumulating, **ASKED, from_batch=from_batch, goal="32000 samples").report.run
    assert run is not None
    assert run.iterations == 1000


def test_a_batch_alone_tells_samples_per_second(root_dir: Any) -> None:
    trace = wavecast.load_trace(root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz")
    row = wavecast.analyze(trace, **ASKED, from_batch=4).report.predictions[0]
    assert row.samples_per_s == pytest.approx(4 / row.iteration_ns * 1e9)


def test_the_largest_batch_is_refused_where_no_size_holds_the_batch(accumulating: Trace) -> None:
    with pytest.raises(wavecast.InputError, match="largest_batch: no recorded size holds a batch of 32; say with"):
        wavecast.analyze(accumulating, **ASKED, from_batch=32, largest_batch=True)
    choice = wavecast.analyze(accumulating, **ASKED, from_batch=8, largest_batch=True).report.predictions[0].batches
    assert choice is not None
    assert choice.largest_batch is not None
    assert 8 < choice.largest_batch < 1e9
