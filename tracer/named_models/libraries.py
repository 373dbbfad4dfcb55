"""Loads optional libraries, and says in one line what they raise."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import torch

from ...errors import CaptureError, InputError, WavecastError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MESSAGE_LENGTH: Final = 200
_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def import_library(library: str) -> Any:
    """Return an optional library; raises InputError where it is missing or does not load."""
    try:
        with torch.device("cpu"):
            return import_module(library)
    except ModuleNotFoundError as error:
        if error.name == library:
            raise InputError(f"{library} is not installed: pip install {library}") from error
        raise InputError(f"{library} needs {error.name}, which is not installed: pip install {error.name}") from error
    except Exception as error:
        raise InputError(f"{library} cannot be imported beside torch {torch.__version__}: {one_line(error)}") from error


@contextmanager
def offline() -> Iterator[None]:
    """Keep libraries from the network, by the switch that they have for it: models are built from what is here."""
    before = {name: os.environ.get(name) for name in _OFFLINE}
    os.environ |= dict.fromkeys(_OFFLINE, "1")
    constants = getattr(sys.modules.get("huggingface_hub"), "constants", None)
    was_offline = getattr(constants, "HF_HUB_OFFLINE", None)
    if constants is not None:  # it was imported before, and read the environment then
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        if constants is not None:
            constants.HF_HUB_OFFLINE = was_offline
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def unknown_model(where: str, name: str, known: list[str]) -> InputError:
    """Return the error for a name that a library does not have."""
    near = get_close_matches(name, known)
    advice = f"did you mean {', '.join(near)}?" if near else "see its list_models()"
    return InputError(f"{where} has no model {name!r}: {advice}")


@contextmanager
def failures_in_one_line(name: str, what: str, kind: type[WavecastError] = CaptureError) -> Iterator[None]:
    """Turn what third-party code raises into an error of ours, which passes through."""
    try:
        yield
    except WavecastError:
        raise
    except Exception as error:
        raise kind(f"{name} {what}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return an exception's class and the first line of what it says."""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text[:_MESSAGE_LENGTH]}" if text else type(error).__name__
