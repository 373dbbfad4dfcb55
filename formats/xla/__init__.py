"""The importer of JAX and XLA profiles: XPlane files, and the trace JSON made of them. See docs/reference/files.md."""

from .importer import import_xla, read_xla

__all__ = ["import_xla", "read_xla"]
