"""wavecast: record one iteration on the GPU you have, know its time on every GPU you don't."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analyzer.api.analyze import IterationReport, analyze
    from .analyzer.api.question import Machines
    from .analyzer.api.report import Report
    from .analyzer.api.sweep import SweepAnswer, sweep
    from .formats import Trace, load_trace, save_trace

__version__ = "0.1.0"
__all__ = [
    "IterationReport",
    "Machines",
    "Report",
    "SweepAnswer",
    "Trace",
    "__version__",
    "analyze",
    "load_trace",
    "save_trace",
    "sweep",
]

_HOMES = {
    "IterationReport": "analyzer.api.analyze",
    "Machines": "analyzer.api.question",
    "Report": "analyzer.api.report",
    "SweepAnswer": "analyzer.api.sweep",
    "Trace": "formats",
    "analyze": "analyzer.api.analyze",
    "load_trace": "formats",
    "save_trace": "formats",
    "sweep": "analyzer.api.sweep",
}
"""Public name → module that holds it."""


def __getattr__(name: str) -> object:
    """Load the public names when they are first used: `import wavecast` stays fast."""
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
