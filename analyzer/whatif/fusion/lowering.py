"""Lowers the ops of compiled graphs to loops as inductor does: pointwise ops are computed where they are read.

After torch/_inductor/lowering.py and decomposition.py: a norm is a reduction and an expression, softmax likewise;
libraries' ops need their operands in memory; reductions leave theirs there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from ....arrays import Rows
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.tables import Phase, Trace
from ...work import Family
from . import inductor_ops
from .gradients import channel_gradient, group_gradient, row_gradient, softmax_gradient
from .loops import Loop, LoopGraph, Read
from .partition import Partition, normalised_of, partition, rows_again, storages_read
from .reading import (
    Call,
    OpReading,
    is_large_window,
    last_size,
    next_writes,
    readers_of,
    reduces_planes,
    reduces_rows,
    trains,
)
from .values import Kept, LoopValues, Part, Value


def lower_regions(trace: Trace, region: Rows) -> list[LoopGraph]:
    """Return the loops of each compiled region (per op; -1: none), in order. The trace has to name its tensors."""
    if not row_count(trace.operands):
        return []
    reading = OpReading(trace, region)
    calls: dict[int, list[int]] = {}
    for row in np.flatnonzero(region != MISSING).tolist():
        if reading.family(row) is not Family.VIEW:
            calls.setdefault(int(region[row]), []).append(row)
    readers, kept = readers_of(reading), Kept()
    graphs = []
    for at, rows in calls.items():
        is_forward = trace.ops.phase[rows[0]] != Phase.BACKWARD
        cut = partition(reading, rows, readers) if is_forward else Partition()
        kept.writer.update(cut.writer)
        kept.storages |= cut.kept
        kept.normalised |= cut.normalised
        graphs.append(Lowering(reading, readers, kept, at, rows).run())
    return graphs


class Lowering:
    """Lower the ops of one region."""

    def __init__(
        self, reading: OpReading, readers: Mapping[int, Sequence[int]], kept: Kept, region: int, rows: Sequence[int]
    ) -> None:
        self.reading, self._readers, self._rows = reading, readers, rows
        self._again = rows_again(reading, rows, kept.writer, kept.normalised)
        self._members = self._again.union(rows)
        self._graph = LoopGraph(region=region)
        self.values = LoopValues(self._graph, kept)
        self.kept = kept
        self._next_write = next_writes(reading, rows)
        self._seeds = MISSING

    def run(self) -> LoopGraph:
        """Return the region's loops."""
        for row in self._rows:
            self._lower(row)
        for storage, value in [*self.values.current.items()]:
            if self._is_output(storage) and (value.buffer is not None or value.ops & self._members):
                self._graph.outputs.add(self.values.store(value))
            if value.buffer is not None:
                self.kept.buffers.setdefault(storage, (self._graph.region, value.buffer))
        return self._graph

    def _lower(self, row: int) -> None:
        """Lower an op, behind what an earlier graph had of its operands and did not keep."""
        call = self.reading.call(row)
        for storage in storages_read(self.reading, row, self.kept.normalised, is_again=row in self._again):
            writer = self.kept.writer.get(storage, MISSING)
            if writer in self._again and storage not in self.values.current:
                self._lower(writer)
        _rule_of(call.name, self.reading.family(row), call)(self, call)

    def _is_output(self, storage: int) -> bool:
        """Say whether a storage is read after the region, was there before, or is read by nobody: a result."""
        if not (readers := self._readers.get(storage, ())) or storage in self.values.given_storages:
            return True
        if storage in self.kept.writer:
            return False
        return storage in self.kept.storages or any(row not in self._members for row in readers)

    def parts(self, call: Call, chosen: Sequence[int] | None = None) -> list[Part]:
        """Return what the op reads, and how many elements of each."""
        items = call.inputs if chosen is None else [call.inputs[at] for at in chosen if at < len(call.inputs)]
        return [(self.values.read(*item[:3]), item[1], item[3]) for item in items]

    def stored(self, call: Call) -> list[Part]:
        """Return what the op reads, in memory."""
        parts = self.parts(call)
        for value, _, _ in parts:
            self.values.store(value)
        return parts

    def assign(self, call: Call, at: int, value: Value) -> None:
        """Let a result of the op hold a value, in memory where its readers need it there."""
        if at >= len(call.outputs):
            return
        storage = call.outputs[at][0]
        until = self._next_write.get((call.row, storage))
        users = [row for row in self._readers.get(storage, ()) if row > call.row and (until is None or row <= until)]
        if at > 0 and not users and until is None and storage not in self.values.given_storages:
            return  # statistics and masks that nobody asks for
        outside = [row for row in users if row not in self._members]
        is_needed = any(row in self._members and _needs_memory(self.reading, row) for row in users)
        is_kept = (bool(outside) or storage in self.kept.storages) and storage not in self.kept.writer
        self.values.current[storage] = value
        times = sum(self.reading.times_read(row, storage) for row in users if row in self._members)
        self.values.settle(value, times, is_needed=is_needed or is_kept)
        if value.buffer is not None and is_kept:
            self._graph.outputs.add(value.buffer)

    def tagged(self, call: Call) -> frozenset[int]:
        """Return the op, with the one that it computes anew a part of."""
        forward = int(self.reading.trace.ops.forward[call.row])
        shared = inductor_ops.SHARES.get(call.name)
        is_same = forward != MISSING and shared == self.reading.names[self.reading.trace.ops.name[forward]]
        is_anew = is_same and forward not in self.kept.normalised
        return frozenset((call.row, forward)) if is_anew else frozenset((call.row,))

    def express(self, call: Call, parts: Sequence[Part], elements: int, element_bytes: int) -> Value:
        """Return an expression of the op."""
        value = self.values.expression(call.row, parts, elements, element_bytes, inductor_ops.LARGE.get(call.name, 2))
        value.ops |= self.tagged(call)
        return value

    def pointwise(self, call: Call) -> None:
        """Lower an op that computes each element of its results by itself."""
        parts = self.stored(call) if call.name in inductor_ops.WINDOWED else self.parts(call)
        if call.name == "copy_" and len(parts) > 1:
            parts = parts[1:]
        if call.name in inductor_ops.GATHERS:  # no more of the table than there are results
            parts = [(value, min(count, call.outputs[0][1]), part) for value, count, part in parts]
        is_large = is_large_window(call)
        for at, (_, elements, element_bytes, _) in enumerate(call.outputs):
            value = self.express(call, parts, elements, element_bytes)
            if is_large:
                self.values.store(value)
            self.assign(call, at, value)

    def loss(self, call: Call) -> None:
        """Lower a loss: each element's, and their mean or sum."""
        parts = self.parts(call)
        _, elements, element_bytes, _ = call.outputs[0]
        count = max(item[1] for item in call.inputs)
        whole = self.express(call, parts, count, element_bytes)
        if elements < count:
            whole = self.values.reduce(
                frozenset((call.row,)), [(whole, count, 0)], 1, count, (element_bytes,), is_rows=True
            )[0]
        self.assign(call, 0, whole)

    def library(self, call: Call) -> None:
        """Lower an op that is not generated."""
        parts = self.stored(call)
        reads = frozenset(Read(value.buffer, count) for value, count, _ in parts if value.buffer is not None)
        loop = Loop(ops=frozenset((call.row,)), outer=1, reads=reads, is_library=True)
        self._graph.loops.append(loop)
        for at, (_, elements, element_bytes, _) in enumerate(call.outputs):
            buffer = self.values.add_loop(loop, elements, element_bytes)
            self.assign(call, at, Value(elements, element_bytes, buffer=buffer))

    def reduction(self, call: Call) -> None:
        """Lower a reduction."""
        read = call.inputs[0][1]
        outer, element_bytes = max(call.outputs[0][1], 1), call.outputs[0][2]
        reduced = max(read // outer, 1)
        parts = self.parts(call, (0,))
        if reduced < inductor_ops.UNROLLED:
            self.assign(call, 0, self.values.unroll(call.row, parts, outer, reduced, element_bytes))
            return
        data = next(iter(self.reading.operands_in_memory(call.row)), None)
        is_rows = call.signature is not None and reduces_rows(call.signature, inductor_ops.DIMS_AT[call.name], data)
        found = self.values.reduce(
            frozenset((call.row,)),
            parts,
            outer,
            reduced,
            [item[2] for item in call.outputs],
            is_rows=is_rows,
            is_planes=not is_rows
            and call.signature is not None
            and reduces_planes(call.signature, inductor_ops.DIMS_AT[call.name], data),
        )
        for at, value in enumerate(found):
            self.assign(call, at, value)

    def scan(self, call: Call) -> None:
        """Lower a running total: a loop over rows that writes every element."""
        parts = self.parts(call, (0,))
        _, elements, element_bytes, _ = call.outputs[0]
        columns = last_size(call.signature)
        whole = self.values.expression(call.row, parts, elements, element_bytes, 1)
        loop = Loop(ops=whole.ops, outer=max(elements // columns, 1), reduced=columns, reads=whole.reads)
        buffer = self.values.add_loop(loop, elements, element_bytes)
        self.assign(call, 0, Value(elements, element_bytes, buffer=buffer))

    def dropout(self, call: Call) -> None:
        """Lower a dropout: random numbers make a mask, which a backward pass needs again."""
        if self._seeds == MISSING:
            self._seeds = self._graph.add_buffer(1, 8)
        seeds = Value(1, 8, buffer=self._seeds)
        parts = self.parts(call, (0,))
        for at in range(len(call.outputs) - 1, -1, -1):
            _, elements, element_bytes, _ = call.outputs[at]
            value = self.express(call, parts if at == 0 else [(seeds, 1, 0)], elements, element_bytes)
            self.assign(call, at, value)
            parts = [*parts, (value, elements, 0)]

    def row_norm(self, call: Call) -> None:
        """Lower a norm over rows: their moments, then each element with them."""
        _, elements, element_bytes, _ = call.outputs[0]
        rows = call.outputs[1][1] if len(call.outputs) > 1 else elements // last_size(call.signature)
        parts = self.parts(call)
        self._normalise(call, parts, max(rows, 1), elements, element_bytes)

    def _normalise(
        self, call: Call, parts: Sequence[Part], rows: int, elements: int, element_bytes: int, *, is_rows: bool = True
    ) -> None:
        if call.row in self._again:
            self._normalise_again(call, parts, rows, elements, element_bytes)
            return
        moments = self.values.reduce(
            frozenset((call.row,)),
            parts[:1],
            rows,
            max(elements // rows, 1),
            (4, 4)[: 1 if "rms" in call.name else 2],
            is_rows=is_rows,
            is_planes=call.name in inductor_ops.BATCH_NORMS and self.reading.has_planes(call.row),
        )
        stats = [(value, rows, 0) for value in moments]
        if call.row in self.kept.normalised:
            whole = self.express(call, [*parts[:1], *stats], elements, 4)
            buffer = self.values.store(whole)
            self._graph.outputs.add(buffer)
            self.kept.buffers[normalised_of(call.row)] = self._graph.region, buffer
            parts, stats = [(whole, elements, 0), *parts[1:]], []
        self.assign(call, 0, self.express(call, [*parts, *stats], elements, element_bytes))
        for at in range(1, len(call.outputs)):
            self.assign(call, at, moments[min(at, len(moments)) - 1])

    def _normalise_again(self, call: Call, parts: Sequence[Part], rows: int, elements: int, element_bytes: int) -> None:
        """Compute a norm's result anew, of the statistics that were kept."""
        stats = [(self.values.read(*item[:3]), rows, 0) for item in call.outputs[1:]]
        if call.row in self.kept.normalised:
            whole = self.values.read(normalised_of(call.row), elements, 4)
            parts, stats = [(whole, elements, 0), *parts[1:]], []
        self.assign(call, 0, self.express(call, [*parts, *stats], elements, element_bytes))

    def group_norm(self, call: Call) -> None:
        """Lower a group norm: a row is a group's channels of an image."""
        _, elements, element_bytes, _ = call.outputs[0]
        rows = call.outputs[1][1] if len(call.outputs) > 1 else 1
        is_rows = self.reading.has_planes(call.row)
        self._normalise(call, self.parts(call), max(rows, 1), elements, element_bytes, is_rows=is_rows)

    def batch_norm(self, call: Call) -> None:
        """Lower a batch norm: with fixed statistics pointwise, else moments of channels first."""
        if not trains(call):
            self.pointwise(call)
            return
        _, elements, element_bytes, _ = call.outputs[0]
        channels = min((item[1] for item in call.inputs[1:]), default=1)
        parts = self.parts(call)
        self._normalise(call, parts[: min(3, len(parts))], max(channels, 1), elements, element_bytes, is_rows=False)

    def softmax(self, call: Call) -> None:
        """Lower a softmax: maximum and sum of rows in one pass, then each element with them."""
        _, elements, element_bytes, _ = call.outputs[0]
        columns = last_size(call.signature)
        parts, rows = self.parts(call, (0,)), max(elements // columns, 1)
        if call.row in self._again:
            found = [self.values.read(normalised_of(call.row), 2 * rows, 4)]
        else:
            found = self.values.reduce(frozenset((call.row,)), parts, rows, columns, (4, 4), is_rows=True)
        stats = [(value, rows, 0) for value in found]
        self.assign(call, 0, self.express(call, [*parts, *stats], elements, element_bytes))

    def scatter(self, call: Call) -> None:
        """Lower an op that adds to places that indices choose: zeros, then a loop over what is added."""
        parts = self.parts(call)
        _, elements, element_bytes, _ = call.outputs[0]
        zeros = self.values.expression(call.row, (), elements, element_bytes, 1)
        empty = self.values.store(zeros)
        whole = self.values.expression(call.row, parts, max(count for _, count, _ in parts), element_bytes, 1)
        loop = Loop(ops=whole.ops, outer=whole.elements, reads=whole.reads, after=frozenset((empty,)))
        buffer = self.values.add_loop(loop, elements, element_bytes)
        self.assign(call, 0, Value(elements, element_bytes, buffer=buffer))


_Rule = Callable[[Lowering, Call], None]


def _rule_of(name: str, family: Family | None, call: Call) -> _Rule:
    """Return how an op is lowered."""
    if not call.outputs:
        return lambda _lowering, _call: None
    for names, rule in _RULES:
        if name in names:
            return rule
    if name in inductor_ops.GENERATED or family is Family.ELEMENTWISE:
        return Lowering.pointwise
    return Lowering.library


_RULES: Final[Sequence[tuple[frozenset[str], _Rule]]] = (
    (inductor_ops.ROW_NORMS, Lowering.row_norm),
    (inductor_ops.BATCH_NORMS, Lowering.batch_norm),
    (inductor_ops.SOFTMAXES, Lowering.softmax),
    (inductor_ops.ROW_GRADIENTS, row_gradient),
    (inductor_ops.CHANNEL_GRADIENTS, channel_gradient),
    (inductor_ops.SOFTMAX_GRADIENTS, softmax_gradient),
    (frozenset(("native_dropout",)), Lowering.dropout),
    (frozenset(("native_group_norm",)), Lowering.group_norm),
    (frozenset(("native_group_norm_backward",)), group_gradient),
    (frozenset(("cumsum", "cumprod")), Lowering.scan),
    (frozenset(("embedding_dense_backward", "index_put", "scatter_add", "index_add")), Lowering.scatter),
    (frozenset(inductor_ops.DIMS_AT), Lowering.reduction),
    (inductor_ops.LOSSES, Lowering.loss),
)


def _needs_memory(reading: OpReading, row: int) -> bool:
    """Say whether an op takes its operands from memory only."""
    name = reading.names[reading.trace.ops.name[row]]
    if name in inductor_ops.WINDOWED:
        return True
    is_known = name in inductor_ops.GENERATED or any(name in names for names, _ in _RULES)
    return not is_known and reading.family(row) is not Family.ELEMENTWISE
