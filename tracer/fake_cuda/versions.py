"""Says which CUDA and cuDNN a script is told of: those that its libraries were built for, else usual ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

_CUDA_VERSION: Final = "12.8"
_CUDNN_VERSION: Final = 91002
"""Versions that torch 2.7 to 2.9 come with; libraries ask for them before they turn TF32 on."""
_PARTNERS: Final = ("torchvision", "torchaudio", "xformers")
"""Libraries that refuse a torch that was built for another CUDA than they were."""
_LABEL: Final = re.compile(r"\+cu(\d\d+)(\d)\b")
"""How wheels name the CUDA that they were built for: `0.28.0+cu130`."""


@contextmanager
def cuda_version_told() -> Iterator[None]:
    """Let `torch.version.cuda` be a version where torch was built without CUDA: the one that its libraries need.

    They are asked when it is read, since torchvision's extension answers once it is loaded, just before it compares.
    """
    module: Any = torch.version
    if module.cuda is not None:
        yield
        return

    def answer(name: str) -> str:
        if name == "cuda":
            return find_cuda_version()
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    del module.cuda
    module.__getattr__ = answer
    try:
        yield
    finally:
        del module.__getattr__
        module.cuda = None


def find_cuda_version() -> str:
    """Return the CUDA version that installed libraries were built for, a usual one where none says."""
    found = (_loaded_torchvision(), *map(_installed, _PARTNERS))
    return next((version for version in found if version is not None), _CUDA_VERSION)


def find_cudnn_version() -> int:
    """Return torch's own cuDNN version, a usual one where there is none."""
    try:
        return torch.backends.cudnn.version() or _CUDNN_VERSION
    except RuntimeError:  # another one is loaded than torch was built with, which is of no matter here
        return _CUDNN_VERSION


def _loaded_torchvision() -> str | None:
    """Return what torchvision's extension answers where it is loaded: 13020 is 13.2, -1 a build without CUDA."""
    try:
        number = torch.ops.torchvision._cuda_version()
    except (AttributeError, RuntimeError):
        return None
    return f"{number // 1000}.{number % 1000 // 10}" if number > 0 else None


@cache
def _installed(library: str) -> str | None:
    """Return what the label of a library's version says: in its file, as PyPI's wheels have it, or in its metadata."""
    label = _LABEL.search(f"{_version_file(library)} {_version_of(library)}")
    return f"{label[1]}.{label[2]}" if label else None


def _version_file(library: str) -> str:
    """Return the text of `version.py` in a library's folder; nothing is imported, which would take seconds."""
    try:
        found = find_spec(library)
        return Path(found.origin).with_name("version.py").read_text("utf-8") if found and found.origin else ""
    except (ImportError, ValueError, OSError):
        return ""


def _version_of(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""
