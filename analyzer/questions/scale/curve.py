"""Draws how throughput grows with GPUs as a self-contained SVG: a line per GPU type, its interval, perfect scaling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, log2, log10
from typing import Final

from ...page.quantity import format_number
from ...page.svg import element, plain, shorten, text
from .report import PlanPrediction, ScaleReport

WIDTH_PX: Final = 860.0
LEFT_PX: Final = 86.0
RIGHT_PX: Final = 250.0
TOP_PX: Final = 56.0
PLOT_HEIGHT_PX: Final = 340.0
BOTTOM_PX: Final = 54.0
LABEL_PX: Final = 11.0
MOST_LINES: Final = 8
"""More cannot be told apart; the fastest are drawn."""
COLOURS: Final = ("#0969da", "#cf222e", "#1a7f37", "#8250df", "#bf8700", "#0598bc", "#bc4c00", "#bf3989")
_LINE_PX: Final = 15.0
_STYLE: Final = """
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:15px;font-weight:600}.note{font-size:11px;fill:#57606a}.tick{font-size:10.5px;fill:#57606a}
.name{font-size:11px;font-weight:600}.paper{fill:#fff}.grid{stroke:#d0d7de;stroke-width:.7}
.ideal{fill:none;stroke:#8c959f;stroke-width:1.2;stroke-dasharray:4 3}.line{fill:none;stroke-width:2}
.band{fill-opacity:.13;stroke:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.note,.tick{fill:#9198a1}.paper{fill:#0d1117}.grid{stroke:#30363d}}
"""


class _Axes:
    """Place GPU counts and throughputs, both by their logarithms."""

    def __init__(self, counts: Sequence[int], values: Sequence[float]) -> None:
        self.counts = sorted(set(counts))
        low, high = log2(self.counts[0]), log2(self.counts[-1])
        self.x0, self.x1 = (low - 0.5, high + 0.5) if low == high else (low, high)
        self.y0, self.y1 = floor(log10(min(values)) * 2) / 2, ceil(log10(max(values)) * 2) / 2
        if self.y0 == self.y1:
            self.y1 += 0.5

    def x(self, count: float) -> float:
        """Return where a number of GPUs stands."""
        return LEFT_PX + (log2(count) - self.x0) / (self.x1 - self.x0) * (WIDTH_PX - LEFT_PX - RIGHT_PX)

    def y(self, value: float) -> float:
        """Return where a throughput stands."""
        return TOP_PX + (1 - (log10(value) - self.y0) / (self.y1 - self.y0)) * PLOT_HEIGHT_PX


def draw_scaling(report: ScaleReport, *, name: str) -> str:
    """Return the SVG text of a scaling curve: samples per second of the best plan over GPUs, both logarithmic.

    `name` stands for a workload that has none.
    """
    lines = [_line(report, gpu) for gpu in list(dict.fromkeys(gpu for gpu, _ in report.groups))[:MOST_LINES]]
    rows = [row for line in lines for row in line]
    ends = [value for row in rows for value in _ends(row)]
    perfect = [_perfect(line[0], line[-1].gpu_count) for line in lines]
    axes = _Axes([row.gpu_count for row in rows], [*ends, *perfect])
    title = f"{report.trace.name or name}: samples per second, best plan on each number of GPUs"
    height = TOP_PX + PLOT_HEIGHT_PX + BOTTOM_PX
    parts = [
        element("title", plain(title)),
        element("style", _STYLE),
        element("rect", width=WIDTH_PX, height=height, rx=6, class_="paper"),
        text(title, 16, 26, "title"),
        text(_subtitle(report), 16, 43, "note"),
        *_grid(axes),
        *(part for line, colour in zip(lines, COLOURS, strict=False) for part in _curve(line, axes, colour)),
        *_legend(lines, axes),
    ]
    return element(
        "svg",
        "\n".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        width=WIDTH_PX,
        height=height,
        viewBox=f"0 0 {WIDTH_PX:g} {height:g}",
        role="img",
    )


def _line(report: ScaleReport, gpu: str) -> list[PlanPrediction]:
    """Return the best plan of a GPU type on each count, fewest first."""
    counts = sorted(count for name, count in report.groups if name == gpu)
    return [row for count in counts if (row := report.best(gpu, count)) is not None]


def _ends(row: PlanPrediction) -> tuple[float, float]:
    """Return the low and the high throughput of a row's interval; its own where none is known."""
    work = row.samples_per_s * row.iteration_ns
    low = work / row.iteration_high_ns if row.iteration_high_ns else row.samples_per_s
    return low, work / row.iteration_low_ns if row.iteration_low_ns else row.samples_per_s


def _perfect(first: PlanPrediction, count: int) -> float:
    return first.samples_per_s * count / first.gpu_count


def _subtitle(report: ScaleReport) -> str:
    batch = (
        f"{report.global_batch:,} samples per iteration" if report.global_batch else "every GPU adds a recorded batch"
    )
    return f"{batch}; bands: 90 % intervals; dashed: perfect scaling from the fewest GPUs"


def _grid(axes: _Axes) -> Iterator[str]:
    right, bottom = WIDTH_PX - RIGHT_PX, TOP_PX + PLOT_HEIGHT_PX
    for count in axes.counts:
        x = axes.x(count)
        yield element("line", x1=x, x2=x, y1=TOP_PX, y2=bottom, class_="grid")
        yield text(f"{count:,}", x, bottom + 16, "tick", text_anchor="middle")
    yield text("GPUs", (LEFT_PX + right) / 2, bottom + 36, "note", text_anchor="middle")
    for power in range(floor(axes.y0), ceil(axes.y1) + 1):
        for factor in (1, 2, 5):
            value = factor * 10.0**power
            if axes.y0 - 1e-9 <= log10(value) <= axes.y1 + 1e-9:
                y = axes.y(value)
                yield element("line", x1=LEFT_PX, x2=right, y1=y, y2=y, class_="grid")
                yield text(format_number(value).removesuffix(".00"), LEFT_PX - 8, y + 4, "tick", text_anchor="end")


def _curve(line: Sequence[PlanPrediction], axes: _Axes, colour: str) -> Iterator[str]:
    """Draw the interval, perfect scaling, the line and its points."""
    points = [(axes.x(row.gpu_count), axes.y(row.samples_per_s)) for row in line]
    low = [(axes.x(row.gpu_count), axes.y(_ends(row)[0])) for row in line]
    high = [(axes.x(row.gpu_count), axes.y(_ends(row)[1])) for row in line]
    first, last = line[0], line[-1]
    if len(line) > 1:
        yield element("path", d=f"{_path([*low, *high[::-1]])}Z", fill=colour, class_="band")
        end = (axes.x(last.gpu_count), axes.y(_perfect(first, last.gpu_count)))
        yield element("path", d=_path([points[0], end]), class_="ideal")
        yield element("path", d=_path(points), stroke=colour, class_="line")
    for (x, y), (_, y_low), (_, y_high), row in zip(points, low, high, line, strict=True):
        if len(line) == 1:
            yield element("line", x1=x, x2=x, y1=y_low, y2=y_high, stroke=colour, stroke_width=1.5)
        tip = f"{row.gpu_count:,} {row.gpu}: {row.plan}, {format_number(row.samples_per_s)} samples/s"
        yield element("circle", element("title", plain(tip)), cx=x, cy=y, r=3.5, fill=colour)


def _legend(lines: Sequence[Sequence[PlanPrediction]], axes: _Axes) -> Iterator[str]:
    """Name each line beside its end, with its best plan on the most GPUs; names that would touch are moved apart."""
    x = WIDTH_PX - RIGHT_PX + 14
    wanted = sorted(
        (axes.y(line[-1].samples_per_s), line, colour) for line, colour in zip(lines, COLOURS, strict=False)
    )
    y = TOP_PX
    for aim, line, colour in wanted:
        y = max(y + 2 * _LINE_PX, aim) if y > TOP_PX else max(TOP_PX + 8, aim)
        y = min(y, TOP_PX + PLOT_HEIGHT_PX + 24)
        last = line[-1]
        yield text(shorten(last.gpu, RIGHT_PX - 20, LABEL_PX), x, y, "name", style=f"fill:{colour}")
        yield text(shorten(last.plan, RIGHT_PX - 20, LABEL_PX), x, y + _LINE_PX - 2, "note")


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
