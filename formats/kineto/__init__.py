"""The importer of PyTorch-profiler files (Kineto's Chrome-trace JSON). See docs/reference/files.md."""

from .collect import MODULE_SPAN_PREFIX
from .importer import import_kineto, import_numbered, read_kineto

__all__ = ["MODULE_SPAN_PREFIX", "import_kineto", "import_numbered", "read_kineto"]
