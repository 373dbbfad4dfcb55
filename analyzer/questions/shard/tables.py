"""The embedding tables of a recording, what trains them, and plans of how each is shared, among which ranks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct

from ....arrays import Floats, Rows
from ....errors import InputError
from ....formats.trace.printable import clean_text, list_names
from ....formats.trace.signature import DTYPE_BYTES, Argument, Signature, TensorSpec, flatten_tensors
from ....formats.trace.tables import Phase, Trace, distinct_calls
from ....records import dataclass, replace
from ....specs.documents import read_table
from ...recorded.window import Window
from ...work import canonical_name

BAGS: Final = {"aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"}
ROWS: Final = {"aten::embedding"}
_BACKWARD: Final = ("embedding_backward", "embedding_dense_backward", "embedding_sparse_backward", "_embedding_bag_")
_BATCHED: Final = ("split_embedding", "dense_embedding_codegen", "int_nbit_split_embedding")
"""What names of table-batched lookups hold (FBGEMM): one op, whose tables' sizes its signature does not part."""
_SPARSE_AT: Final = {True: 5, False: 4}
_MODE_AT: Final = 4
MOST_TABLES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingTable:
    """Hold a table, and what one recorded iteration asks of it."""

    name: str
    rows: int
    width: int
    dtype: str
    lookups: int
    """Rows that are looked up, each time counted."""
    outputs: int
    """Vectors that come out: one per bag, or one per lookup."""
    is_bag: bool
    mode: int
    """Of a bag: 0 sum, 1 mean, 2 maximum."""
    is_sparse: bool
    """Whether its gradient holds the rows that were looked up, not the whole table."""
    index_bytes: float

    @property
    def element_bytes(self) -> float:
        """Return the bytes of one element."""
        return DTYPE_BYTES.get(self.dtype, 4)

    @property
    def size_bytes(self) -> float:
        """Return the bytes of the table."""
        return self.rows * self.width * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """Hold a call of the optimizer that treats tables of one shape, as it treats one of them alone."""

    op: str
    signature: Signature
    calls: float
    """Per table and iteration: one call over many tables counts once for each."""


def find_tables(trace: Trace, window: Window) -> tuple[EmbeddingTable, ...]:
    """Return the tables that the iteration's forward pass looks up, in order of first use.

    Raises InputError where there are none, or none whose sizes are recorded.
    """
    found: dict[object, EmbeddingTable] = {}
    is_batched = False
    for row in window.op_rows.tolist():
        name = trace.strings[trace.ops.name[row]]
        is_batched |= any(word in name for word in _BATCHED)
        kind = canonical_name(name)
        if kind not in BAGS | ROWS or trace.ops.phase[row] in (Phase.BACKWARD, Phase.OPTIMIZER):
            continue
        if _is_inside(trace, row):
            continue
        table = _table_of(trace, row, is_bag=kind in BAGS)
        if table is None:
            continue
        key = _identity(trace, row, table, len(found))
        known = found.get(key)
        if known is not None:
            table = replace(known, lookups=known.lookups + table.lookups, outputs=known.outputs + table.outputs)
        found[key] = table
    if not found:
        raise InputError(_explain_none(is_batched=is_batched))
    if len(found) > MOST_TABLES:
        raise InputError(f"the recording looks up {len(found):,} tables: expected {MOST_TABLES:,} at most")
    return _named(list(found.values()))


def find_tied(trace: Trace, window: Window) -> tuple[str, ...]:
    """Return what else the forward pass does with tables, by op: a part of such a table does not suffice for it."""
    forward = window.op_rows[trace.ops.phase[window.op_rows] == Phase.FORWARD]
    is_lookup = np.zeros(len(trace.strings), dtype=bool)
    is_lookup[[at for at, name in enumerate(trace.strings) if canonical_name(name) in BAGS | ROWS]] = True
    operands, looked = trace.operands, is_lookup[trace.ops.name]
    is_read = ~operands.is_output.astype(bool) & np.isin(operands.op, forward)
    # Of a lookup the table is the first tensor.
    _, first = np.unique(operands.op[is_read], return_index=True)
    reads = np.flatnonzero(is_read)
    heads = reads[first]
    storage = trace.tensors.storage[operands.tensor]
    tables = storage[heads[looked[operands.op[heads]]]]
    others = reads[np.isin(storage[reads], tables) & ~looked[operands.op[reads]]]
    return tuple(sorted({trace.strings[trace.ops.name[op]] for op in operands.op[others].tolist()}))


def find_steps(
    trace: Trace, window: Window, tables: Sequence[EmbeddingTable]
) -> dict[tuple[int, int], list[TableStep]]:
    """Return by (rows, width) what the optimizer does with a table of that shape."""
    shapes = Counter((table.rows, table.width) for table in tables)
    found: dict[tuple[int, int], list[TableStep]] = {shape: [] for shape in shapes}
    rows = window.op_rows[trace.ops.phase[window.op_rows] == Phase.OPTIMIZER]
    for name, signature, count in distinct_calls(trace, rows):
        for shape, tables_of_shape in shapes.items():
            positions = _positions(signature.arguments, shape)
            if positions:
                single = Signature(_single(signature.arguments, shape), _single(signature.results, shape))
                calls = count * positions / tables_of_shape
                found[shape].append(TableStep(op=name, signature=single, calls=calls))
    return found


def dense_shares(trace: Trace, rows: Rows, tables: Sequence[EmbeddingTable]) -> Floats:
    """Return which part of each op has nothing to do with tables: 0 of lookups and their gradients, [rows].

    Of an op over many tensors it is the part of their bytes that no table, nor what has a table's shape, holds.
    """
    shapes = {(table.rows, table.width) for table in tables}
    shares = np.ones(len(rows))
    for at, row in enumerate(rows.tolist()):
        if row < 0:
            continue
        name = trace.strings[trace.ops.name[row]]
        if canonical_name(name) in BAGS | ROWS or any(word in name for word in _BACKWARD):
            shares[at] = 0.0
            continue
        number = int(trace.ops.signature[row])
        tensors = trace.signatures[number].tensors() if number >= 0 else ()
        sizes = np.array([tensor.size_bytes for tensor in tensors])
        is_table = np.array([tensor.shape in shapes for tensor in tensors], dtype=bool)
        if is_table.any() and sizes.sum() > 0:
            shares[at] = sizes[~is_table].sum() / sizes.sum()
    return shares


def _table_of(trace: Trace, row: int, *, is_bag: bool) -> EmbeddingTable | None:
    number = int(trace.ops.signature[row])
    if number < 0:
        return None
    signature = trace.signatures[number]
    arguments = signature.arguments
    if len(arguments) < 2:
        return None
    weight, indices = arguments[0], arguments[1]
    if not isinstance(weight, TensorSpec) or not isinstance(indices, TensorSpec) or len(weight.shape) != 2:
        return None
    if min(weight.shape) < 1 or indices.element_count < 1:
        return None
    results = flatten_tensors(signature.results)
    outputs = indices.element_count
    if is_bag:
        offsets = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], TensorSpec) else indices
        outputs = results[0].shape[0] if results and results[0].shape else offsets.element_count
    mode = _at(arguments, _MODE_AT)
    return EmbeddingTable(
        name=trace.strings[trace.ops.module[row]] if trace.ops.module[row] >= 0 else "",
        rows=weight.shape[0],
        width=weight.shape[1],
        dtype=weight.dtype,
        lookups=indices.element_count,
        outputs=max(outputs, 1),
        is_bag=is_bag,
        mode=mode if is_bag and isinstance(mode, int) else 0,
        is_sparse=_at(arguments, _SPARSE_AT[is_bag]) is True,
        index_bytes=DTYPE_BYTES.get(indices.dtype, 8),
    )


def _at(arguments: tuple[Argument, ...], place: int) -> Argument:
    return arguments[place] if len(arguments) > place else None


def _is_inside(trace: Trace, row: int) -> bool:
    """Say whether an op is the part of another lookup."""
    parent = int(trace.ops.parent[row])
    while parent >= 0:
        if canonical_name(trace.strings[trace.ops.name[parent]]) in BAGS | ROWS:
            return True
        parent = int(trace.ops.parent[parent])
    return False


def _identity(trace: Trace, row: int, table: EmbeddingTable, count: int) -> object:
    """Return what tells a table from others: its storage, else its module, else nothing."""
    begin, end = np.searchsorted(trace.operands.op, [row, row + 1])
    for tensor in trace.operands.tensor[begin:end].tolist():
        if int(trace.tensors.element_count[tensor]) == table.rows * table.width:
            return int(trace.tensors.storage[tensor])
    return (table.name, table.rows, table.width) if table.name else count


def _named(tables: Sequence[EmbeddingTable]) -> tuple[EmbeddingTable, ...]:
    """Return the tables, each under a name of its own."""
    names = [table.name for table in tables]
    found = []
    for number, table in enumerate(tables):
        is_own = bool(table.name) and names.count(table.name) == 1
        found.append(table if is_own else replace(table, name=f"{table.name or 'table'}#{number}"))
    return tuple(found)


def _positions(arguments: tuple[Argument, ...], shape: tuple[int, int]) -> int:
    """Return how many tables of a shape a call treats: those of its first list, or one."""
    for argument in arguments:
        items = argument if isinstance(argument, tuple) else (argument,)
        if count := sum(_is_of(item, shape) for item in items):
            return count
    return 0


def _single(arguments: tuple[Argument, ...], shape: tuple[int, int]) -> tuple[Argument, ...]:
    """Return the arguments with lists of tensors cut to the first of a shape, and whatever stands at its place."""
    lists = [item for item in arguments if isinstance(item, tuple)]
    found = next(((len(items), at) for items in lists for at, item in enumerate(items) if _is_of(item, shape)), None)
    if found is None:
        return arguments
    length, place = found
    return tuple(
        (item[place],) if isinstance(item, tuple) and len(item) == length else item  # type: ignore[misc]
        for item in arguments
    )


def _is_of(item: object, shape: tuple[int, int]) -> bool:
    return isinstance(item, TensorSpec) and item.shape == shape


def _explain_none(*, is_batched: bool) -> str:
    if is_batched:
        return (
            "the recording looks up table-batched embeddings (FBGEMM), whose signature does not say the tables' sizes: "
            "record the model with torch's own EmbeddingBag to ask how to share them"
        )
    return (
        "the recording looks up no embedding table (aten::embedding, aten::embedding_bag): there is nothing to share; "
        "'wavecast scale' predicts other models on many GPUs"
    )


class TableSharding(StrEnum):
    """Name how a table is shared; the words are TorchRec's."""

    TABLE_WISE = "table_wise"
    """One rank holds it."""
    COLUMN_WISE = "column_wise"
    """Each of some ranks holds all rows, and an equal part of their elements."""
    ROW_WISE = "row_wise"
    """Each of some ranks holds an equal part of the rows."""
    DATA_PARALLEL = "data_parallel"
    """Every rank holds a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlacement:
    """Say how one table is shared, and who holds it."""

    table: str
    sharding: TableSharding
    ranks: tuple[int, ...]


class _Entry(Struct, kw_only=True, forbid_unknown_fields=True):
    sharding: TableSharding
    ranks: Annotated[tuple[int, ...], Meta(min_length=1, description="a list of ranks such as [0, 1]")] | None = None


def read_entries(
    file: str, entries: Mapping[str, Any], tables: Sequence[EmbeddingTable], gpu_count: int
) -> tuple[TablePlacement, ...]:
    """Return the placements of a plan's entries, in the order of `tables`; `file` is what messages call the plan."""
    known = {table.name: table for table in tables}
    unknown = [name for name in entries if name not in known]
    if unknown:
        raise InputError(
            f"{file}: {clean_text(unknown[0])!r}: the recording has no table of that name; it has "
            f"{list_names(list(known))}"
        )
    missing = [name for name in known if name not in entries]
    if missing:
        raise InputError(f"{file}: the plan says nothing of {list_names(missing)}: give every table an entry")
    return tuple(_placement(file, known[name], entries[name], gpu_count) for name in known)


def plan_document(placements: Sequence[TablePlacement], gpu_count: int) -> dict[str, Any]:
    """Return a plan as the JSON that `plan_file.load_placements` reads."""
    return {
        "format": "wavecast.sharding-plan",
        "gpus": gpu_count,
        "tables": {item.table: {"sharding": item.sharding.value, "ranks": list(item.ranks)} for item in placements},
    }


def _check_placement(where: str, table: EmbeddingTable, placement: TablePlacement, gpu_count: int) -> None:
    """Raise InputError for ranks that cannot hold a table so."""
    ranks, kind = placement.ranks, placement.sharding
    beyond = [rank for rank in ranks if not 0 <= rank < gpu_count]
    if beyond:
        raise InputError(f"{where}: rank {beyond[0]}: expected 0 to {gpu_count - 1} of {gpu_count} GPUs")
    if len(set(ranks)) != len(ranks) and kind is not TableSharding.COLUMN_WISE:
        raise InputError(
            f"{where}: ranks: expected each once, found {next(r for r in ranks if ranks.count(r) > 1)} twice"
        )
    if kind is TableSharding.TABLE_WISE and len(ranks) != 1:
        raise InputError(f"{where}: table_wise: expected one rank, found {len(ranks)}")
    if kind is TableSharding.DATA_PARALLEL and len(ranks) != gpu_count:
        raise InputError(f"{where}: data_parallel: expected all {gpu_count} ranks, or none named, found {len(ranks)}")
    if kind is TableSharding.COLUMN_WISE and table.width % len(ranks):
        raise InputError(f"{where}: column_wise: {table.width} columns are not {len(ranks)} equal parts")
    if kind is TableSharding.ROW_WISE and len(ranks) > table.rows:
        raise InputError(f"{where}: row_wise: {table.rows} rows are not {len(ranks)} parts")


def _placement(file: str, table: EmbeddingTable, entry: object, gpu_count: int) -> TablePlacement:
    where = f"{file}: {clean_text(table.name)}"
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected an object with sharding and ranks, found {say_kind(entry)}")
    said = read_table(entry, _Entry, where, example="give it")
    ranks = said.ranks
    if ranks is None and said.sharding in (TableSharding.DATA_PARALLEL, TableSharding.ROW_WISE):
        ranks = tuple(range(gpu_count))
    if ranks is None:
        raise InputError(f"{where}: ranks: expected a list of ranks such as [0, 1], found nothing")
    placement = TablePlacement(table=table.name, sharding=said.sharding, ranks=ranks)
    _check_placement(where, table, placement, gpu_count)
    return placement


def say_kind(value: object) -> str:
    """Return what a value of a plan is, in words."""
    names = {bool: "true or false", int: "a number", float: "a fraction", str: "text", dict: "an object"}
    if value == []:
        return "an empty list"
    return "nothing" if value is None else names.get(type(value), "a list")
