"""What is said of prices below a table that shows money."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...formats.trace.printable import clean_text
from ...specs.prices.age import describe_dates
from ...specs.prices.listing import PriceKind, PriceOrigin

_GIVEN: Final = (PriceOrigin.GIVEN.value, PriceOrigin.GPU_FILE.value)
"""What a user says of one GPU, which is not told as listed."""


def describe_prices(prices: Sequence[tuple[str | None, str | None, str | None]]) -> Iterator[str]:
    """Yield a sentence on the kind, source and date of prices per GPU-hour, if there are any.

    >>> list(describe_prices([("own", "given", None)]))
    ['Prices: your own, $ per GPU-hour.']
    """
    listed = [(kind or PriceKind.ON_DEMAND, date) for kind, source, date in prices if source not in _GIVEN]
    kinds = [kind.value for kind in PriceKind if any(kind.value == listed_kind for listed_kind, _ in listed)]
    if listed:
        when = describe_dates([date for _, date in listed])
        yours = "; yours where you gave one" if len(listed) < len(prices) else ""
        said = f"{', '.join(kinds)} $ per GPU-hour as listed ({when}){yours}"
        yield clean_text(f"Prices: {said}; check today's before relying on them.")
    elif prices:
        yield "Prices: your own, $ per GPU-hour."
