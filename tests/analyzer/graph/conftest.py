"""Reads edges of small graphs as pairs of what was recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wavecast.analyzer.graph.graph import EdgeKind, Graph, NodeKind

EdgesOf = Callable[..., set[tuple[str, str]]]
NodeOf = Callable[[Graph, str], int]


def name_node(graph: Graph, node: int) -> str:
    """`kernel 3`, `launch 2` (by its call), `sync 4`, `mark 0`."""
    kind = NodeKind(int(graph.nodes.kind[node]))
    shown = "kernel" if kind >= NodeKind.KERNEL else kind.name.lower()
    return f"{shown} {int(graph.nodes.row[node])}"


@pytest.fixture(scope="session")
def edges_of() -> EdgesOf:
    """The edges of some kinds as (source, target)."""

    def read(graph: Graph, *kinds: EdgeKind) -> set[tuple[str, str]]:
        edges = graph.edges
        return {
            (name_node(graph, source), name_node(graph, target))
            for source, target, kind in zip(
                edges.source.tolist(), edges.target.tolist(), edges.kind.tolist(), strict=True
            )
            if not kinds or kind in kinds
        }

    return read


@pytest.fixture(scope="session")
def node_of() -> NodeOf:
    """The number of a node by its name."""

    def find(graph: Graph, name: str) -> int:
        return next(node for node in range(len(graph.nodes.row)) if name_node(graph, node) == name)

    return find
