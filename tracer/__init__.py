"""Recording: iterations on CUDA, on the CPU, or shape-only on the meta device. Needs torch.

Its rooms, each resting on those before it: `hooks` and `description`; `tensor_ids`; `meta` and `measured`, which record
shapes and times; `session`, which chooses between them; `fake_cuda` and `named_models`, which run scripts and models
on shapes; `op_sweep` and `rerun`, which time single ops; `commands`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .measured.recording import record, trace_handler
    from .session import trace_iteration

__all__ = ["record", "trace_handler", "trace_iteration"]
_HOMES = {"record": "measured.recording", "trace_handler": "measured.recording", "trace_iteration": "session"}


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that importing the package does not import torch."""
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
