"""The charts of a finished batch."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from ....arrays import Floats, Mask
from ....formats.trace.printable import clean_text
from ...page import plot
from ...page.labels import NO_LABEL, label_layers, place_labels
from ...page.page import Chart, Line, Page, Passage
from ...page.plot import GOOD, HEAT_INK, NEUTRAL, PLOT_HEIGHT_PX
from ...page.quantity import common_time_unit, format_count, format_factor, format_money, format_time
from ...page.vega import INK
from .fleet import HOUR_NS, FleetSummary, FleetTimes, GpuTotal, costs_of
from .report import BatchReport

MOST_TRACES: Final = 60
"""Lines of a table of colours: those that take longest on their best GPU."""
MOST_GPUS: Final = 40
"""Its columns: the GPUs that are fastest on the geometric mean."""
MOST_WHAT_IFS: Final = 4
"""What-ifs that are drawn; the tables and the table's file hold all."""
MOST_TIMES: Final = 4.0
"""Times the best one from which on cells have one colour."""
SEVERAL: Final = 2


def illustrate_batch(page: Page, report: BatchReport, times: Sequence[FleetTimes] = ()) -> Page:
    """Return the page of a batch with charts; `times` are those of each trace on each GPU, by what-if."""
    drawn = times[:MOST_WHAT_IFS]
    cut = plot.cut_words(len(drawn), len(times), "what-ifs")
    is_one = len(report.fleets) == 1
    lead, details = list[Chart | None](), list[Chart | None]()
    cost, count = report.costs
    summaries = [costs_of(fleet.summary, count) for fleet in report.fleets[:MOST_WHAT_IFS]]
    for summary in summaries:
        ending = "" if is_one else f" ({clean_text(summary.what_if)})"
        lead.append(_cost_chart(summary, ending, cut, cost))
    for item in drawn:
        details.append(_heat_chart(item, "" if is_one else f" ({clean_text(item.what_if)})", cut))
    answers = [text for summary in summaries for text in _answer(summary, is_one=is_one, cost=cost)]
    return plot.place_charts(_with_answers(page, answers), lead=lead, details=details)


def _answer(summary: FleetSummary, *, is_one: bool, cost: str) -> Iterator[str]:
    """Say which GPU carries all traces for the least money, and which in the least time."""
    if not summary.totals:
        return
    ending = "" if is_one else f" ({clean_text(summary.what_if)})"
    best, fastest = summary.totals[0], min(summary.totals, key=lambda item: item.time_ns)
    if best.usd is not None:
        like = sum(item.is_like_best and item.usd is not None for item in summary.totals) - 1
        alike = f"; {format_count(like, 'GPU')} cannot be told from it" if like else ""
        yield f"Cheapest for all{ending}: {best.name}, {format_money(best.usd)}{cost.removeprefix('$')}{alike}."
    yield f"Fastest{ending}: {fastest.name}, {format_time(fastest.time_ns)}."


def _with_answers(page: Page, answers: Sequence[str]) -> Page:
    """Return the page with the answers after the sentence that opens it."""
    first, *rest = page.blocks
    if not isinstance(first, Passage):
        return page
    return Page(blocks=(Passage(lines=(*first.lines, *(Line(text=text) for text in answers))), *rest))


def _unit(found: Sequence[GpuTotal]) -> tuple[str, float]:
    """Return the unit that suits the times, and its length in ns."""
    middle = sorted(item.time_ns for item in found)[len(found) // 2]
    if middle >= HOUR_NS:
        return "hours", HOUR_NS
    unit = common_time_unit([middle])
    return unit.name, unit.length_ns


def _front(found: Sequence[GpuTotal]) -> set[str]:
    """Return the GPUs that no other beats in both time and cost."""
    front, least = set[str](), float("inf")
    for item in sorted(found, key=lambda item: (item.time_ns, item.usd or 0.0)):
        if (item.usd or 0.0) < least:
            least = item.usd or 0.0
            front.add(item.gpu)
    return front


def _total_row(item: GpuTotal, unit: tuple[str, float]) -> dict[str, Any]:
    known = item.time_low_ns is not None and item.time_high_ns is not None
    priced = item.usd_low is not None and item.usd_high is not None
    interval = f" ({format_time(item.time_low_ns)} to {format_time(item.time_high_ns)})" if known else ""
    return {
        "gpu": item.gpu,
        "duration": item.time_ns / unit[1],
        "low": plot.scaled(item.time_low_ns, unit[1]) if known else None,
        "high": plot.scaled(item.time_high_ns, unit[1]) if known else None,
        "usd": item.usd,
        "low_usd": item.usd_low if priced else None,
        "high_usd": item.usd_high if priced else None,
        "time": f"{format_time(item.time_ns)}{interval}",
        "cost": format_money(item.usd),
        "kind": "like the cheapest" if item.is_like_best and item.usd is not None else "other",
    }


def _cost_chart(summary: FleetSummary, ending: str, cut: str, cost: str) -> Chart | None:
    """Draw what the fleet costs over how long it takes, of GPUs with a price that carry every trace."""
    found = [item for item in summary.totals if item.usd is not None]
    if len(found) < SEVERAL:
        return None
    unit, front = _unit(found), _front(found)
    at = {item.gpu: (item.time_ns, item.usd or 0.0) for item in found}
    labelled = place_labels(at, [item.gpu for item in found if item.gpu in front], is_log=True)
    rows = [_total_row(item, unit) | {"label": item.name, **labelled.get(item.gpu, NO_LABEL)} for item in found]
    told = (("gpu", "GPU"), ("time", "time"), ("cost", "cost"), ("kind", "is"))
    x, y = (
        plot.quantitative(name, title, **plot.log_axis(0.9 * min(values), 1.1 * max(values)))
        for name, title in (("duration", unit[0]), ("usd", cost))
        if (values := [row[at] for row in rows for at in (name, f"low_{name}", f"high_{name}") if row.get(at)])
    )
    ends = {"y": y | {"field": "low_usd"}, "y2": {"field": "high_usd"}}
    spec = {
        "height": PLOT_HEIGHT_PX,
        "encoding": {
            "x": x,
            "y": y,
            "color": plot.coloured("kind", None, {"like the cheapest": GOOD, "other": NEUTRAL}),
        },
        "layer": [
            plot.marks("rule", ends, where="isValid(datum.low_usd)", opacity=0.6, clip=True),
            plot.marks("point", {"tooltip": plot.said(*told)}, size=80, opacity=0.9),
            *label_layers({"color": {"value": INK}}),
        ],
    }
    best = found[0]
    text = (
        f"What {format_count(summary.trace_count, 'trace')} cost together over the time that they take, on each GPU "
        f"that carries them all and has a price, with 90 % intervals. Cheapest: {best.name}, "
        f"{format_money(best.usd)}{cost.removeprefix('$')}; "
        "the coloured ones cannot be told apart from it. Names, where there is room, stand at those that none beats in "
        f"both.{cut}"
    )
    return plot.build_chart(f"Cost against time{ending}", text, spec, rows, told)


def _heat_chart(times: FleetTimes, ending: str, cut: str) -> Chart | None:
    """Draw a table of colours: the time of each trace on each GPU relative to the best one that it fits."""
    usable = np.where(times.fits, times.time_ns, np.nan)
    some = np.asarray(np.isfinite(usable).any(axis=1))
    if not some.any() or len(times.gpus) < SEVERAL:
        return None
    best = np.full(len(usable), np.nan)
    best[some] = np.nanmin(usable[some], axis=1)
    ratio = times.time_ns / best[:, None]
    lines = [at for at in np.argsort(-np.nan_to_num(best), kind="stable").tolist() if some[at]][:MOST_TRACES]
    columns = _fastest(ratio[some])[:MOST_GPUS]
    names = plot.labels(times.traces[at].name.removesuffix(".gz").removesuffix(".json") for at in lines)
    rows = [row for at, name in zip(lines, names, strict=True) for row in _cells(times, ratio, at, name, columns)]
    told = (("trace", "trace"), ("gpu", "GPU"), ("time", "time"), ("slower", "of the best"), ("fits", "memory"))
    colour = plot.heat("ratio", "times the best", (1.0, SEVERAL, MOST_TIMES), clamp=True)
    spec = {
        "height": plot.bars_height(len(lines)),
        "encoding": {
            "x": plot.along("gpu", angle=-60) | {"scale": {"domain": [times.gpus[at] for at in columns]}},
            "y": plot.along("trace") | {"scale": {"domain": names}},
            "tooltip": plot.said(*told),
        },
        "layer": [
            plot.marks("rect", {"color": colour}),
            plot.marks("text", {}, where="datum.fits == 'does not fit'", color=HEAT_INK, text="×", fontSize=12),
        ],
    }
    first = int(columns[0])
    text = (
        "The time of each trace on each GPU relative to the best that it fits; × marks what does not fit. On the "
        f"geometric mean {times.gpus[first]} is fastest."
        f"{plot.cut_words(len(lines), int(some.sum()), 'traces, those that take longest,')}"
        f"{plot.cut_words(len(columns), len(times.gpus), 'GPUs')}{cut}"
    )
    return plot.build_chart(f"Traces on GPUs{ending}", text, spec, rows, told)


def _fastest(ratio: Floats) -> list[int]:
    """Return the GPUs that have a time of any trace, those of the least geometric mean first."""
    known: Mask = np.asarray(np.isfinite(ratio), dtype=bool)
    logs = np.where(known, np.log(np.where(known & (ratio > 0), ratio, 1.0)), 0.0).sum(axis=0)
    mean = logs / np.maximum(known.sum(axis=0), 1)
    return [at for at in np.argsort(mean, kind="stable").tolist() if np.any(known[:, at])]


def _cells(times: FleetTimes, ratio: Floats, at: int, name: str, columns: Sequence[int]) -> Iterator[dict[str, Any]]:
    for column in columns:
        if np.isfinite(ratio[at, column]):
            yield {
                "trace": name,
                "gpu": times.gpus[column],
                "ratio": float(ratio[at, column]),
                "time": format_time(float(times.time_ns[at, column])),
                "slower": format_factor(float(ratio[at, column])),
                "fits": "fits" if times.fits[at, column] else "does not fit",
            }
