"""What a compiled forward pass keeps for its backward pass, and what that computes anew: the cheapest cut between them.

After functorch's `min_cut_rematerialization_partition` (torch/_functorch/partitioners.py): a value costs its bytes,
more the further it is from the backward pass, and twice as much where only fused kernels would use it, as it then need
not be in memory at all. Libraries' results, random numbers and reductions are never computed anew, nor what a library
needs in the backward pass, nor what is used on both sides of a library's kernel.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ....formats.trace.tables import Phase
from ....records import dataclass, field
from ...work import Family
from . import inductor_ops
from .reading import OpReading

_FARTHER: Final = 1.1
"""What a value costs more per op that it is further from the backward pass."""
_FARTHEST: Final = 100
_UNFUSED_FACTOR: Final = 2
_REDUCES: Final = 4
"""A result so many times smaller than what it is computed from is kept (`ban_recompute_reductions`)."""
_OPS_OF_NORM: Final = 2
"""Ops from the input of a norm to the normalised rows, which its gradient needs."""

Storage = int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """Say what the backward pass of a compiled region computes anew."""

    writer: Mapping[Storage, int] = field(default_factory=dict)
    """The op that computes each storage that is not kept."""
    kept: frozenset[Storage] = frozenset()
    """What the backward pass reads, be it to compute others anew."""
    normalised: frozenset[int] = frozenset()
    """Norms over rows of which the normalised rows are kept, in place of what is normalised."""


@dataclass(slots=True, eq=False)
class _Node:
    """Hold a value of the forward pass: a result of an op, or the normalised rows of a norm."""

    row: int
    size: int
    """Bytes."""
    reads: list[int] = field(default_factory=list)
    """Numbers of nodes."""
    users: list[int] = field(default_factory=list)
    storage: Storage | None = None
    is_fusible: bool = True
    is_fixed: bool = False
    """Never computed anew."""
    is_used_unfused: bool = False
    is_needed: bool = False
    """By an op of the backward pass."""
    distance: int = _FARTHEST
    """Ops to the backward pass."""


def partition(reading: OpReading, rows: Sequence[int], readers: Mapping[Storage, Sequence[int]]) -> Partition:
    """Cut a region's forward pass, `rows` in order, from the backward pass."""
    joint = _JointGraph(reading, rows, readers)
    nodes = joint.nodes
    is_kept = joint.cut()
    anew = {node.storage: node.row for node, kept in zip(nodes, is_kept, strict=True) if node.storage is not None}
    kept = {node.storage for node, keep in zip(nodes, is_kept, strict=True) if keep}
    return Partition(
        writer={storage: row for storage, row in anew.items() if storage not in kept and joint.is_computed(row)},
        kept=frozenset(item for item in kept if item is not None),
        normalised=frozenset(nodes[at].row for at in joint.normalised.values() if is_kept[at]),
    )


def rows_again(
    reading: OpReading, rows: Sequence[int], writer: Mapping[Storage, int], normalised: Collection[int]
) -> frozenset[int]:
    """Return the ops that a region, `rows`, computes anew: of what it reads, and of what they read."""
    found: set[int] = set()
    waiting = list(rows)
    own = frozenset(rows)
    while waiting:
        user = waiting.pop()
        for storage in storages_read(reading, user, normalised, is_again=user in found):
            row = writer.get(storage)
            if row is not None and row not in own and row not in found:
                found.add(row)
                waiting.append(row)
    return frozenset(found)


def storages_read(
    reading: OpReading, row: int, normalised: Collection[int], *, is_again: bool = False
) -> list[Storage]:
    """Return what an op of a backward pass reads: of a norm whose normalised rows are kept, not what was normalised."""
    found = [reading.storage[item] for item in reading.inputs[row]]
    if is_again and row in normalised:
        return found[1:]
    is_gradient = reading.name(row) in inductor_ops.ROW_GRADIENTS and int(reading.trace.ops.forward[row]) in normalised
    return found[:1] + found[2:] if is_gradient else found


def normalised_of(row: int) -> Storage:
    """Return the number that stands for what a norm or a softmax keeps beside its results."""
    return -2 - row


class _JointGraph:
    """Hold the values of a forward pass, and which of them the backward pass needs."""

    def __init__(self, reading: OpReading, rows: Sequence[int], readers: Mapping[Storage, Sequence[int]]) -> None:
        self._reading, self._readers = reading, readers
        self.nodes: list[_Node] = []
        self.normalised: dict[int, int] = {}
        """By the row of a norm: its node of normalised rows."""
        self._last: dict[Storage, int] = {}
        self._rows = frozenset(rows)
        for row in rows:
            self._add_op(row)
        self._need(rows)
        self._measure()
        self._fix_far_users()

    def is_computed(self, row: int) -> bool:
        """Say whether a row is an op of the forward pass, no input of it."""
        return row in self._rows

    def _add(self, node: _Node) -> int:
        self.nodes.append(node)
        at = len(self.nodes) - 1
        for item in node.reads:
            self.nodes[item].users.append(at)
        return at

    def _given(self, storage: Storage, size: int) -> int:
        if storage not in self._last:
            node = _Node(row=-1, size=size, storage=storage, is_fusible=False, is_fixed=True, is_used_unfused=True)
            self._last[storage] = self._add(node)
        return self._last[storage]

    def _add_op(self, row: int) -> None:
        call, name = self._reading.call(row), self._reading.name(row)
        reads = list(dict.fromkeys(self._given(item[0], item[1] * item[2]) for item in call.inputs))
        fusible = _fuses(self._reading, row)
        if not fusible:
            for item in reads:
                self.nodes[item].is_used_unfused |= name != "cat"
        read_bytes = sum(item[1] * item[2] for item in call.inputs)
        if name in inductor_ops.ROW_NORMS and call.outputs:
            self.normalised[row] = self._add(_Node(row=row, size=call.outputs[0][1] * 4, reads=reads[:1]))
            reads = [self.normalised[row], *reads[1:]]
        for at, (storage, count, element_bytes, _) in enumerate(call.outputs):
            is_statistic = at > 0 and name in inductor_ops.NORMS
            node = _Node(
                row=row,
                size=count * element_bytes,
                reads=reads,
                storage=storage,
                is_fusible=fusible,
                is_fixed=not fusible
                or name in inductor_ops.RANDOM
                or name in inductor_ops.MASKS
                or is_statistic
                or (
                    name not in inductor_ops.NORMS | inductor_ops.SOFTMAXES
                    and count * element_bytes * _REDUCES < read_bytes
                )
                or storage in self._last,  # written before: what it held is no more
            )
            self._last[storage] = self._add(node)

    def _need(self, rows: Sequence[int]) -> None:
        """Mark what ops outside the forward pass read."""
        phase, region = self._reading.trace.ops.phase, self._reading.region
        begin = rows[0]
        for storage, at in self._last.items():
            node = self.nodes[at]
            for user in self._readers.get(storage, ()):
                if user < begin or user in self._rows:
                    continue
                if region[user] < 0 or phase[user] != Phase.BACKWARD:
                    node.is_used_unfused = node.is_fixed = node.is_needed = True
                    continue
                name = self._reading.name(user)
                if name in inductor_ops.ROW_GRADIENTS and (hat := self._normalised_by(user, storage)) is not None:
                    self.nodes[hat].is_needed = True
                    continue
                node.is_needed = True
                node.is_fixed |= not _fuses(self._reading, user) and name != "cat"

    def _normalised_by(self, user: int, storage: Storage) -> int | None:
        """Return the normalised rows that a gradient needs of a norm's input."""
        forward = int(self._reading.trace.ops.forward[user])
        call = self._reading.call(user)
        is_input = len(call.inputs) > 1 and call.inputs[1][0] == storage
        return self.normalised.get(forward) if is_input else None

    def _measure(self) -> None:
        """Count the ops from each value to the backward pass."""
        hats = frozenset(self.normalised.values())
        for node in reversed(self.nodes):
            node.distance = 1 if node.is_needed else _FARTHEST
            for user in node.users:
                step = _OPS_OF_NORM if user in hats else 1
                node.distance = min(node.distance, self.nodes[user].distance + step)

    def _fix_far_users(self) -> None:
        """Fix what uses a value behind a library's kernel that another of its users leads to.

        Both could not be computed by the kernel that computes the value anew.
        """
        for node in self.nodes:
            if len(node.users) < 2 or not node.is_fusible:
                continue
            first = self._first_unfusible(node.users)
            for user in node.users:
                if self.nodes[user].row > first and self.nodes[user].is_fusible:
                    self.nodes[user].is_fixed = True

    def _first_unfusible(self, users: Sequence[int]) -> int:
        """Return the first row that does not fuse with what leads to it, from some users of a value on."""
        last = max(self.nodes[user].row for user in users)
        waiting = [(self.nodes[user].row, user) for user in users]
        heapq.heapify(waiting)
        seen = set(users)
        while waiting:
            row, at = heapq.heappop(waiting)
            if not self.nodes[at].is_fusible:
                return row
            for user in self.nodes[at].users:
                if user not in seen and self.nodes[user].row <= last:
                    seen.add(user)
                    heapq.heappush(waiting, (self.nodes[user].row, user))
        return last

    def _cost(self, node: _Node) -> int:
        factor = 1 if node.is_used_unfused or not node.is_fusible or node.row < 0 else _UNFUSED_FACTOR
        return round(node.size * factor * _FARTHER ** min(max(node.distance, 1), _FARTHEST))

    def cut(self) -> list[bool]:
        """Return which values are kept."""
        count = len(self.nodes)
        source, sink = 2 * count, 2 * count + 1
        edges: list[Edge] = []
        for at, node in enumerate(self.nodes):
            edges.append((2 * at, 2 * at + 1, self._cost(node)))
            if node.is_fixed:
                edges.append((source, 2 * at, None))
            if node.is_needed:
                edges.append((2 * at + 1, sink, None))
            edges.extend((2 * at + 1, 2 * user, None) for user in node.users)
        side = reachable_side(2 * count + 2, edges, source, sink)
        return [2 * at in side and 2 * at + 1 not in side for at in range(count)]


Edge = tuple[int, int, int | None]
"""From, to, and what cutting it costs; None: it cannot be cut. At most one from a node to another."""


def reachable_side(count: int, edges: Sequence[Edge], source: int, sink: int) -> set[int]:
    """Return which of `count` nodes are on the source's side of a cheapest cut, the smallest such side.

    >>> reachable_side(3, [(0, 1, 5), (1, 2, 3)], 0, 2)
    {0, 1}
    """
    from networkx import DiGraph, minimum_cut
    from networkx.algorithms.flow import boykov_kolmogorov

    turned: DiGraph[int] = DiGraph()  # networkx returns the largest side of where it begins
    turned.add_nodes_from(range(count))
    for begin, end, cost in edges:
        turned.add_edge(end, begin, **({} if cost is None else {"capacity": cost}))
    found: set[int] = minimum_cut(turned, sink, source, flow_func=boykov_kolmogorov)[1][1]
    return found


def _fuses(reading: OpReading, row: int) -> bool:
    """Say whether functorch's partitioner has an op fuse with others."""
    name = reading.name(row)
    if name in inductor_ops.NOT_FUSED:
        return not reading.is_once_only(row) and name not in inductor_ops.NOT_FUSED - inductor_ops.NOT_AGAIN
    return name in inductor_ops.GENERATED or name in inductor_ops.FUSED or reading.family(row) is Family.ELEMENTWISE
