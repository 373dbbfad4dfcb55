"""The trace format: records, codec, validation, and importers of other tools' files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .files.open import load_trace, save_trace
    from .trace.tables import Trace

__all__ = ["Trace", "load_trace", "save_trace"]


def __getattr__(name: str) -> object:
    """Load the public names when they are first used: importing the package stays free of numpy."""
    if name == "Trace":
        from .trace.tables import Trace

        return Trace
    if name in __all__:
        from .files import open as files

        return getattr(files, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
