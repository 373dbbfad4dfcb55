"""`wavecast.scale`: a recording of one GPU, predicted on many under parallel plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from ....errors import InputError, parameter
from ...asking.amounts import read_bytes, read_duration_ns
from ...asking.answer import Report, as_names, trace_name
from ...asking.electricity import read_electricity
from ...asking.keywords import check_choice, check_count, check_iteration, checks_kinds
from ...asking.lookups import with_spread
from ...asking.plan_options import MOST_SAMPLES
from ...asking.prices import Prices, read_prices
from ...asking.question import Gpus, Machines, WhatIfs, find_named, read_recording, sharpen
from ...page.formats import REPORT_FORMATS

if TYPE_CHECKING:
    from ....formats.files.importers import Progress
    from ....formats.trace.tables import Trace
    from ....specs.gpu import Gpu
    from ...asking.answer import Tables
    from ...iteration.decision.electricity import Electricity
    from ...page.page import Page
    from ...page.terminal import Screen
    from .report import ScaleReport

SVG: Final = "svg"
SHOWN_PLANS: Final = 10
"""Where nobody says how many."""
MOST_GPUS: Final = 99_999_999


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PlansReport(Report):
    """Hold plans on many GPUs, ranked: `report` has the figures. Its table is `plans`: a row per plan, GPU, count."""

    formats: ClassVar[tuple[str, ...]] = (*REPORT_FORMATS, SVG)
    name: str
    """Of the trace, where its workload has none."""
    report: ScaleReport
    shown_count: int = SHOWN_PLANS
    """Plans in its page."""

    def page(self) -> Page:
        """Return the report in words and sheets."""
        from .page import describe_scale

        return describe_scale(self.report, name=self.name, top=self.shown_count)

    def illustrated_page(self) -> Page:
        """Return it with charts."""
        from .charts import illustrate_scale

        return illustrate_scale(self.report, name=self.name, top=self.shown_count)

    def to_json(self) -> str:
        """Return the report as JSON, with all digits; docs/cli.md has its layout."""
        from .records import draw_scale_json

        return draw_scale_json(self.report)

    def draw(self, form: str = "table", screen: Screen | None = None) -> str:
        """Return the report in a format: table, json, csv, markdown, html, or svg: the scaling curve."""
        if form == SVG:
            from .curve import draw_scaling

            return draw_scaling(self.report, name=self.name)
        return Report.draw(self, form, screen)

    def _tables(self) -> Tables:
        from .records import plan_table

        return {"plans": lambda: plan_table(self.report)}

    def _headline(self) -> str:
        from ...page.quantity import format_count, format_time

        rows = self.report.predictions
        best = f": best {rows[0].plan} on {rows[0].gpu_count} × {rows[0].gpu}, {format_time(rows[0].iteration_ns)}"
        return f"{self.report.trace.name or self.name}, {format_count(len(rows), 'plan')}{best if rows else ''}"


@checks_kinds
def scale(  # noqa: PLR0913 (all that one may ask, by name)
    trace: str | Path | Trace,
    *,
    to: str | Sequence[str] = (),
    gpus: int | Sequence[int] = (),
    plan: str | Path | Sequence[str | Path] = (),
    search: bool = False,
    global_batch: int | None = None,
    from_batch: int | None = None,
    max_memory: str | None = None,
    measured_step: str | None = None,
    source: str | None = None,
    gpu_file: str | Path | None = None,
    machines: Machines | None = None,
    indices: str | Path | None = None,
    host: float | str | Path | None = None,
    prices: Prices | Mapping[str, float] | str | Path | None = None,
    iteration: int | str | None = None,
    window_ns: tuple[int | None, int | None] | None = None,
    captures: Sequence[str | Path] = (),
    execution_trace: str | Path | None = None,
    calibration: str | Path | None = None,
    what_ifs: WhatIfs | None = None,
    top: int = SHOWN_PLANS,
    timeline: str | Path | None = None,
    electricity: Electricity | float | None = None,
    sort: str | None = None,
    recover: bool = False,
    progress: Progress | None = None,
) -> PlansReport:
    """Predict a recording of one GPU on many, under the best parallel plans, or those that `plan` names.

    `gpus` says how many: one number or several. `max_memory` is what a rank may use ("70GiB") and
    `measured_step` what the recorded iteration takes on `source` ("350ms"). `timeline` is a file for the first plan's
    timeline. `electricity` is $ per kWh, or an `Electricity`; `sort` says what plans are listed by: "time", "cost",
    "memory" or "energy". The other keywords mean what the options of `scale` of the same names do; `what_ifs` asks
    for another precision or sequence length, `calibration` is that of `analyze`.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued, and TraceError
    for a file that is no trace.

    >>> sample = "samples/gpt2_small-training-bf16-b4-shapes.json.gz"
    >>> report = scale(sample, to="H100 SXM", gpus=8, plan=["dp=8", "fsdp=8"])
    >>> [(row["plan"], row["gpu_count"], row["fits"]) for row in report.to_records()]
    [('fsdp=8', 8, True), ('dp=8', 8, True)]
    """
    from .report import RANK_BY
    from .scale import scale_trace

    if host is not None:
        what_ifs = replace(what_ifs or WhatIfs(), host=host)
    counts = tuple(dict.fromkeys(_gpu_counts(gpus)))
    check_count("top", top, least=0)
    check_choice("sort", sort, tuple(RANK_BY))
    named = find_named(as_names(to), source, gpu_file)
    step_ns = read_duration_ns("measured_step", measured_step)
    if step_ns is not None and named.source is None:
        raise InputError(
            f"{parameter('measured_step')} says how long one GPU takes: say which with {parameter('from', 'GPU')}"
        )
    recording = read_recording(
        trace,
        iteration=check_iteration(iteration),
        window_ns=window_ns,
        captures=captures,
        execution_trace=execution_trace,
        recover=recover,
        progress=progress,
    )
    read = recording.trace
    report = scale_trace(
        read,
        named.catalog,
        targets=named.targets or _measured_gpu(read, named),
        gpu_counts=counts,
        plans=as_names(plan, "plan"),
        search=search,
        global_batch=_check_samples(global_batch),
        recorded_batch=check_count("from_batch", from_batch),
        max_memory_bytes=read_bytes("max_memory", max_memory),
        measured_step_ns=step_ns,
        source=named.source,
        library=with_spread(None if calibration is None else sharpen(calibration, read, named).library, indices),
        scenario=None if what_ifs is None else what_ifs.scenario(read, asks_for_batches=True),
        iteration=recording.iteration,
        cluster=(machines or Machines()).cluster(named.catalog, as_names(to)),
        prices=read_prices(prices, named.catalog),
        timeline=None if timeline is None else Path(timeline),
        electricity=read_electricity(electricity),
        sort=sort,
    )
    return PlansReport(name=trace_name(trace), report=report, shown_count=top)


def _gpu_counts(gpus: int | Sequence[int]) -> list[int]:
    counts = gpus if isinstance(gpus, Sequence) else [gpus]
    if not all(isinstance(count, int) and 0 < count <= MOST_GPUS for count in counts):
        raise InputError(f"gpus={gpus!r}: expected a number of GPUs, or several as in [8, 64, 512]")
    return list(counts)


def _check_samples(global_batch: int | None) -> int | None:
    count = check_count("global_batch", global_batch)
    if count is not None and count > MOST_SAMPLES:
        raise InputError(f"global_batch={count}: expected {MOST_SAMPLES:,} samples at most")
    return count


def _measured_gpu(trace: Trace, named: Gpus) -> tuple[Gpu, ...]:
    """Return the GPU that plans are of where none is named: the one that was measured."""
    from ...recorded.devices import first_known_gpu

    known = named.source or (first_known_gpu(named.catalog, trace) if trace.is_measured else None)
    if known is None:
        raise InputError(
            f"{parameter('to')} says on which GPUs: a recording of shapes has none of its own; add "
            f"{parameter('to', 'h100')}"
        )
    return (known,)
