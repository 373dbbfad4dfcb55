"""The score in words and sheets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from .....arrays import group_by
from .....formats.trace.printable import clean_text
from .....records import dataclass
from ....page.columns import number_column, text_column, time_column
from ....page.page import Page, build_page, notes, opening
from ....page.quantity import ABSENT, MILLISECONDS, common_time_unit, format_count, format_time_range, percent
from ....page.sheet import Sheet, SheetColumn, drop_empty_columns
from ..decisions import CHEAPER
from ..end_to_end import OP_SUM
from ..report import (
    CLASS_LABELS,
    EVERYTHING,
    MEAN,
    DecisionRow,
    NetworkRow,
    Score,
    ScoreRow,
    ServingRow,
    Size,
    Split,
    TraceRow,
    WorstRow,
)
from ..rows import ANCHORED, BANDWIDTH_RATIO, FITTED_ROOFLINE, PEAK_RATIO, ROOFLINE, ROOFLINE_RATIO
from . import own
from .iterations import guess_lines, iteration_sheet, recommender_sheet, worst_iteration_sheet, worst_model_sheet

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLine:
    """Hold one line of a table of errors: a group's name or a GPU, and its rows of each size."""

    name: str
    is_group: bool
    by_size: Mapping[Size, ScoreRow]


def describe_score(score: Score) -> Page:
    """Put a score into words and sheets."""
    tables, names = dict.fromkeys(row.table for row in score.rows), {EVERYTHING: "All ops of all tables"}
    sheets = [error_sheet(names.get(item, item), [row for row in score.rows if row.table == item]) for item in tables]
    more = (
        own.family_sheet(score.own_families),
        own.recording_sheet(score.own_networks),
        network_sheet(score.networks),
        worst_model_sheet(score.throughput),
        *((iteration_sheet(score.iterations), worst_iteration_sheet(score.iterations)) if score.iterations else ()),
        *((recommender_sheet(score.recommenders),) if score.recommenders else ()),
        serving_sheet(score.serving),
        decision_sheet(score.decisions),
        trace_sheet(score.traces),
        worst_sheet(score.worst),
    )
    return build_page(
        opening(_headline(score)), *sheets, *(sheet for sheet in more if sheet.row_count), notes(_notes(score))
    )


def serving_sheet(rows: Sequence[ServingRow]) -> Sheet:
    """Return the errors of served models by source, GPU and engine."""
    columns = (
        text_column("served models", (clean_text(row.group) for row in rows), min_width=36),
        text_column("measure", (row.measure for row in rows)),
        number_column("rows", (f"{row.rows:,}" for row in rows)),
        number_column("MAPE", (percent(row.mape) for row in rows)),
        number_column("median", (percent(row.median_ape) for row in rows)),
        number_column("bias", (percent(row.bias) for row in rows)),
        number_column("in 90 %\ninterval", (percent(row.covered) for row in rows)),
        number_column("roofline", (percent(row.roofline) for row in rows)),
    )
    return drop_empty_columns(Sheet(title="Served models under load", columns=columns))


def error_sheet(title: str, rows: Sequence[ScoreRow]) -> Sheet:
    """Return the errors of one table: a line per family and dtype with the mean over GPUs, then its GPUs."""
    lines = list(_lines(rows))
    names = tuple(f"{'' if line.is_group else '  '}{clean_text(line.name)}{_seen(line)}" for line in lines)
    every, long, longer = Size.ALL, Size.OVER_20_US, Size.OVER_100_US
    columns = [
        text_column("family, dtype, GPU", names, min_width=36),
        _column("rows", lines, every, lambda row: f"{row.rows:,}", rank=1),
        _column("MAPE", lines, every, lambda row: percent(row.mape)),
        _column("median", lines, every, lambda row: percent(row.median_ape), rank=6),
        _column("p90", lines, every, lambda row: percent(row.p90_ape), rank=7),
        _column("bias", lines, every, lambda row: percent(row.bias), rank=3),
        _column("MAPE\n>20 µs", lines, long, lambda row: percent(row.mape)),
        _column("bias\n>20 µs", lines, long, lambda row: percent(row.bias), rank=1),
        _column("MAPE\n>100 µs", lines, longer, lambda row: percent(row.mape), rank=5),
        _column("in 90 %\ninterval", lines, every, lambda row: percent(row.coverage_90)),
        _column("median\nwidth", lines, every, lambda row: percent(row.median_width_90)),
        _column("mean\nwidth", lines, every, lambda row: percent(row.width_90), rank=2),
        *_baseline_columns(lines),
    ]
    marked = frozenset(index for index, line in enumerate(lines) if line.is_group)
    return drop_empty_columns(Sheet(title=title, columns=tuple(columns), marked_rows=marked))


def network_sheet(rows: Sequence[NetworkRow]) -> Sheet:
    """Return the whole networks with their times."""
    kinds = [kind for kind in BASELINE_TITLES if any(kind in row.baselines_ns for row in rows)]
    columns = (
        text_column("network", map(_network_name, rows), min_width=24),
        text_column("GPU", map(_gpu_name, rows)),
        time_column("measured", (row.measured_ns for row in rows), MILLISECONDS, rank=1),
        time_column("predicted", (row.predicted_ns for row in rows), MILLISECONDS, rank=1),
        number_column("error", (_error(row.predicted_ns, row.measured_ns) for row in rows)),
        *(
            number_column(
                BASELINE_TITLES[kind], (_error(row.baselines_ns.get(kind), row.measured_ns) for row in rows), rank=2
            )
            for kind in kinds
        ),
    )
    return Sheet(title="Networks, predicted from the shapes of their ops", columns=columns)


def decision_sheet(rows: Sequence[DecisionRow]) -> Sheet:
    """Return how often the better of two GPUs was named."""
    kinds = [kind for kind in BASELINE_TITLES if any(kind in row.baselines for row in rows)]
    columns = (
        text_column("which is", ("cheaper per sample" if row.criterion == CHEAPER else row.criterion for row in rows)),
        number_column("workloads", (str(row.workloads) for row in rows)),
        number_column("pairs", (str(row.pairs) for row in rows)),
        number_column("right", (percent(row.right) for row in rows)),
        number_column(
            "Kendall's\ntau", (ABSENT if row.kendall_tau is None else f"{row.kendall_tau:.2f}" for row in rows)
        ),
        *(
            number_column(BASELINE_TITLES[kind], (percent(row.baselines.get(kind)) for row in rows), rank=2)
            for kind in kinds
        ),
    )
    return Sheet(title="Decisions between two GPUs or plans named rightly, %", columns=columns)


def trace_sheet(rows: Sequence[TraceRow]) -> Sheet:
    """Return the traces that were predicted from another GPU's."""
    busy = common_time_unit(row.measured_busy_ns for row in rows)
    step = common_time_unit(row.measured_iteration_ns for row in rows)
    columns = (
        text_column("trace", (clean_text(row.source) for row in rows)),
        text_column("predicts", (clean_text(row.target) for row in rows)),
        time_column("busy", (row.predicted_busy_ns for row in rows), busy),
        number_column("error", (_error(row.predicted_busy_ns, row.measured_busy_ns) for row in rows)),
        time_column("iteration", (row.predicted_iteration_ns for row in rows), step),
        number_column("error", (_error(row.predicted_iteration_ns, row.measured_iteration_ns) for row in rows)),
    )
    return Sheet(title="Traces predicted from another GPU's trace", columns=columns)


def worst_sheet(rows: Sequence[WorstRow]) -> Sheet:
    """Return the worst single rows."""
    unit = common_time_unit(row.measured_ns for row in rows)
    columns = (
        text_column("family, dtype", (clean_text(f"{row.family}, {row.dtype}") for row in rows), min_width=20),
        text_column("GPU", map(_gpu_name, rows)),
        time_column("measured", (row.measured_ns for row in rows), unit),
        time_column("predicted", (row.predicted_ns for row in rows), unit),
        number_column("90 % interval", (format_time_range(row.low_ns, row.high_ns, unit) for row in rows), rank=2),
        text_column("problem", (clean_text(row.problem) for row in rows), min_width=30),
    )
    return Sheet(title="Worst rows over 20 µs, at most one of each family, dtype and GPU", columns=columns)


def _lines(rows: Sequence[ScoreRow]) -> Iterator[ErrorLine]:
    for (family, dtype), found in group_by(rows, lambda row: (row.family, row.dtype)).items():
        by_gpu: dict[tuple[str, Split], dict[Size, ScoreRow]] = {}
        for row in found:
            by_gpu.setdefault((row.gpu, row.split), {})[row.size] = row
        heads = {split: sizes for (gpu, split), sizes in by_gpu.items() if gpu == MEAN}
        name = "all tables" if family == EVERYTHING else f"{family}, {dtype}"
        pooled = {split: sizes for (gpu, split), sizes in by_gpu.items() if gpu == EVERYTHING}
        for split in sorted({split for _, split in by_gpu}, reverse=True):
            yield ErrorLine(name=name, is_group=True, by_size=heads.get(split) or pooled.get(split, {}))
            for (gpu, kind), sizes in by_gpu.items():
                if kind is split and gpu not in (MEAN, EVERYTHING):
                    yield ErrorLine(name=gpu, is_group=False, by_size=sizes)


def _column(
    title: str, lines: Sequence[ErrorLine], size: Size, draw: Callable[[ScoreRow], str], *, rank: int = 0
) -> SheetColumn:
    return number_column(title, (_cell(line, line.by_size.get(size), draw) for line in lines), rank=rank)


def _baseline_columns(lines: Sequence[ErrorLine]) -> Iterator[SheetColumn]:
    rows = [line.by_size.get(Size.OVER_20_US) or line.by_size.get(Size.ALL) for line in lines]
    for kind, title in BASELINE_TITLES.items():
        cells = (_cell(line, row, partial(_baseline_percent, kind)) for line, row in zip(lines, rows, strict=True))
        yield number_column(title, cells, rank=4 if kind == ANCHORED else 0)


def _baseline_percent(kind: str, row: ScoreRow) -> str:
    return percent(row.baselines.get(kind))


def _cell(line: ErrorLine, row: ScoreRow | None, draw: Callable[[ScoreRow], str]) -> str:
    """Write a figure; the line of a family that one GPU measured is a heading alone."""
    if row is not None:
        return draw(row)
    return ABSENT if line.by_size else ""


def _seen(line: ErrorLine) -> str:
    return " (seen)" if any(row.split is Split.SEEN for row in line.by_size.values()) else ""


def _headline(score: Score) -> Iterator[str]:
    ops = [row for row in score.rows if row.table == EVERYTHING and row.gpu == EVERYTHING and row.size is Size.ALL]
    rows = sum(row.rows for row in ops)
    gpus = {row.gpu for row in score.rows} - {EVERYTHING, MEAN, *CLASS_LABELS.values()}
    parts = [format_count(rows, "op measurement"), format_count(len(score.networks), "network")]
    if score.throughput:
        parts.append(format_count(len(score.throughput), "throughput"))
    if score.iterations:
        parts.append(format_count(len(score.iterations), "iteration"))
    if score.recommenders:
        parts.append(format_count(len(score.recommenders), "iteration") + " of recommenders")
    pairs = format_count(len(score.traces), "pair")
    yield f"Score of {', '.join(parts)} and {pairs} of traces on {format_count(len(gpus), 'GPU')}, in %"
    yield f"Predicted by {score.weights}."


def _notes(score: Score) -> Iterator[str]:
    if score.rows:
        yield (
            "MAPE: mean of |predicted / measured - 1|; a family's line is the mean over its GPUs. Bias: mean of "
            "predicted / measured - 1. Widths: (high - low) / predicted. Baselines: MAPE over the rows above 20 µs "
            "(all, where there are none)."
        )
        yield (
            "Fitted roofline: one efficiency per family and dtype from the other chips. Bandwidth ratio and anchored "
            "(wavecast) are given the nearest other chip's measurement of the same problem, where there is one."
        )
    yield from own.summary(score.own_networks)
    yield from guess_lines(score.iterations)
    yield from score.notes


def _gpu_name(row: NetworkRow | WorstRow) -> str:
    return clean_text(row.gpu) + (" (seen)" if row.split is Split.SEEN else "")


def _network_name(row: NetworkRow) -> str:
    mark = ", suspect" if row.is_suspect else ""
    return clean_text(f"{row.model} {row.mode}, {row.batch} x {row.sequence_length}{mark}")


def _error(predicted_ns: float | None, measured_ns: float) -> str:
    return percent(predicted_ns / measured_ns - 1 if predicted_ns is not None and measured_ns else None)
