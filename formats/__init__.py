"""The trace format: records, codec, validation, and importers of other tools' files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .files.reference import LOADERS, SCHEME

if TYPE_CHECKING:
    from .files.open import load_trace, save_trace
    from .trace.tables import Trace

__all__ = ["Trace", "load_trace", "save_trace"]


def _load_archived(location: str, name: str) -> Trace:
    from .archive import open_archive

    with open_archive(location) as archive:
        return archive.load(name)


LOADERS[SCHEME] = _load_archived


def __getattr__(name: str) -> object:
    """Load the public names when they are first used: importing the package stays free of numpy."""
    if name == "Trace":
        from .trace.tables import Trace

        return Trace
    if name in __all__:
        from .files import open as files

        return getattr(files, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
