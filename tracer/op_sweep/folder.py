"""The folder that measurements of one GPU are kept in: ops/*.parquet and meta.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from ...errors import InputError, OutputError, parameter
from ...formats.files.destinations import check_destinations
from ...formats.files.open import write_atomic
from ...version import __version__
from .local_gpu import read_gpu_state
from .sweep import SOURCE, Sweep
from .tables import read_origins, write_table
from .timing import HOST

META: Final = "meta.json"
FORMAT: Final = "wavecast.measurements"


def check_inputs(folder: Path, inputs: Mapping[str, Path | None]) -> None:
    """Raise OutputError where a file of the folder that is to be written is read as well."""
    given = {label: path for label, path in inputs.items() if path is not None}
    for path in (folder / META, *_tables(folder)):
        if path.is_file():
            check_destinations({"-o": path}, given)


def open_folder(folder: Path, gpu: str, device: str) -> None:
    """Make the folder where it does not exist.

    Raises OutputError where it cannot be made or holds something else: tables of another origin, another GPU's, or a
    CPU's times beside a GPU's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    families = _read_families(folder)
    if not families:
        _check_unfinished(folder, gpu, device)
    for found in families.values():
        if found["gpu"] != gpu:
            raise OutputError(f"{folder}: holds measurements of {found['gpu']}; name another folder for {gpu} with -o")
        if found["device"] != device:
            raise OutputError(
                f"{folder}: was measured with {parameter('device', found['device'])}; name another folder with -o"
            )


def save(folder: Path, family: str, sweep: Sweep) -> None:
    """Write the family's tables, then meta.json with what it says of families that were measured before."""
    for table, rows in sweep.rows.items():
        write_table(folder, table, rows)
    families = _read_families(folder) | {family: _describe_run(sweep)}
    text = json.dumps({"format": FORMAT, "families": families}, indent=1)
    write_atomic(folder / META, f"{text}\n".encode())


def _check_unfinished(folder: Path, gpu: str, device: str) -> None:
    """Accept tables that nothing describes where they are our own: what a run left that ended before meta.json."""
    for path in _tables(folder):
        origins = read_origins(path)
        if origins is None or not all(
            source.startswith(SOURCE) and name == gpu and (timing == HOST) == (device == "cpu")
            for name, source, timing in origins
        ):
            raise OutputError(f"{folder}: holds tables that were not measured here; name another folder with -o")


def _tables(folder: Path) -> list[Path]:
    return sorted((folder / "ops").glob("*.parquet"))


def _read_families(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / META
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_bytes())
        families = dict(document["families"])
        if document["format"] == FORMAT and all(found["gpu"] and found["device"] for found in families.values()):
            return families
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise InputError(f"{path}: expected what 'wavecast measure' writes; name another folder with -o")


def _describe_run(sweep: Sweep) -> dict[str, Any]:
    is_gpu = sweep.device == "cuda"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": sweep.gpu,
        "device": sweep.device,
        "wavecast": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if is_gpu else None,
        "gpu_state": read_gpu_state() if is_gpu else {},
        "row_counts": {table: len(rows) for table, rows in sorted(sweep.rows.items())},
        "left_out_counts": dict(sorted(sweep.left_out.items())),
    }
