"""The importer of PyTorch-profiler files (Kineto's Chrome-trace JSON). See docs/kineto.md."""

from __future__ import annotations

from .importer import import_kineto

__all__ = ["import_kineto"]
