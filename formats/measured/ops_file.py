"""Reads and writes what `wavecast measure` measured: one GPU's op times in one file, which names no host or person.

A file holds a GPU's name, what software ran, and columns of sizes and times. `_COLUMN`, `_STATE` and `_TABLE` list all
that can stand there: a file with anything else is refused, so that what is given to others gives nothing away.
"""

import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from ...errors import TraceError
from ..files.open import pack_gzip, read_bytes, write_atomic
from ..trace.printable import clean_text

OPS_FORMAT: Final = "wavecast.measurements"
OPS_VERSION: Final = "1.0"
_MAX_BYTES: Final = 1 << 28
_TABLE = Literal[
    "attention", "attention_train", "convolution", "convolution_train", "matmul", "matmul_train", "recurrent", "vector",
    "vector_train",
]  # fmt: skip
_COLUMN = Literal[
    "batch", "bidirectional", "bytes_read", "bytes_written", "c_in", "c_out", "cols", "direction", "dtype", "head_dim",
    "heads", "hidden_size", "inner", "input_product", "input_size", "k", "kernel_size", "kv_dtype", "kv_heads",
    "latency_us", "layers", "m", "n", "op", "output_size", "padding", "phase", "rows", "seq_kv", "seq_q", "steps",
    "stride", "timing", "window",
]  # fmt: skip
_STATE = Literal["driver_version", "clocks.max.sm", "clocks.max.memory", "clocks.sm", "clocks.memory", "power.limit"]
Columns = dict[_COLUMN, list[str | bool | int | float | None]]
"""Name → a value for each row, the columns of `ops/*.parquet` without those that are the same in all rows."""


class MeasuredFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hold one family's tables, and when and with what they were measured."""

    date: datetime.date
    """Day of the measurement, e.g. `2026-11-23`."""
    wavecast: str
    """Its version, as all versions here."""
    torch: str
    cuda: str | None = None
    cudnn: int | None = None
    gpu_state: dict[_STATE, str] = {}
    """Driver, clocks (MHz) and power limit (W) as `nvidia-smi` tells them."""
    left_out_counts: dict[Literal["out_of_memory", "unsupported"], int] = {}
    tables: dict[_TABLE, Columns] = {}


class MeasuredOps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold what was measured of one GPU."""

    format: Literal["wavecast.measurements"] = OPS_FORMAT
    version: str = OPS_VERSION
    gpu: str
    """Its name in the catalogue; the driver's where the catalogue does not hold it."""
    device: Literal["cuda", "cpu"]
    """What ran: a CPU only tries the sweep out."""
    families: dict[str, MeasuredFamily] = {}

    @property
    def tables(self) -> Mapping[str, tuple[MeasuredFamily, Columns]]:
        """Return all tables by name, each with the run that measured it."""
        return {name: (run, columns) for run in self.families.values() for name, columns in run.tables.items()}


def read_ops(path: str | Path) -> MeasuredOps:
    """Return what a file of `wavecast measure` holds. Raises InputError or TraceError, which begin with its name.

    >>> save_ops(folder / "l40s.json.gz", MeasuredOps(gpu="L40S", device="cuda"))
    >>> read_ops(folder / "l40s.json.gz").gpu
    'L40S'
    """
    data = read_bytes(path, max_bytes=_MAX_BYTES)
    try:
        found = msgspec.json.decode(data, type=MeasuredOps)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: expected what 'wavecast measure' writes: {clean_text(str(error))}") from None
    if re.fullmatch(r"1\.[0-9]{1,9}", found.version) is None:
        shown = repr(found.version)[:20]
        raise TraceError(f"{path}: $.version: expected one like {OPS_VERSION!r}, found {shown}; update wavecast")
    for name, (_, columns) in found.tables.items():
        if len({len(column) for column in columns.values()}) > 1:
            raise TraceError(f"{path}: {name}: expected columns of equal length")
    return found


def save_ops(path: str | Path, found: MeasuredOps) -> None:
    """Write measured ops, gzipped where the name ends in `.gz`. Raises OutputError where that cannot be."""
    data = msgspec.json.encode(found) + b"\n"
    write_atomic(path, pack_gzip(data) if str(path).endswith(".gz") else data)
