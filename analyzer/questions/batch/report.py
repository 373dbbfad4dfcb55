"""What a batch comes to: how many rows, what failed, and which GPUs carry the fleet under each what-if."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ....errors import InputError, WavecastError
from ....records import dataclass
from .fleet import FleetSummary, FleetTimes, collect_times, summarize_fleet
from .inputs import BatchInput, SkippedFile, spread_weights
from .mix import GpuMix, check_solver, find_mix
from .parts import PartFolder, TracePart
from .processes import BatchFailure, Rows, refusals_of, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """Hold the totals under one what-if, and the cheapest mix of GPUs or why there is none."""

    summary: FleetSummary
    mix: GpuMix | None = None
    why_no_mix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Say what a batch came to."""

    trace_count: int
    row_count: int
    fleets: tuple[FleetAnswer, ...]
    failures: tuple[BatchFailure, ...]
    skipped: tuple[SkippedFile, ...] = ()
    has_weights: bool = False
    """Whether totals are of a day's runs; else of one iteration of each trace."""
    unknown_names: tuple[str, ...] = ()
    """Names in the list of weights that mean no trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRequest:
    """Say what a mix of GPUs has to keep to."""

    max_kinds: int | None = None
    utilisation: float = 1.0


def all_rows(folder: PartFolder, inputs: Sequence[BatchInput]) -> Iterator[Rows]:
    """Yield the table's rows in the order of the traces, those of one what-if of a trace at a time."""
    for item in inputs:
        part = folder.read(item.trace_id)
        if part is not None:
            yield from rows_of(item, part)


def report_batch(
    folder: PartFolder,
    inputs: Sequence[BatchInput],
    unanswered: Sequence[BatchFailure],
    *,
    weights: Mapping[str, float] | None = None,
    mix: MixRequest | None = None,
) -> BatchReport:
    """Return what the parts of a run come to; `unanswered` are the traces of which nothing came."""
    found = [(item, part) for item in inputs if (part := folder.read(item.trace_id)) is not None]
    refused = [failure for item, part in found for failure in refusals_of(item, part)]
    runs, unknown = _runs(weights, found)
    times = collect_times(found, runs) if found else ()
    fleets = []
    for fleet in times:
        best, reason = None, None
        if weights is not None:
            try:
                check_solver()
                request = mix or MixRequest()
                best = find_mix(fleet, max_kinds=request.max_kinds, utilisation=request.utilisation)
            except WavecastError as error:
                if isinstance(error, InputError) and mix is not None:
                    raise
                reason = str(error)
        fleets.append(FleetAnswer(summary=summarize_fleet(fleet), mix=best, why_no_mix=reason))
    return BatchReport(
        trace_count=len(inputs),
        row_count=sum(part.row_count for _, part in found),
        fleets=tuple(fleets),
        failures=(*unanswered, *refused),
        has_weights=weights is not None,
        unknown_names=unknown,
    )


def times_of(folder: PartFolder, inputs: Sequence[BatchInput]) -> tuple[FleetTimes, ...]:
    """Return the time of each trace on each GPU, by what-if, of the parts that are there."""
    found = [(item, part) for item in inputs if (part := folder.read(item.trace_id)) is not None]
    return collect_times(found, None) if found else ()


def _runs(
    weights: Mapping[str, float] | None, found: Sequence[tuple[BatchInput, TracePart]]
) -> tuple[dict[str, float] | None, tuple[str, ...]]:
    if weights is None:
        return None, ()
    named = [(item, str(part.facts["workload"]) if part.facts.get("workload") else None) for item, part in found]
    return spread_weights(weights, named)
