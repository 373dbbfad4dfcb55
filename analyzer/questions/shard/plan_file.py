"""Reads a plan of embedding tables from a file: the user's own, what `shard` wrote, or TorchRec's."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from ....errors import InputError, parameter
from ....formats.trace.printable import clean_text
from .plan import TablePlacement, read_entries, say_kind
from .tables import EmbeddingTable
from .torchrec_plan import PRINTED, modules_of, plain_entries, read_printed

MOST_FILE_BYTES: Final = 64 * 2**20


def load_placements(path: Path, tables: Sequence[EmbeddingTable], gpu_count: int) -> tuple[TablePlacement, ...]:
    """Read a plan: JSON or TOML with `tables`, by name `{"sharding": …, "ranks": […]}`, in the order of `tables`.

    What `wavecast shard --format json` writes is one, too: its proposed plan is taken. So is a plan of TorchRec's,
    serialised or printed. Raises InputError, in one line, for what is no plan, for tables that the recording does not
    have or that the plan leaves out, and for ranks beyond the GPUs.
    """
    document = _read(path)
    modules = modules_of(document)
    if modules is not None:
        return read_entries(path.name, plain_entries(path.name, modules, tables), tables, gpu_count)
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
        if content.startswith(PRINTED.encode()):
            return read_printed(path.name, content.decode())
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
    return "; it looks pickled: write json.dumps(plan._serialize()), or print(plan), instead"
