"""Joins loops to kernels as inductor's scheduler does for GPUs: pairs that share most memory first, round by round.

After torch/_inductor/scheduler.py (`fuse_nodes`, `can_fuse`, `score_fusion`) and codegen/simd.py (`can_fuse`).
"""

from collections.abc import Iterator
from itertools import accumulate, islice
from typing import Final

from ....records import dataclass, field
from .loops import Loop, LoopGraph, Read

_MOST_LOOPS: Final = 64
"""In one kernel: inductor's `max_fusion_size`."""
_MOST_NEIGHBOURS: Final = 64
"""Later loops on the same buffer that a loop is compared with: `max_fusion_buffer_group_pairwise_attempts`."""
_LEAST_SHARED_BYTES: Final = 10
"""Of loops that do not need each other: `score_fusion_memory_threshold`."""
_FARTHEST: Final = 64
"""Places between loops that do not need each other: `are_long_distant_nodes`."""
_ROUNDS: Final = 10
_WINDOW: Final = 8192
"""Loops that are scheduled together; what must run before a loop takes a bit of each of these."""


@dataclass(slots=True, eq=False)
class _Group:
    """Hold loops that are one kernel."""

    number: int
    loops: list[int]
    outer: int
    reduced: int
    is_rows: bool
    is_planes: bool
    is_library: bool
    reads: set[Read]
    written: dict[int, int]
    """By buffer, its elements."""
    members: int
    """Bits of the loops."""
    ancestors: int
    """Bits of all loops that must run before it, by way of other groups too."""

    @property
    def first(self) -> int:
        """Return the group's place in the order of loops."""
        return self.loops[0]


@dataclass(slots=True, eq=False)
class _Schedule:
    """Hold the groups that the loops are in at a time."""

    graph: LoopGraph
    begin: int
    """The first of the loops that are scheduled together; what earlier ones wrote is there."""
    loops: list[Loop]
    place: list[int]
    """Of each loop among inductor's nodes: one per result of a reduction, and one per part of a library's results."""
    is_last: bool = False
    """Whether loops may be reordered to go with others, which the last round tries."""
    group_of: list[_Group] = field(default_factory=list)
    alive: dict[int, _Group] = field(default_factory=dict)
    """By the first loop that they were made of."""

    def groups(self) -> list[_Group]:
        """Return each group once, in the order of their first loops."""
        return sorted(self.alive.values(), key=lambda group: group.first)

    def writer(self, buffer: int) -> int:
        """Return which of the loops writes a buffer; -1: none of them."""
        at = self.graph.writer[buffer] - self.begin
        return at if 0 <= at < len(self.loops) else -1

    def shared_bytes(self, one: _Group, other: _Group) -> int:
        """Return what the two read or write alike."""
        graph, touched = self.graph, other.reads | {Read(*item) for item in other.written.items()}
        mine = one.reads | {Read(*item) for item in one.written.items()}
        return sum(graph.read_bytes(read) for read in mine & touched)

    def can_join(self, one: _Group, other: _Group) -> bool:
        """Say whether the later group can be computed by the kernel of the earlier one."""
        if one is other or one.is_library or other.is_library or len(one.loops) + len(other.loops) > _MOST_LOOPS:
            return False
        if one.ancestors & other.members or not _fit(one, other):
            return False
        shared = self.shared_bytes(one, other)
        if not other.ancestors & one.members:
            is_near = self.distance(one, other) <= _FARTHEST
            is_alike = _walks_alike(one, other) or (self.is_last and _can_turn(one, other))
            return is_near and shared >= _LEAST_SHARED_BYTES and is_alike
        return self._feeds(one, other, shared)

    def distance(self, one: _Group, other: _Group) -> int:
        """Return the places between the loops of two groups that are farthest apart."""
        place = self.place
        return max(abs(place[one.loops[0]] - place[other.loops[-1]]), abs(place[other.loops[0]] - place[one.loops[-1]]))

    def _feeds(self, one: _Group, other: _Group, shared: int) -> bool:
        """Say whether what a group reads of another's results is there where it is needed, with no other in between."""
        read = [item for item in other.reads if item.buffer in one.written]
        fits = all(_is_there(item, one, other) for item in read) or (
            self.is_last and all(_is_turned_there(item, one, other) for item in read)
        )
        if not fits or not (shared or read):
            return False
        own = one.written.keys() | other.written.keys()
        between = {self.writer(item.buffer) for item in other.reads if item.buffer not in own}
        return not any(at >= 0 and self.group_of[at].ancestors & one.members for at in between)

    def makes_cycle(self, one: _Group, other: _Group) -> bool:
        """Say whether a third group would have to run both before and after the two."""
        for first, second in ((one, other), (other, one)):
            if not second.ancestors & first.members:
                continue
            for writer in self._writers(second):
                group = self.group_of[writer]
                if group is not first and group is not second and group.ancestors & first.members:
                    return True
        return False

    def _writers(self, group: _Group) -> Iterator[int]:
        for at in group.loops:
            loop = self.loops[at]
            for buffer in (*(item.buffer for item in loop.reads), *loop.after):
                if (writer := self.writer(buffer)) >= 0:
                    yield writer

    def join(self, one: _Group, other: _Group) -> None:
        """Make one group of two."""
        if other.reduced > one.reduced or (other.reduced == one.reduced and other.outer > one.outer):
            one.outer, one.reduced, one.is_rows, one.is_planes = (
                other.outer,
                other.reduced,
                other.is_rows,
                other.is_planes,
            )
        one.loops = sorted((*one.loops, *other.loops))
        one.reads |= other.reads
        one.written |= other.written
        one.members |= other.members
        one.ancestors = (one.ancestors | other.ancestors) & ~one.members
        for at in other.loops:
            self.group_of[at] = one
        del self.alive[other.number]
        for group in self.alive.values():
            if group is not one and group.ancestors & one.members:
                group.ancestors |= one.members | one.ancestors


def schedule(graph: LoopGraph) -> list[list[Loop]]:
    """Return the loops of each generated kernel."""
    kernels = []
    for begin in range(0, len(graph.loops), _WINDOW):
        loops = graph.loops[begin : begin + _WINDOW]
        state = _Schedule(graph, begin, loops, list(accumulate(map(_node_count, loops), initial=0)))
        for at, loop in enumerate(state.loops):
            state.alive[at] = group = _group(state, at, loop)
            state.group_of.append(group)
        for _ in range(_ROUNDS):
            if not _join_once(state):
                break
        state.is_last = True
        _join_once(state)
        kernels += [[state.loops[at] for at in group.loops] for group in state.groups() if not group.is_library]
    return kernels


def _node_count(loop: Loop) -> int:
    """Return how many nodes a loop is to inductor's scheduler."""
    results = len(loop.writes)
    return max(results, 1) if not loop.is_library or results < 2 else 1 + results


def _group(state: _Schedule, at: int, loop: Loop) -> _Group:
    ancestors = 0
    for buffer in (*(item.buffer for item in loop.reads), *loop.after):
        if 0 <= (writer := state.writer(buffer)) < at:
            ancestors |= state.group_of[writer].ancestors | 1 << writer
    return _Group(
        number=at,
        loops=[at],
        outer=loop.outer,
        reduced=loop.reduced,
        is_rows=loop.is_rows,
        is_planes=loop.is_planes,
        is_library=loop.is_library,
        reads=set(loop.reads),
        written={buffer: state.graph.elements[buffer] for buffer in loop.writes},
        members=1 << at,
        ancestors=ancestors,
    )


def _join_once(state: _Schedule) -> bool:
    """Join what can be joined, in the order of what that saves; say whether there was any."""
    users: dict[int, list[_Group]] = {}
    for group in state.groups():
        if not group.is_library:
            for buffer in {item.buffer for item in group.reads} | set(group.written):
                users.setdefault(buffer, []).append(group)
    pairs: dict[tuple[int, int], tuple[_Group, _Group]] = {}
    for found in users.values():
        for at, one in enumerate(found):
            for other in islice(found, at + 1, at + 1 + _MOST_NEIGHBOURS):
                key = (one.first, other.first)
                if key not in pairs and state.can_join(one, other):
                    pairs[key] = (one, other)
    ranked = sorted(pairs.values(), key=lambda pair: _rank(state, *pair), reverse=True)
    joined = False
    for early, late in ranked:
        one, other = state.group_of[early.first], state.group_of[late.first]
        if one is not other and state.can_join(one, other) and not state.makes_cycle(one, other):
            state.join(one, other)
            joined = True
    return joined


def _rank(state: _Schedule, one: _Group, other: _Group) -> tuple[bool, int, int]:
    """Return inductor's score: two of a kind first, then what is saved, then what lies close."""
    shared = state.shared_bytes(one, other)
    return (one.reduced > 1) == (other.reduced > 1) and shared > 0, shared, -state.distance(one, other)


def _fit(one: _Group, other: _Group) -> bool:
    """Say whether the sizes of two loops let one kernel run both."""
    if (one.reduced > 1) == (other.reduced > 1):
        return (one.outer, one.reduced) == (other.outer, other.reduced)
    reduction, plain = (one, other) if one.reduced > 1 else (other, one)
    return plain.outer in (reduction.outer, reduction.outer * reduction.reduced)


def _walks_alike(one: _Group, other: _Group) -> bool:
    """Say whether two loops that share reads take them in the same order: reduced columns are read across."""
    if one.reduced > 1 and other.reduced > 1:
        return one.is_rows == other.is_rows
    reduction, plain = (one, other) if one.reduced > 1 else (other, one)
    return reduction.reduced == 1 or reduction.is_rows or plain.outer == reduction.outer


def _is_there(read: Read, writer: _Group, reader: _Group) -> bool:
    """Say whether each thread of a kernel finds what it reads among what it wrote itself."""
    written = writer.written[read.buffer]
    if read.elements != written:
        return False
    if read.part < 0:
        return False
    if reader.reduced > 1 and not reader.is_rows:
        return written == reader.outer or (writer.reduced > 1 and written == writer.outer)
    if writer.reduced > 1:
        return (written == writer.outer and (writer.is_rows or reader.outer == written)) or (
            written == writer.outer * writer.reduced and writer.is_rows
        )
    return written == reader.outer * reader.reduced or (reader.reduced > 1 and written == reader.outer)


def _is_turned_there(read: Read, writer: _Group, reader: _Group) -> bool:
    """Say the same where loops may be reordered: those of pointwise kernels, not those of reductions."""
    written = writer.written[read.buffer]
    if read.elements != written:
        return False
    if writer.reduced == 1 and reader.reduced == 1:
        return written == reader.outer
    reduction = writer if writer.reduced > 1 else reader
    whole = reduction.outer * reduction.reduced
    return (
        read.part >= 0
        and _can_turn(writer, reader)
        and written in ((whole, writer.outer) if reduction is writer else (whole,))
    )


def _can_turn(one: _Group, other: _Group) -> bool:
    """Say whether a pointwise kernel can walk as a reduction does over planes."""
    if (one.reduced > 1) == (other.reduced > 1):
        return False
    reduction, plain = (one, other) if one.reduced > 1 else (other, one)
    return reduction.is_planes and plain.outer == reduction.outer * reduction.reduced
