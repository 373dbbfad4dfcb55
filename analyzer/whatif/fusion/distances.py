"""What compiled code moves between two uses of a buffer: whether a cache still holds what a kernel reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...prediction.reuse import LARGE_SHARE
from .loops import Buffer, Loop, LoopGraph


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """Hold a kernel of a compiled graph, generated or a library's, as what it moves."""

    place: int
    """The last of its loops in the graph's order, behind which it runs."""
    reads: dict[Buffer, int]
    """Bytes, by buffer; without what it writes itself."""
    writes: frozenset[Buffer]
    moved_bytes: float


def pass_of(graph: LoopGraph, places: Sequence[int], loops: Sequence[Loop], moved_bytes: float) -> Pass:
    """Return the kernel that runs some loops, at `places` in the graph."""
    writes = frozenset(buffer for loop in loops for buffer in loop.writes)
    reads: dict[Buffer, int] = {}
    for read in {read for loop in loops for read in loop.reads if read.buffer not in writes}:
        reads[read.buffer] = reads.get(read.buffer, 0) + graph.read_bytes(read)
    return Pass(place=max(places), reads=reads, writes=writes, moved_bytes=moved_bytes)


def moved_since(passes: Sequence[Pass]) -> list[float | None]:
    """Return the bytes moved since each kernel's operands were touched, of large operands the longest ago.

    None where one of these is touched for the first time in its graph: nothing of that is known here.
    """
    order = sorted(range(len(passes)), key=lambda at: passes[at].place)
    found: list[float | None] = [None] * len(passes)
    touched: dict[Buffer, float] = {}
    moved = 0.0
    for at in order:
        item = passes[at]
        largest = max(item.reads.values(), default=0)
        large = [buffer for buffer, size in item.reads.items() if size >= LARGE_SHARE * largest]
        if large and all(buffer in touched for buffer in large):
            found[at] = max(moved - touched[buffer] for buffer in large)
        moved += item.moved_bytes
        touched.update(dict.fromkeys((*item.reads, *item.writes), moved))
    return found
