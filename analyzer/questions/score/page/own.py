"""Our own recordings as sheets: families over all networks, then networks."""

from collections.abc import Iterator, Sequence
from math import exp, fabs, log
from statistics import fmean, median
from typing import Final

from .....formats.trace.printable import clean_text
from ....page.columns import count_column, number_column, text_column, time_column
from ....page.quantity import ABSENT, MILLISECONDS, percent
from ....page.sheet import Sheet
from ..report import OwnFamilyRow, OwnNetworkRow, Split


def family_sheet(rows: Sequence[OwnFamilyRow]) -> Sheet:
    """Return each family's sum over all recordings, and the errors of its ops."""
    columns = (
        text_column("family", (row.family for row in rows)),
        count_column("networks", (row.networks for row in rows)),
        count_column("ops", (row.ops for row in rows)),
        time_column("measured", (row.measured_ns for row in rows), MILLISECONDS),
        number_column("sum\noff by", (_signed(row.predicted_ns, row.measured_ns) for row in rows)),
        number_column("op off\nby", (percent(row.error) for row in rows)),
        number_column("bias", (percent(row.bias) for row in rows)),
        number_column("in 90 %\ninterval", (percent(row.coverage_90) for row in rows)),
    )
    return Sheet(title="Ops of our own recordings by family, from their shapes alone", columns=columns)


def recording_sheet(rows: Sequence[OwnNetworkRow]) -> Sheet:
    """Return each recording: busy time from shapes; busy time, iteration and joules moved from the other GPU."""
    columns = (
        text_column("network", map(_name, rows), min_width=24),
        text_column("GPU", (clean_text(row.gpu) for row in rows)),
        time_column("busy", (row.measured_ns for row in rows), MILLISECONDS),
        number_column("from\nshapes", (_signed(row.predicted_ns, row.measured_ns) for row in rows)),
        number_column("moved", (_signed(row.moved_ns, _busy_ns(row)) for row in rows)),
        number_column("iteration\nmoved", (_signed(row.moved_iteration_ns, row.iteration_ns) for row in rows)),
        number_column("joules\nmoved", (_signed(row.moved_joules, row.joules) for row in rows)),
        time_column("without\nformula", (row.unknown_ns for row in rows), MILLISECONDS, rank=1),
    )
    return Sheet(title="Our own recordings, GPU-busy time", columns=columns)


GPU_BOUND_RATIO: Final = 0.85
"""Of an iteration that the GPU is busy."""
STEADY: Final = 0.05
"""Natural log, between two timings of a loop."""


def summary(rows: Sequence[OwnNetworkRow]) -> Iterator[str]:
    """Say in a line each what the recordings show."""
    busy = [log(row.predicted_ns / row.measured_ns) for row in rows if row.predicted_ns > 0 and row.measured_ns > 0]
    held = [row.low_ns <= row.measured_ns <= row.high_ns for row in rows if None not in (row.low_ns, row.high_ns)]  # type: ignore[operator]
    yield from _line("GPU-busy time from shapes alone", busy, held)
    for gpu in dict.fromkeys(row.gpu for row in rows):
        mine = [row for row in rows if row.gpu == gpu and row.moved_ns]
        moved = [log(row.moved_ns / _busy_ns(row)) for row in mine if row.moved_ns]
        yield from _line(f"GPU-busy time moved from the other GPU to {clean_text(gpu)}", moved, [])
    for what, is_bound in (("the GPU bounds", True), ("the host bounds", False)):
        kept = [row for row in rows if (_busy_ns(row) >= GPU_BOUND_RATIO * row.iteration_ns) == is_bound]
        own = [log(row.loop_ns / row.iteration_ns) for row in kept if row.loop_ns]
        yield from _line(f"Iterations that {what}, as their own recording says a loop takes them", own, [])
        again = [log(row.again_ns / row.iteration_ns) for row in kept]
        yield from _line("A second timing of those loops, in a prediction's place", again, [])
        steady = [row for row, apart in zip(kept, again, strict=True) if row.loop_ns and fabs(apart) <= STEADY]
        own = [log((row.loop_ns or 0.0) / row.iteration_ns) for row in steady]
        yield from _line("Their loops of which that timing is within 5 %, as their own recording says", own, [])
        whole = [(row, row.moved_iteration_ns) for row in kept if row.moved_iteration_ns]
        inside = [
            row.moved_low_ns <= row.iteration_ns <= row.moved_high_ns
            for row, _ in whole
            if row.moved_low_ns is not None and row.moved_high_ns is not None
        ]
        yield from _line(
            "All of them, moved from the other GPU", [log(ns / row.iteration_ns) for row, ns in whole], inside
        )
    joules = [log(row.moved_joules / row.joules) for row in rows if row.moved_joules and row.joules]
    held = [
        row.moved_low_joules <= row.joules <= row.moved_high_joules
        for row in rows
        if row.joules and row.moved_low_joules and row.moved_high_joules
    ]
    yield from _line("Joules of an iteration, moved", joules, held)


def _busy_ns(row: OwnNetworkRow) -> float:
    return row.busy_ns or row.measured_ns + row.unknown_ns


def _line(what: str, ratios: Sequence[float], held: Sequence[bool]) -> Iterator[str]:
    if not ratios:
        return
    sizes = [fabs(ratio) for ratio in ratios]
    inside = f", {percent(fmean(held))} % inside their 90 % interval" if held else ""
    yield (
        f"{what}: mean of \\|ln(predicted / measured)\\| {percent(fmean(sizes))} %, median {percent(median(sizes))}, "
        f"worst a factor of {exp(max(sizes)):.2f}, bias {percent(fmean(ratios))} over {len(ratios)} recordings{inside}."
    )


def _name(row: OwnNetworkRow) -> str:
    return clean_text(row.network) + (" (seen)" if row.split is Split.SEEN else "")


def _signed(predicted: float | None, measured: float | None) -> str:
    return percent(predicted / measured - 1.0) if predicted is not None and measured else ABSENT
