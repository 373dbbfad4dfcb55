"""What electricity costs, as a user says it: a number, or a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..iteration.decision.electricity import Electricity


def read_electricity(given: Electricity | float | None) -> Electricity | None:
    """Return the record of what was given; a number is $ per kWh. Raises InputError for what cannot be meant.

    >>> read_electricity(0.12).usd_per_kwh
    0.12
    """
    from ..iteration.decision.electricity import Electricity as Record

    return Record(usd_per_kwh=given) if isinstance(given, int | float) else given
