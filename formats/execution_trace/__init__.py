"""The importer of PyTorch's execution traces (ExecutionTraceObserver), alone or joined with a profiler file."""

from .importer import load_joined, read_execution_trace

__all__ = ["load_joined", "read_execution_trace"]
