"""Ops inserted into a recording of shapes, or taken out of one: everything that refers to ops is renumbered."""

from collections.abc import Sequence

import numpy as np

from ....arrays import Rows, at_rows
from ....formats.trace import tables
from ....formats.trace.column import (
    MISSING,
    TableT,
    build_table,
    columns,
    renumber,
    row_count,
    table_of_rows,
    take_rows,
)
from ....formats.trace.signature import Signature
from ....records import dataclass, replace
from .lives import find_lives, write_lives

_BEFORE, _AFTER, _PLACES = -1, 1, 3
"""An op's own place is three times its row; what comes before it or after it stands one beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Hold the row of `trace.collectives` that an inserted op gets."""

    name: str
    """Such as `all_reduce`."""
    group: int
    """Row of the result's `groups`."""
    dtype: str
    in_element_count: int
    out_element_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Say where an op is inserted, and as what part of the iteration."""

    at: int
    """Row of the given trace."""
    is_after: bool
    """After op `at` and what lies inside it, else before it."""
    phase: int
    module: int = MISSING
    """Row of the trace's strings."""
    source_op: int = MISSING
    """Row of the trace that it was made from, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion:
    """Hold an op to insert; tensors are rows of `Insertions.tensor` or the trace."""

    place: Spot
    name: str
    signature: Signature
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    replaces: tuple[int, ...] = ()
    """Per written tensor, in order, the one whose later readers read it instead; `writes` may be the longer."""
    exchange: Exchange | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inserted:
    """Hold a changed trace; `source_op` is the row of the given one that each op was, or was made from, -1: none."""

    trace: tables.Trace
    source_op: Rows
    insertion: Rows
    """Which insertion each op is; -1: none."""


class Insertions:
    """Collect what is to be inserted into a trace: ops in order, their new tensors and groups.

    Ops at one place keep the order in which they were added. New tensors have storages of their own, unless told.
    """

    def __init__(self, trace: tables.Trace) -> None:
        self.trace = trace
        self.ops: list[Insertion] = []
        self.tensors: list[tuple[int, str, int]] = []
        """Storage, dtype and element count of each new tensor."""
        self.groups: list[tuple[str, tuple[int, ...]]] = []
        self.lasts: dict[int, int] = {}
        """Storages that are dropped after another op than the last that uses them: a row of the trace, or -1 - i for
        insertion i."""
        self.sums_as_engine = any(text.startswith("vllm::") for text in trace.strings)
        """Whether a serving engine runs the trace, which has an all-reduce of its own."""
        self._group_rows: dict[tuple[str, tuple[int, ...]], int] = {}
        self.first_tensor = row_count(trace.tensors)
        """Row of the first new tensor."""
        self._next_storage = int(trace.tensors.storage.max(initial=-1)) + 1

    def tensor(self, dtype: str, element_count: int, *, storage: int | None = None) -> int:
        """Return the row of a new tensor, of `storage` where it is a view."""
        if storage is None:
            storage = self._next_storage
            self._next_storage += 1
        self.tensors.append((storage, dtype, int(element_count)))
        return self.first_tensor + len(self.tensors) - 1

    def group(self, name: str, ranks: Sequence[int]) -> int:
        """Return the row of the group of these ranks, new or added before."""
        key = name, tuple(ranks)
        if key not in self._group_rows:
            self.groups.append(key)
            self._group_rows[key] = row_count(self.trace.groups) + len(self.groups) - 1
        return self._group_rows[key]

    def group_size(self, group: int) -> int:
        """Return how many ranks a group has."""
        known = row_count(self.trace.groups)
        return int(self.trace.groups.size[group]) if group < known else len(self.groups[group - known][1])

    def storage(self, tensor: int) -> int:
        """Return the storage of a tensor, new or not."""
        new = tensor - self.first_tensor
        return self.tensors[new][0] if new >= 0 else int(self.trace.tensors.storage[tensor])

    def add(self, insertion: Insertion) -> int:
        """Insert an op; return its place for `lasts`."""
        self.ops.append(insertion)
        return -len(self.ops)


def insert_ops(trace: tables.Trace, insertions: Insertions) -> Inserted:
    """Return the trace with the ops inserted. What has times is left out: inserted ops have none.

    New storages live from the first op that writes them to the last one that uses them, as memory events without times
    say; one that no op writes existed before.
    """
    # All tables refer to ops by row, so inserting one op means renumbering all of them. It is done once for any number
    # of insertions: each op gets a place (its own row, or just before or after another's subtree), a stable sort of
    # places is the new order, and `number` maps old rows and new ops to it.
    if not insertions.ops:
        rows = np.arange(row_count(trace.ops))
        return Inserted(trace=trace, source_op=rows, insertion=np.full(len(rows), MISSING))
    trace = _without_times(trace)
    added, count = insertions.ops, row_count(trace.ops)
    spots = [item.place for item in added]
    at, is_after = np.array([item.at for item in spots]), np.array([item.is_after for item in spots])
    beside = np.where(is_after, last_inside(trace.ops)[at], at)
    places = np.concatenate([np.arange(count) * _PLACES, beside * _PLACES + np.where(is_after, _AFTER, _BEFORE)])
    order = np.argsort(places, kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    lives = find_lives(trace)
    strings, names = _intern(trace.strings, _texts_of(insertions))
    signatures, signature_of = _intern_signatures(trace.signatures, [item.signature for item in added])
    ops = build_table(
        tables.OpTable,
        len(added),
        name=[names[item.name] for item in added],
        signature=signature_of,
        thread=trace.ops.thread[at],
        parent=trace.ops.parent[at],
        phase=[item.phase for item in spots],
        module=[item.module for item in spots],
    )
    tensor_rows = [(storage, names[dtype], size) for storage, dtype, size in insertions.tensors]
    more = table_of_rows(tables.TensorTable, ("storage", "dtype", "element_count"), tensor_rows)
    tensors = append_rows(trace.tensors, more)
    operands, tensors = _operands(trace, added, tensors, number)
    groups, first = [(names[name], len(ranks)) for name, ranks in insertions.groups], row_count(trace.groups)
    members = [(first + row, rank) for row, (_, ranks) in enumerate(insertions.groups) for rank in ranks]
    joined = replace(
        trace,
        strings=strings,
        signatures=signatures,
        ops=take_rows(renumber(append_rows(trace.ops, ops), "ops", number), order),
        tensors=tensors,
        operands=operands,
        collectives=_collectives(trace, insertions, names, number, count),
        groups=append_rows(trace.groups, table_of_rows(tables.GroupTable, ("name", "size"), groups)),
        members=append_rows(trace.members, table_of_rows(tables.MemberTable, ("group", "rank"), members)),
        memory=build_table(tables.MemoryTable, 0),
        lookups=renumber(trace.lookups, "ops", number),
    )
    source = np.concatenate([np.arange(count), [item.source_op for item in spots]])[order].astype(np.int64)
    if lives is not None:
        replaced = np.array([tensor for item in added for tensor in item.replaces], dtype=np.int64)
        lives = lives.renumbered(number, np.isin(lives.storage, tensors.storage[replaced]))
    new = np.array([storage for storage, _, _ in insertions.tensors], dtype=np.int64)
    new = np.unique(new[new > trace.tensors.storage.max(initial=-1)])
    insertion = order - count
    changed = write_lives(joined, lives, new, _lasts(insertions, number, count))
    return Inserted(trace=changed, source_op=source, insertion=np.maximum(insertion, MISSING))


def take_ops(trace: tables.Trace, rows: Rows) -> Inserted:
    """Return the trace with these ops alone, each once, in this order; what others made lives from its first use here.

    An op whose parent is gone belongs to what is left around that.
    """
    trace, count = _without_times(trace), row_count(trace.ops)
    number: Rows = np.full(count, MISSING, dtype=np.int64)
    number[rows] = np.arange(len(rows))
    parent = trace.ops.parent.astype(np.int64)
    while (lost := (parent >= 0) & (at_rows(number, parent) < 0)).any():
        parent = np.where(lost, at_rows(parent, parent), parent)
    lives = find_lives(trace)
    ops = replace(trace.ops, parent=parent.astype(np.int32))
    taken = replace(
        trace,
        ops=take_rows(renumber(ops, "ops", number), rows),
        operands=_taken(trace.operands, number),
        collectives=_taken(trace.collectives, number),
        memory=build_table(tables.MemoryTable, 0),
        lookups=_taken(trace.lookups, number),
    )
    if lives is not None:
        lives = lives.renumbered(number, np.zeros(len(lives.storage), dtype=bool))
    taken, none = write_lives(taken, lives, np.zeros(0, dtype=np.int64)), np.full(len(rows), MISSING, dtype=np.int64)
    return Inserted(trace=taken, source_op=np.asarray(rows, dtype=np.int64), insertion=none)


def last_inside(ops: tables.OpTable) -> Rows:
    """Return per op the last row inside it, itself where it has no children; children follow their parents."""
    parents = ops.parent
    last: Rows = np.arange(len(parents), dtype=np.int64)
    for row in np.flatnonzero(parents >= 0)[::-1].tolist():
        parent = int(parents[row])
        last[parent] = max(last[parent], last[row])
    return last


def append_rows(table: TableT, more: TableT) -> TableT:
    """Return the rows of both tables, one after the other."""
    if not row_count(more):
        return table
    return type(table)(
        **{spec.name: np.concatenate([getattr(table, spec.name), getattr(more, spec.name)]) for spec in columns(table)}
    )


def _without_times(trace: tables.Trace) -> tables.Trace:
    if not (
        row_count(trace.kernels) or row_count(trace.calls) or row_count(trace.iterations) or row_count(trace.syncs)
    ):
        return trace
    timeless = bool(row_count(trace.memory)) and bool((trace.memory.time_ns == MISSING).all())
    memory = trace.memory if timeless else take_rows(trace.memory, np.zeros(0, dtype=np.int64))
    collectives = replace(
        trace.collectives, kernel=np.full(row_count(trace.collectives), MISSING, dtype=trace.collectives.kernel.dtype)
    )
    meta = replace(trace.meta, capture="shapes")
    return replace(tables.as_shapes(trace), meta=meta, collectives=collectives, memory=memory)


def _lasts(insertions: Insertions, number: Rows, count: int) -> dict[int, int]:
    return {storage: int(number[at if at >= 0 else count - 1 - at]) for storage, at in insertions.lasts.items()}


def _taken(table: TableT, number: Rows) -> TableT:
    """Return the rows of the ops that are left, in their new order."""
    op: Rows = at_rows(number, table.op)  # type: ignore[attr-defined]
    kept = np.flatnonzero(op >= 0)
    return take_rows(renumber(table, "ops", number), kept[np.argsort(op[kept], kind="stable")])


def _operands(
    trace: tables.Trace, added: Sequence[Insertion], tensors: tables.TensorTable, number: Rows
) -> tuple[tables.OperandTable, tables.TensorTable]:
    """Return all uses in order of op, later readers of replaced tensors rewired, and the tensors.

    Views that are made of a replaced tensor later are views of what replaces it.
    """
    operands, count = trace.operands, row_count(trace.ops)
    use_op, use_tensor, is_output = [], [], []
    for row, item in enumerate(added):
        use_op += [count + row] * (len(item.reads) + len(item.writes))
        use_tensor += [*item.reads, *item.writes]
        is_output += [False] * len(item.reads) + [True] * len(item.writes)
    op = number[np.concatenate([operands.op, use_op]).astype(np.int64)]
    tensor = np.concatenate([operands.tensor, use_tensor]).astype(np.int64)
    output = np.concatenate([operands.is_output, is_output]).astype(bool)
    given, storage = np.arange(len(op)) < row_count(operands), tensors.storage.astype(np.int64)
    if changes := [
        (old, int(number[count + row]), new)
        for row, item in enumerate(added)
        for old, new in zip(item.replaces, item.writes, strict=False)
    ]:
        old, place, new = (np.array(column, dtype=np.int64) for column in zip(*changes, strict=True))
        made = np.full(row_count(tensors), MISSING, dtype=np.int64)
        written = np.flatnonzero(output & given)[::-1]
        made[tensor[written]] = op[written]
        storage = np.where(made >= 0, _latest(storage[old], place, storage[new], storage, made), storage)
        tensor = np.where(output | ~given, tensor, _latest(old, place, new, tensor, op))
    order = np.argsort(op, kind="stable")
    uses = build_table(tables.OperandTable, len(order), op=op[order], tensor=tensor[order], is_output=output[order])
    return uses, replace(tensors, storage=storage.astype(tensors.storage.dtype))


def _latest(old: Rows, place: Rows, new: Rows, value: Rows, op: Rows) -> Rows:
    """Return `value`, replaced by the `new` of the last `place` before `op` where it is `old`."""
    span = int(max(place.max(), op.max(initial=0))) + 2
    order = np.argsort(old * span + place, kind="stable")
    at = np.maximum(np.searchsorted((old * span + place)[order], value * span + op) - 1, 0)
    chosen = order[at]
    return np.where((old[chosen] == value) & (place[chosen] < op), new[chosen], value)


def _collectives(
    trace: tables.Trace, insertions: Insertions, names: dict[str, int], number: Rows, count: int
) -> tables.CollectiveTable:
    """Return all collectives in order of op, those of each group numbered anew where any is new."""
    rows = [(count + row, item.exchange) for row, item in enumerate(insertions.ops) if item.exchange is not None]
    if not rows:
        kept = renumber(trace.collectives, "ops", number)
        return take_rows(kept, np.argsort(kept.op, kind="stable"))
    more = build_table(
        tables.CollectiveTable,
        len(rows),
        op=[op for op, _ in rows],
        name=[names[item.name] for _, item in rows],
        dtype=[names[item.dtype] for _, item in rows],
        in_element_count=[item.in_element_count for _, item in rows],
        out_element_count=[item.out_element_count for _, item in rows],
        group_size=[insertions.group_size(item.group) for _, item in rows],
        group=[item.group for _, item in rows],
        is_async=[True] * len(rows),
    )
    table = renumber(append_rows(trace.collectives, more), "ops", number)
    table = take_rows(table, np.argsort(table.op, kind="stable"))
    order = np.argsort(table.group, kind="stable")
    group = table.group[order]
    sequence = np.empty(len(order), dtype=np.int64)
    sequence[order] = np.arange(len(order)) - np.searchsorted(group, group)
    return replace(table, sequence=sequence)


def _texts_of(insertions: Insertions) -> list[str]:
    exchanges = [item.exchange for item in insertions.ops if item.exchange is not None]
    return [
        *(item.name for item in insertions.ops),
        *(dtype for _, dtype, _ in insertions.tensors),
        *(name for name, _ in insertions.groups),
        *(item.name for item in exchanges),
        *(item.dtype for item in exchanges),
    ]


def _intern(strings: tuple[str, ...], more: Sequence[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the strings with those that are new, and the row of each of `more`."""
    rows = {text: row for row, text in reversed(list(enumerate(strings)))}
    new = {text: None for text in more if text not in rows}
    rows |= {text: len(strings) + row for row, text in enumerate(new)}
    return (*strings, *new), rows


def _intern_signatures(
    signatures: tuple[Signature, ...], more: Sequence[Signature]
) -> tuple[tuple[Signature, ...], list[int]]:
    known: dict[Signature, int] = {}
    rows = [known.setdefault(signature, len(signatures) + len(known)) for signature in more]
    return (*signatures, *known), rows
