"""What a compiler's scheduler sees of ops: loops that read and write buffers."""

from dataclasses import dataclass, field  # noqa: TID251 (instances are sorted)

OpRow = int
Buffer = int


@dataclass(frozen=True, slots=True, order=True)
class Read:
    """Name a buffer with how many of its elements are read: fewer, and it is a part; more, and some are repeated."""

    buffer: Buffer
    elements: int
    part: int = 0
    """Which part, where it is one; below 0: in which order, where that is not from front to back."""


@dataclass(slots=True, eq=False)
class Loop:
    """Hold one loop nest, a node of the scheduler's graph: `outer` results, each of `reduced` elements."""

    ops: frozenset[OpRow]
    """Whose values it computes, those that it computes again included."""
    outer: int
    reduced: int = 1
    is_rows: bool = True
    """Whether what is reduced lies together, so that elementwise loops over all of it run in the same order."""
    is_planes: bool = False
    """Whether each result is of several rows that lie apart, as a channel's of all images."""
    reads: frozenset[Read] = frozenset()
    writes: frozenset[Buffer] = frozenset()
    is_library: bool = False
    """A kernel that is not generated."""
    after: frozenset[Buffer] = frozenset()
    """Buffers that must be written before, though it reads none of them."""

    @property
    def is_reduction(self) -> bool:
        """Return whether it reduces."""
        return self.reduced > 1

    @property
    def elements(self) -> int:
        """Return what the loop runs over."""
        return self.outer * self.reduced


@dataclass(slots=True, eq=False)
class LoopGraph:
    """Hold the loops of one compiled graph in order, and the buffers between them."""

    region: OpRow
    loops: list[Loop] = field(default_factory=list)
    elements: list[int] = field(default_factory=list)
    """By buffer."""
    element_bytes: list[int] = field(default_factory=list)
    writer: list[int] = field(default_factory=list)
    """By buffer: the loop that writes it; -1: an input of the graph."""
    outputs: set[Buffer] = field(default_factory=set)
    """What is read outside."""

    def add_buffer(self, elements: int, element_bytes: int, writer: int = -1) -> Buffer:
        """Return a new buffer."""
        self.elements.append(elements)
        self.element_bytes.append(element_bytes)
        self.writer.append(writer)
        return len(self.elements) - 1

    def read_bytes(self, read: Read) -> int:
        """Return what a read takes from memory: each element once."""
        return min(read.elements, self.elements[read.buffer]) * self.element_bytes[read.buffer]

    def written_bytes(self, buffer: Buffer) -> int:
        """Return the size of a buffer."""
        return self.elements[buffer] * self.element_bytes[buffer]
