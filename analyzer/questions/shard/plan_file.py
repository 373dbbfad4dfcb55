"""Plans of embedding tables from elsewhere: a file of the user's, of `shard` or of TorchRec."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from ....arrays import group_by
from ....errors import InputError, parameter
from ....formats.trace.printable import clean_text, list_names
from .tables import EmbeddingTable, TablePlacement, TableSharding, read_entries, say_kind

MOST_FILE_BYTES: Final = 64 * 2**20


def load_placements(path: Path, tables: Sequence[EmbeddingTable], gpu_count: int) -> tuple[TablePlacement, ...]:
    """Read a plan: JSON or TOML with `tables`, by name `{"sharding": …, "ranks": […]}`, in the order of `tables`.

    What `wavecast shard --format json` writes is one, too: its proposed plan is taken. So is a plan of TorchRec's
    as `_serialize` writes it. Raises InputError, in one line, for what is no plan, for tables that the recording does
    not have or that the plan leaves out, and for ranks beyond the GPUs.
    """
    document = _read(path)
    modules = _modules_of(document)
    if modules is not None:
        return read_entries(path.name, _plain_entries(path.name, modules, tables), tables, gpu_count)
    if "tables" not in document and isinstance(document.get("plan"), dict):
        document = document["plan"]
    entries = document.get("tables")
    if not isinstance(entries, dict) or not entries:
        raise InputError(
            f"{path.name}: tables: expected an object with an entry for each table, found {say_kind(entries)}"
        )
    count = document.get("gpus", gpu_count)
    if type(count) is not int or count < 1:
        found = clean_text(str(count))[:20] if isinstance(count, int | float) else say_kind(count)
        raise InputError(f"{path.name}: gpus: expected a whole number from 1, found {found}")
    if count != gpu_count:
        raise InputError(
            f"{path.name}: gpus: the plan is for {clean_text(str(count))[:20]} GPUs, {parameter('gpus')} says "
            f"{gpu_count}"
        )
    return read_entries(path.name, entries, tables, gpu_count)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise InputError(f"{path.name}: expected a plan of {MOST_FILE_BYTES >> 20} MiB at most")
        content = path.read_bytes()
        is_toml = path.suffix.lower() == ".toml"
        document = tomllib.loads(content.decode()) if is_toml else orjson.loads(content)
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path.name}: expected a plan as JSON: {error}{_pickle_words(content)}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path.name}: expected a plan as TOML: {str(error).splitlines()[0][:120]}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name}: expected a plan as text, JSON or TOML: {error.reason}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path.name}: expected a plan, an object with tables, found {say_kind(document)}")
    return document


def _pickle_words(content: bytes) -> str:
    """Say what to do about what `torch.save` or pickle wrote, which is never opened."""
    if not content.startswith((b"PK\x03\x04", b"\x80")):
        return ""
    return "; it looks pickled: write json.dumps(plan._serialize()) instead"


_KINDS: Final = {
    "table_wise": TableSharding.TABLE_WISE,
    "column_wise": TableSharding.COLUMN_WISE,
    "row_wise": TableSharding.ROW_WISE,
    "data_parallel": TableSharding.DATA_PARALLEL,
    "table_row_wise": TableSharding.ROW_WISE,
    "table_column_wise": TableSharding.COLUMN_WISE,
}
"""What each of TorchRec's ways is here: within a node or not, ranks are named."""
_IN_GPU_MEMORY: Final = ("dense", "fused", "quant")
"""Compute kernels that keep the whole table on the GPU."""
_PLACEMENT: Final = re.compile(r"rank:(\d{1,9})(?:/|$)")


def _modules_of(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
    """Return the tables of each module of a serialised plan, as TorchRec's `_serialize` writes it; None: it is none."""
    inner = document.get("plan")
    body = inner if isinstance(inner, dict) else document
    found = {name: tables for name, tables in body.items() if isinstance(tables, dict)}
    is_plan = any(
        isinstance(entry, dict) and "sharding_type" in entry for tables in found.values() for entry in tables.values()
    )
    return found if is_plan else None


def _plain_entries(
    file: str, modules: Mapping[str, Mapping[str, Any]], tables: Sequence[EmbeddingTable]
) -> dict[str, dict[str, Any]]:
    """Return TorchRec's plan by the names of the recording's tables: how each is shared, and its ranks.

    A table of TorchRec's is the one whose name ends with its own, in the module of that path where several do.
    Raises InputError for tables that the recording does not have, for ways and places that are not priced, and where
    its shards are not those of the recording's table.
    """
    by_end = group_by(tables, lambda table: table.name.rpartition(".")[2])
    found = dict[str, dict[str, Any]]()
    for module, entries in modules.items():
        for name, entry in entries.items():
            table = _find(file, module, name, by_end, tables)
            where = f"{file}: {clean_text(name)}"
            if table.name in found:
                raise InputError(f"{where}: {clean_text(table.name)} is planned twice")
            if not isinstance(entry, dict):
                raise InputError(f"{where}: expected an object with sharding_type and ranks, found {say_kind(entry)}")
            found[table.name] = _plain(where, entry, table)
    return found


def _find(
    file: str, module: str, name: str, by_end: Mapping[str, Sequence[EmbeddingTable]], tables: Sequence[EmbeddingTable]
) -> EmbeddingTable:
    found = [
        table for table in by_end.get(name.rpartition(".")[2], ()) if f".{table.name}".endswith(f".{name}")
    ]  # a name may hold points
    inside = [table for table in found if f".{module}." in f".{table.name}"]
    if len(found) > 1 and inside:
        found = inside
    if not found:
        known = list_names([table.name for table in tables])
        where = f"{file}: {clean_text(module)}: {clean_text(name)!r}"
        raise InputError(f"{where}: the recording has no table of that name; it has {known}")
    if len(found) > 1:
        names = list_names([table.name for table in found])
        raise InputError(f"{file}: {clean_text(module)}: {clean_text(name)!r} may be {names}: name its module as there")
    return found[0]


def _plain(where: str, entry: Mapping[str, Any], table: EmbeddingTable) -> dict[str, Any]:
    said, kernel = entry.get("sharding_type"), entry.get("compute_kernel", _IN_GPU_MEMORY[0])
    if not isinstance(said, str) or said not in _KINDS:
        shown = clean_text(said)[:40] if isinstance(said, str) else say_kind(said)
        raise InputError(f"{where}: sharding_type {shown}: not priced; expected one of {', '.join(_KINDS)}")
    if kernel not in _IN_GPU_MEMORY:
        shown = clean_text(str(kernel))[:40]
        raise InputError(f"{where}: compute_kernel {shown}: tables outside the GPU's memory are not modelled")
    kind, ranks = _KINDS[said], entry.get("ranks")
    if kind is TableSharding.DATA_PARALLEL:
        return {"sharding": kind.value}
    shards = list(_shards(where, entry))
    if shards:
        _check_sizes(where, kind, [sizes for sizes, _ in shards], table)
        placed = [rank for _, rank in shards if rank is not None]
        ranks = placed if len(placed) == len(shards) else ranks
    elif said == "table_row_wise":
        raise InputError(f"{where}: table_row_wise: expected its shards, which say the ranks of the node")
    if kind is TableSharding.COLUMN_WISE and isinstance(ranks, list) and len(ranks) == 1:
        kind = TableSharding.TABLE_WISE  # too narrow to be parted
    return {"sharding": kind.value, **({} if ranks is None else {"ranks": ranks})}


def _shards(where: str, entry: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int], int | None]]:
    """Yield the size and the rank of each shard that the plan describes."""
    shards = entry.get("shards") or []
    if not isinstance(shards, list):
        raise InputError(f"{where}: shards: expected a list, found {say_kind(shards)}")
    for at, shard in enumerate(shards):
        sizes = shard.get("shard_sizes") if isinstance(shard, dict) else None
        if not (isinstance(sizes, list) and len(sizes) == 2 and all(type(size) is int and size >= 0 for size in sizes)):
            raise InputError(f"{where}: shards[{at}]: expected shard_sizes of two numbers, [rows, columns]")
        rank = _PLACEMENT.match(str(shard.get("placement", "")))
        yield (sizes[0], sizes[1]), None if rank is None else int(rank[1])


def _check_sizes(where: str, kind: TableSharding, sizes: Sequence[tuple[int, int]], table: EmbeddingTable) -> None:
    """Raise InputError where shards are not parts of the recording's table, or are parts that are not priced."""
    rows, columns = [size[0] for size in sizes], [size[1] for size in sizes]
    is_by_rows = kind is TableSharding.ROW_WISE
    whole = (sum(rows), columns[0]) if is_by_rows else (rows[0], sum(columns))
    if whole != (table.rows, table.width):
        raise InputError(
            f"{where}: its shards make {whole[0]:,} rows of {whole[1]:,}, the recording's table "
            f"{clean_text(table.name)} has {table.rows:,} of {table.width:,}"
        )
    if not is_by_rows and len(set(columns)) > 1:
        raise InputError(
            f"{where}: column_wise: shards of {min(columns)} and {max(columns)} columns: only equal ones are priced"
        )
