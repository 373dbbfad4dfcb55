"""An archive of traces: content-addressed files in our format, a journal of changes, an index made of both."""

from __future__ import annotations

from .archive import Archive, init_archive, open_archive
from .entry import Entry

__all__ = ["Archive", "Entry", "init_archive", "open_archive"]
