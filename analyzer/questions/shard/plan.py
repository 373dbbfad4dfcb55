"""A plan of embedding tables: how each is shared, and among which ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from ....errors import InputError
from ....formats.trace.printable import clean_text, list_names
from ....records import dataclass
from ....specs.documents import read_table
from .tables import EmbeddingTable

PLAN_FORMAT: Final = "wavecast.sharding-plan"


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
        "format": PLAN_FORMAT,
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
