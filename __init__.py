"""wavecast: record one iteration on the GPU you have, know its time on every GPU you don't."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analyzer.asking.answer import Picture, Report
    from .analyzer.asking.prices import Prices
    from .analyzer.questions.analyze.api import IterationReport, analyze
    from .analyzer.questions.batch.api import TracesReport, batch
    from .analyzer.questions.catalog.api import GpuList, gpus
    from .analyzer.questions.compare.api import ComparisonReport, compare
    from .analyzer.questions.convert.api import graph
    from .analyzer.questions.ranks.api import JobReport, ranks
    from .analyzer.questions.recommender.api import RecommenderAnswer, recommender
    from .analyzer.questions.replay.api import ReplayReport, replay
    from .analyzer.questions.scale.api import PlansReport, scale
    from .analyzer.questions.score.api import ScoreReport, score
    from .analyzer.questions.serve.api import ServeAnswer, serve
    from .analyzer.questions.shard.api import ShardingReport, shard
    from .analyzer.questions.show.api import OverviewReport, overview
    from .analyzer.questions.sweep.api import SensitivityAnswer, SweepAnswer, sweep
    from .analyzer.questions.validate.api import ValidationReport, validate
    from .errors import (
        CaptureError,
        InputError,
        OutputError,
        TraceError,
        UnknownGpuError,
        WavecastError,
        WriteError,
    )
    from .formats import Trace, load_trace, save_trace
    from .formats.trace.version import __version__
    from .tracer.recording import record


__all__ = [
    "CaptureError",
    "ComparisonReport",
    "GpuList",
    "InputError",
    "IterationReport",
    "JobReport",
    "OutputError",
    "OverviewReport",
    "Picture",
    "PlansReport",
    "Prices",
    "RecommenderAnswer",
    "ReplayReport",
    "Report",
    "ScoreReport",
    "SensitivityAnswer",
    "ServeAnswer",
    "ShardingReport",
    "SweepAnswer",
    "Trace",
    "TraceError",
    "TracesReport",
    "UnknownGpuError",
    "ValidationReport",
    "WavecastError",
    "WriteError",
    "__version__",
    "analyze",
    "batch",
    "compare",
    "gpus",
    "graph",
    "load_trace",
    "overview",
    "ranks",
    "recommender",
    "record",
    "replay",
    "save_trace",
    "scale",
    "score",
    "serve",
    "shard",
    "sweep",
    "validate",
]

_HOMES = {
    "analyzer.questions.analyze.api": ("IterationReport", "analyze"),
    "analyzer.questions.batch.api": ("TracesReport", "batch"),
    "analyzer.questions.catalog.api": ("GpuList", "gpus"),
    "analyzer.questions.compare.api": ("ComparisonReport", "compare"),
    "analyzer.questions.convert.api": ("graph",),
    "analyzer.questions.show.api": ("OverviewReport", "overview"),
    "analyzer.asking.prices": ("Prices",),
    "analyzer.questions.ranks.api": ("JobReport", "ranks"),
    "analyzer.questions.recommender.api": ("RecommenderAnswer", "recommender"),
    "analyzer.questions.replay.api": ("ReplayReport", "replay"),
    "analyzer.asking.answer": ("Picture", "Report"),
    "analyzer.questions.scale.api": ("PlansReport", "scale"),
    "analyzer.questions.score.api": ("ScoreReport", "score"),
    "analyzer.questions.serve.api": ("ServeAnswer", "serve"),
    "analyzer.questions.shard.api": ("ShardingReport", "shard"),
    "analyzer.questions.sweep.api": ("SensitivityAnswer", "SweepAnswer", "sweep"),
    "analyzer.questions.validate.api": ("ValidationReport", "validate"),
    "errors": (
        "CaptureError", "InputError", "OutputError", "TraceError", "UnknownGpuError", "WavecastError", "WriteError",
    ),
    "formats": ("Trace", "load_trace", "save_trace"),
    "tracer.recording": ("record",),
    "formats.trace.version": ("__version__",),
}  # fmt: skip
"""Module → public names that it holds."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # type checkers would take any name for one of ours

    def __getattr__(name: str) -> object:
        """Load the public names when they are first used: `import wavecast` stays fast."""
        if name in _HOME_OF:
            return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
