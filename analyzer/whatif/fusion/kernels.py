"""The kernels that a compiler generates for its regions, each one pass over what it reads and writes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ....arrays import Rows
from ....formats.trace.tables import Trace
from ....records import dataclass, replace
from ...prediction.workload import LARGE_SHARE, GpuWorkload
from ...work import Family, Work
from ...work.row_kernels import RowKernel
from ...work.work import RowDims
from .loops import Buffer, Loop, LoopGraph, OpRow
from .lowering import lower_regions
from .scheduling import schedule

_COUNTED: Final = frozenset({Family.ELEMENTWISE, Family.NORMALIZATION, Family.SOFTMAX, Family.LOSS})
"""Families whose arithmetic a generated kernel repeats."""
_CACHED_ROW_BYTES: Final = 128 * 1024
"""From here on the rows in flight outgrow the cache of an A100, and a second reading goes to memory."""
_FLOATS: Final = {1: "int8", 2: "float16", 4: "float32", 8: "float64"}
"""A dtype of each size, which is all that a model of kernels bound by bytes asks of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedKernel:
    """Hold one kernel of a compiled graph."""

    region: OpRow
    ops: tuple[OpRow, ...]
    """What it computes, in order: ops of its own graph, and some that an earlier graph computed before."""
    carrier: OpRow
    """The op that stands for it: the last of its own."""
    work: Work


def generate_kernels(trace: Trace, workload: GpuWorkload, region: Rows) -> list[GeneratedKernel]:
    """Return the kernels of all compiled regions (`region` is per op; -1: none).

    The trace has to name its tensors, as recordings of shapes do; of others nothing is known.
    """
    works = {
        op: work
        for op, row in enumerate(workload.row_of.tolist())
        if row >= 0 and (work := workload.works[row]) is not None
    }
    return [kernel for graph in lower_regions(trace, region) for kernel in _kernels_of(graph, works, region)]


def _kernels_of(graph: LoopGraph, works: Mapping[OpRow, Work], region: Rows) -> Iterator[GeneratedKernel]:
    """Yield the kernels of a graph that compute any of its own ops."""
    kernels = schedule(graph)
    members = [tuple(sorted(frozenset[OpRow]().union(*(loop.ops for loop in loops)))) for loops in kernels]
    found = [
        _work_of(graph, loops, kept, [works[op] for op in ops if op in works])
        for loops, kept, ops in zip(kernels, _read_outside(graph, kernels), members, strict=True)
    ]
    since = _moved_since(graph, kernels, [work.moved_bytes for work in found], works)
    for ops, work, since_bytes in zip(members, found, since, strict=True):
        own = [op for op in ops if region[op] == graph.region]
        if own:
            # What the graph is given, and what nothing of it touched before, was touched when it was eagerly.
            at = work if since_bytes is None else replace(work, moved_since_bytes=since_bytes)
            yield GeneratedKernel(region=graph.region, ops=ops, carrier=own[-1], work=at)


def _moved_since(
    graph: LoopGraph, kernels: Sequence[Sequence[Loop]], moved_bytes: Sequence[float], works: Mapping[OpRow, Work]
) -> list[float | None]:
    """Return what the graph moves between the last touch of each generated kernel's operands and the kernel."""
    place = {id(loop): at for at, loop in enumerate(graph.loops)}
    passes = [
        pass_of(graph, [place[id(loop)] for loop in loops], loops, moved)
        for loops, moved in zip(kernels, moved_bytes, strict=True)
    ]
    libraries = [
        pass_of(graph, [at], [loop], sum(works[op].moved_bytes for op in loop.ops if op in works))
        for at, loop in enumerate(graph.loops)
        if loop.is_library
    ]
    return moved_since([*passes, *libraries])[: len(passes)]


def _read_outside(graph: LoopGraph, kernels: Sequence[Sequence[Loop]]) -> list[set[int]]:
    """Return for each kernel which of the buffers that it writes others need."""
    kernel_of = {id(loop): at for at, loops in enumerate(kernels) for loop in loops}
    found: list[set[int]] = [set() for _ in kernels]
    for buffer in graph.outputs:
        writer = graph.writer[buffer]
        if writer >= 0 and (at := kernel_of.get(id(graph.loops[writer]))) is not None:
            found[at].add(buffer)
    for loop in graph.loops:
        reader = kernel_of.get(id(loop))
        for read in loop.reads:
            writer = graph.writer[read.buffer]
            at = kernel_of.get(id(graph.loops[writer])) if writer >= 0 else None
            if at is not None and at != reader:
                found[at].add(read.buffer)
    return found


def _work_of(graph: LoopGraph, loops: Sequence[Loop], kept: set[int], works: Sequence[Work]) -> Work:
    """Return the work of a kernel: each buffer that it does not write itself is read once."""
    own = {buffer for loop in loops for buffer in loop.writes}
    reads = {read for loop in loops for read in loop.reads if read.buffer not in own}
    read_of: dict[int, int] = {}
    for read in reads:
        read_of[read.buffer] = read_of.get(read.buffer, 0) + graph.read_bytes(read)
    read_bytes = sum(min(size, graph.written_bytes(buffer)) for buffer, size in read_of.items())
    # What a kernel reads twice: rows too long for the cache, to reduce them, and to go on with each element.
    reduced = {read for loop in loops if loop.is_reduction for read in loop.reads if read.buffer not in own}
    longest = max((loop.reduced for loop in loops), default=1)
    walked = {read for loop in loops if not loop.is_reduction for read in loop.reads}
    row_bytes = sum(graph.element_bytes[read.buffer] for read in reduced) * longest
    read_bytes += sum(map(graph.read_bytes, reduced & walked)) if row_bytes >= _CACHED_ROW_BYTES else 0
    written_bytes = sum(graph.written_bytes(buffer) for buffer in kept)
    widest = max(loops, key=lambda loop: loop.elements)
    sizes = [graph.element_bytes[item] for item in (*kept, *read_of) if graph.elements[item] >= widest.elements // 2]
    since = [work.moved_since_bytes for work in works if work.moved_since_bytes is not None]
    return Work(
        family=Family.REDUCTION if any(loop.is_reduction for loop in loops) else Family.ELEMENTWISE,
        flops=sum(work.flops for work in works if work.family in _COUNTED),
        read_bytes=float(read_bytes),
        written_bytes=float(written_bytes),
        dtype=_FLOATS.get(max(sizes, default=4), "float32"),
        dims=_dims_of(loops, read_bytes + written_bytes),
        moved_since_bytes=max(since, default=None),
    )


def _dims_of(loops: Sequence[Loop], moved_bytes: float) -> RowDims | None:
    """Return what a kernel reduces; None where it reduces nothing."""
    reductions = [loop for loop in loops if loop.is_reduction]
    if not reductions:
        return None
    largest = max(reductions, key=lambda loop: loop.elements)
    writes_rows = any(not loop.is_reduction and loop.outer == largest.elements for loop in loops)
    kernel = RowKernel.COMPILED_FORWARD if writes_rows and largest.is_rows else RowKernel.COMPILED_REDUCE
    return RowDims(rows=largest.outer, columns=largest.reduced, kernel=kernel, walked_bytes=float(moved_bytes))


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
