"""What a what-if returns: the changed trace or graph, what to be wary of, and conversions that no recorded op makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...arrays import Floats, Mask, Rows, at_rows
from ...formats.trace.tables import Trace
from ...records import dataclass, field, replace
from ..graph.graph import Edges, Graph
from ..graph.rules import LANE, first_edges
from ..recorded.compiled import CompiledCode

if TYPE_CHECKING:
    from .fusion.pricing import GeneratedNodes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Casts:
    """Hold conversions between dtypes that the changed iteration makes beside its recorded ops, one row each."""

    op: Rows
    """The op before which (an input) or after which (a gradient) the conversion runs."""
    element_count: Rows
    read_bytes: Floats
    """Per element."""
    written_bytes: Floats
    """Per element."""

    @property
    def moved_bytes(self) -> Floats:
        """Return what each conversion reads and writes."""
        return self.element_count * (self.read_bytes + self.written_bytes)


def no_casts() -> Casts:
    """Return an empty table."""
    rows = np.zeros(0, dtype=np.int64)
    return Casts(op=rows, element_count=rows, read_bytes=np.zeros(0), written_bytes=np.zeros(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Whatif:
    """Hold a changed trace, with the rows of the original in the same order; only what they say differs."""

    trace: Trace
    warnings: tuple[str, ...] = ()
    casts: Casts = field(default_factory=no_casts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangedGraph:
    """Hold a graph with fewer kernels or launches, its nodes numbered as in the original."""

    graph: Graph
    base_ratio: Floats
    """What each node's duration is multiplied with, [n]."""
    is_merged: Mask | None = None
    """Whether a node is part of the kernel of the node before it, [n]; None where none is."""
    compiled: CompiledCode | None = None
    """What of it was to be compiled anyway; None where nothing was."""
    generated: GeneratedNodes | None = None
    """Which nodes stand for kernels that a compiler generates; None where none do."""
    warnings: tuple[str, ...] = ()


def keep_edges(graph: Graph, kept: Mask) -> Graph:
    """Return the graph without some edges; a node that one of them held is held by its lane."""
    edges, binding = graph.edges, graph.binding
    number = np.where(kept, np.cumsum(kept) - 1, LANE)
    fewer = Edges(**{name: getattr(edges, name)[kept] for name in ("source", "target", "kind", "term")})
    return replace(
        graph,
        edges=fewer,
        first_edge=first_edges(fewer, len(graph.nodes.row)),
        binding=np.where(binding >= 0, at_rows(number, binding, LANE), binding),
    )
