"""`wavecast.analyze`: one trace, predicted on other GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...asking.answer import Report, as_names, trace_name
from ...asking.electricity import read_electricity
from ...asking.keywords import check_count, check_iteration, checks_kinds
from ...asking.lookups import with_spread
from ...asking.observed import with_observed
from ...asking.prices import Prices, read_prices
from ...asking.question import Gpus, Machines, WhatIfs, find_named, read_recording, sharpen

if TYPE_CHECKING:
    from ....formats.files.importers import Progress
    from ....formats.trace.tables import Trace
    from ...asking.answer import Tables
    from ...asking.question import Gpus
    from ...iteration.decision.electricity import Electricity
    from ...iteration.decision.goal import Goal
    from ...iteration.decision.observed import Observation
    from ...iteration.decision.selection import Selection
    from ...iteration.report import AnalysisReport
    from ...iteration.result import Analysis
    from ...page.page import Page

SHORT_OP_COUNT: Final = 10
"""Ops shown where nobody asks for all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class IterationReport(Report):
    """Hold an iteration predicted on other GPUs: `report` has the figures, `analysis` all that they come from.

    Its tables are `gpus`, a row per GPU, and `ops`, a row per op on one of them. With `ops=True` ops are the CSV, too.
    """

    name: str
    """Of the trace, where its workload has none."""
    report: AnalysisReport
    analysis: Analysis
    has_op_details: bool = False
    """Whether ops are listed with bound and reason, and are what CSV holds."""

    def page(self) -> Page:
        """Return the report in words and sheets."""
        from .page.page import describe_report

        return describe_report(self.report, name=self.name, detailed_ops=self.has_op_details)

    def illustrated_page(self) -> Page:
        """Return it with charts: cost against time, what the time goes to, roofline, timeline, memory, what-ifs."""
        from .page.charts import illustrate

        return illustrate(self.page(), self.report, self.analysis, name=self.name)

    def to_json(self) -> str:
        """Return the report as JSON, with all digits; docs/cli.md has its layout."""
        from .page.json import draw_report_json

        return draw_report_json(self.report, with_ops=self.has_op_details)

    def to_csv(self) -> str:
        """Return a row per GPU as CSV, or per op where they are detailed."""
        return self._table("ops" if self.has_op_details else "gpus").to_csv()

    def _tables(self) -> Tables:
        from .page.csv import gpu_table, op_table

        return {"gpus": lambda: gpu_table(self.report), "ops": lambda: op_table(self._with_all_ops())}

    def _with_all_ops(self) -> AnalysisReport:
        from ...iteration.analyze import report_on

        if self.has_op_details:
            return self.report
        gpus = self.analysis.prediction.fleet.gpus
        gpu = next(gpu for gpu in gpus if gpu.name == self.report.ops_gpu)
        return replace(self.report, ops=report_on(self.analysis, ops_gpu=gpu, op_limit=None).ops)

    def _headline(self) -> str:
        from ...page.quantity import format_count, format_time

        rows = self.report.predictions
        fastest = min(rows, key=lambda row: row.iteration_ns, default=None)
        best = "" if fastest is None else f": fastest {fastest.gpu} {format_time(fastest.iteration_ns)}"
        return f"{self.report.trace.name or self.name} on {format_count(len(rows), 'GPU')}{best}"

    def save_timeline(self, path: str | Path) -> None:
        """Write the predicted timeline of the GPU that the ops are about, for ui.perfetto.dev."""
        from ...iteration.gpu_replay import save_timeline

        save_timeline(self.analysis, self.report.ops_gpu, Path(path))


@checks_kinds
def analyze(  # noqa: PLR0913 (all that one may ask, by name)
    trace: str | Path | Trace,
    *,
    to: str | Sequence[str] = (),
    source: str | None = None,
    iteration: int | str | None = None,
    window_ns: tuple[int | None, int | None] | None = None,
    ops: bool = False,
    top: int | None = None,
    host: float | str | Path | None = None,
    cpu_speed: float | str | None = None,
    precision: str | None = None,
    batch: int | None = None,
    from_batch: int | None = None,
    sequence_length: int | None = None,
    from_sequence_length: int | None = None,
    cached_tokens: int | None = None,
    cuda_graph: bool = False,
    fuse_elementwise: bool = False,
    attention_kernel: str | None = None,
    largest_batch: bool = False,
    gpu_file: str | Path | None = None,
    calibration: str | Path | None = None,
    observed: Mapping[str, str | float] | None = None,
    machines: Machines | None = None,
    indices: str | Path | None = None,
    selection: Selection | None = None,
    goal: str | Goal | None = None,
    prices: Prices | Mapping[str, float] | str | Path | None = None,
    electricity: Electricity | float | None = None,
    captures: Sequence[str | Path] = (),
    execution_trace: str | Path | None = None,
    recover: bool = False,
    progress: Progress | None = None,
) -> IterationReport:
    """Predict a recorded iteration on other GPUs: on all that are catalogued, or on those that `to` names.

    `trace` is a file in any format that is read, an archived trace (`archive://DIR#ID`), or what `load_trace` and
    `record` return. `source` is the GPU that was measured, where the trace does not say it. `ops` lists every op with
    bound and reason, `top` limits the list. `observed` holds how long the iteration took on GPUs of yours ({"L40S":
    "212 ms"}, or seconds): it corrects them, and others as far as they share their errors. `selection` says which GPUs
    are meant, in which order; `goal` what is to be run in all ("3 epochs of 1281167 samples"), for its time and cost;
    `prices` are $ per hour by GPU, a list, or a `Prices`; `electricity` is $ per kWh, or an `Electricity`. The what-ifs
    (`host` … `attention_kernel`) and the other keywords mean what the options of `analyze` of the same names do;
    see docs/cli.md.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued, and TraceError
    for a file that is no trace.

    >>> report = analyze("samples/gpt2_small-inference-bf16-b4-shapes.json.gz", to=["H100 SXM", "L4"])
    >>> [row["gpu"] for row in report.to_records()]
    ['H100 SXM5 80GB', 'L4']
    """
    from ....specs.match import describe_machines
    from ...iteration.analyze import run_analysis

    targets = as_names(to)
    check_count("top", top, least=0)
    gpus = find_named(targets, source, gpu_file)
    gpus, seen = with_observed(gpus, observed or {}, largest_batch=largest_batch)
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
    what_ifs = WhatIfs(
        host=host,
        cpu_speed=cpu_speed,
        precision=precision,
        batch=batch,
        from_batch=from_batch,
        sequence_length=sequence_length,
        from_sequence_length=from_sequence_length,
        cached_tokens=cached_tokens,
        cuda_graph=cuda_graph,
        fuse_elementwise=fuse_elementwise,
        attention_kernel=attention_kernel,
    )
    sharpened = None if calibration is None else sharpen(calibration, read, gpus)
    result = run_analysis(
        read,
        gpus.catalog,
        targets=gpus.targets,
        source=gpus.source,
        library=with_spread(sharpened.library if sharpened is not None else None, indices),
        scenario=what_ifs.scenario(
            read, asks_for_batches=largest_batch or goal is not None, counts_tokens=goal is not None
        ),
        iteration=recording.iteration,
        cluster=(machines or Machines()).cluster(gpus.catalog, targets),
        prices=read_prices(prices, gpus.catalog),
    )
    report = _report(
        result,
        gpus,
        op_limit=SHORT_OP_COUNT if top is None and not ops else top,
        observations=seen.observations(result),
        largest_batch=largest_batch,
        selection=selection,
        goal=goal,
        electricity=read_electricity(electricity),
    )
    named = (*targets, *([source] if source is not None else []))
    report = replace(report, warnings=(*describe_machines(gpus.catalog, named), *report.warnings))
    if sharpened is not None:
        report = replace(report, calibration=sharpened.corrections, rates=sharpened.rates)
    return IterationReport(name=trace_name(trace), report=report, analysis=result, has_op_details=ops)


def _report(
    result: Analysis,
    gpus: Gpus,
    *,
    op_limit: int | None,
    observations: tuple[Observation, ...],
    largest_batch: bool,
    selection: Selection | None,
    goal: str | Goal | None,
    electricity: Electricity | None,
) -> AnalysisReport:
    """Return what is said of a result: corrected by what was observed, of the GPUs that are meant, with chances."""
    from ...iteration.analyze import report_on
    from ...iteration.decision.decide import decide, first_asked

    shown = (
        gpus.targets[0] if gpus.targets else result.origin or first_asked(result, gpus.catalog, selection, electricity)
    )
    report = report_on(result, ops_gpu=shown, op_limit=op_limit)
    if largest_batch:
        from ...iteration.batches import with_batches

        report = with_batches(result, report)
    named = [gpu.name for gpu in gpus.targets]
    return decide(
        report,
        result,
        selection=selection,
        goal=goal,
        catalog=gpus.catalog,
        named=named,
        observations=observations,
        electricity=electricity,
    )
