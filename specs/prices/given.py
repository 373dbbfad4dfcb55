"""Prices as users write them on a command line: `H100=1.99`, `p5.48xlarge=55.04/h`, `L40S=0.79 spot`."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ...errors import InputError, parameter
from ..gpu import Catalog
from .listing import HIGHEST_USD_PER_HOUR, KINDS, Listing, PriceKind, PriceOrigin, is_usable_price
from .names import resolve_given

_FORM: Final = re.compile(
    r"\s*\$?\s*(?P<amount>[0-9.,eE+-]+|nan|inf)\s*(?:\$|usd)?\s*(?:/\s*(?:hour|hr|h)\b)?\s*(?P<kind>[a-z -]*?)\s*", re.I
)
_EXPECTED: Final = "expected GPU=$ per hour, as H100=1.99, p5.48xlarge=55.04 or 'L40S=0.79 spot'"


def read_given(texts: Iterable[str], catalog: Catalog) -> tuple[Listing, ...]:
    """Return the prices that a user wrote. Raises InputError for what is no price, UnknownGpuError for no GPU.

    >>> [item.usd_per_hour for item in read_given(["p5.48xlarge=55.04"], catalog)]
    [6.88]
    """
    listings: dict[tuple[str, PriceKind], Listing] = {}
    for item in (_read(text, catalog) for text in texts):
        if (item.listed_as, item.kind) in listings:
            raise InputError(f"{parameter('price')}: {item.listed_as} is given twice; give one price of a kind")
        listings[item.listed_as, item.kind] = item
    return tuple(_narrowed(listings.values()))


def _read(text: str, catalog: Catalog) -> Listing:
    name, sign, rest = text.rpartition("=")
    found = _FORM.fullmatch(rest)
    if not sign or not name.strip() or found is None:
        raise InputError(f"{parameter('price')} {text!r}: {_EXPECTED}")
    kind = "-".join(found["kind"].casefold().replace("-", " ").split()) or PriceKind.ON_DEMAND.value
    if kind not in KINDS:
        raise InputError(
            f"{parameter('price')} {text!r}: {found['kind']!r} is no kind of price; expected {', '.join(KINDS)}"
        )
    gpus, count = resolve_given(catalog, name.strip())
    try:
        amount = float(found["amount"]) / count
    except ValueError:
        raise InputError(f"{parameter('price')} {text!r}: {_EXPECTED}") from None
    if not is_usable_price(amount):
        raise InputError(f"{parameter('price')} {text!r}: expected 0 to {HIGHEST_USD_PER_HOUR:,.0f} $ per GPU and hour")
    return Listing(
        gpus=gpus, usd_per_hour=amount, kind=PriceKind(kind), listed_as=name.strip(), source=PriceOrigin.GIVEN.value,
        instance=name.strip() if count != 1 else None,
    )  # fmt: skip


def _narrowed(listings: Iterable[Listing]) -> Iterator[Listing]:
    """Yield each listing for the GPUs that no narrower one of its kind is about: H100=2 beside "H100 PCIe=1.5"."""
    ordered = sorted(enumerate(listings), key=lambda pair: (-len(pair[1].gpus), pair[0]))
    last = {(gpu, item.kind): at for at, item in ordered for gpu in item.gpus}
    for at, item in ordered:
        gpus = tuple(gpu for gpu in item.gpus if last[gpu, item.kind] == at)
        if gpus:
            yield replace(item, gpus=gpus)
