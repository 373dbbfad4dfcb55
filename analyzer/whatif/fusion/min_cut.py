"""The cheapest cut between a source and a sink: Dinic's algorithm (Soviet Math. Doklady 11, 1970)."""

from collections.abc import Sequence
from typing import Final

Edge = tuple[int, int, int]
"""From, to, and what cutting it costs."""

UNCUTTABLE: Final = 1 << 62


def reachable_side(count: int, edges: Sequence[Edge], source: int, sink: int) -> list[bool]:
    """Return which of `count` nodes are on the source's side of a cheapest cut, the smallest such side.

    >>> reachable_side(3, [(0, 1, 5), (1, 2, 3)], 0, 2)
    [True, True, False]
    """
    network = _Network(count, edges)
    while network.find_levels(source)[sink] >= 0:
        network.saturate(source, sink)
    return [level >= 0 for level in network.levels]


class _Network:
    """Hold what each edge can still carry; an edge and its reverse have numbers that differ in the last bit."""

    def __init__(self, count: int, edges: Sequence[Edge]) -> None:
        self._ends = [end for begin, finish, _ in edges for end in (finish, begin)]
        self._left = [size for *_, cost in edges for size in (cost, 0)]
        self._leaving: list[list[int]] = [[] for _ in range(count)]
        for at, (begin, finish, _) in enumerate(edges):
            self._leaving[begin].append(2 * at)
            self._leaving[finish].append(2 * at + 1)
        self.levels = [-1] * count

    def find_levels(self, source: int) -> list[int]:
        """Return how many edges with room each node is from the source; -1: it cannot be reached."""
        self.levels = [-1] * len(self.levels)
        self.levels[source] = 0
        reached = [source]
        for node in reached:
            for edge in self._leaving[node]:
                end = self._ends[edge]
                if self._left[edge] and self.levels[end] < 0:
                    self.levels[end] = self.levels[node] + 1
                    reached.append(end)
        return self.levels

    def saturate(self, source: int, sink: int) -> None:
        """Send along shortest ways until none has room."""
        tried = [0] * len(self.levels)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                node = self._send(path, source)
                continue
            edge = self._next_edge(node, tried)
            if edge >= 0:
                path.append(edge)
                node = self._ends[edge]
            elif path:
                node = self._ends[path.pop() ^ 1]
                tried[node] += 1
            else:
                return

    def _next_edge(self, node: int, tried: list[int]) -> int:
        leaving = self._leaving[node]
        while tried[node] < len(leaving):
            edge = leaving[tried[node]]
            if self._left[edge] and self.levels[self._ends[edge]] == self.levels[node] + 1:
                return edge
            tried[node] += 1
        return -1

    def _send(self, path: list[int], source: int) -> int:
        """Send what fits along a path, take what is full off its end, and return the node that it then leads to."""
        size = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= size
            self._left[edge ^ 1] += size
        full = next(at for at, edge in enumerate(path) if not self._left[edge])
        del path[full:]
        return self._ends[path[-1]] if path else source
