"""Values of a graph while it is lowered: in memory, or still an expression that whoever reads it computes."""

from collections.abc import Iterable, Sequence
from typing import Final

from ....records import dataclass, field, replace
from .inductor_ops import MOST_READS
from .loops import Buffer, Loop, LoopGraph, OpRow, Read

_MOST_SHARED_READS: Final = 4
"""Of an expression that several readers compute: inductor's `realize_reads_threshold`."""
_UNROLLED: Final = -1 << 50
"""The order in which an expression reads what it adds up."""
_LARGE: Final = 30
"""Operations of any expression that reads more than one buffer: its `realize_opcount_threshold`."""


@dataclass(slots=True, eq=False)
class Value:
    """Hold a tensor's content."""

    elements: int
    element_bytes: int
    ops: frozenset[OpRow] = frozenset()
    """Of an expression: the ops that it computes."""
    reads: frozenset[Read] = frozenset()
    buffer: Buffer | None = None
    """Where it is in memory."""


Part = tuple[Value, int, int]
"""What is read of a value: how many elements, and which part; below 0: in which order of its memory."""


def _walked(value: Value, order: int) -> frozenset[Read]:
    """Return what an expression reads that is walked in an order, which its whole operands are then read in.

    Two orders on top of one another are taken to be there and back.
    """
    if order >= 0:
        return value.reads
    return frozenset(
        replace(read, part=order if read.part >= 0 else 0) if read.elements >= value.elements else read
        for read in value.reads
    )


@dataclass(slots=True, eq=False)
class Kept:
    """Know what graphs leave to later ones: buffers by storage, and which op computes what is not kept."""

    buffers: dict[int, tuple[OpRow, Buffer]] = field(default_factory=dict)
    writer: dict[int, OpRow] = field(default_factory=dict)
    storages: set[int] = field(default_factory=set)
    """What later graphs read, be it to compute others anew."""
    normalised: set[OpRow] = field(default_factory=set)
    """Norms of which the normalised rows are kept."""


@dataclass(slots=True, eq=False)
class LoopValues:
    """Know the value of each storage of a graph, and write expressions to memory where the compiler would."""

    graph: LoopGraph
    kept: Kept
    current: dict[int, Value] = field(default_factory=dict)
    """By storage."""
    given_storages: set[int] = field(default_factory=set)
    """Those that the graph did not write before it read them."""
    taken: dict[tuple[OpRow, Buffer], Buffer] = field(default_factory=dict)
    """Buffers of earlier graphs by what they are called here."""
    sizes: dict[OpRow, int] = field(default_factory=dict)
    """Operations of an op's own."""

    def read(self, storage: int, elements: int, element_bytes: int) -> Value:
        """Return what a storage holds; what the graph did not compute is one of its inputs."""
        if storage not in self.current:
            self.given_storages.add(storage)
            self.current[storage] = self._from_before(storage, elements, element_bytes)
        return self.current[storage]

    def _from_before(self, storage: int, elements: int, element_bytes: int) -> Value:
        if storage in self.kept.buffers:
            buffer = self._take(self.kept.buffers[storage], elements, element_bytes)
            return Value(elements, element_bytes, buffer=buffer)
        return self.given(elements, element_bytes)

    def _take(self, key: tuple[OpRow, Buffer], elements: int, element_bytes: int) -> Buffer:
        if key not in self.taken:
            self.taken[key] = self.graph.add_buffer(elements, element_bytes)
        return self.taken[key]

    def given(self, elements: int, element_bytes: int) -> Value:
        """Return a value that is in memory from the start."""
        return Value(elements, element_bytes, buffer=self.graph.add_buffer(elements, element_bytes))

    def expression(self, op: OpRow, parts: Iterable[Part], elements: int, element_bytes: int, size: int) -> Value:
        """Return what an op computes element by element of values, each read as so many elements."""
        ops, reads = frozenset((op,)), frozenset[Read]()
        self.sizes[op] = max(size, self.sizes.get(op, 0))
        for value, count, part in parts:
            if value.buffer is None and 2 * value.elements <= elements and self.size(value) > _LARGE:
                self.store(value)  # each of its elements would be computed several times
            if value.buffer is not None:
                is_part = count < self.graph.elements[value.buffer]
                reads |= {Read(value.buffer, count, part if is_part or part < 0 else 0)}
            else:
                ops, reads = ops | value.ops, reads | _walked(value, part)
        return Value(elements, element_bytes, ops=ops, reads=reads)

    def size(self, value: Value) -> int:
        """Return the operations of an expression, each once, with those that read."""
        return len(value.reads) + sum(self.sizes.get(op, 0) for op in value.ops)

    def settle(self, value: Value, users: int, *, is_needed: bool) -> None:
        """Write an expression to memory where it is needed there, or where computing it anew would cost more."""
        if value.buffer is not None:
            return
        reads, is_large = len(value.reads), self.size(value) > _LARGE
        is_too_much = reads > MOST_READS or (is_large and reads > 1)
        if is_needed or is_too_much or (users > 1 and (is_large or reads > _MOST_SHARED_READS)):
            self.store(value)

    def store(self, value: Value) -> Buffer:
        """Write a value to memory, and return where."""
        if value.buffer is None:
            loop = Loop(ops=value.ops, outer=value.elements, reads=value.reads)
            value.buffer = self.add_loop(loop, value.elements, value.element_bytes)
            value.ops, value.reads = frozenset(), frozenset()
        return value.buffer

    def add_loop(self, loop: Loop, elements: int, element_bytes: int) -> Buffer:
        """Append a loop with one more result, and return its buffer."""
        graph = self.graph
        if not graph.loops or graph.loops[-1] is not loop:
            graph.loops.append(loop)
        buffer = graph.add_buffer(elements, element_bytes, len(graph.loops) - 1)
        loop.writes |= {buffer}
        return buffer

    def unroll(self, op: OpRow, parts: Iterable[Part], outer: int, reduced: int, element_bytes: int) -> Value:
        """Return the expression that adds up a few elements for each of `outer` results."""
        value = self.expression(op, parts, outer, element_bytes, reduced)
        value.reads = frozenset(
            replace(read, part=_UNROLLED) if read.elements == outer * reduced else read for read in value.reads
        )
        if len(value.reads) * reduced > MOST_READS:
            self.store(value)
        return value

    def reduce(
        self,
        ops: frozenset[OpRow],
        parts: Iterable[Part],
        outer: int,
        reduced: int,
        results: Sequence[int],
        *,
        is_rows: bool,
        is_planes: bool = False,
    ) -> list[Value]:
        """Return what one reduction leaves, a value in memory per size of an element in `results`.

        It is computed for `ops`, the last of which it is of. Planes are rows of which several have one result, as a
        channel's of all images. Where a few results are cut into parts, a second loop reduces those.
        """
        whole = self.expression(min(ops), parts, outer * reduced, 4, 1)
        whole.ops |= ops
        if (splits := split_count(outer, reduced, is_rows=is_rows or is_planes)) > 1:
            first = Loop(
                ops=whole.ops, outer=outer * splits, reduced=-(-reduced // splits), is_rows=is_rows, reads=whole.reads
            )
            is_planes = False
            partial = [self.add_loop(first, outer * splits, 4) for _ in results]
            whole = Value(
                outer, 4, ops=frozenset((max(ops),)), reads=frozenset(Read(item, outer * splits) for item in partial)
            )
            reduced = splits
        loop = Loop(
            ops=whole.ops, outer=outer, reduced=max(reduced, 1), is_rows=is_rows, is_planes=is_planes, reads=whole.reads
        )
        return [Value(outer, size, buffer=self.add_loop(loop, outer, size)) for size in results]


_SM_COUNT: Final = 132
_THREADS_PER_SM: Final = 2048
_LEAST_PER_THREAD: Final = 32
_MOST_PER_THREAD: Final = 512
_THREADS: Final = 256
"""Of a block, 8 warps."""
_LEAST_ROW: Final = 8192
"""Elements of a row from which on it is cut."""
_COLUMNS_PER_BLOCK: Final = 128
_STEPS: Final = 4
"""Elements of a column that a thread of a block reads at once."""
_DEVICE_THREADS: Final = _SM_COUNT * _THREADS_PER_SM


def split_count(outer: int, reduced: int, *, is_rows: bool) -> int:
    """Return the parts of each of `outer` reductions of `reduced` elements; 1: it is one kernel.

    >>> split_count(1, 1 << 26, is_rows=True), split_count(4096, 1024, is_rows=True)
    (528, 1)
    """
    if outer > 1 and (reduced <= _LEAST_PER_THREAD or outer >= 64 * _SM_COUNT):
        return 1
    if is_rows or outer == 1:
        if outer >= 2 * _SM_COUNT or reduced <= _LEAST_ROW:
            return 1
        blocks = -(-(_DEVICE_THREADS // (2 * _THREADS)) // outer)
        return -(-reduced // (_elements_per_thread(outer * reduced, reduced, _THREADS * blocks) * _THREADS))
    blocks = -(-(_DEVICE_THREADS // _THREADS) // -(-outer // _COLUMNS_PER_BLOCK))
    return -(-reduced // (_elements_per_thread(outer * reduced, reduced, _STEPS * blocks) * _STEPS))


def _elements_per_thread(total: int, reduced: int, threads: int) -> int:
    """Return what a thread of `threads` per result adds up."""
    if total <= _LEAST_PER_THREAD * _DEVICE_THREADS:
        return _LEAST_PER_THREAD
    return -(-reduced // threads) if total < _MOST_PER_THREAD * _DEVICE_THREADS else _MOST_PER_THREAD
