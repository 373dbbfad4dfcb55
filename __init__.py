"""wavecast: record one iteration on the GPU you have, know its time on every GPU you don't."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .formats import Trace, load_trace, save_trace

__version__ = "0.1.0"
__all__ = ["Trace", "__version__", "load_trace", "save_trace"]


def __getattr__(name: str) -> object:
    """Load the public names when they are first used: `import wavecast` stays fast."""
    if name in __all__:
        from . import formats

        return getattr(formats, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
