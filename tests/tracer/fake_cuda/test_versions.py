"""Which CUDA a script is told of where there is no GPU: that of its libraries, which compare."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from wavecast.tracer.fake_cuda.cuda import cuda_stand_in, cuda_version_told, find_cudnn_version

COMPARES = """
import torch

if {answers}:
    library = torch.library.Library("torchvision", "DEF")
    library.define("_cuda_version() -> int")
    library.impl("_cuda_version", lambda: {number}, "CompositeExplicitAutograd")
from torch.version import cuda

if {number} != -1 and cuda is not None and int(cuda.split(".")[0]) != {number} // 1000:
    raise RuntimeError(f"PyTorch and torchvision were compiled with different CUDA major versions: {{cuda}}")
"""
SCRIPT = """
import torch, torchvision
print(torch.version.cuda)
layer = torch.nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(layer.parameters())
for step in range(4):
    layer(torch.ones(3, 2).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has a CUDA version of its own")
@pytest.mark.parametrize(
    ("version", "number", "answers", "told"),
    [
        pytest.param("0.29.2", 13020, True, "13.2", id="its extension, once it is loaded"),
        pytest.param("0.30.0+cu140", 14000, False, "14.0", id="the label of its version file"),
        pytest.param("0.23.0+cpu", -1, False, "12.8", id="a library without CUDA"),
    ],
)
def test_a_library_meets_the_cuda_that_it_was_built_for(
    run: Callable[..., Any], tmp_path: Path, version: str, number: int, answers: bool, told: str
) -> None:
    library = tmp_path / "torchvision"
    library.mkdir()
    (library / "__init__.py").write_text(COMPARES.format(number=number, answers=answers))
    (library / "version.py").write_text(f"__version__ = {version!r}\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run("--shapes-only", "script.py")
    assert (done.code, done.stdout) == (0, f"{told}\n"), done.stderr


def test_torchs_own_versions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92600)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with cuda_stand_in():
        assert (torch.version.cuda, torch.backends.cudnn.version()) == ("13.2", 92600)
    assert torch.version.cuda == "13.2"


def test_a_cudnn_that_refuses_to_answer_is_a_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(torch.backends.cudnn, "version", refuse)
    assert find_cudnn_version() == 91002


def test_afterwards_torch_has_no_cuda_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with suppress(ZeroDivisionError), cuda_version_told():
        assert torch.version.cuda is not None
        assert not hasattr(torch.version, "nothing")
        raise ZeroDivisionError
    assert torch.version.cuda is None
    assert not hasattr(torch.version, "__getattr__")
