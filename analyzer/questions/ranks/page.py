"""Ranks of one job in words and sheets, as JSON and as CSV."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from ....errors import parameter
from ....formats.trace.printable import clean_text
from ...page.columns import count_column, number_column, share_column, text_column, time_column
from ...page.encoding import encode_json
from ...page.page import Page, build_page, facts, join_passages, notes, opening, warnings
from ...page.quantity import (
    ABSENT,
    common_time_unit,
    format_count,
    format_error,
    format_time,
    format_time_range,
    format_time_within,
)
from ...page.sheet import Sheet, drop_empty_columns
from .report import RankRow, RanksReport, Straggler

_ALIKE: Final = 2e-3
"""Times that differ by less are told as one."""
_SHOWN_RANKS: Final = 64


def describe_ranks(report: RanksReport) -> Page:
    """Put the comparison into words: the stragglers, then tables of ranks, collectives and GPUs."""
    lead = join_passages(opening(_sentences(report)), facts(_facts(report)))
    sheets = (_rank_sheet(report), _collective_sheet(report), _job_sheet(report))
    shown = [drop_empty_columns(sheet) for sheet in sheets if sheet.row_count]
    return build_page(lead, *shown, notes(_notes(report)), warnings(report.warnings))


def draw_ranks_json(report: RanksReport) -> str:
    """Write the comparison as JSON: times in ns."""
    return encode_json({"format": "wavecast.ranks", "version": "2.2", **asdict(report)})


def _sentences(report: RanksReport) -> Iterator[str]:
    if not report.stragglers:
        yield "No rank keeps the others waiting."
    for item in report.stragglers:
        caused = next(row.caused_ns for row in report.ranks if row.rank == item.rank)
        why = "; ".join(item.causes) or "nothing in its file tells why"
        yield f"Rank {item.rank} is waited for, {format_time(caused)} in all: {why}. {_without(report, item)}"

    if report.more_straggler_count:
        more = format_count(report.more_straggler_count, "more rank")
        yield f"{more}, in the column `is waited for`, keep others waiting for less."
    if len({row.gpu for row in report.ranks}) > 1:
        counts = Counter(clean_text(row.gpu) for row in report.ranks)
        found = {clean_text(row.gpu): row for row in report.jobs if not row.is_source}
        times = [f"{format_time(found[name].iteration_ns)} on {name} alone" for name in counts if name in found]
        names = ", ".join(f"{count} × {name}" for name, count in counts.most_common())
        yield f"The ranks ran on unequal GPUs, {names}; the iteration would take {' and '.join(times)}."


def _without(report: RanksReport, item: Straggler) -> str:
    if item.without_ns > (1.0 - _ALIKE) * report.iteration_ns:
        return f"Without that, the iteration would take as long, {format_time(item.without_ns)}."
    time = format_time_within(item.without_ns, item.without_low_ns, item.without_high_ns)
    return f"Without that, the iteration would take {time} instead of {format_time(report.iteration_ns)}."


def _facts(report: RanksReport) -> Iterator[tuple[str, str]]:
    world = "" if report.world_size is None else f" of {report.world_size}"
    yield "ranks", f"{len(report.ranks)}{world}"
    number = "" if report.iteration is None else f"number {report.iteration}, "
    yield "iteration", f"{number}{format_time(report.iteration_ns)} on the slowest rank"
    apart = f"95 % of common collectives end within {format_time(report.clock_error_ns)} of each other"
    yield "replay", f"all ranks together within {format_error(report.replay_error)} of the recording; {apart}"


def _rank_sheet(report: RanksReport) -> Sheet:
    rows, cut = _shown_ranks(report.ranks)
    unit = common_time_unit(row.iteration_ns for row in rows)
    return Sheet(
        title=f"Ranks, {unit.name} of the iteration{cut}",
        columns=(
            count_column("rank", (row.rank for row in rows)),
            text_column("on" if report.is_on_hosts else "GPU", (clean_text(row.gpu) for row in rows), rank=3),
            time_column("begins", (row.start_ns for row in rows), unit, rank=2),
            time_column("iteration", (row.iteration_ns for row in rows), unit),
            time_column("computes", (row.compute_ns for row in rows), unit),
            time_column("sends", (_known_transfer(row) for row in rows), unit, rank=1),
            time_column("waits", (row.waiting_ns for row in rows), unit),
            time_column("waits for\nunseen", (row.unseen_ns or None for row in rows), unit),
            time_column("one or\nthe other", (row.undivided_ns or None for row in rows), unit, rank=1),
            time_column("idle", (row.idle_ns for row in rows), unit, rank=1),
            time_column("waits for\ndata", (row.loading_ns or None for row in rows), unit, rank=2),
            count_column("comes\nlast", (row.last_count for row in rows), rank=3),
            time_column("is waited\nfor", (row.caused_ns for row in rows), unit),
        ),
    )


def _shown_ranks(ranks: Sequence[RankRow]) -> tuple[Sequence[RankRow], str]:
    """Return the ranks that stand in the table, in order, and what to say where that is not all."""
    if len(ranks) <= _SHOWN_RANKS:
        return ranks, ""
    most = sorted(ranks, key=lambda row: -(row.waiting_ns + len(ranks) * row.caused_ns))[:_SHOWN_RANKS]
    cut = f", the {_SHOWN_RANKS} of {len(ranks):,} that wait or are waited for most"
    return sorted(most, key=lambda row: row.rank), cut


def _known_transfer(row: RankRow) -> float | None:
    return row.transfer_ns if row.transfer_ns > 0 or not row.undivided_ns else None


def _collective_sheet(report: RanksReport) -> Sheet:
    rows = report.collectives
    unit = common_time_unit(row.transfer_ns + row.waiting_ns for row in rows)
    return Sheet(
        title=f"Collectives that recorded ranks share, {unit.name}",
        columns=(
            text_column("collective", (clean_text(row.name) for row in rows)),
            number_column("ranks", (ABSENT if row.group_size is None else str(row.group_size) for row in rows), rank=1),
            count_column("count", (row.count for row in rows)),
            time_column("transfer", (row.transfer_ns if row.undivided_ns is None else None for row in rows), unit),
            time_column("waits for\nunseen ranks", (row.unseen_ns for row in rows), unit),
            time_column("one or\nthe other", (row.undivided_ns for row in rows), unit),
            time_column("ranks wait", (row.waiting_ns for row in rows), unit),
        ),
    )


def _job_sheet(report: RanksReport) -> Sheet:
    rows = sorted(report.jobs, key=lambda row: row.iteration_ns)
    unit = common_time_unit(row.iteration_ns for row in rows)
    ranges = (
        ABSENT if row.is_source or row.low_ns is None else format_time_range(row.low_ns, row.high_ns, unit)
        for row in rows
    )
    return Sheet(
        title=f"The job on GPUs, {unit.name}",
        columns=(
            text_column("GPU", (clean_text(row.place) + (" ◀" if row.is_source else "") for row in rows)),
            time_column("iteration", (row.iteration_ns for row in rows), unit),
            number_column("90 % interval", ranges, rank=1),
            count_column("slowest\nrank", (row.slowest_rank for row in rows), rank=2),
            share_column("ranks wait", (row.waiting_share for row in rows), rank=1),
        ),
    )


def _notes(report: RanksReport) -> Iterator[str]:
    if report.missing_rank_count:
        missing = format_count(report.missing_rank_count, "rank")
        unseen_ns = sum(row.unseen_ns or 0.0 for row in report.collectives)
        undivided_ns = sum(row.undivided_ns or 0.0 for row in report.collectives)
        told = f" {format_time(unseen_ns)} of the collectives, more than the links take, wait for them."
        rest = f" {format_time(undivided_ns)} more are transfer or waiting for them: nothing recorded tells which."
        yield f"No file is of {missing}.{told * (unseen_ns > 0)}{rest * (undivided_ns > 0)}"
    if report.is_on_hosts:
        yield (
            f"The ranks computed on CPUs: their collectives tell nothing of a GPU's, and {parameter('to')} is refused."
        )
