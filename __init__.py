"""wavecast: record one iteration on the GPU you have, know its time on every GPU you don't."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analyzer.asking.answer import Picture, Report
    from .analyzer.asking.prices import Prices
    from .analyzer.questions.analyze.command import IterationReport, analyze
    from .analyzer.questions.batch.command import TracesReport, batch
    from .analyzer.questions.catalog.command import GpuList, gpus
    from .analyzer.questions.compare.command import ComparisonReport, compare
    from .analyzer.questions.convert.command import graph
    from .analyzer.questions.ranks.command import JobReport, ranks
    from .analyzer.questions.recommender.command import RecommenderAnswer, recommender
    from .analyzer.questions.replay.command import ReplayReport, replay
    from .analyzer.questions.scale.command import PlansReport, scale
    from .analyzer.questions.score.command import ScoreReport, score
    from .analyzer.questions.serve.command import ServeAnswer, serve
    from .analyzer.questions.shard.command import ShardingReport, shard
    from .analyzer.questions.show.command import OverviewReport, overview
    from .analyzer.questions.sweep.command import SensitivityAnswer, SweepAnswer, sweep
    from .analyzer.questions.validate.command import ValidationReport, validate
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
    "analyzer.questions.analyze.command": ("IterationReport", "analyze"),
    "analyzer.questions.batch.command": ("TracesReport", "batch"),
    "analyzer.questions.catalog.command": ("GpuList", "gpus"),
    "analyzer.questions.compare.command": ("ComparisonReport", "compare"),
    "analyzer.questions.convert.command": ("graph",),
    "analyzer.questions.show.command": ("OverviewReport", "overview"),
    "analyzer.asking.prices": ("Prices",),
    "analyzer.questions.ranks.command": ("JobReport", "ranks"),
    "analyzer.questions.recommender.command": ("RecommenderAnswer", "recommender"),
    "analyzer.questions.replay.command": ("ReplayReport", "replay"),
    "analyzer.asking.answer": ("Picture", "Report"),
    "analyzer.questions.scale.command": ("PlansReport", "scale"),
    "analyzer.questions.score.command": ("ScoreReport", "score"),
    "analyzer.questions.serve.command": ("ServeAnswer", "serve"),
    "analyzer.questions.shard.command": ("ShardingReport", "shard"),
    "analyzer.questions.sweep.command": ("SensitivityAnswer", "SweepAnswer", "sweep"),
    "analyzer.questions.validate.command": ("ValidationReport", "validate"),
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
