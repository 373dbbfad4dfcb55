"""Reads the price lists that people keep, recognised by what they hold: CSV, TOML, zips and folders.

A user's own prices in TOML: on demand, spot, reserved, and what a GPU of one's own costs.
"""

import csv
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from ...errors import InputError, UnknownGpuError
from ..documents import Entry, check_keys, in_line, read_table, read_toml
from ..gpu import Catalog
from ..layout import Text
from ..match import find_gpus
from .columns import recognise_columns
from .listing import HIGHEST_USD_PER_HOUR, Listing, PriceKind, is_usable_price
from .names import resolve_given
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


HOURS_PER_YEAR: Final = 8766.0
_TABLES: Final[Mapping[str, PriceKind]] = {
    "usd_per_hour": PriceKind.ON_DEMAND,
    "on_demand": PriceKind.ON_DEMAND,
    "spot": PriceKind.SPOT,
    "reserved": PriceKind.RESERVED,
    "own": PriceKind.OWN,
}
_EXAMPLE: Final = "docs/reference/decide.md has a complete example"
_Usd = Annotated[float, Meta(ge=0, le=HIGHEST_USD_PER_HOUR, description=f"0 to {HIGHEST_USD_PER_HOUR:,.0f} $ per hour")]


class _Terms(Struct, kw_only=True, forbid_unknown_fields=True):
    cloud: Text | None = None
    term: Text | None = None
    listed_on: date | None = None


class _Price(_Terms, kw_only=True, forbid_unknown_fields=True):
    usd_per_hour: _Usd


class _Purchase(_Terms, kw_only=True, forbid_unknown_fields=True):
    purchase_usd: Annotated[float, Meta(ge=0.0, le=1e7)]
    years: Annotated[float, Meta(ge=0.01, le=30)]
    utilisation: Annotated[float, Meta(ge=0.001, le=1)] = 1.0
    watts: Annotated[float, Meta(ge=0.0, le=1e5)] | None = None
    pue: Annotated[float, Meta(ge=1.0, le=10)] = 1.0
    usd_per_kwh: Annotated[float, Meta(ge=0.0, le=100)]


def read_own_toml(path: Path, catalog: Catalog) -> tuple[Listing, ...]:
    """Return the prices of a user's TOML file. Raises InputError for what is no price, UnknownGpuError for no GPU."""
    document, file = _dated(read_toml(path)), path.name
    check_keys(document, (*_TABLES, "listed_on", "usd_per_kwh"), file)
    usual: Entry = {key: document[key] for key in ("listed_on", "usd_per_kwh") if key in document}
    if "listed_on" in usual:
        read_table(usual["listed_on"], date, f"{file}: listed_on")
    listings = [
        _listing(f"{file}: {table}, {in_line(name)}", name, value, kind, catalog, usual, file)
        for table, kind in _TABLES.items()
        for name, value in read_table(document.get(table, {}), Entry, f"{file}: {table}").items()
    ]
    if not listings:
        raise InputError(f"{file}: expected a table [usd_per_hour], [spot], [reserved] or [own] of prices")
    return tuple(listings)


def own_usd_per_hour(
    *, purchase_usd: float, years: float, utilisation: float, watts: float, pue: float, usd_per_kwh: float
) -> float:
    """Return what a GPU of one's own costs per hour in which it works: purchase written off, plus power.

    purchase / (years x 8,766 h x utilisation) + watts / 1000 x PUE x $ per kWh: the purchase is spread over the hours
    in which the GPU is used, power is paid in these hours, for the whole machine where `watts` and the purchase are
    its share. Idle power, room and staff are not in it.

    >>> own_usd_per_hour(purchase_usd=8766, years=1, utilisation=0.5, watts=1000, pue=1.5, usd_per_kwh=0.2)
    2.3
    """
    return purchase_usd / (years * HOURS_PER_YEAR * utilisation) + watts / 1000 * pue * usd_per_kwh


def _listing(where: str, name: str, value: Any, kind: PriceKind, catalog: Catalog, usual: Entry, file: str) -> Listing:
    """Return what a file says of a name; `usual` is what it says of all."""
    try:
        gpus, count = resolve_given(catalog, name)
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{where}: {error}") from None
    if not isinstance(value, dict):
        value = {"usd_per_hour": read_table(value, _Usd, where)}
    terms: _Price | _Purchase
    listed = {"listed_on": usual["listed_on"]} if "listed_on" in usual else {}
    if kind is PriceKind.OWN and "usd_per_hour" not in value:
        terms = read_table({**usual, **_dated(value)}, _Purchase, where, example=_EXAMPLE)
        price = own_usd_per_hour(
            purchase_usd=terms.purchase_usd,
            years=terms.years,
            utilisation=terms.utilisation,
            watts=find_gpus(catalog, name)[0].tdp_w if terms.watts is None else terms.watts,
            pue=terms.pue,
            usd_per_kwh=terms.usd_per_kwh,
        )
        if not is_usable_price(price):
            raise InputError(
                f"{where}: this comes to {price:,.0f} $ per hour; expected at most {HIGHEST_USD_PER_HOUR:,.0f}"
            )
    else:
        terms = read_table({**listed, **_dated(value)}, _Price, where, example=_EXAMPLE)
        price = terms.usd_per_hour / count
    return Listing(
        gpus=gpus, usd_per_hour=price, kind=kind, listed_as=name, cloud=terms.cloud, term=terms.term, source=file,
        listed_on=None if terms.listed_on is None else terms.listed_on.isoformat(),
    )  # fmt: skip


def _dated(table: Entry) -> Entry:
    """Return a table with days where it has times of day."""
    return {key: value.date() if isinstance(value, datetime) else value for key, value in table.items()}
