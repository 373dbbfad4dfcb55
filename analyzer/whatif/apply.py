"""Every what-if, and those that a scenario asks for applied one after the other: to the trace, then to its graph."""

from collections.abc import Sequence
from importlib import import_module
from typing import Final

import numpy as np

from ...errors import InputError
from ...formats.trace.column import MAX_INTEGER, row_count
from ...formats.trace.tables import Trace
from ...records import dataclass, replace
from ...specs.gpu import Gpu
from ..graph.graph import Graph
from ..memory.sizes import check_sizes
from ..models.library import Library
from ..prediction.prediction import Prediction
from ..prediction.workload import GpuWorkload
from ..recorded.compiled import find_compiled
from ..recorded.graphs import is_replayed
from ..replay.engine import Timing
from ..replay.forecast import target_timing
from .change import Casts, ChangedGraph, Whatif
from .scenario import SWITCHES, Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWhatif:
    """Describe a what-if of ops and kernels; `module` (relative to this package) is loaded where it is asked for.

    It has `change(trace, scenario) -> Whatif`; `explain` of `unchanged` says why it may find nothing to change.
    """

    field: str
    """Of the scenario: None where it is not asked for."""
    module: str
    change: str
    explain: str


TRACE_WHATIFS: Final = (
    TraceWhatif(field="batch_size", module=".axis.change", change="change_batch", explain="explain_same_batch"),
    TraceWhatif(
        field="sequence_length", module=".axis.change", change="change_sequence_length", explain="explain_same_length"
    ),
    TraceWhatif(
        field="cached_tokens", module=".axis.change", change="change_cached_tokens", explain="explain_same_cache"
    ),
    TraceWhatif(
        field="precision", module=".precision.precision", change="change_precision", explain="explain_same_precision"
    ),
)
"""Sizes first: the conversions that a precision adds count elements."""


def change_trace(
    trace: Trace, origin: Gpu | None, library: Library, scenario: Scenario, gpus: Sequence[Gpu] = ()
) -> Whatif:
    """Return the trace as the scenario asks for it, measured kernels re-timed on their own GPU, `origin`.

    Raises InputError for a tensor that none of `gpus` holds, nor any of the catalogue.

    >>> change_trace(trace, None, library, Scenario(batch_size=8)).trace.meta.workload.batch_size
    8
    """
    found = Whatif(trace=trace)
    for row in TRACE_WHATIFS:
        if getattr(scenario, row.field) is None:
            continue
        unchanged = import_module(".unchanged", __package__)
        before = found.trace
        changed: Whatif = getattr(import_module(row.module, __package__), row.change)(before, scenario)
        _check_lengths(changed.trace, scenario, gpus)
        if unchanged.is_unchanged(before, changed):
            explanation = getattr(unchanged, row.explain)(before, scenario)
            changed = Whatif(trace=before, warnings=(*changed.warnings, explanation))
        elif origin is not None:
            from .retiming.kernels import retime

            changed = retime(before, changed, origin, library)
        found = replace(changed, warnings=(*found.warnings, *changed.warnings))
    if _is_compiled(found.trace, scenario):
        from .fusion.layouts import with_compiled_layouts

        found = replace(found, trace=with_compiled_layouts(found.trace, scenario))
    if scenario.precision is None:
        return found
    from .precision.precision import explain_missing_units

    return replace(found, warnings=(*found.warnings, *explain_missing_units(scenario.precision, gpus)))


def _is_compiled(trace: Trace, scenario: Scenario) -> bool:
    """Say whether a compiler merges ops somewhere, as recorded or as asked."""
    return scenario.fuse_elementwise or bool(find_compiled(trace).is_region.any())


def _check_lengths(trace: Trace, scenario: Scenario, gpus: Sequence[Gpu]) -> None:
    """Raise InputError for lengths beyond what any GPU holds, or a trace can say."""
    if not scenario.lengths:
        return
    check_sizes(trace, np.arange(row_count(trace.ops)), gpus, at=f"{' and '.join(scenario.lengths)}: ")
    size = max(filter(None, (scenario.batch_size, scenario.sequence_length, scenario.cached_tokens)))
    if size > MAX_INTEGER:
        raise InputError(f"batch size: expected at most {MAX_INTEGER}, got {size}")


def change_graph(graph: Graph, trace: Trace, workload: GpuWorkload, scenario: Scenario) -> ChangedGraph:
    """Return the graph of a trace as the scenario asks for it.

    >>> changed = change_graph(result.graph, result.trace, result.workload, Scenario(fuse_elementwise=True))
    >>> len(result.workload.op), len(changed.generated.works)  # distinct ops, kernels that a compiler would generate
    (13, 37)
    """
    found = ChangedGraph(graph=graph, base_ratio=np.ones(len(graph.nodes.row)))
    # Fusion before launches: what is merged needs none.
    for item in reversed(SWITCHES):
        is_recorded = item.name == "fuse_elementwise" and _is_compiled(trace, scenario)
        is_recorded |= item.name == "cuda_graph" and is_replayed(trace)
        if is_recorded or getattr(scenario, item.name):
            module, name = item.metadata["change"].split(":")
            found = getattr(import_module(module, __package__), name)(found, trace, workload, scenario)
    return found


def changed_timing(
    changed: ChangedGraph,
    trace: Trace,
    workload: GpuWorkload,
    prediction: Prediction,
    source: Gpu | None,
    library: Library,
) -> Timing:
    """Return `target_timing` of a changed graph: kernels that were merged, or that a compiler generates, in their time.

    >>> found = change_graph(result.graph, result.trace, result.workload, result.scenario)
    >>> given = result.trace, result.workload, result.prediction
    >>> changed_timing(found, *given, None, result.library).factor.shape
    (14, 2)
    """
    timing = target_timing(changed.graph, trace, workload, prediction, source)
    timing = replace(timing, base_ns=timing.base_ns * changed.base_ratio)
    if changed.generated is None:
        return timing
    from .fusion.pricing import with_generated

    return with_generated(timing, changed.generated, prediction.fleet, library)


def add_casts(prediction: Prediction, workload: GpuWorkload, casts: Casts, library: Library) -> Prediction:
    """Add the time of the conversions that a what-if inserts to the ops that ask for them, on average per call."""
    from .retiming.kernels import cast_times_ns

    row = workload.row_of[casts.op]
    known = row >= 0
    added = np.zeros_like(prediction.time_ns)
    np.add.at(added, row[known], cast_times_ns(casts, prediction.fleet, library)[known])
    return replace(prediction, time_ns=prediction.time_ns + added / np.maximum(workload.count, 1)[:, None])
