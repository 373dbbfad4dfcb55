"""An archive of traces: content-addressed files in our format, an entry for each, an index made of the entries."""

from .archive import Archive
from .entry import Entry
from .making import init_archive, open_archive

__all__ = ["Archive", "Entry", "init_archive", "open_archive"]
