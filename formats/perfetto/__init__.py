"""The importer of `.pftrace` files, as torch's profiler writes them with its backend `cupti_monitor`."""

from __future__ import annotations

from .importer import read_perfetto

__all__ = ["read_perfetto"]
