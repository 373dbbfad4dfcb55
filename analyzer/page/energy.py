"""What is said of energy and prices: as cells, as columns of a sheet, and in words."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ...errors import parameter
from ...formats.trace.printable import clean_text
from ...specs.prices.book import describe_dates
from ...specs.prices.listing import PriceKind, PriceOrigin
from ..iteration.decision.electricity import Electricity, JobEnergy
from .columns import number_column
from .encoding import FieldTable, attributes, table_of
from .quantity import ABSENT, format_money, format_number
from .sheet import SheetColumn

NAMES: Final = (
    "energy_j",
    "energy_low_j",
    "energy_high_j",
    "sending_j",
    "mean_power_w",
    "billed_j",
    "billed_low_j",
    "billed_high_j",
    "joule_per_sample",
    "joule_per_token",
    "kwh_per_day",
    "electricity_usd",
    "electricity_usd_per_day",
    "co2_kg_per_day",
)
"""Attributes of `JobEnergy` that files hold."""
_KILO: Final = 1e3


def energy_record(energy: JobEnergy | None) -> dict[str, Any] | None:
    """Return the figures by name, for JSON; None where nothing is known."""
    return None if energy is None else attributes(energy, NAMES)


def energy_table(energies: Iterable[JobEnergy | None], prefix: str = "") -> FieldTable:
    """Return the figures as a table.

    >>> energy_table([None]).names[:2]
    ('energy_j', 'energy_low_j')
    """
    return table_of(energies, JobEnergy, NAMES, prefix=prefix)


def energy_columns(energies: Sequence[JobEnergy | None]) -> Iterator[SheetColumn]:
    """Yield energy, its interval, watts, and what samples and a day take; for sheets that are asked about energy.

    >>> list(energy_columns([]))
    []
    """
    known = [item for item in energies if item is not None]
    if not known:
        return
    many = max(item.gpu_count for item in known) > 1
    yield number_column("J per\niteration", (_number(item, "billed_j") for item in energies))
    yield number_column("interval", map(_interval, energies), rank=2)
    title = "kW,\nall GPUs" if many else "W on\naverage"
    scale = _KILO if many else 1.0
    yield number_column(
        title, (ABSENT if item is None else format_number(item.mean_power_w / scale) for item in energies), rank=1
    )
    for name, title, rank in (
        ("joule_per_sample", "J per\nsample", 2),
        ("joule_per_token", "J per\ntoken", 3),
        ("kwh_per_day", "kWh\nper day", 1),
    ):
        if any(getattr(item, name) is not None for item in known):
            yield number_column(title, (_number(item, name) for item in energies), rank=rank)
    for name, title in (("electricity_usd_per_day", "$ of power\nper day"), ("co2_kg_per_day", "kg of CO2\nper day")):
        if any(getattr(item, name) is not None for item in known):
            yield number_column(title, (_number(item, name) for item in energies), rank=1)


def describe_energy(energy: JobEnergy) -> str:
    """Say what an iteration takes, what that is on average, and what a day comes to.

    >>> from wavecast.analyzer.iteration.decision.electricity import PowerDraw
    >>> draw = PowerDraw(idle_w=60.0, work_j=3.0, limit_w=400.0, half_width=0.25).of_job(8)
    >>> describe_energy(JobEnergy(power=draw, time_ns=1e7, low_ns=9e6, high_ns=1.2e7, gpu_count=8, host_gpu_count=8))
    '27.88 J per iteration (21.61–36.03), 66.91 kWh a day; boards and links draw 2.79 kW on average'
    """
    watts = energy.mean_power_w
    power = f"{format_number(watts / _KILO)} kW" if watts >= _KILO else f"{format_number(watts)} W"
    parts = [
        f"{format_number(energy.billed_j)} J per iteration ({_interval(energy)})",
        f"{format_number(energy.kwh_per_day)} kWh a day",
    ]
    if energy.electricity_usd_per_day is not None:
        parts.append(f"{format_money(energy.electricity_usd_per_day)} of electricity a day")
    if energy.co2_kg_per_day is not None:
        parts.append(f"{format_number(energy.co2_kg_per_day)} kg of CO2 a day")
    return f"{', '.join(parts)}; boards and links draw {power} on average"


def energy_note(electricity: Electricity | None) -> str:
    """Say what the figures hold.

    >>> energy_note(Electricity(usd_per_kwh=0.12, pue=1.2)).split(". ")[2]
    'A kWh costs $0.120'
    """
    parts = [
        "Energy: boards while they compute and while they wait, links between GPUs, and between machines their NICs "
        "and switches (docs/evidence/energy.md)."
    ]
    asked = electricity or Electricity()
    parts += counted_words(asked, "for each GPU of the machines used")
    if not asked.host_w:
        parts.append(f"Hosts are not in it ({parameter('host_watts')} counts them).")
    return " ".join(parts)


def counted_words(asked: Electricity, whose: str) -> Iterator[str]:
    """Yield what is counted beside boards, and what a kWh costs; `whose` says of what the host's watts are.

    >>> list(counted_words(Electricity(usd_per_kwh=0.12, host_w=150.0), "for each GPU"))
    ['Counted with 150.0 W of the host for each GPU.', 'A kWh costs $0.120.']
    """
    more = [
        f"{format_number(asked.host_w)} W of the host {whose}" if asked.host_w else "",
        f"the site's {format_number(asked.pue)} times as much" if asked.pue != 1.0 else "",
    ]
    if counted := " and ".join(part for part in more if part):
        yield f"Counted with {counted}."
    if asked.usd_per_kwh is not None:
        yield f"A kWh costs {format_money(asked.usd_per_kwh)}."


def _number(energy: JobEnergy | None, name: str) -> str:
    return ABSENT if energy is None else format_number(getattr(energy, name))


def _interval(energy: JobEnergy | None) -> str:
    if energy is None:
        return ABSENT
    return f"{format_number(energy.billed_low_j)}–{format_number(energy.billed_high_j)}"


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
