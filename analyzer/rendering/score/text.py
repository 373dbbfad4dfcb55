"""The score in words and sheets: what the table and the Markdown renderer draw alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...accuracy.score.baselines import ANCHORED, BANDWIDTH_RATIO, FITTED_ROOFLINE, PEAK_RATIO, ROOFLINE, ROOFLINE_RATIO
from ...accuracy.score.decisions import CHEAPER
from ...accuracy.score.end_to_end import OP_SUM
from ...accuracy.score.report import (
    EVERYTHING,
    MEAN,
    DecisionRow,
    NetworkRow,
    Score,
    ScoreRow,
    Size,
    Split,
    TraceRow,
    WorstRow,
)
from ..page.quantity import (
    ABSENT,
    MILLISECONDS,
    common_time_unit,
    format_count,
    format_time,
    format_time_range,
    percent,
)
from ..page.sheet import Sheet, SheetColumn, clean_text, drop_empty_columns
from .throughput import worst_model_sheet

BASELINE_TITLES: Final = {
    ROOFLINE: "roofline",
    FITTED_ROOFLINE: "fitted\nroofline",
    BANDWIDTH_RATIO: "bandw.\nratio",
    PEAK_RATIO: "peak\nratio",
    ROOFLINE_RATIO: "roofline\nratio",
    ANCHORED: "anchored",
    OP_SUM: "sum of\nops",
    "neusight": "NeuSight",
    "habitat": "Habitat",
    "micro": "Li et\nal.",
}
SOME_TABLES: Final = frozenset({OP_SUM, "neusight", "habitat", "micro"})
"""Baselines that say nothing where tables are pooled: few rows have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreText:
    """Hold what is said about a score."""

    headline: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Hold one line of a table of errors: a group's name or a GPU, and its rows of each size."""

    name: str
    is_group: bool
    by_size: Mapping[Size, ScoreRow]


def describe_score(score: Score) -> ScoreText:
    """Put a score into words and sheets."""
    tables = dict.fromkeys(row.table for row in score.rows)
    sheets = [error_sheet(_title(table), [row for row in score.rows if row.table == table]) for table in tables]
    more = (
        network_sheet(score.networks),
        worst_model_sheet(score.throughput),
        decision_sheet(score.decisions),
        trace_sheet(score.traces),
        worst_sheet(score.worst),
    )
    return ScoreText(
        headline=tuple(_headline(score)),
        sheets=(*sheets, *(sheet for sheet in more if sheet.row_count)),
        notes=tuple(_notes(score)),
    )


def error_sheet(title: str, rows: Sequence[ScoreRow]) -> Sheet:
    """Return the errors of one table: a line per family and dtype with the mean over GPUs, then its GPUs."""
    lines = list(_lines(rows))
    names = tuple(f"{'' if line.is_group else '  '}{clean_text(line.name)}{_seen(line)}" for line in lines)
    every, long, longer = Size.ALL, Size.OVER_20_US, Size.OVER_100_US
    columns = [
        SheetColumn(title="family, dtype, GPU", cells=names, is_text=True, min_width=36),
        _column("rows", lines, every, lambda row: f"{row.rows:,}", rank=1),
        _column("MAPE", lines, every, lambda row: percent(row.mape)),
        _column("median", lines, every, lambda row: percent(row.median_ape), rank=6),
        _column("p90", lines, every, lambda row: percent(row.p90_ape), rank=7),
        _column("bias", lines, every, lambda row: percent(row.bias), rank=3),
        _column("MAPE\n>20 µs", lines, long, lambda row: percent(row.mape)),
        _column("bias\n>20 µs", lines, long, lambda row: percent(row.bias), rank=1),
        _column("MAPE\n>100 µs", lines, longer, lambda row: percent(row.mape), rank=5),
        _column("in 90 %\ninterval", lines, every, lambda row: percent(row.coverage_90)),
        _column("its\nwidth", lines, every, lambda row: percent(row.width_90), rank=2),
        *_baseline_columns(lines),
    ]
    marked = frozenset(index for index, line in enumerate(lines) if line.is_group)
    return drop_empty_columns(Sheet(title=title, columns=tuple(columns), marked_rows=marked))


def network_sheet(rows: Sequence[NetworkRow]) -> Sheet:
    """Return the whole networks with their times."""
    kinds = [kind for kind in BASELINE_TITLES if any(kind in row.baselines_ns for row in rows)]
    columns = (
        SheetColumn(title="network", cells=tuple(_network_name(row) for row in rows), is_text=True, min_width=24),
        SheetColumn(title="GPU", cells=tuple(_gpu_name(row) for row in rows), is_text=True),
        SheetColumn(title="measured", cells=tuple(format_time(row.measured_ns, MILLISECONDS) for row in rows), rank=1),
        SheetColumn(
            title="predicted", cells=tuple(format_time(row.predicted_ns, MILLISECONDS) for row in rows), rank=1
        ),
        SheetColumn(title="error", cells=tuple(percent(row.predicted_ns / row.measured_ns - 1) for row in rows)),
        *(
            SheetColumn(title=BASELINE_TITLES[kind], cells=tuple(_network_error(row, kind) for row in rows), rank=2)
            for kind in kinds
        ),
    )
    return Sheet(title="Networks, predicted from the shapes of their ops", columns=columns)


def decision_sheet(rows: Sequence[DecisionRow]) -> Sheet:
    """Return how often the better of two GPUs was named."""
    kinds = [kind for kind in BASELINE_TITLES if any(kind in row.baselines for row in rows)]
    taus = tuple(ABSENT if row.kendall_tau is None else f"{row.kendall_tau:.2f}" for row in rows)
    columns = (
        SheetColumn(title="which GPU is", cells=tuple(_criterion(row) for row in rows), is_text=True),
        SheetColumn(title="workloads", cells=tuple(str(row.workloads) for row in rows)),
        SheetColumn(title="pairs", cells=tuple(str(row.pairs) for row in rows)),
        SheetColumn(title="right", cells=tuple(percent(row.right) for row in rows)),
        SheetColumn(title="Kendall's\ntau", cells=taus),
        *(
            SheetColumn(
                title=BASELINE_TITLES[kind], cells=tuple(percent(row.baselines.get(kind)) for row in rows), rank=2
            )
            for kind in kinds
        ),
    )
    return Sheet(title="Decisions between two GPUs named rightly, %", columns=columns)


def trace_sheet(rows: Sequence[TraceRow]) -> Sheet:
    """Return the traces that were predicted from another GPU's."""
    busy, step = (
        common_time_unit(row.measured_busy_ns for row in rows),
        common_time_unit(row.measured_iteration_ns for row in rows),
    )
    columns = (
        SheetColumn(title="trace", cells=tuple(clean_text(row.source) for row in rows), is_text=True),
        SheetColumn(title="predicts", cells=tuple(clean_text(row.target) for row in rows), is_text=True),
        SheetColumn(title="busy", cells=tuple(format_time(row.predicted_busy_ns, busy) for row in rows)),
        SheetColumn(title="error", cells=tuple(_error(row.predicted_busy_ns, row.measured_busy_ns) for row in rows)),
        SheetColumn(title="iteration", cells=tuple(format_time(row.predicted_iteration_ns, step) for row in rows)),
        SheetColumn(
            title="error", cells=tuple(_error(row.predicted_iteration_ns, row.measured_iteration_ns) for row in rows)
        ),
    )
    return Sheet(title="Traces predicted from another GPU's trace", columns=columns)


def worst_sheet(rows: Sequence[WorstRow]) -> Sheet:
    """Return the worst single rows."""
    unit = common_time_unit(row.measured_ns for row in rows)
    intervals = tuple(format_time_range(row.low_ns, row.high_ns, unit) for row in rows)
    columns = (
        SheetColumn(title="family, dtype", cells=tuple(_group(row) for row in rows), is_text=True, min_width=20),
        SheetColumn(title="GPU", cells=tuple(_gpu_name(row) for row in rows), is_text=True),
        SheetColumn(title="measured", cells=tuple(format_time(row.measured_ns, unit) for row in rows)),
        SheetColumn(title="predicted", cells=tuple(format_time(row.predicted_ns, unit) for row in rows)),
        SheetColumn(title="90 % interval", cells=intervals, rank=2),
        SheetColumn(
            title="problem",
            cells=tuple(clean_text(row.problem) for row in rows),
            is_text=True,
            min_width=30,
        ),
    )
    return Sheet(title="Worst rows over 20 µs, at most one of each family, dtype and GPU", columns=columns)


def _lines(rows: Sequence[ScoreRow]) -> Iterator[Line]:
    groups: dict[tuple[str, str], list[ScoreRow]] = {}
    for row in rows:
        groups.setdefault((row.family, row.dtype), []).append(row)
    for (family, dtype), found in groups.items():
        by_gpu: dict[tuple[str, Split], dict[Size, ScoreRow]] = {}
        for row in found:
            by_gpu.setdefault((row.gpu, row.split), {})[row.size] = row
        heads = {split: sizes for (gpu, split), sizes in by_gpu.items() if gpu == MEAN}
        name = "all tables" if family == EVERYTHING else f"{family}, {dtype}"
        pooled = {split: sizes for (gpu, split), sizes in by_gpu.items() if gpu == EVERYTHING}
        for split in sorted({split for _, split in by_gpu}, reverse=True):
            yield Line(name=name, is_group=True, by_size=heads.get(split) or pooled.get(split, {}))
            for (gpu, own), sizes in by_gpu.items():
                if own is split and gpu not in (MEAN, EVERYTHING):
                    yield Line(name=gpu, is_group=False, by_size=sizes)


def _column(
    title: str, lines: Sequence[Line], size: Size, draw: Callable[[ScoreRow], str], *, rank: int = 0
) -> SheetColumn:
    return SheetColumn(title=title, cells=tuple(_cell(line, line.by_size.get(size), draw) for line in lines), rank=rank)


def _baseline_columns(lines: Sequence[Line]) -> Iterator[SheetColumn]:
    rows = [line.by_size.get(Size.OVER_20_US) or line.by_size.get(Size.ALL) for line in lines]
    for kind, title in BASELINE_TITLES.items():
        cells = tuple(_cell(line, row, partial(_baseline_percent, kind)) for line, row in zip(lines, rows, strict=True))
        yield SheetColumn(title=title, cells=cells, rank=4 if kind == ANCHORED else 0)


def _baseline_percent(kind: str, row: ScoreRow) -> str:
    return percent(row.baselines.get(kind))


def _cell(line: Line, row: ScoreRow | None, draw: Callable[[ScoreRow], str]) -> str:
    """Write a figure; the line of a family that one GPU measured is a heading alone."""
    if row is not None:
        return draw(row)
    return ABSENT if line.by_size else ""


def _seen(line: Line) -> str:
    return " (seen)" if any(row.split is Split.SEEN for row in line.by_size.values()) else ""


def _title(table: str) -> str:
    return "All ops of all tables" if table == EVERYTHING else table


def _headline(score: Score) -> Iterator[str]:
    ops = [row for row in score.rows if row.table == EVERYTHING and row.gpu == EVERYTHING and row.size is Size.ALL]
    rows = sum(row.rows for row in ops)
    gpus = {row.gpu for row in score.rows} - {EVERYTHING, MEAN}
    parts = [format_count(rows, "op measurement"), format_count(len(score.networks), "network")]
    if score.throughput:
        parts.append(format_count(len(score.throughput), "throughput"))
    pairs = format_count(len(score.traces), "pair")
    yield f"Score of {', '.join(parts)} and {pairs} of traces on {format_count(len(gpus), 'GPU')}, in %"
    yield f"Predicted by {score.weights}."


def _notes(score: Score) -> Iterator[str]:
    if score.rows:
        yield (
            "MAPE: mean of |predicted / measured - 1|; a family's line is the mean over its GPUs. Bias: mean of "
            "predicted / measured - 1. Baselines: MAPE over the rows above 20 µs (all, where there are none)."
        )
        yield (
            "Fitted roofline: one efficiency per family and dtype from the other chips. Bandwidth ratio and anchored "
            "(wavecast) are given the nearest other chip's measurement of the same problem, where there is one."
        )
    yield from score.notes


def _gpu_name(row: NetworkRow | WorstRow) -> str:
    return clean_text(row.gpu) + (" (seen)" if row.split is Split.SEEN else "")


def _group(row: WorstRow) -> str:
    return clean_text(f"{row.family}, {row.dtype}")


def _network_name(row: NetworkRow) -> str:
    mark = ", suspect" if row.is_suspect else ""
    return clean_text(f"{row.model} {row.mode}, {row.batch} x {row.sequence_length}{mark}")


def _network_error(row: NetworkRow, kind: str) -> str:
    value = row.baselines_ns.get(kind)
    return ABSENT if value is None else percent(value / row.measured_ns - 1)


def _criterion(row: DecisionRow) -> str:
    return "cheaper per sample" if row.criterion == CHEAPER else row.criterion


def _error(predicted: float, measured: float) -> str:
    return percent(predicted / measured - 1) if measured else ABSENT
