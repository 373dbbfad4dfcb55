"""Recording: one iteration on CUDA, on the CPU, or shape-only on the meta device. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import trace_iteration

__all__ = ["trace_iteration"]


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that importing the package does not import torch."""
    if name == "trace_iteration":
        from .session import trace_iteration

        return trace_iteration
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
