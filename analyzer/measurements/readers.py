"""The measurement tables that can be scored, and who reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ...errors import InputError
from ...specs.gpu import Catalog
from .samples import Samples, table_row_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Name the module that reads a table, and its function: directory, catalogue -> samples."""

    table: str
    module: str
    function: str = "load_samples"


READERS: Final = (
    Reader(table="ops/matmul.parquet", module=".matmul"),
    Reader(table="ops/matmul.parquet", module=".matmul", function="load_quantized_samples"),
    Reader(table="ops/matmul.parquet", module=".matmul_simt"),
    Reader(table="ops/attention.parquet", module=".attention"),
    Reader(table="ops/vector.parquet", module=".vector"),
    Reader(table="ops/convolution.parquet", module=".convolution"),
    Reader(table="models/neusight_ops.parquet", module="..accuracy.score.nodes"),
)
TABLES: Final = tuple(dict.fromkeys(reader.table for reader in READERS))
MODEL_TABLES: Final = ("models/neusight_e2e.parquet", "models/throughput.parquet")
TRACES: Final = "traces"


def load_tables(data: Path, catalog: Catalog | None = None) -> Iterator[Samples[Any]]:
    """Yield the samples of every table that the directory holds, those with rows; `catalog` None: the built-in one."""
    for reader in READERS:
        path = data / reader.table
        if path.exists() and table_row_count(path):
            load = getattr(import_module(reader.module, __package__), reader.function)
            yield from (samples for samples in load(data, catalog) if len(samples.measured_ns))


def check_directory(data: Path) -> None:
    """Raise InputError where the directory holds nothing that can be scored."""
    if not data.is_dir():
        raise InputError(f"{data}: no such directory; expected one with {', '.join(TABLES)} or {TRACES}/")
    known = (*TABLES, *MODEL_TABLES, TRACES)
    if not any((data / name).exists() for name in known):
        raise InputError(f"{data}: nothing to score; expected at least one of {', '.join(known)}")
