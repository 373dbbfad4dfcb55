"""One process of the figure: its rows of bars, its critical path, its launch arrows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ...timeline.notes import FAMILIES
from ...timeline.slices import ArrowKind, SliceKind, Timeline, TrackKind
from ...work import Family
from ..quantity import format_share, format_time
from ..svg import element, shorten, text
from .bars import Bars, Excerpt, Row, busy_ns, lay_bars, outermost, path_rows

PLOT_PX: Final = 860
LEFT_PX: Final = 104
HEAD_PX: Final = 22
HOST_PX: Final = 27
STREAM_PX: Final = 22
GAP_PX: Final = 9
_CALLS_PX: Final = 7
"""The strip under a host row's ops that shows runtime calls."""
_MOST_ARROWS: Final = 60
"""Launch arrows are drawn where a process has at most this many in the stretch."""
_LABEL_PX: Final = 9.5
_LEAST_PATH_PX: Final = 2
"""The critical path leaves a row for no fewer pixels than this."""
_BROKEN_PX: Final = 40
"""Where the critical path is on no row for this long, its line breaks."""

_COLOURS: Final = {
    Family.MATMUL: "#3b76b3",
    Family.CONVOLUTION: "#23877b",
    Family.ATTENTION: "#8a63b8",
    Family.RECURRENT: "#8c5a7c",
    Family.STATE_SPACE: "#a5627f",
    Family.EXPERTS: "#5d5fb0",
    Family.NORMALIZATION: "#c97f1d",
    Family.SOFTMAX: "#a98a16",
    Family.ELEMENTWISE: "#d9694d",
    Family.COPY: "#7d8a97",
    Family.REDUCTION: "#5f9a49",
    Family.POOLING: "#3c93b8",
    Family.EMBEDDING: "#96694b",
    Family.INDEXING: "#a87c50",
    Family.SORT: "#85778f",
    Family.LOSS: "#b85a75",
    Family.OPTIMIZER: "#4c7f6e",
    Family.RANDOM: "#8b9a44",
    Family.COLLECTIVE: "#b944a4",
    Family.VIEW: "#7d8a97",
}
_GPU_COLOURS: Final = (*((family.value, _COLOURS[family]) for family in FAMILIES), ("other kernel", "#6b7480"))
_HOST_COLOURS: Final = (
    ("forward op", "#6d87a6"),
    ("backward op", "#9a7fae"),
    ("optimizer op", "#6c9a80"),
    ("other op", "#8c9bab"),
    ("runtime call", "#566579"),
)
"""Ops by `Phase`, then calls."""
_CALL: Final = len(_HOST_COLOURS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Map time to pixels of the plot. `zero_ns` is where the axis reads 0."""

    excerpt: Excerpt
    zero_ns: int

    def px(self, time_ns: Rows | int) -> Floats:
        """Return positions in the plot, from its left edge."""
        from_start = np.asarray(time_ns) - self.excerpt.start_ns
        return np.asarray(from_start * (PLOT_PX / self.excerpt.length_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Place the rows of one process."""

    timeline: Timeline
    process: int
    rows: list[Row]
    tops: list[float]
    scale: Scale
    y: float

    @property
    def bottom(self) -> float:
        """Return where the block ends."""
        return self.tops[-1] + row_height(self.rows[-1]) if self.rows else self.y + HEAD_PX


def place_block(timeline: Timeline, process: int, rows: list[Row], scale: Scale, y: float) -> Block:
    """Stack the rows of one process from `y` on, under its heading."""
    tops, at = [], y + HEAD_PX
    for row in rows:
        tops.append(at)
        at += row_height(row) + GAP_PX
    return Block(timeline=timeline, process=process, rows=rows, tops=tops, scale=scale, y=y)


def row_height(row: Row) -> float:
    """Return the height of a row in pixels."""
    return HOST_PX if row.kind is TrackKind.HOST else STREAM_PX


def draw_beds(block: Block) -> Iterator[str]:
    """Draw what lies under the bars: the heading, row names and backgrounds."""
    head = block.timeline.processes[block.process]
    share = busy_ns(block.timeline, block.process) / max(head.iteration_ns, 1)
    said = f"iteration {format_time(head.iteration_ns)} · GPU busy {format_share(share)}"
    yield text(head.title, 16, block.y + 13, "head")
    yield text(said, LEFT_PX + PLOT_PX, block.y + 13, "note", text_anchor="end")
    for row, top in zip(block.rows, block.tops, strict=True):
        height = row_height(row)
        yield element("rect", x=LEFT_PX, y=top, width=PLOT_PX, height=height, class_="bed")
        yield text(row.name, LEFT_PX - 8, top + height / 2 + 4, "row", text_anchor="end")


def draw_bars(block: Block) -> tuple[list[str], dict[str, str]]:
    """Draw the slices of every row; return the colours that were used, by what they stand for, most first."""
    drawn, shown = list[str](), dict[str, str]()
    slices, scale = block.timeline.slices, block.scale
    for row, top in zip(block.rows, block.tops, strict=True):
        rows = row.slices
        is_call = slices.kind[rows] == SliceKind.CALL
        if row.kind is TrackKind.HOST:
            ops = rows[outermost(slices.start_ns[rows], slices.end_ns[rows])]
            ops = ops[slices.kind[ops] == SliceKind.OP]
            layers = [(ops, top, HOST_PX - _CALLS_PX - 1), (rows[is_call], top + HOST_PX - _CALLS_PX, _CALLS_PX)]
        else:
            layers = [(rows, top, STREAM_PX)]
        for chosen, y, height in layers:
            code, colours = _colours(block, row.kind, chosen)
            bars = lay_bars(scale.px(slices.start_ns[chosen]), scale.px(slices.end_ns[chosen]), code, PLOT_PX)
            drawn += _draw_layer(block, chosen, bars, colours, y=y, height=height)
            length = np.bincount(code, weights=slices.duration_ns[chosen], minlength=len(colours))
            shown |= {colours[at][0]: colours[at][1] for at in np.argsort(-length).tolist() if length[at] > 0}
    return drawn, shown


def _colours(block: Block, kind: TrackKind, rows: Rows) -> tuple[Rows, tuple[tuple[str, str], ...]]:
    """Return the colour of each slice as an index, and the colours with their names."""
    slices = block.timeline.slices
    if kind is TrackKind.STREAM:
        family = slices.family[rows].astype(np.int64)
        return np.where(family < 0, len(_GPU_COLOURS) - 1, family), _GPU_COLOURS
    is_op = slices.kind[rows] == SliceKind.OP
    phase = np.full(len(rows), _CALL, dtype=np.int64)
    phase[is_op] = block.timeline.processes[block.process].trace.ops.phase[slices.row[rows[is_op]]]
    return phase, _HOST_COLOURS


def _draw_layer(
    block: Block, rows: Rows, bars: Bars, colours: Sequence[tuple[str, str]], *, y: float, height: float
) -> Iterator[str]:
    for x, width, colour, opacity, at in zip(
        bars.x.tolist(), bars.width.tolist(), bars.colour.tolist(), bars.opacity.tolist(), bars.slice.tolist(),
        strict=True,
    ):  # fmt: skip
        seam = 0.6 if at >= 0 and width > 3 else 0.0
        extra = {"fill_opacity": opacity} if opacity < 1 else {}
        fill = colours[colour][1]
        yield element("rect", x=LEFT_PX + x, y=y, width=width - seam, height=height, fill=fill, **extra)
        words = shorten(_label(block, int(rows[at])), width - 7, _LABEL_PX) if at >= 0 and height > 12 else ""
        if words:
            yield text(words, LEFT_PX + x + 4, y + height / 2 + 3.4, "in")


def _label(block: Block, number: int) -> str:
    """Return a slice's name as a figure has room for: of a kernel its op's, without the namespace."""
    slices, head = block.timeline.slices, block.timeline.processes[block.process]
    name: str = block.timeline.names[slices.name[number]]
    if slices.kind[number] >= SliceKind.KERNEL:
        op = int(head.notes.op[slices.node[number]])
        op = op if op >= 0 else int(head.trace.kernels.op[slices.row[number]])
        name = head.trace.strings[head.trace.ops.name[op]] if op >= 0 else name
    return name.removeprefix("aten::").removeprefix("void ").removeprefix("autograd::engine::evaluate_function: ")


def draw_end(block: Block) -> Iterator[str]:
    """Mark the end of the iteration."""
    excerpt, end_ns = block.scale.excerpt, block.timeline.processes[block.process].end_ns
    if excerpt.start_ns < end_ns <= excerpt.end_ns and block.rows:
        x = LEFT_PX + float(block.scale.px(end_ns))
        yield element("line", x1=x, x2=x, y1=block.tops[0] - 4, y2=block.bottom + 4, class_="end")


def draw_path(block: Block) -> Iterator[str]:
    """Draw the critical path as a line under the rows that it runs on."""
    on = path_rows(block.timeline, block.rows, block.process, block.scale.excerpt, PLOT_PX)
    starts = np.flatnonzero(np.append(True, on[1:] != on[:-1]))
    lengths = np.diff(np.append(starts, len(on)))
    line, reached = list[str](), -_BROKEN_PX
    for start, length, at in zip(starts.tolist(), lengths.tolist(), on[starts].tolist(), strict=True):
        if at < 0 or length < _LEAST_PATH_PX:
            continue
        y = block.tops[at] + row_height(block.rows[at]) + 2.5
        joins = start - reached < _BROKEN_PX
        line.append(f"H{LEFT_PX + start}V{y:g}" if joins else f"M{LEFT_PX + start} {y:g}")
        reached = start + length
        line.append(f"H{LEFT_PX + reached}")
    if line:
        yield element("path", d="".join(line), class_="path")


def draw_arrows(block: Block) -> Iterator[str]:
    """Draw an arrow from each launch in the excerpt to its kernel, where there are few enough."""
    arrows, slices = block.timeline.arrows, block.timeline.slices
    top_of = {int(item): top for row, top in zip(block.rows, block.tops, strict=True) for item in row.slices.tolist()}
    launches = np.flatnonzero(arrows.kind == ArrowKind.LAUNCH)
    pairs = [
        (source, target)
        for source, target in zip(arrows.source[launches].tolist(), arrows.target[launches].tolist(), strict=True)
        if source in top_of and target in top_of
    ]
    if len(pairs) > _MOST_ARROWS:
        return
    low, high = block.scale.excerpt.start_ns, block.scale.excerpt.end_ns
    for source, target in pairs:
        middle = (slices.start_ns[source] + slices.end_ns[source]) // 2
        if not (low <= middle <= high and low <= slices.start_ns[target] <= high):
            continue
        x, to_x = (LEFT_PX + float(block.scale.px(instant)) for instant in (middle, slices.start_ns[target]))
        y, to_y = top_of[source] + HOST_PX, top_of[target]
        bend = (to_y - y) / 2
        curve = f"M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}"
        yield element("path", d=curve, class_="arrow", marker_end="url(#tip)")
