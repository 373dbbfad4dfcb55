"""The rows of a price list as listings: of each GPU, cloud and kind the cheapest of a day."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any, Final

from ...errors import InputError
from ...records import dataclass, field, replace
from ..gpu import Catalog
from ..match import find_gpus
from .columns import PriceColumns
from .listing import HIGHEST_USD_PER_HOUR, Listing, PriceKind, is_usable_price
from .names import ListedNames

MOST_ROWS: Final = 5_000_000
_DATE: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ].*)?", re.S)
_MIB: Final = re.compile(r"'?\"?SizeInMiB'?\"?+:\s*(\d{1,9})")
_KIND_WORDS: Final = {
    "own": PriceKind.OWN, "spot": PriceKind.SPOT, "preemptible": PriceKind.SPOT, "interruptible": PriceKind.SPOT,
    "reserved": PriceKind.RESERVED, "committed": PriceKind.RESERVED, "commitment": PriceKind.RESERVED,
    "ondemand": PriceKind.ON_DEMAND, "demand": PriceKind.ON_DEMAND, "payg": PriceKind.ON_DEMAND,
    "": PriceKind.ON_DEMAND, "secure": PriceKind.ON_DEMAND, "community": PriceKind.ON_DEMAND,
}  # fmt: skip
_TRUE: Final = frozenset({"true", "1", "yes"})
_Key = tuple[tuple[str, ...], PriceKind, str | None, str | None, str | None]


@dataclass(slots=True)
class PriceReading:
    """Gather what comes of a list's rows."""

    catalog: Catalog
    file: str
    rows: int = 0
    without_price: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    """Names of accelerators that the catalogue does not hold, with their rows."""
    best: dict[_Key, Listing] = field(default_factory=dict)
    hosts: dict[tuple[str, str, PriceKind], float] = field(default_factory=dict)
    """$ per GPU, region and kind that a machine costs beside its GPUs, where a list tells them apart."""
    bare: list[tuple[Listing, str]] = field(default_factory=list)
    """Prices of GPUs alone, with their region."""
    names: ListedNames = field(init=False)

    def __post_init__(self) -> None:
        self.names = ListedNames(self.catalog)

    def keep(self, listing: Listing) -> None:
        """Keep a listing where it is the cheapest of its GPU, cloud, kind and day."""
        key = (listing.gpus, listing.kind, listing.cloud, listing.listed_on, listing.term)
        if key not in self.best or listing.usd_per_hour < self.best[key].usd_per_hour:
            self.best[key] = listing

    def listings(self) -> tuple[Listing, ...]:
        """Return what was kept, with the hosts' share added to the prices of GPUs alone."""
        for listing, region in self.bare:
            shares = [self.hosts.get((gpu, region, listing.kind), 0.0) for gpu in listing.gpus]
            self.keep(replace(listing, usd_per_hour=listing.usd_per_hour + max(shares)))
        self.bare.clear()
        return tuple(self.best.values())

    def notes(self) -> tuple[str, ...]:
        """Return a sentence on what was passed over, where anything was."""
        parts = []
        if self.unknown:
            shown = ", ".join(name for name, _ in self.unknown.most_common(3))
            more = f" and {len(self.unknown) - 3:,} more" if len(self.unknown) > 3 else ""
            parts.append(f"{self.unknown.total():,} rows of what the catalogue does not hold ({shown}{more})")
        if self.without_price:
            parts.append(f"{self.without_price:,} rows without a usable price")
        return (f"{self.file}: passed over {' and '.join(parts)}",) if parts else ()


def read_rows(
    reading: PriceReading, columns: PriceColumns, rows: Iterable[Mapping[str, Any]], cloud: str | None, line: int = 2
) -> None:
    """Gather the listings of a list, whose first row stands in `line`; `cloud` is its cloud, where rows do not say it.

    Raises InputError for a mistake in a user's own list; in a list that others made, what is not usable is counted.
    """
    for number, row in enumerate(rows, line):
        if number > MOST_ROWS:
            raise InputError(f"{reading.file}: more than {MOST_ROWS:,} rows; cut it to the clouds that you use")
        reading.rows += 1
        if columns.is_strict:
            _read_own(reading, columns, row, number)
        else:
            _read_listed(reading, columns, row, cloud)


def _read_own(reading: PriceReading, columns: PriceColumns, row: Mapping[str, Any], number: int) -> None:
    name = _text(row, columns.name)
    if not name or not (_text(row, columns.price) or _text(row, columns.spot_price)):
        return
    where = f"{reading.file}: line {number}"
    for column, default in ((columns.price, PriceKind.ON_DEMAND), (columns.spot_price, PriceKind.SPOT)):
        text = _text(row, column)
        if not text:
            continue
        price = _number(text)
        if price is None or not is_usable_price(price):
            raise InputError(
                f"{where}: expected {column} as 0 to {HIGHEST_USD_PER_HOUR:,.0f} $ per hour, found {text!r}"
            )
        kind = _kind(row, columns, default)
        if kind is None:
            raise InputError(f"{where}: expected {columns.kind} as {', '.join(PriceKind)}, found {row[columns.kind]!r}")
        gpus = tuple(gpu.name for gpu in find_gpus(reading.catalog, name))
        reading.keep(
            Listing(
                gpus=gpus, usd_per_hour=price, kind=kind, term=_text(row, columns.term) or None,
                listed_on=_date(row, columns), listed_as=name, source=reading.file,
            )
        )  # fmt: skip


def _read_listed(reading: PriceReading, columns: PriceColumns, row: Mapping[str, Any], cloud: str | None) -> None:
    name, instance = _text(row, columns.name), _text(row, columns.instance)
    if not name:
        _keep_host(reading, columns, row, instance)
        return
    count = 1.0 if columns.is_per_gpu or not columns.count else _number(_text(row, columns.count)) or 0.0
    memory = _number(_text(row, columns.memory)) or _stated_memory(_text(row, columns.memory_text), count)
    gpus = reading.names.find(name, memory, instance or None)
    if not gpus:
        reading.unknown[name[:40]] += 1
        return
    priced = False
    for column, default in ((columns.price, PriceKind.ON_DEMAND), (columns.spot_price, PriceKind.SPOT)):
        price, kind = _number(_text(row, column)), _kind(row, columns, default)
        if price is None or kind is None or count <= 0 or not 0 < price / count <= HIGHEST_USD_PER_HOUR:
            continue
        if columns.currency and _text(row, columns.currency).upper() not in {"", "USD"}:
            continue
        priced = True
        listing = Listing(
            gpus=tuple(gpu.name for gpu in gpus), usd_per_hour=price / count, kind=kind,
            cloud=_text(row, columns.cloud)[:40] or cloud, instance=instance[:80] or None,
            term=_text(row, columns.term)[:40] or None, listed_on=_date(row, columns), listed_as=name[:80],
            source=reading.file,
        )  # fmt: skip
        if columns.memory_text and not instance:
            reading.bare.append((listing, _text(row, columns.region)))
        else:
            reading.keep(listing)
    reading.without_price += not priced


def _keep_host(reading: PriceReading, columns: PriceColumns, row: Mapping[str, Any], instance: str) -> None:
    """Keep what a machine costs beside its GPUs: SkyPilot lists Google's so, the GPUs in rows of their own."""
    machine = reading.names.machine(instance) if columns.memory_text and instance else None
    if machine is None:
        return
    for column, kind in ((columns.price, PriceKind.ON_DEMAND), (columns.spot_price, PriceKind.SPOT)):
        price = _number(_text(row, column))
        if price is not None and is_usable_price(price / machine.gpu_count):
            key = (machine.gpu, _text(row, columns.region), kind)
            reading.hosts[key] = min(reading.hosts.get(key, float("inf")), price / machine.gpu_count)


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column) if column else None
    return "" if value is None else str(value).strip()


def _number(text: str) -> float | None:
    try:
        return float(text) if text else None
    except (ValueError, OverflowError):
        return None


def _kind(row: Mapping[str, Any], columns: PriceColumns, default: PriceKind) -> PriceKind | None:
    if default is PriceKind.SPOT:
        return default
    if columns.is_spot:
        return PriceKind.SPOT if _text(row, columns.is_spot).casefold() in _TRUE else default
    words = re.findall(r"[a-z]+", _text(row, columns.kind).casefold()) or [""]
    return next((_KIND_WORDS[word] for word in words if word in _KIND_WORDS), None)


def _date(row: Mapping[str, Any], columns: PriceColumns) -> str | None:
    found = _DATE.fullmatch(_text(row, columns.date)[:40])
    if found is None:
        return None
    try:
        return date.fromisoformat(found[1]).isoformat()
    except ValueError:
        return None


def _stated_memory(text: str, count: float) -> float | None:
    """Return GiB of one GPU as SkyPilot's GpuInfo states them: some clouds' in GB, some of all GPUs together."""
    found = _MIB.search(text[:2000])
    if found is None:
        return None
    size = float(found[1])
    gib = size / 1024 if size >= 1024 else size
    return gib / count if count > 1 and gib > 300 else gib


def cells_of(header: list[str], rows: Iterable[list[str]]) -> Iterator[dict[str, str]]:
    """Yield rows of a CSV file by the names of their columns; cells beyond these are left out."""
    for row in rows:
        if row:
            yield dict(zip(header, row, strict=False))
