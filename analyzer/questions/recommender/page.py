"""A recommender's iteration on types of GPUs in words and a sheet, as JSON and as a table."""

from collections.abc import Iterator
from typing import Final

from ....formats.trace.printable import clean_text
from ...page.columns import number_column, text_column, time_column
from ...page.encoding import FieldTable, attributes, encode_json, join_tables, table_of, table_of_keys
from ...page.energy import describe_energy, energy_columns, energy_note, energy_record, energy_table
from ...page.page import Page, build_page, notes, opening, warnings
from ...page.quantity import common_time_unit, format_bytes, format_count, format_time_within, percent
from ...page.sheet import Sheet
from .report import RecommenderPart, RecommenderReport, RecommenderRow
from .sizes import HostWork, TableLayout

TITLES: Final = {
    RecommenderPart.TABLES: "tables\n%",
    RecommenderPart.DENSE: "layers\n%",
    RecommenderPart.VECTORS: "vectors\n%",
    RecommenderPart.GRADIENTS: "gradients\n%",
    RecommenderPart.HOST: "host\n%",
    RecommenderPart.STRAGGLERS: "waits\n%",
}
LAYOUTS: Final = {
    TableLayout.HYBRID: "HugeCTR's hybrid embedding",
    TableLayout.COLLECTION: "HugeCTR's embedding collection",
    TableLayout.LOCALIZED: "whole tables",
}
HOSTS: Final = {
    HostWork.GRAPH: "one CUDA graph",
    HostWork.NATIVE: "kernels launched from C++",
    HostWork.EAGER: "eager PyTorch",
}
NOTES: Final = (
    "The GPU that has most to do with tables is predicted. Tables: lookups and updates. Vectors: what is sent of them, "
    "and gradients: their sum over GPUs, where no kernel runs beside it. Host: where it, or the time between kernels, "
    "is what is waited for. Waits: for the slowest GPU.",
)


def describe_recommender(report: RecommenderReport) -> Page:
    """Put a recommender's iteration into words."""
    return build_page(opening(_headline(report)), _sheet(report), notes(_notes(report)), warnings(_warnings(report)))


def _headline(report: RecommenderReport) -> Iterator[str]:
    sizes, training = report.sizes, report.training
    yield (
        f"{clean_text(sizes.name)}: {format_count(len(sizes.table_rows), 'table')} of {sum(sizes.table_rows):,} rows × "
        f"{sizes.width}, {sum(sizes.pooling):,} lookups per sample, {training.global_batch:,} samples on "
        f"{format_count(training.gpus, 'GPU')}."
    )
    how = f"{LAYOUTS[training.layout]}, {HOSTS[training.host]}, {training.dtype}, {training.optimizer}"
    yield f"{how}; lookups spread by {training.indices}."
    best = report.rows[0]
    time = format_time_within(best.step_ns, best.step_low_ns, best.step_high_ns)
    yield f"{clean_text(best.gpu)}: {time} per iteration."
    if report.asks_for_energy:
        least = min(report.rows, key=lambda row: row.energy.billed_j)
        yield f"{'Least energy' if len(report.rows) > 1 else 'Energy'}: {_described(least)}."


def _described(row: RecommenderRow) -> str:
    return f"{clean_text(row.gpu)}, {describe_energy(row.energy)}"


def _notes(report: RecommenderReport) -> Iterator[str]:
    yield from NOTES
    if report.asks_for_energy:
        yield f"{energy_note(report.electricity)} Every GPU is taken to draw what the busiest does."


def _sheet(report: RecommenderReport) -> Sheet:
    rows = report.rows
    columns = (
        text_column("GPU", (clean_text(row.gpu) for row in rows), min_width=16),
        time_column("iteration", (row.step_ns for row in rows), common_time_unit([row.step_ns for row in rows])),
        number_column("samples/s", (f"{row.samples_per_s:,.0f}" for row in rows)),
        *(
            number_column(title, (percent(row.parts_ns[part] / row.step_ns) for row in rows), rank=1)
            for part, title in TITLES.items()
        ),
        *(energy_columns([row.energy for row in rows]) if report.asks_for_energy else ()),
        number_column("tables'\nmemory", (format_bytes(row.table_bytes) for row in rows), rank=3),
        text_column("machine", (f"{row.gpus_per_node} in {clean_text(row.node)}" for row in rows), rank=4),
    )
    return Sheet(title="", columns=columns)


def _warnings(report: RecommenderReport) -> Iterator[str]:
    for row in report.rows:
        if not row.fits:
            yield (
                f"{clean_text(row.gpu)}: tables take {format_bytes(row.table_bytes)} of a GPU that has "
                f"{format_bytes(row.gpu_memory_bytes)}: they do not fit"
            )
    for gpu, reason in report.left_out:
        yield f"{clean_text(gpu)} left out: {reason}"


_ROW = (
    "gpu", "node", "gpus_per_node", "step_ns", "step_low_ns", "step_high_ns", "samples_per_s", "table_bytes",
    "gpu_memory_bytes",
)  # fmt: skip
_PARTS = {f"{part.name.lower()}_ns": part for part in RecommenderPart}


def draw_recommender_json(report: RecommenderReport) -> str:
    """Write a recommender's iteration as JSON: times in ns, sizes in bytes."""
    training = attributes(report.training) | {"indices": str(report.training.indices)}
    del training["gpus_per_node"]
    return encode_json(
        {
            "format": "wavecast.recommender",
            "version": 1,
            "model": report.sizes,
            "training": training,
            "gpus": [
                attributes(row, (*_ROW, "fits"))
                | {"parts_ns": {name: row.parts_ns[part] for name, part in _PARTS.items()}}
                | {"energy": energy_record(row.energy)}
                for row in report.rows
            ],
        }
    )


def recommender_table(report: RecommenderReport) -> FieldTable:
    """Return a row per type of GPU."""
    return join_tables(
        table_of(report.rows, RecommenderRow, _ROW),
        table_of_keys((row.parts_ns for row in report.rows), _PARTS),
        energy_table(row.energy for row in report.rows),
    )
