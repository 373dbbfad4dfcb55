"""A sweep in words and sheets: the answer first, then where more stops to help and why, then every point."""

from collections.abc import Iterator
from math import exp
from typing import Final

from .....formats.trace.printable import clean_text
from ....page.columns import number_column, share_column, text_column, time_column
from ....page.energy import describe_energy, energy_columns, energy_note
from ....page.page import Page, build_page, notes, opening, warnings
from ....page.quantity import (
    ABSENT,
    common_time_unit,
    format_bytes,
    format_factor,
    format_number,
    format_share,
    format_time,
    format_time_range,
    format_time_within,
)
from ....page.sheet import Sheet, SheetColumn, drop_empty_columns
from ...analyze.page.headline import describe_recording
from ..report import NEGLIGIBLE, Knee, SweepAxis, SweepLimit, SweepPoint, SweepReport
from .words import both_words, faster_words, interval_words, ratio_words, share_words, value_words

_TWICE: Final = 2.0
_NEAR: Final = 1e-6
_SHARE_TITLES: Final = {
    SweepLimit.COMPUTE: "arith-\nmetic",
    SweepLimit.MEMORY: "memory",
    SweepLimit.NEITHER: "far from\nboth",
    SweepLimit.SHORT: "short",
    SweepLimit.UNEXPLAINED: "no\nformula",
    SweepLimit.COMMUNICATION: "communi-\ncation",
    SweepLimit.HOST: "host",
    SweepLimit.WAITS: "waits",
}
_LEAST_SHARE: Final = 0.02
_MARK: Final = "*"
_LEAST_VALUES: Final = 3
"""Of a parameter, for a word about where more of it stops to help."""
_NOTES: Final = (
    "Intervals of speed-ups: what a GPU and the same one with another figure have in common cancels; they widen with "
    "the distance between the two as errors between real GPUs do. Those of times are the models' own. 90 % both.",
    "Shares: kernels by what bounds them at half of that peak or more (arithmetic, memory), far from both peaks, or "
    "too short to matter; the host: waits for launches.",
)


def describe_sweep(report: SweepReport, *, name: str) -> Page:
    """Put a sweep into words; `name` stands for a workload that has none."""
    several = len(report.axes) > 1
    return build_page(
        opening(_headline(report, name)),
        _grid(report) if several else _list(report),
        notes(_notes(report)),
        warnings((*report.slower_with_more, *report.warnings)),
    )


def _headline(report: SweepReport, name: str) -> Iterator[str]:
    yield describe_recording(report.trace, name)
    parts = " and ".join(_axis_words(axis) for axis in report.axes)
    base = report.base
    time = format_time_within(base.iteration_ns, base.iteration_low_ns, base.iteration_high_ns)
    yield f"{clean_text(report.gpu)} with {parts}; everything else as it is. Unvaried: {time}; {share_words(base)}."
    yield from _answers(report)
    yield from (_knee_words(report, knee) for knee in _told_knees(report))
    yield from _least_energy(report)
    yield from _extrapolated(report)
    yield _where_from(report)


def _least_energy(report: SweepReport) -> Iterator[str]:
    """Say where work takes least energy, where that is asked."""
    able = [(point, point.energy) for point in report.points if point.energy is not None]
    if report.electricity is None or not able:
        return
    point, energy = min(able, key=lambda item: item[1].joule_per_sample or item[1].billed_j)
    what = "Least energy per sample" if energy.joule_per_sample else "Least energy"
    yield f"{what}: {_value_of(report, point)}: {describe_energy(energy)}."


def _axis_words(axis: SweepAxis) -> str:
    first, last = value_words(axis, 0), value_words(axis, len(axis.values) - 1)
    if len(axis.values) == 1:
        return f"{axis.name} {both_words(axis, 0)}"
    if isinstance(axis.values[0], str):
        return f"{axis.name} {', '.join(map(str, axis.values))}"
    ratios = [axis.ratio(0), axis.ratio(len(axis.values) - 1)]
    if None in ratios or axis.name == "host":
        return f"{axis.name} {first} to {last}"
    return f"{axis.name} {ratio_words(axis, 0)} to {ratio_words(axis, len(axis.values) - 1)} ({first} to {last})"


def _answers(report: SweepReport) -> Iterator[str]:
    """Say what twice as much gives, else the most; of names, what each does."""
    axis = report.axes[0]
    if len(report.axes) > 1:
        yield from _answers_of_two(report)
        return
    points = report.points
    if isinstance(axis.values[0], str):
        for point in points:
            yield f"{_value_of(report, point)}: {_gain(report, point)}."
        return
    told = [point for point in points if _is_twice(axis, point)] or [points[-1]]
    if points[-1] not in told:
        told.append(points[-1])
    for point in told:
        yield f"{_much(axis, point)}: {_gain(report, point)}."


def _answers_of_two(report: SweepReport) -> Iterator[str]:
    best = max(report.points, key=lambda point: point.speedup)
    if best.speedup > 1:
        yield f"Fastest of {len(report.points):,} points: {_value_of(report, best)}: {_gain(report, best)}."
    for number, axis in enumerate(report.axes):
        alone = [point for point in report.points if _is_alone(report, point, number)]
        if alone and not isinstance(axis.values[0], str):
            point = next((item for item in alone if _is_twice(axis, item, number)), alone[-1])
            yield f"{_much(axis, point, number)} alone: {_gain(report, point)}."


def _is_alone(report: SweepReport, point: SweepPoint, number: int) -> bool:
    """Say whether a point varies no other parameter."""
    others = ((axis, at) for place, (axis, at) in enumerate(zip(report.axes, point.at, strict=True)) if place != number)
    return all(axis.values[at] == axis.base or abs((axis.ratio(at) or 0.0) - 1) < _NEAR for axis, at in others)


def _is_twice(axis: SweepAxis, point: SweepPoint, number: int = 0) -> bool:
    return abs((axis.ratio(point.at[number]) or 0.0) - _TWICE) < _NEAR


def _much(axis: SweepAxis, point: SweepPoint, number: int = 0) -> str:
    if _is_twice(axis, point, number):
        return f"Twice the {axis.name} ({value_words(axis, point.at[number])})"
    ratio = axis.ratio(point.at[number])
    return (
        f"{axis.name} {both_words(axis, point.at[number])}" if ratio is None or ratio != 1 else f"{axis.name} as it is"
    )


def _gain(report: SweepReport, point: SweepPoint) -> str:
    """Say how fast a point is: by time, or by what is done in a second where an iteration does more."""
    words = faster_words(point, report.work)
    after, before = format_time(point.iteration_ns), format_time(report.base.iteration_ns)
    time = after if after == before else f"{after} instead of {before}"
    fits = "" if point.fits is not False else "; it does not fit the memory"
    marked = "; extrapolated" if point.beyond else ""
    return f"{words}, {time}{fits}{marked}"


def _told_knees(report: SweepReport) -> tuple[Knee, ...]:
    """Return the knees that are worth a sentence: of two parameters, where the second is as it is, else its ends."""
    if len(report.axes[0].values) < _LEAST_VALUES:
        return ()
    if len(report.axes) == 1:
        return report.knees
    axis = report.axes[1]
    as_is = [knee for knee in report.knees if knee.line is not None and axis.values[knee.line] == axis.base]
    return tuple(as_is) or (report.knees[0], report.knees[-1]) if report.knees else ()


def _knee_words(report: SweepReport, knee: Knee) -> str:
    axis, at = report.axes[0], knee.point.at[0]
    beside = ""
    if knee.line is not None:
        beside = f" (with {report.axes[1].name} {both_words(report.axes[1], knee.line)})"
    limit = f"there time goes to {share_words(knee.point)}"
    if not knee.is_saturated:
        last = both_words(axis, len(axis.values) - 1)
        return f"No end within what was tried{beside}: {axis.name} still helps up to {last}; {limit}."
    if at == 0 and knee.gain_beyond == 0:
        return f"More {axis.name} gives nothing{beside}; {limit}."
    return (
        f"Beyond {both_words(axis, at)} nothing worth it{beside}: {format_share(knee.gain_beyond)} more up to "
        f"{both_words(axis, len(axis.values) - 1)}; {limit}."
    )


def _extrapolated(report: SweepReport) -> Iterator[str]:
    beyond = [point for point in report.points if point.beyond]
    if not beyond:
        return
    names = sorted({name for point in beyond for name in point.beyond})
    if len(report.points) == 1:
        which, whose = "This point is", "its"
    else:
        which, whose = f"{len(beyond):,} of {len(report.points):,} points are", "their"
    yield (
        f"{which} extrapolated: no catalogued GPU of the vendor comes near {whose} {', '.join(names)}, and nothing was "
        f"measured there. {whose.capitalize()} intervals are wider by a declared amount."
    )


def _where_from(report: SweepReport) -> str:
    gpu, speed, half_width = report.source.gpu, report.scenario.cpu_speed, report.scenario.host_half_width
    host = "an H100 node's host" if gpu is None else "the recorded host"
    if speed is not None:
        whose = "an H100 node's" if gpu is None else "the recorded one"
        doubt = f", within a factor of {exp(half_width):.2f}" if half_width else ""
        host = f"a host {format_number(speed)} times as fast as {whose}{doubt}"
    if gpu is None:
        return f"Predicted from shapes, on {host}."
    return f"From a recording on {clean_text(gpu)}, beside {host}."


def _value_of(report: SweepReport, point: SweepPoint) -> str:
    return ", ".join(f"{axis.name} {both_words(axis, at)}" for axis, at in zip(report.axes, point.at, strict=True))


def _list(report: SweepReport) -> Sheet:
    """Return a row per value of the one parameter."""
    axis, points = report.axes[0], report.points
    unit = common_time_unit(point.iteration_ns for point in points)
    intervals = (
        format_time_range(point.iteration_low_ns, point.iteration_high_ns, unit)
        if point.iteration_low_ns != point.iteration_high_ns
        else ""
        for point in points
    )
    columns = (
        number_column(axis.name, (value_words(axis, point.at[0]) for point in points)),
        number_column("of now", _ratio_cells(axis, points)),
        time_column("iteration", (point.iteration_ns for point in points), unit),
        number_column("interval", intervals, rank=3),
        number_column("speed", (format_factor(point.speedup) for point in points)),
        number_column("90 %", (interval_words(point.speedup_low, point.speedup_high) for point in points)),
        number_column("samples/s", (format_number(point.samples_per_s) for point in points), rank=4),
        *_memory_columns(report),
        *(energy_columns([point.energy for point in points]) if report.electricity is not None else ()),
        *_share_columns(points),
        text_column("note", ("extrapolated" if point.beyond else "" for point in points), rank=2),
    )
    marked = frozenset(knee.point.at[0] for knee in report.knees if knee.is_saturated)
    return drop_empty_columns(Sheet(title="", columns=columns, marked_rows=marked))


def _ratio_cells(axis: SweepAxis, points: tuple[SweepPoint, ...]) -> Iterator[str]:
    for point in points:
        yield ABSENT if axis.name == "host" else ratio_words(axis, point.at[0])


def _memory_columns(report: SweepReport) -> Iterator[SheetColumn]:
    """Yield whether it fits, where that is not the same as now everywhere."""
    if all(point.fits == report.base.fits and not point.is_tight for point in report.points):
        return
    cells = []
    for point in report.points:
        words = {True: "fits", False: "too large", None: ABSENT}[point.fits]
        cells.append(f"{format_bytes(point.memory_needed_bytes)} {'tight' if point.is_tight else words}")
    yield text_column("memory", cells, rank=1)


def _share_columns(points: tuple[SweepPoint, ...]) -> Iterator[SheetColumn]:
    for limit, title in _SHARE_TITLES.items():
        shares = [point.shares.get(limit) for point in points]
        if any(share is not None and share >= _LEAST_SHARE for share in shares):
            yield share_column(title, (share or 0.0 for share in shares), rank=1)


def _grid(report: SweepReport) -> Sheet:
    """Return the speed at each value of both parameters: a row per value of the first."""
    first, second = report.axes
    by_place = {point.at: point for point in report.points}
    rows, lines = range(len(first.values)), range(len(second.values))

    def cell(row: int, line: int) -> str:
        point = by_place.get((row, line))
        if point is None:
            return ABSENT
        size = "!" if point.fits is False else ""
        return f"{format_factor(point.speedup)}{size}{_MARK if point.beyond else ''}"

    columns = (
        number_column(first.name, (both_words(first, row) for row in rows)),
        *(
            number_column(f"{second.name}\n{both_words(second, line)}", (cell(row, line) for row in rows))
            for line in lines
        ),
    )
    return Sheet(title=f"speed by {first.name} and {second.name}", columns=columns)


def _notes(report: SweepReport) -> Iterator[str]:
    if report.electricity is not None:
        yield energy_note(report.electricity)
    if len(report.axes) > 1 and any(point.beyond for point in report.points):
        yield f"{_MARK} extrapolated"
    if any(point.fits is False for point in report.points) and len(report.axes) > 1:
        yield "! does not fit the GPU's memory"
    yield from _NOTES
    if _told_knees(report):
        yield f"Nothing worth it: at most {NEGLIGIBLE:.0%} more speed.".replace("%", " %")
