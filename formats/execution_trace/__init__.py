"""The importer of PyTorch's execution traces (ExecutionTraceObserver), alone or joined with a profiler file."""

from __future__ import annotations

from .importer import read_execution_trace
from .join import load_joined

__all__ = ["load_joined", "read_execution_trace"]
