"""Fixtures: small steps, the published architectures, and ways to read a trace."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from wavecast.formats.trace.tables import Trace

try:
    import torch
except ImportError:
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]  # recording needs torch; nothing else of wavecast does


def pytest_configure(config: pytest.Config) -> None:
    """Ignore what torch 2.11 says of a profiler that a test makes itself: raised in it, it ends the process."""
    config.addinivalue_line("filterwarnings", "ignore:Warning. Profiler clears events:UserWarning")


@pytest.fixture
def load_model() -> Any:
    """Return a published architecture's module by name."""
    return lambda name: import_module(f"wavecast.benchmarks.make.models.{name}")


@pytest.fixture
def op_names() -> Any:
    """Return the names of a trace's ops in order, of one phase if asked."""

    def names(trace: Trace, phase: Any = None) -> Any:
        keep = trace.ops.phase == phase if phase is not None else slice(None)
        return [trace.strings[index] for index in trace.ops.name[keep]]

    return names


@pytest.fixture
def op_counts(op_names: Callable[..., list[str]]) -> Any:
    """Return how often each op occurs in a trace."""
    return lambda trace: Counter(op_names(trace))


class SmallStep:
    """A training step with convolution, normalisation, dropout, clipping and AdamW."""

    def __init__(self, device: str = "meta", dropout: float = 0.1) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            self.model = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
                torch.nn.Dropout(dropout), torch.nn.Linear(8 * 36, 10),
            )  # fmt: skip
            self.images, self.labels = torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(self.images), self.labels).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


@pytest.fixture
def training_step() -> Callable[..., SmallStep]:
    """Return what builds a small training step on a device."""
    return SmallStep


@dataclass(frozen=True)
class Ran:
    code: int
    stdout: str
    stderr: str
    appeared_s: float | None

    @property
    def ours(self) -> list[str]:
        """The lines of stderr that are wavecast's own; torch builds add theirs."""
        return [line for line in self.stderr.splitlines() if line.startswith(("wavecast: ", "Error: "))]


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    """Own the process that runs the command in forks of itself."""
    command = [sys.executable, str(Path(__file__).parent / "record_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]


@pytest.fixture
def run(server: Any, tmp_path: Path) -> Callable[..., Ran]:
    """Run the command in a new process, in `tmp_path`."""

    def run(*arguments: str | Path, **request: Any) -> Ran:
        request |= {"arguments": [str(item) for item in arguments], "folder": str(tmp_path)}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return Ran(**json.loads(server.stdout.readline()))

    return run
