"""What one per cent more of each figure buys, in words and sheets."""

from collections.abc import Iterator
from typing import Final

from .....formats.trace.printable import clean_text
from ....page.columns import number_column, text_column
from ....page.page import Page, build_page, notes, opening, warnings
from ....page.quantity import ABSENT, format_time_within
from ....page.sheet import Sheet
from ...analyze.page.headline import describe_recording
from ..report import FigureElasticity, SensitivityReport
from ..sensitivity import STEPS
from .words import any_value, share_words

_LEAST: Final = 0.005
"""Per cent for one per cent: what gives less gives nothing."""
_HIDDEN: Final = 0.1
"""What more of the GPU-busy time a figure takes off than of the iteration, for a word about it."""
_NAMED: Final = 3


def describe_sensitivity(report: SensitivityReport, *, name: str) -> Page:
    """Put a report into words; `name` stands for a workload that has none."""
    items = report.figures
    columns = (
        text_column("figure", (item.name for item in items)),
        number_column("now", (any_value(item.base, item.unit, is_ratio=item.name == "host") for item in items)),
        number_column("% faster\nfor 1 % more", (f"{_zero(-item.elasticity):.2f}" for item in items)),
        number_column("by other\nsteps", (_range(item) for item in items)),
        number_column("% less\nGPU-busy", (_busy(item) for item in items)),
        text_column("what", (item.words for item in items), rank=2),
    )
    return build_page(
        opening(_headline(report, name)),
        Sheet(title="", columns=columns),
        notes(_notes(report)),
        warnings((*_slower(report), *report.warnings)),
    )


def _headline(report: SensitivityReport, name: str) -> Iterator[str]:
    yield describe_recording(report.trace, name)
    base = report.base
    time = format_time_within(base.iteration_ns, base.iteration_low_ns, base.iteration_high_ns)
    yield f"{clean_text(report.gpu)}: {time}; {share_words(base)}."
    useful = [item for item in report.figures if -item.elasticity >= _LEAST]
    if useful:
        named = ", ".join(f"{item.name} {_percent(-item.elasticity)}" for item in useful[:_NAMED])
        yield f"1 % more of a figure makes it faster by: {named}."
    else:
        yield "1 % more of any figure changes nothing: look at what the iteration waits for."
    useless = [item.name for item in report.figures if abs(item.elasticity) < _LEAST]
    if useless and useful:
        yield f"No gain from {', '.join(useless)}."
    hidden = [item for item in report.figures if item.elasticity - item.busy_elasticity > _HIDDEN]
    hidden.sort(key=lambda item: item.busy_elasticity)
    if hidden:
        named = ", ".join(f"{item.name} {_percent(-item.busy_elasticity)}" for item in hidden[:_NAMED])
        yield f"Hidden behind the host, less GPU-busy time for 1 % more: {named}."


def _percent(value: float) -> str:
    return f"{value:.2f} %"


def _busy(item: FigureElasticity) -> str:
    return ABSENT if item.name == "host" else f"{_zero(-item.busy_elasticity):.2f}"


def _range(item: FigureElasticity) -> str:
    low, high = (f"{_zero(value):.2f}" for value in (-item.high, -item.low))
    return low if low == high else f"{low}–{high}"


def _zero(value: float) -> float:
    """Return a value without the sign of what is written as nothing."""
    return 0.0 if abs(value) < 0.005 else value


def _notes(report: SensitivityReport) -> Iterator[str]:
    main, *others = (f"{100 * (step - 1):.0f} %" for step in STEPS)
    yield (
        f"The models' answer, by steps of {main} both ways; other steps: {' and '.join(others)}. Multiprocessors come "
        "with waves of tiles, so that theirs depends most on the step. Nothing of this was measured on chips that "
        "differ in one figure: there are none."
    )
    yield (
        "sms and clock take the peak rates with them; matrix and vector are rates alone, per multiprocessor and clock. "
        "Fp32 products count lanes and clocks, so that vector says little."
    )
    if report.absent:
        yield f"{clean_text(report.gpu)} has no {', '.join(report.absent)}."


def _slower(report: SensitivityReport) -> Iterator[str]:
    for item in report.figures:
        if item.slower_with_more > 0:
            yield (
                f"more {item.name} makes the iteration up to {item.slower_with_more:.1%} slower, say the models: no "
                "GPU is slower for it, so take that as their error"
            )
