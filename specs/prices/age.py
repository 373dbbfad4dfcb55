"""How old prices are, and what is said of it."""

from collections.abc import Iterable, Sequence
from datetime import date
from statistics import median

from ...errors import parameter
from .book import STALE_DAYS


def today() -> date:
    """Return the day on which prices are looked at."""
    return date.today()


def median_age_days(dates: Iterable[str | None]) -> int | None:
    """Return how many days old prices are on the median, by their ISO dates; None where none is dated.

    >>> median_age_days([None]) is None
    True
    """
    now = today()
    ages = [max((now - date.fromisoformat(item)).days, 0) for item in dates if item is not None]
    return round(median(ages)) if ages else None


def warn_of_age(dates: Sequence[str | None]) -> tuple[str, ...]:
    """Return a sentence where prices of these dates are so old that they mislead.

    >>> warn_of_age(["2020-01-01"])[0].endswith("on the median: give today's with price or prices")
    True
    """
    days = median_age_days(dates)
    if days is None or days <= STALE_DAYS:
        return ()
    given = " or ".join(dict.fromkeys((parameter("price"), parameter("prices"))))
    return (f"prices are {days:,} days old on the median: give today's with {given}",)


def describe_dates(dates: Sequence[str | None]) -> str:
    """Return when prices were listed and how old that is, for a note: `2026-08-26 to 2026-11-09, 44 days old …`."""
    known = sorted({item for item in dates if item is not None})
    parts = []
    if known:
        days = median_age_days(dates)
        parts.append(f"{' to '.join(dict.fromkeys((known[0], known[-1])))}, {days:,} days old on the median")
    if None in dates:
        parts.append("undated")
    return "; ".join(parts)
