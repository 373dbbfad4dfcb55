"""Fixtures: small steps, the published architectures, and ways to read a trace."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import pytest

try:
    import torch
except ImportError:
    collect_ignore_glob = ["test_*.py"]  # recording needs torch; nothing else of wavecast does


@pytest.fixture
def load_model(root_dir, monkeypatch):
    """Return a published architecture's module by name."""
    monkeypatch.syspath_prepend(root_dir / "benchmarks")
    return lambda name: import_module(f"models.{name}")


@pytest.fixture
def op_names():
    """Return the names of a trace's ops in order, of one phase if asked."""

    def names(trace, phase=None):
        keep = trace.ops.phase == phase if phase is not None else slice(None)
        return [trace.strings[index] for index in trace.ops.name[keep]]

    return names


@pytest.fixture
def op_counts(op_names):
    """Return how often each op occurs in a trace."""
    return lambda trace: Counter(op_names(trace))


@pytest.fixture
def training_step():
    """Return a function that builds a small training step: convolution, normalisation, dropout, AdamW."""

    def build(device="meta", dropout=0.1):
        torch.manual_seed(0)
        with torch.device(device):
            model = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
                torch.nn.Dropout(dropout), torch.nn.Linear(8 * 36, 10),
            )  # fmt: skip
            images, labels = torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
        optimizer = torch.optim.AdamW(model.parameters())

        def step():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        step.model = model
        return step

    return build
