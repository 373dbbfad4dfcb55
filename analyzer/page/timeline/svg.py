"""Draws a timeline as a self-contained SVG: tracks of the recording above those of the prediction, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log10
from typing import Final

from ...timeline.slices import Timeline
from ..quantity import format_factor, format_time
from ..svg import element, plain, text, text_width
from .bars import Excerpt, choose_rows
from .block import LEFT_PX, PLOT_PX, Block, Scale, draw_arrows, draw_bars, draw_beds, draw_end, draw_path, place_block

_WIDTH_PX: Final = LEFT_PX + PLOT_PX + 36
_TOP_PX: Final = 40.0
_BETWEEN_PX: Final = 18.0
_LEGEND_LINE_PX: Final = 18.0
_TICKS: Final = 10
_STYLE: Final = """
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:15px;font-weight:600}.head{font-size:12px;font-weight:600}.note{font-size:11px;fill:#57606a}
.row{font-size:11px}.tick{font-size:10.5px;fill:#57606a}.in{font-size:9.5px;fill:#fff}
.paper{fill:#fff}.bed{fill:#eef1f4}.grid{stroke:#d0d7de;stroke-width:.7}
.end{stroke:#57606a;stroke-width:1;stroke-dasharray:3 2}.path{fill:none;stroke:#d1242f;stroke-width:2.2}
.arrow{fill:none;stroke:#57606a;stroke-width:.7}.tip{fill:#57606a}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.note,.tick{fill:#9198a1}.in{fill:#fff}.paper{fill:#0d1117}
.bed{fill:#1b212a}.grid{stroke:#30363d}.end,.arrow{stroke:#9198a1}.tip{fill:#9198a1}.path{stroke:#ff6a69}}
"""


def draw_timeline(timeline: Timeline, *, excerpt: Excerpt | None = None) -> str:
    """Return the SVG text of a timeline, or of an excerpt of it, in ns since the start of the iteration.

    Without one, from the start of the iteration to the end of the longest. Nothing in it is loaded from elsewhere;
    colours follow the reader's light or dark scheme.
    """
    zero = timeline.processes[0].start_ns
    asked = excerpt or Excerpt(start_ns=0, end_ns=max(process.end_ns for process in timeline.processes) - zero)
    end_ns = max(asked.end_ns, asked.start_ns + 1)
    scale = Scale(excerpt=Excerpt(start_ns=zero + asked.start_ns, end_ns=zero + end_ns), zero_ns=zero)
    rows, hidden = choose_rows(timeline, scale.excerpt)
    blocks, y = list[Block](), _TOP_PX
    for number in range(len(timeline.processes)):
        mine = [row for row in rows if row.process == number]
        blocks.append(place_block(timeline, number, mine, scale, y))
        y = blocks[-1].bottom + _BETWEEN_PX
    bars, shown = list[str](), dict[str, str]()
    for block in blocks:
        drawn, colours = draw_bars(block)
        bars += drawn
        shown |= colours
    bottom = y - _BETWEEN_PX + 10
    legend, height = _legend(shown, hidden, bottom + 30)
    title = _title(timeline)
    parts = [
        element("title", plain(title)),
        element("style", _STYLE),
        _tip(),
        element("rect", width=_WIDTH_PX, height=height, rx=6, class_="paper"),
        text(title, 16, 25, "title"),
        *(part for block in blocks for part in draw_beds(block)),
        *_axis(blocks, scale, bottom),
        *bars,
        *(part for block in blocks for draw in (draw_end, draw_arrows, draw_path) for part in draw(block)),
        *legend,
    ]
    return element(
        "svg",
        "\n".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        width=_WIDTH_PX,
        height=height,
        viewBox=f"0 0 {_WIDTH_PX} {height:g}",
        role="img",
    )


def _title(timeline: Timeline) -> str:
    """Name the workload, the GPUs and their iteration times."""
    first, last = timeline.processes[0], timeline.processes[-1]
    name = first.trace.meta.workload.name
    head = f"{name}: " if name else ""
    if first is last:
        return f"{head}{format_time(first.iteration_ns)} on {first.gpu}"
    speedup = format_factor(first.iteration_ns / max(last.iteration_ns, 1))
    return (
        f"{head}{format_time(first.iteration_ns)} on {first.gpu} → "
        f"{format_time(last.iteration_ns)} on {last.gpu} ({speedup})"
    )


def _tip() -> str:
    tip = element("path", d="M0 0L6 3L0 6z", class_="tip")
    marker = element(
        "marker", tip, id="tip", viewBox="0 0 6 6", refX=6, refY=3, markerWidth=5, markerHeight=5, orient="auto"
    )
    return element("defs", marker)


def _axis(blocks: list[Block], scale: Scale, bottom: float) -> Iterator[str]:
    """Draw the grid through the rows, and the axis in ms under them."""
    low, high = ((instant - scale.zero_ns) / 1e6 for instant in (scale.excerpt.start_ns, scale.excerpt.end_ns))
    step = _nice_step((high - low) / _TICKS)
    decimals = max(0, -floor(log10(step)))
    for count in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1):
        x = LEFT_PX + (count * step - low) / (high - low) * PLOT_PX
        for block in blocks:
            if block.rows:
                yield element("line", x1=x, x2=x, y1=block.tops[0] - 3, y2=block.bottom + 3, class_="grid")
        yield text(f"{count * step:.{decimals}f}", x, bottom + 8, "tick", text_anchor="middle")
    yield text("ms", LEFT_PX + PLOT_PX + 14, bottom + 8, "tick")


def _nice_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not under `least`."""
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))


def _legend(shown: dict[str, str], hidden: list[str], y: float) -> tuple[list[str], float]:
    """Explain the colours in lines as wide as the plot; return them and the height of the figure."""
    drawn, x = [], float(LEFT_PX)
    for name, colour in [*shown.items(), ("critical path", "")]:
        width = 16 + text_width(name, 11) + 16
        if x + width > LEFT_PX + PLOT_PX:
            x, y = float(LEFT_PX), y + _LEGEND_LINE_PX
        if colour:
            drawn.append(element("rect", x=x, y=y - 9, width=11, height=11, rx=1.5, fill=colour))
        else:
            drawn.append(element("path", d=f"M{x:g} {y - 3:g}h12", class_="path"))
        drawn.append(text(name, x + 16, y, "note"))
        x += width
    if hidden:
        y += _LEGEND_LINE_PX
        drawn.append(text(f"not drawn, as they are hardly busy: {', '.join(hidden)}", LEFT_PX, y, "note"))
    return drawn, y + 14
