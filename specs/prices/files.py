"""Reads the price lists that people keep, recognised by what they hold: CSV, TOML, zips and folders."""

import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Final

from ...errors import InputError
from ..gpu import Catalog
from .columns import recognise_columns
from .listing import Listing
from .own import read_own_toml
from .rows import PriceReading, cells_of, read_rows

MOST_BYTES: Final = 256 * 2**20
"""Of a file, and of all that a zip or a folder holds."""
_MOST_FILES: Final = 400
_ZIP_MAGIC: Final = b"PK\x03\x04"
_EXPECTED: Final = (
    "expected a price list: CSV with columns gpu and usd_per_hour, gpuhunt's or SkyPilot's catalogue, or TOML "
    "(see docs/reference/decide.md)"
)
_FILE_OF_CLOUD: Final = frozenset({"vms", "instances", "catalog", "prices"})
"""File names that say nothing of the cloud: SkyPilot's lie in a folder of its name."""


def read_price_file(path: Path, catalog: Catalog) -> tuple[tuple[Listing, ...], tuple[str, ...]]:
    """Return the listings of a price list, and what is to be said of what was passed over.

    Raises InputError, in one line, for what is no price list or too large, UnknownGpuError for a GPU in a user's own
    list that nothing has.

    >>> path = folder / "mine.csv"
    >>> _ = path.write_text("gpu,usd_per_hour\\nL40S,0.79\\n")
    >>> [(item.gpus, item.usd_per_hour) for item in read_price_file(path, catalog)[0]]
    [(('L40S',), 0.79)]
    """
    try:
        return _read(path, catalog)
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror or error}") from None


def _read(path: Path, catalog: Catalog) -> tuple[tuple[Listing, ...], tuple[str, ...]]:
    reading = PriceReading(catalog=catalog, file=path.name or path.resolve().name)
    if path.is_dir():
        _read_folder(reading, path)
    else:
        _check_size(path.name, path.stat().st_size)
        with path.open("rb") as file:
            start = file.read(len(_ZIP_MAGIC))
        if start == _ZIP_MAGIC:
            _read_zip(reading, path)
        elif path.suffix.lower() == ".toml":
            return read_own_toml(path, catalog), ()
        else:
            _read_csv(reading, path.read_bytes(), path.name, _cloud_of(path))
    found = reading.listings()
    if not found:
        said = f" ({reading.notes()[0].removeprefix(f'{reading.file}: ')})" if reading.notes() else ""
        raise InputError(f"{path.name}: no price of a known GPU in {reading.rows:,} rows{said}")
    return found, reading.notes()


def _read_folder(reading: PriceReading, folder: Path) -> None:
    """Read what a folder holds of SkyPilot's (`aws/vms.csv`) or gpuhunt's (`aws.csv`) catalogue."""
    paths = sorted(path for pattern in ("*.csv", "*/vms.csv") for path in folder.glob(pattern) if path.is_file())
    if not paths:
        raise InputError(f"{folder.name}: no price list in this folder; {_EXPECTED}")
    if len(paths) > _MOST_FILES:
        raise InputError(f"{folder.name}: {len(paths):,} files; expected at most {_MOST_FILES}")
    _check_size(folder.name, sum(path.stat().st_size for path in paths))
    for path in paths:
        _read_csv(reading, path.read_bytes(), path.name, _cloud_of(path), is_part=True)


def _read_zip(reading: PriceReading, path: Path) -> None:
    """Read a zip of CSV files, gpuhunt's catalogue; each is about the cloud that it is named after."""
    left = MOST_BYTES
    try:
        with zipfile.ZipFile(path) as archive:
            members = [item for item in archive.infolist() if item.filename.lower().endswith(".csv")]
            if not members or len(members) > _MOST_FILES:
                raise InputError(f"{path.name}: {len(members):,} CSV files in this zip; {_EXPECTED}")
            for member in members:
                with archive.open(member) as file:
                    data = file.read(left + 1)
                left -= len(data)
                if left < 0:
                    raise InputError(f"{path.name}: more than {MOST_BYTES >> 20} MiB when unpacked")
                before = dict(reading.best)
                _read_csv(reading, data, path.name, Path(member.filename).stem, is_part=True)
                _date_new(reading, before.keys(), _date_of(member))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise InputError(f"{path.name}: this zip cannot be read: {error}") from None
    except Exception as error:
        if type(error).__module__ not in {"zlib", "_lzma"}:
            raise
        raise InputError(f"{path.name}: this zip is damaged: {error}") from None


def _date_of(member: zipfile.ZipInfo) -> str | None:
    """Return the day on which a file was put into a zip; None where it was not kept."""
    year, month, day = member.date_time[:3]
    try:
        return date(year, month, day).isoformat() if year > 1980 else None
    except ValueError:
        return None


def _date_new(reading: PriceReading, before: Any, day: str | None) -> None:
    """Date the listings that have none and that a member of a zip brought."""
    for key in [key for key in reading.best if key not in before]:
        listing = reading.best.pop(key)
        reading.keep(listing if listing.listed_on or day is None else replace(listing, listed_on=day))


def _read_csv(reading: PriceReading, data: bytes, where: str, cloud: str | None, *, is_part: bool = False) -> None:
    """Read CSV; of one file among several, what is no price list is passed over."""
    try:
        text = data.decode("utf-8-sig")
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next((row for row in rows if any(cell.strip() for cell in row)), None)
        if header is None:
            raise InputError(f"{where}: it is empty; {_EXPECTED}")
        columns = recognise_columns(header)
        if columns is not None:
            read_rows(reading, columns, cells_of(header, rows), cloud)
        elif not is_part:
            _read_pairs(reading, where, header, rows)
    except UnicodeDecodeError:
        raise InputError(f"{where}: it is no text in UTF-8; {_EXPECTED}") from None
    except csv.Error as error:
        raise InputError(f"{where}: {_EXPECTED}: {error}") from None


def _read_pairs(reading: PriceReading, where: str, first: list[str], rest: Iterator[list[str]]) -> None:
    """Read a list without a header: a GPU's name and its price on each line."""
    columns = recognise_columns(["gpu", "usd_per_hour"])
    if len(first) != 2 or columns is None:
        raise InputError(f"{where}: its columns do not tell GPU and price ({', '.join(first)[:80]}); {_EXPECTED}")

    def pairs() -> Iterator[dict[str, str]]:
        for number, row in enumerate([first, *rest], 1):
            if row and len(row) != 2:
                raise InputError(f"{where}: line {number}: expected a name and a price, found {len(row)} columns")
            if row:
                yield {"gpu": row[0], "usd_per_hour": row[1]}

    read_rows(reading, columns, pairs(), None, line=1)


def _cloud_of(path: Path) -> str | None:
    """Return the cloud that a list is about, by its name or its folder's."""
    return path.parent.name or None if path.stem.casefold() in _FILE_OF_CLOUD else path.stem


def _check_size(name: str, size: int) -> None:
    if size > MOST_BYTES:
        raise InputError(f"{name}: {size / 2**20:,.0f} MiB; expected at most {MOST_BYTES >> 20} MiB")
