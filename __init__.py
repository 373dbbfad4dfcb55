"""wavecast: record one iteration on the GPU you have, know its time on every GPU you don't."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analyzer.api.analyze import IterationReport, analyze
    from .analyzer.api.batch import TracesReport, batch
    from .analyzer.api.catalog import GpuList, gpus
    from .analyzer.api.compare import ComparisonReport, compare
    from .analyzer.api.decision import Electricity, Goal, Selection
    from .analyzer.api.graph import graph
    from .analyzer.api.overview import OverviewReport, overview
    from .analyzer.api.pictures import Picture
    from .analyzer.api.prices import Prices
    from .analyzer.api.question import Machines, WhatIfs
    from .analyzer.api.ranks import JobReport, ranks
    from .analyzer.api.recommender import RecommenderAnswer, recommender
    from .analyzer.api.replay import ReplayReport, replay
    from .analyzer.api.report import Report
    from .analyzer.api.scale import PlansReport, scale
    from .analyzer.api.score import ScoreReport, score
    from .analyzer.api.shard import ShardingReport, shard
    from .analyzer.api.sweep import SensitivityAnswer, SweepAnswer, sweep
    from .analyzer.api.validate import ValidationReport, validate
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
    from .tracer.recording import record
    from .version import __version__


__all__ = [
    "CaptureError",
    "ComparisonReport",
    "Electricity",
    "Goal",
    "GpuList",
    "InputError",
    "IterationReport",
    "JobReport",
    "Machines",
    "OutputError",
    "OverviewReport",
    "Picture",
    "PlansReport",
    "Prices",
    "RecommenderAnswer",
    "ReplayReport",
    "Report",
    "ScoreReport",
    "Selection",
    "SensitivityAnswer",
    "ShardingReport",
    "SweepAnswer",
    "Trace",
    "TraceError",
    "TracesReport",
    "UnknownGpuError",
    "ValidationReport",
    "WavecastError",
    "WhatIfs",
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
    "shard",
    "sweep",
    "validate",
]

_HOMES = {
    "analyzer.api.analyze": ("IterationReport", "analyze"),
    "analyzer.api.batch": ("TracesReport", "batch"),
    "analyzer.api.catalog": ("GpuList", "gpus"),
    "analyzer.api.compare": ("ComparisonReport", "compare"),
    "analyzer.api.decision": ("Electricity", "Goal", "Selection"),
    "analyzer.api.pictures": ("Picture",),
    "analyzer.api.graph": ("graph",),
    "analyzer.api.overview": ("OverviewReport", "overview"),
    "analyzer.api.prices": ("Prices",),
    "analyzer.api.question": ("Machines", "WhatIfs"),
    "analyzer.api.ranks": ("JobReport", "ranks"),
    "analyzer.api.recommender": ("RecommenderAnswer", "recommender"),
    "analyzer.api.replay": ("ReplayReport", "replay"),
    "analyzer.api.report": ("Report",),
    "analyzer.api.scale": ("PlansReport", "scale"),
    "analyzer.api.score": ("ScoreReport", "score"),
    "analyzer.api.shard": ("ShardingReport", "shard"),
    "analyzer.api.sweep": ("SensitivityAnswer", "SweepAnswer", "sweep"),
    "analyzer.api.validate": ("ValidationReport", "validate"),
    "errors": (
        "CaptureError", "InputError", "OutputError", "TraceError", "UnknownGpuError", "WavecastError", "WriteError",
    ),
    "formats": ("Trace", "load_trace", "save_trace"),
    "tracer.recording": ("record",),
    "version": ("__version__",),
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
