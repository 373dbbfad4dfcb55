"""Graphs with fewer edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...arrays import Mask, at_rows
from ..graph.graph import Edges, Graph
from ..graph.rules import LANE, first_edges


def keep_edges(graph: Graph, kept: Mask) -> Graph:
    """Return the graph without some edges; a node that one of them held is held by its lane."""
    edges, binding = graph.edges, graph.binding
    number = np.where(kept, np.cumsum(kept) - 1, LANE)
    columns = {name: getattr(edges, name)[kept] for name in ("source", "target", "kind", "term")}
    fewer = Edges(**columns)
    return replace(
        graph,
        edges=fewer,
        first_edge=first_edges(fewer, len(graph.nodes.row)),
        binding=np.where(binding >= 0, at_rows(number, binding, LANE), binding),
    )
