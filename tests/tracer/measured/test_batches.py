"""How many samples an iteration has, as a script's loader tells, measured or from shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import wavecast
from torch.utils.data import DataLoader, TensorDataset
from wavecast.formats.trace.tables import Workload
from wavecast.tracer.fake_cuda.session import ScriptShapes
from wavecast.tracer.hooks.batches import LoadedBatches, with_samples

DATA = TensorDataset(torch.ones(400, 4), torch.zeros(400))


def loop(device: str, *, accumulate: int, iterations: int) -> None:
    model = torch.nn.Linear(4, 2).to(device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (data, _) in enumerate(DataLoader(DATA, batch_size=8)):
        model(data.to(device)).sum().backward()
        if number % accumulate == accumulate - 1:
            sgd.step()
            sgd.zero_grad()
        if number + 1 == iterations * accumulate:
            break


@pytest.mark.parametrize(("accumulate", "given"), [(4, None), (4, 8), (4, 32), (1, None)])
def test_a_loader_tells_the_samples_of_an_iteration(accumulate: int, given: int | None) -> None:
    session = ScriptShapes(Workload(batch_size=given, samples_per_iteration=given), lambda: None)
    with session:
        loop("cuda", accumulate=accumulate, iterations=4)
    assert session.trace is not None
    workload = session.trace.meta.workload
    assert (workload.batch_size, workload.samples_per_iteration) == (8, 8 * accumulate)
    said = "4 batches of 8 were loaded: 32 samples per iteration"
    assert (said in session.summarise()) == (accumulate == 4)


def test_a_measured_loop_tells_them_too(tmp_path: Path) -> None:
    with wavecast.record(tmp_path / "trace.json", iterations=(3, 5), host_times=False) as recorder:
        loop("cpu", accumulate=4, iterations=6)
    assert recorder.trace is not None
    assert recorder.trace.meta.workload.samples_per_iteration == 32
    assert "4 batches of 8 were loaded" in recorder.summarise()


def test_of_two_loaders_the_one_with_the_most_samples_counts_and_samples_without_a_batch_do_not() -> None:
    loaded = LoadedBatches()
    with loaded.watched():
        few, many, alone = iter(DataLoader(DATA, 2)), iter(DataLoader(DATA, 16)), iter(DataLoader(DATA, None))
        for item in (few, many, alone, few):
            next(item)
        assert loaded.take() == [16]
        assert not loaded.take()
    assert with_samples(Workload(batch_size=5, samples_per_iteration=5), [8, 8]) == (
        Workload(batch_size=5, samples_per_iteration=5),
        None,
    )
    assert with_samples(Workload(), [8, 4]) == (Workload(), None)
