"""Measurement tables as columns, joined with the GPU catalogue."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, NoReturn

import numpy as np
import numpy.typing as npt

from ...arrays import Floats
from ...errors import InputError
from ...formats.measured.ops_file import MeasuredOps, read_ops
from ...formats.trace.printable import clean_text
from ...records import dataclass, field, replace
from ...specs.catalog import load_catalog
from ...specs.fleet import Fleet, build_fleet, take_gpus
from ...specs.gpu import Catalog, Gpu
from ...specs.match import find_gpu
from ..models.frame.problems import P, take_problems
from ..work.table import WorkTable
from .table_columns import check_column, shown_path

TableColumn = npt.NDArray[Any]
OPS: Final = "ops"
"""The folder that tables of single ops lie in."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples(Generic[P]):
    """Hold n measurements that one model predicts: problem columns [n], the GPU of each, and the measured time."""

    table: str
    """File they come from, e.g. `ops/matmul.parquet`."""
    model: str
    """Name of the model."""
    problems: P
    gpus: tuple[Gpu, ...]
    gpu: npt.NDArray[np.int64]
    """Index into `gpus`, [n]."""
    measured_ns: Floats
    family: TableColumn
    """What the score groups by beside dtype and GPU, e.g. `matmul`, `attention prefill (trtllm)`; object array [n]."""
    dtype: TableColumn
    """As the table writes it; object array [n]."""
    share: Floats
    """`shape_share` of each row's sizes: training draws its shapes by it."""
    work: WorkTable | None = None
    """The least work of each row, [n], for the score's roofline; None: it shows none."""
    peers_ns: Mapping[str, Floats] = field(default_factory=dict)
    """Predictions by others that the table holds, by name, [n]; NaN where they have none."""
    notes: tuple[str, ...] = ()
    """Which rows of the table were left out, and why."""

    @property
    def fleet(self) -> Fleet:
        """Return one GPU per row."""
        return take_gpus(build_fleet(self.gpus), self.gpu)


def take_samples(samples: Samples[P], rows: npt.NDArray[np.int64]) -> Samples[P]:
    """Return some rows."""
    work = samples.work
    if work is not None:
        work = WorkTable(flops=work.flops[rows], moved_bytes=work.moved_bytes[rows], rate=work.rate[rows])
    return replace(
        samples,
        problems=take_problems(samples.problems, rows),
        gpu=samples.gpu[rows],
        measured_ns=samples.measured_ns[rows],
        family=samples.family[rows],
        dtype=samples.dtype[rows],
        share=samples.share[rows],
        work=work,
        peers_ns={name: values[rows] for name, values in samples.peers_ns.items()},
    )


class MeasurementTable(dict[str, TableColumn]):
    """Hold a table's columns by name; asking for one that the file lacks is an InputError that names both."""

    def __init__(self, path: Path, columns: Mapping[str, TableColumn]) -> None:
        super().__init__(columns)
        self.path = path

    def __missing__(self, name: str) -> NoReturn:
        raise InputError(f"{shown_path(self.path)}: no column {name!r}; found are {', '.join(self)}")


def read_table(path: Path, columns: Sequence[str] | None = None, *, may_lack: Collection[str] = ()) -> MeasurementTable:
    """Read a parquet table as numpy columns; text columns come as object arrays.

    Where the table's directory is a file of `wavecast measure`, it is read from that file, without pyarrow.
    Raises InputError where pyarrow is not installed, where the file is no such table or lacks a column, and at the
    first value that no measurement has (`check_column`). Values of the columns `may_lack` may be missing, numbers be 0.

    >>> read_table(tables / "ops" / "matmul.parquet", ["gpu", "m"])["m"][:3]
    array([256, 512, 768])
    """
    measured = _measured_file(path)
    found = MeasurementTable(path, _read_columns(path, columns) if measured is None else _columns_of(measured, path))
    for name in columns or ():
        _ = found[name]
    for name, values in found.items():
        check_column(path, name, values, may_lack=name in may_lack)
    return found


def _to_numpy(column: Any) -> TableColumn:
    """Return the values; those of a dictionary of nothing, which pyarrow cannot turn into objects, are None."""
    if not column.null_count < len(column):
        return np.full(len(column), None, dtype=object)
    values: TableColumn = column.to_numpy(zero_copy_only=False)
    return values


def has_rows(path: Path) -> bool:
    """Say whether a table exists, as a parquet file or in a file of `wavecast measure`, and holds a row."""
    measured = _measured_file(path)
    if measured is not None:
        return path.stem in measured.tables and any(measured.tables[path.stem][1].values())
    if not path.exists():
        return False
    with _open(path) as file:
        return int(file.metadata.num_rows) > 0


def _measured_file(path: Path) -> MeasuredOps | None:
    """Return what `wavecast measure` wrote where `path` is `FILE/ops/NAME.parquet` within it; None: a parquet file."""
    whole = path.parent.parent
    return read_ops(whole) if path.parent.name == OPS and whole.is_file() else None


def _columns_of(measured: MeasuredOps, path: Path) -> dict[str, TableColumn]:
    if path.stem not in measured.tables:
        raise InputError(f"{path}: no such table")
    run, columns = measured.tables[path.stem]
    alike = {"gpu": measured.gpu, "source": f"wavecast/{run.wavecast}", "kernel": None, "suspect": False}
    count = len(next(iter(columns.values()), ()))
    return {name: _array(path, name, values) for name, values in columns.items()} | {
        name: np.full(count, value, dtype=None if value is False else object) for name, value in alike.items()
    }


def _array(path: Path, name: str, values: Sequence[Any]) -> TableColumn:
    """Return numbers as float64, NaN where there is none; flags as bool, anything else as objects."""
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {bool} and None not in values:
        return np.array(values, dtype=bool)
    if not kinds or not kinds <= {int, float}:
        return np.array([*values, None], dtype=object)[:-1]
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{shown_path(path)}: {name}: expected numbers of at most 64 bits") from None


def _read_columns(path: Path, columns: Sequence[str] | None) -> dict[str, TableColumn]:
    with _open(path) as file:
        names = file.schema_arrow.names
        wanted = [name for name in columns or names if name in names]
        twice = next((name for name in wanted if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{path}: column {twice!r} stands twice")
        table = file.read(columns=wanted)
        return {name: _to_numpy(table.column(name)) for name in wanted}


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("measurement tables are read with pyarrow: pip install 'wavecast[score]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such table") from error
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no readable parquet table ({error})") from error


def gpus_of(names: TableColumn, catalog: Catalog | None = None) -> tuple[tuple[Gpu, ...], npt.NDArray[np.int64]]:
    """Return the catalogue's GPUs (default: the built-in one's) of a column of names and each row's index."""
    distinct, index = np.unique(names.astype(str), return_inverse=True)
    catalog = catalog or load_catalog()
    return tuple(find_gpu(catalog, name) for name in distinct.tolist()), index.astype(np.int64)


def keep_known(
    table: MeasurementTable, known: Mapping[str, Collection[str] | None], catalog: Catalog | None = None
) -> tuple[MeasurementTable, tuple[str, ...]]:
    """Return the rows whose texts in these columns are known, and a note for each text that is not.

    `known`: by column; None: names of GPUs, which the catalogue knows (None: the built-in one).
    """
    notes: list[str] = []
    for name, listed in known.items():
        texts = table[name].astype(str)
        strange = sorted(text for text in set(texts.tolist()) if not _is_known(text, listed, catalog))
        file = f"{table.path.parent.name}/{table.path.name}"
        notes += (
            f"{int((texts == text).sum()):,} rows of {file} left out: {name} {clean_text(text)[:40]!r} is not known"
            for text in strange
        )
        table = pick(table, ~np.isin(texts, strange)) if strange else table
    return table, tuple(notes)


def _is_known(text: str, known: Collection[str] | None, catalog: Catalog | None) -> bool:
    if known is not None:
        return text in known
    try:
        find_gpu(catalog or load_catalog(), text)
    except InputError:
        return False
    return True


def samples_of(
    table: MeasurementTable,
    model: str,
    problems: P,
    catalog: Catalog | None,
    *,
    family: str | Sequence[str] | TableColumn,
    share: Floats,
    dtype: str | Sequence[str] | TableColumn | None = None,
) -> Samples[P]:
    """Return the rows of a table as measurements of these problems, by their `gpu` and `latency_us`.

    `family` and `dtype` are of each row, or the same of all; None: the dtype that the table writes.
    """
    gpus, gpu = gpus_of(table["gpu"], catalog)

    def labels(given: str | Sequence[str] | TableColumn) -> TableColumn:
        return np.full(len(gpu), given, dtype=object) if isinstance(given, str) else np.asarray(given, dtype=object)

    return Samples(
        table=f"{table.path.parent.name}/{table.path.name}",
        model=model,
        problems=problems,
        gpus=gpus,
        gpu=gpu,
        measured_ns=table["latency_us"].astype(np.float64) * 1e3,
        family=labels(family),
        dtype=labels(table["dtype"].astype(str) if dtype is None else dtype),
        share=share,
    )


def pick(table: MeasurementTable, keep: TableColumn) -> MeasurementTable:
    """Return the rows where `keep` holds.

    >>> table = read_table(tables / "ops" / "matmul.parquet")
    >>> pick(table, table["m"] > 10_000)["m"]
    array([10240])
    """
    return MeasurementTable(table.path, {name: column[keep] for name, column in table.items()})


def records_of(table: Mapping[str, TableColumn]) -> list[dict[str, Any]]:
    """Return the rows of a table as mappings by column.

    >>> records_of({"m": np.array([1, 2]), "dtype": np.array(["bf16", "fp8"])})
    [{'m': 1, 'dtype': 'bf16'}, {'m': 2, 'dtype': 'fp8'}]
    """
    return [
        dict(zip(table, row, strict=True)) for row in zip(*(column.tolist() for column in table.values()), strict=True)
    ]


def shape_share(*sizes: TableColumn) -> Floats:
    """Return a number in [0, 1) that depends on a row's sizes alone: the same shapes are drawn on every GPU."""
    mixed = np.full(len(sizes[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in sizes:
        mixed ^= column.astype(np.uint64)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
