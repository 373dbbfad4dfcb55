"""Every what-if, and those that a scenario asks for applied one after the other: to the trace, then to its graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ...errors import InputError
from ...formats.trace.column import row_count
from ...formats.trace.limits import MAX_INTEGER
from ...formats.trace.tables import Trace
from ...specs.gpu import Gpu
from ..graph.graph import Graph
from ..memory.sizes import check_sizes
from ..models.library import Library
from ..prediction.prediction import Prediction
from ..prediction.workload import GpuWorkload
from .axis.change import change_batch, change_cached_tokens, change_sequence_length
from .change import Casts, ChangedGraph, Whatif
from .cuda_graph.capture import capture
from .fusion.fusion import fuse
from .fusion.layouts import with_compiled_layouts
from .precision.precision import change_precision
from .precision.support import explain_missing_units
from .retiming.casts import cast_times_ns
from .retiming.kernels import retime
from .scenario import Scenario
from .unchanged import (
    explain_same_batch,
    explain_same_cache,
    explain_same_length,
    explain_same_precision,
    is_unchanged,
)

TRACE_WHATIFS: Final[
    tuple[tuple[Callable[[Trace, Scenario], Whatif | None], Callable[[Trace, Scenario], str]], ...]
] = (
    (change_batch, explain_same_batch),
    (change_sequence_length, explain_same_length),
    (change_cached_tokens, explain_same_cache),
    (change_precision, explain_same_precision),
)
"""What changes ops and kernels, each with why it may find nothing to change. Sizes first: the conversions
that a precision adds count elements."""
GRAPH_WHATIFS: Final[tuple[Callable[[ChangedGraph, Trace, GpuWorkload, Scenario], ChangedGraph], ...]] = (fuse, capture)
"""What leaves kernels or launches out. Fusion first: what is merged needs no launch."""


def change_trace(
    trace: Trace, origin: Gpu | None, library: Library, scenario: Scenario, gpus: Sequence[Gpu] = ()
) -> Whatif:
    """Return the trace as the scenario asks for it, measured kernels re-timed on their own GPU, `origin`.

    Raises InputError for a tensor that none of `gpus` holds, nor any of the catalogue.

    >>> change_trace(trace, None, library, Scenario(batch_size=8)).trace.meta.workload.batch_size
    8
    """
    found = Whatif(trace=trace)
    for whatif, explain in TRACE_WHATIFS:
        before = found.trace
        changed = whatif(before, scenario)
        if changed is None:
            continue
        _check_lengths(changed.trace, scenario, gpus)
        if is_unchanged(before, changed):
            changed = Whatif(trace=before, warnings=(*changed.warnings, explain(before, scenario)))
        elif origin is not None:
            changed = retime(before, changed, origin, library)
        found = replace(changed, warnings=(*found.warnings, *changed.warnings))
    found = replace(found, trace=with_compiled_layouts(found.trace, scenario))
    return replace(found, warnings=(*found.warnings, *explain_missing_units(scenario.precision, gpus)))


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
    for whatif in GRAPH_WHATIFS:
        found = whatif(found, trace, workload, scenario)
    return found


def add_casts(prediction: Prediction, workload: GpuWorkload, casts: Casts, library: Library) -> Prediction:
    """Add the time of the conversions that a what-if inserts to the ops that ask for them, on average per call."""
    row = workload.row_of[casts.op]
    known = row >= 0
    added = np.zeros_like(prediction.time_ns)
    np.add.at(added, row[known], cast_times_ns(casts, prediction.fleet, library)[known])
    return replace(prediction, time_ns=prediction.time_ns + added / np.maximum(workload.count, 1)[:, None])
