"""What an iteration or a run takes in energy, in words and columns."""

from collections.abc import Iterator, Sequence
from typing import Final

from .....errors import parameter
from .....formats.trace.printable import clean_text
from ....iteration.decision.amounts import ENERGY
from ....iteration.report import AnalysisReport, GpuPrediction
from ....page.columns import number_column
from ....page.energy import counted_words
from ....page.quantity import ABSENT, format_amount, format_number
from ....page.sheet import SheetColumn

_METHOD: Final = (
    "Energy is the board's, what idles included and no more than its limit: by what each op computes, moves and "
    "waits for, on data as varied as trained networks' (docs/evidence/energy.md)."
)


def asks_for_energy(report: AnalysisReport) -> bool:
    """Say whether a report was asked about energy."""
    return report.selection.sort == ENERGY or report.electricity is not None


def energy_columns(report: AnalysisReport, rows: Sequence[GpuPrediction]) -> Iterator[SheetColumn]:
    """Yield energy, its interval, its price, and watts, where energy is asked about and batches are not."""
    if not asks_for_energy(report) or any(row.batches is not None for row in rows):
        return
    if report.run is None:
        yield from _iteration_columns(rows)
    else:
        yield from _run_columns(rows)
    yield number_column("W on\naverage", (format_number(row.mean_power_w) for row in rows), rank=1)
    yield number_column("samples/J", (format_number(row.samples_per_j) for row in rows), rank=4)
    yield number_column("tokens/J", (format_number(row.tokens_per_j) for row in rows), rank=3)


def least_energy(row: GpuPrediction) -> str:
    """Say which GPU takes the least energy, and how much.

    >>> least_energy(report.predictions[0])
    'Least energy: H100 SXM5 80GB, 3.55 J per iteration (2.93–4.58), 467.3 W on average.'
    """
    between = _range(*_ends(row))
    amount = _amount(row) + (between and f" ({between})")
    return f"Least energy: {clean_text(row.gpu)}, {amount}, {format_number(row.mean_power_w)} W on average."


def least_energy_words(row: GpuPrediction) -> str:
    """Say in short what a GPU takes.

    >>> least_energy_words(report.predictions[0])
    'H100 SXM5 80GB · 3.55 J per iteration, 467.3 W'
    """
    return f"{clean_text(row.gpu)} · {_amount(row)}, {format_number(row.mean_power_w)} W"


def _amount(row: GpuPrediction) -> str:
    if row.total is not None and row.total.energy_kwh is not None:
        return f"{format_number(row.total.energy_kwh)} kWh in all"
    return f"{format_number(row.billed_j)} J per iteration"


def _ends(row: GpuPrediction) -> tuple[float | None, float | None]:
    if row.total is not None and row.total.energy_kwh is not None:
        return row.total.energy_low_kwh, row.total.energy_high_kwh
    return billed_interval(row)


def energy_notes(report: AnalysisReport) -> Iterator[str]:
    """Yield what the figures of energy hold, where they are asked for."""
    if not asks_for_energy(report):
        return
    electricity, parts = report.electricity, [_METHOD]
    if electricity is not None:
        parts += counted_words(electricity, "for each GPU")
    if not any(row.electricity.host_w for row in report.predictions):
        parts.append(f"The host's is not in it ({parameter('host_watts')} counts it).")
    yield " ".join(parts)


def _iteration_columns(rows: Sequence[GpuPrediction]) -> Iterator[SheetColumn]:
    yield number_column("J per\niteration", (format_number(row.billed_j) for row in rows))
    yield number_column("interval", (_range(*billed_interval(row)) or ABSENT for row in rows), rank=1)
    costs = [None if (energy := row.energy) is None else energy.electricity_usd for row in rows]
    if any(cost is not None for cost in costs):
        yield number_column("$ of power\n1,000 it.", (format_amount(cost and 1000 * cost) for cost in costs))


def _run_columns(rows: Sequence[GpuPrediction]) -> Iterator[SheetColumn]:
    totals = [row.total for row in rows if row.total is not None]
    if len(totals) < len(rows):
        return
    yield number_column("kWh\nin all", (format_number(item.energy_kwh) for item in totals))
    intervals = (_range(item.energy_low_kwh, item.energy_high_kwh) or ABSENT for item in totals)
    yield number_column("interval", intervals, rank=1)
    if any(item.electricity_usd is not None for item in totals):
        yield number_column("$ of\npower", (format_amount(item.electricity_usd) for item in totals))
    if any(item.co2_kg is not None for item in totals):
        yield number_column("kg of\nCO2", (format_number(item.co2_kg) for item in totals), rank=1)


def billed_interval(row: GpuPrediction) -> tuple[float | None, float | None]:
    """Return the ends of what is paid for of an iteration's energy.

    >>> [round(end, 2) for end in billed_interval(report.predictions[0])]
    [2.93, 4.58]
    """
    energy = row.energy
    return (None, None) if energy is None else (energy.billed_low_j, energy.billed_high_j)


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{format_number(low)}–{format_number(high)}"
