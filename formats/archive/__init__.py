"""An archive of traces: content-addressed files in our format, a journal of changes, an index made of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .archive import Archive, init_archive, open_archive
    from .entry import Entry

__all__ = ["Archive", "Entry", "init_archive", "open_archive"]


def __getattr__(name: str) -> object:
    """Load the public names when they are first used: naming an archived trace needs none of them."""
    if name == "Entry":
        from .entry import Entry

        return Entry
    if name in __all__:
        from . import archive

        return getattr(archive, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
