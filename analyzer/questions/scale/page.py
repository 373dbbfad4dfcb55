"""The report on plans for many GPUs in words and sheets, as JSON and as a table."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Final

from ....errors import parameter
from ....formats.trace.printable import clean_text
from ...page.columns import count_column, number_column, share_column, text_column, time_column
from ...page.encoding import FieldTable, attributes, encode_json, join_tables, table_of, table_of_keys
from ...page.energy import describe_energy, describe_prices, energy_columns, energy_note, energy_record, energy_table
from ...page.page import Page, build_page, notes, opening, warnings
from ...page.quantity import (
    ABSENT,
    TimeUnit,
    common_time_unit,
    format_bytes,
    format_count,
    format_money,
    format_number,
    format_share,
    format_time,
    format_time_range,
    format_time_within,
)
from ...page.sheet import Sheet, SheetColumn, drop_empty_columns
from ..analyze.page.headline import describe_recording
from .parts import PlanPart
from .report import PlanLimit, PlanPrediction, ScaleReport, SearchSummary, Spent

SPENT_TITLES: Final = {spent: spent.value for spent in Spent} | {Spent.STRAGGLERS: "slowest\nrank"}
LIMIT_WORDS: Final = {
    PlanLimit.COMPUTE: "compute is the limit",
    PlanLimit.LINK: "links between the GPUs are the limit",
    PlanLimit.BUBBLE: "the pipeline's bubble is the limit",
    PlanLimit.HOST: "the host is the limit",
    PlanLimit.MEMORY: "memory does not suffice",
}
_PART_NOTES: Final = (
    "Shares of the iteration on the stage of the pipeline that works most. Compute: kernels. Link: what is sent and "
    "nothing hides. Bubble: waits for other stages. Host: waits for launches. Slowest rank: all wait for it. "
    "Limit: compute where it takes two thirds, with optimizer and stragglers, else the largest of the others.",
)
_LIMITS_NOTE: Final = (
    "Not in these times: other jobs on the same network, failures, data loading, checkpoints "
    "(docs/reference/many-gpus.md)."
)
SHOWN_FAILURES: Final = 3


def describe_scale(report: ScaleReport, *, name: str, top: int) -> Page:
    """Put a report into words: the best plan of each GPU type and count, then the `top` plans of the first type.

    `name` stands for a workload that has none.
    """
    groups = report.groups
    first_gpu = groups[0][0]
    counts = sorted(count for gpu, count in groups if gpu == first_gpu)
    is_single = len(report.predictions) == len(groups)
    lists = [] if is_single or not top else [_plan_sheet(report, first_gpu, count, top) for count in counts]
    return build_page(
        opening(_headline(report, name)),
        *([_best_sheet(report)] if len(groups) > 1 or is_single else []),
        *lists,
        notes(_notes(report)),
        warnings(report.warnings),
    )


def _headline(report: ScaleReport, name: str) -> Iterator[str]:
    yield f"{describe_recording(report.trace, name)}. {_batch(report)}"
    yield _basis(report)
    yield from map(_search, report.searches)
    yield from _verdict(report)


def _basis(report: ScaleReport) -> str:
    source = report.source
    if source.iteration_ns is not None:
        where = clean_text(source.gpu or "an unnamed GPU")
        return (
            f"Measured on one {where}: {format_time(source.iteration_ns)}. What a rank runs under a plan is derived "
            "from this recording; its measured times carry over."
        )
    if report.measured_step_ns is not None:
        return (
            f"Recorded without timings; its step of {format_time(report.measured_step_ns)}, as given, scales what op "
            "models predict of every plan."
        )
    return (
        "Recorded without timings on one GPU: what a rank runs under a plan is derived from its shapes and timed by "
        f"op models (a measured step: {parameter('measured_step')})."
    )


def _batch(report: ScaleReport) -> str:
    if report.global_batch is not None:
        return f"An iteration has {format_count(report.global_batch, 'sample')}, on however many GPUs."
    row = report.predictions[0]
    sizes = {item.micro_batch * item.micro_batches for item in report.predictions}
    if report.trace.mode == "inference" and len(sizes) == 1:
        steps = "one step of " if all(item.micro_batches == 1 for item in report.predictions) else ""
        size = format_count(row.micro_batch * row.micro_batches, "sample")
        return f"An iteration is {steps}{size} on every replica (another number: {parameter('global_batch')})."
    per_gpu = row.global_batch / row.gpu_count
    if all(item.global_batch == per_gpu * item.gpu_count for item in report.predictions):
        added = "1 sample" if per_gpu == 1 else f"{per_gpu:,g} samples"
        return (
            f"Every GPU adds {added} to an iteration: {row.gpu_count:,} GPUs process {row.global_batch:,} (another "
            f"number: {parameter('global_batch')})."
        )
    return "Plans say themselves how many samples an iteration has; they are ranked by samples per second."


def _search(found: SearchSummary) -> str:
    parts = [
        (found.too_large, "need more memory than there is"),
        (found.outpaced, "are slower by an estimate"),
        (found.predicted, "predicted below"),
    ]
    told = ", ".join(f"{count:,} {words}" for count, words in parts if count)
    failed = sum(found.failed.values())
    more = ""
    if failed:
        reasons = sorted(found.failed, key=lambda text: -found.failed[text])[:SHOWN_FAILURES]
        more = f", {failed:,} left out ({clean_text('; '.join(reasons))})"
    return f"Of {format_count(found.considered, 'plan')} for {found.gpu_count:,} GPUs, {told}{more}."


def _verdict(report: ScaleReport) -> Iterator[str]:
    """Say what takes least energy where asked, what is fastest, cheapest and smallest, and what limits the fastest."""
    rows = report.predictions
    best = report.fastest
    if best.fits is False:
        yield "No plan fits: all are shown as if they did."
    yield from _least_energy(report)
    head = "Fastest" if len(rows) > 1 else "Predicted"
    yield f"{head}: {_named(best)}, {_throughput(best)}; {LIMIT_WORDS[best.limit]}{_losses(best)}."
    fitting = [row for row in rows if row.fits is not False]
    cheapest = min((row for row in fitting if row.rank_by_cost), key=lambda row: row.rank_by_cost or 0, default=None)
    if cheapest is not None and cheapest is not best:
        yield (
            f"Cheapest per sample: {_named(cheapest)}, {format_money(cheapest.usd_per_million_samples)} per million "
            f"samples ({format_money(best.usd_per_million_samples)} where it is fastest)."
        )
    least = min((row for row in fitting if row.rank_by_memory), key=lambda row: row.rank_by_memory or 0, default=None)
    if least is not None and least is not best and least is not cheapest:
        yield f"Least memory: {_named(least)}, {format_bytes(least.memory_needed_bytes)} per GPU."


def _least_energy(report: ScaleReport) -> Iterator[str]:
    """Say which plan takes least energy, where that is asked, and what a day of it comes to."""
    able = [row for row in report.predictions if row.energy is not None]
    if not report.asks_for_energy or not able:
        return
    least = min(able, key=lambda row: row.rank_by_energy or len(able) + 1)
    if least.energy is not None:
        head = "Least energy per sample" if len(report.predictions) > 1 else "Energy"
        yield f"{head}: {_named(least)}, {describe_energy(least.energy)}."


def _named(row: PlanPrediction) -> str:
    return f"{clean_text(row.plan)} on {row.gpu_count:,} {clean_text(row.gpu)}"


def _throughput(row: PlanPrediction) -> str:
    time = format_time_within(row.iteration_ns, row.iteration_low_ns, row.iteration_high_ns)
    return f"{time}, {format_number(row.samples_per_s)} samples/s"


def _losses(row: PlanPrediction) -> str:
    """Name what takes time beside compute, largest first."""
    others = [(row.share(spent), spent.value) for spent in Spent if spent is not Spent.COMPUTE]
    told = [f"{words} {format_share(share)}" for share, words in sorted(others, reverse=True) if share >= 0.005]
    return f" ({', '.join(told)})" if told else ""


def _best_sheet(report: ScaleReport) -> Sheet:
    """Return the best plan of each GPU type and count."""
    rows = [row for gpu, count in report.groups if (row := report.best(gpu, count)) is not None]
    rows.sort(key=lambda row: (row.gpu_count, row.rank_by_time))
    unit = common_time_unit(row.iteration_ns for row in rows)
    is_one_plan = len({row.plan for row in report.predictions}) == 1
    columns = (
        text_column("GPU", (clean_text(row.gpu) + ("" if row.untested is None else ", untested") for row in rows)),
        count_column("GPUs", (row.gpu_count for row in rows)),
        *([] if is_one_plan else [_plan_column(rows)]),
        *_value_columns(rows, unit),
        *_energy_columns(report, rows),
        *(_part_columns(rows) if is_one_plan else ()),
        number_column("scaling", (format_share(row.efficiency) for row in rows), rank=2),
    )
    title = "The best plan for each" if len(report.predictions) > len(rows) else ""
    return drop_empty_columns(Sheet(title=title, columns=columns))


def _plan_sheet(report: ScaleReport, gpu: str, count: int, top: int) -> Sheet:
    """Return the best plans on some GPUs of one type."""
    mine = [row for row in report.predictions if (row.gpu, row.gpu_count) == (gpu, count)]
    rows = mine[:top]
    unit = common_time_unit(row.iteration_ns for row in rows)
    columns = (
        number_column("#", (str(number) for number, _ in enumerate(rows, 1))),
        _plan_column(rows),
        *_value_columns(rows, unit),
        *_energy_columns(report, rows),
        *_part_columns(rows),
    )
    shown = f", the first {len(rows)} of {len(mine):,}" if len(rows) < len(mine) else ""
    title = f"Plans on {count:,} {clean_text(gpu)} ({clean_text(rows[0].node)}){shown}"
    return drop_empty_columns(Sheet(title=title, columns=columns))


def _plan_column(rows: Sequence[PlanPrediction]) -> SheetColumn:
    return text_column("plan", (clean_text(row.plan) for row in rows))


def _value_columns(rows: Sequence[PlanPrediction], unit: TimeUnit) -> Iterator[SheetColumn]:
    yield time_column("iteration", (row.iteration_ns for row in rows), unit)
    ranges = (format_time_range(row.iteration_low_ns, row.iteration_high_ns, unit) for row in rows)
    yield number_column("interval", ranges, rank=2)
    if len({row.global_batch for row in rows}) > 1 or len({row.gpu_count for row in rows}) > 1:
        yield number_column("samples/s", (format_number(row.samples_per_s) for row in rows))
    yield text_column("limit", (row.limit.value for row in rows))
    yield number_column("memory\nper GPU", map(_memory, rows), rank=1)
    yield number_column("$ per 1M\nsamples", (format_money(row.usd_per_million_samples) for row in rows), rank=4)
    yield share_column("MFU", (row.mfu for row in rows), rank=5)
    yield number_column("tokens/s\nper GPU", (format_number(row.tokens_per_s_per_gpu) for row in rows), rank=6)
    yield number_column("micro\nbatches", (f"{row.micro_batches:,} × {row.micro_batch:,}" for row in rows), rank=7)


def _energy_columns(report: ScaleReport, rows: Sequence[PlanPrediction]) -> Iterator[SheetColumn]:
    if report.asks_for_energy:
        yield from energy_columns([row.energy for row in rows])


def _part_columns(rows: Sequence[PlanPrediction]) -> Iterator[SheetColumn]:
    for spent, title in SPENT_TITLES.items():
        shares = [row.share(spent) for row in rows]
        if any(share >= 0.005 for share in shares):
            yield share_column(title, shares, rank=5 if spent in (Spent.OPTIMIZER, Spent.STRAGGLERS) else 3)


def _memory(row: PlanPrediction) -> str:
    if row.memory_needed_bytes is None:
        return ABSENT
    size = format_bytes(row.memory_needed_bytes)
    if row.is_tight:
        return f"{size} ?"
    return size if row.fits is not False else f"{size} !"


def _notes(report: ScaleReport) -> Iterator[str]:
    rows = report.predictions
    yield from _PART_NOTES
    untested = dict.fromkeys(row.untested for row in rows if row.untested is not None)
    if untested:
        yield f"Untested: {clean_text('; '.join(untested))}. Their intervals are the widest there are."
    if any(row.fits is False or row.is_tight for row in rows):
        usable = {row.gpu: row.memory_usable_bytes for row in rows}
        room = ", ".join(f"{clean_text(gpu)} {format_bytes(size)}" for gpu, size in list(usable.items())[:3])
        yield f"Memory: ! does not fit, ? may not fit ({room}{' …' if len(usable) > 3 else ''})."
    if report.asks_for_energy:
        yield energy_note(report.electricity)
    yield from describe_prices([(row.price_kind, row.price_source, row.price_date) for row in rows if row.price_kind])
    if any(row.efficiency is not None for row in rows):
        yield "Scaling: samples per second and GPU, beside the best plan on fewest GPUs of the type."
    yield _LIMITS_NOTE


COLUMNS: Final = tuple(
    item.name for item in fields(PlanPrediction) if item.name not in ("parts_ns", "rank_by_time", "energy")
)
"""Attributes of a prediction; `rank_by_time` comes before them, the cost of a million samples and the parts after."""


_PARTS: Final = {f"{part.name.lower()}_ns": part for part in PlanPart}


def draw_scale_json(report: ScaleReport) -> str:
    """Write a report as JSON: times in ns, shares as ratios, null where nothing is known."""
    predictions = [
        attributes(row, (*COLUMNS, "rank_by_time"))
        | {
            "energy": energy_record(row.energy),
            "parts_ns": {part.name.lower(): row.parts_ns.get(part, 0.0) for part in PlanPart},
            "usd_per_million_samples": row.usd_per_million_samples,
        }
        for row in report.predictions
    ]
    found = {"format": "wavecast.scale", "version": "1.0", **attributes(report), "predictions": predictions}
    return encode_json(found)


def plan_table(report: ScaleReport) -> FieldTable:
    """Return one row per plan, GPU type and count, ranked: times in ns, shares as ratios."""
    rows = report.predictions
    return join_tables(
        table_of(rows, PlanPrediction, ("rank_by_time", *COLUMNS, "usd_per_million_samples")),
        table_of_keys((row.parts_ns for row in rows), _PARTS),
        energy_table(row.energy for row in rows),
    )
