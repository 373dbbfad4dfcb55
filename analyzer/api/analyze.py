"""`wavecast.analyze`: one trace, predicted on other GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .prices import Prices, read_prices
from .question import Machines, WhatIfs, find_named, read_trace, sharpen
from .report import Report, as_names, trace_name

if TYPE_CHECKING:
    from ...formats.importers import Progress
    from ...formats.trace import Trace
    from ..analysis.report import AnalysisReport
    from ..analysis.result import Analysis
    from ..rendering.page.page import Page

SHORT_OP_COUNT: Final = 10
"""Ops shown where nobody asks for all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IterationReport(Report):
    """Hold an iteration predicted on other GPUs: `report` has the figures, `analysis` all that they come from."""

    name: str
    """Of the trace, where its workload has none."""
    report: AnalysisReport
    analysis: Analysis
    has_op_details: bool = False
    """Whether ops are listed with bound and reason, and are what CSV holds."""

    def page(self) -> Page:
        """Return the report in words and sheets."""
        from ..rendering.analysis.text import describe_report

        return describe_report(self.report, name=self.name, detailed_ops=self.has_op_details)

    def to_json(self) -> str:
        """Return the report as JSON, with all digits; docs/cli.md has its layout."""
        from ..rendering.analysis.json import draw_report_json

        return draw_report_json(self.report, with_ops=self.has_op_details)

    def to_csv(self) -> str:
        """Return a row per GPU as CSV, or per op where they are detailed."""
        from ..rendering.analysis.csv import draw_gpus_csv, draw_ops_csv

        return draw_ops_csv(self.report) if self.has_op_details else draw_gpus_csv(self.report)

    def save_timeline(self, path: str | Path) -> None:
        """Write the predicted timeline of the GPU that the ops are about, for ui.perfetto.dev."""
        from ..analysis.gpu_replay import save_timeline

        save_timeline(self.analysis, self.report.ops_gpu, Path(path))


def analyze(  # noqa: PLR0913 (all that one may ask, by name)
    trace: str | Path | Trace,
    *,
    to: str | Sequence[str] = (),
    source: str | None = None,
    iteration: int | str | None = None,
    ops: bool = False,
    top: int | None = None,
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
    machines: Machines | None = None,
    prices: Prices | Mapping[str, float] | str | Path | None = None,
    captures: Sequence[str | Path] = (),
    execution_trace: str | Path | None = None,
    recover: bool = False,
    progress: Progress | None = None,
) -> IterationReport:
    """Predict a recorded iteration on other GPUs: on all that are catalogued, or on those that `to` names.

    `trace` is a file in any format that is read, an archived trace (`archive://DIR#ID`), or what `load_trace` and
    `record` return. `source` is the GPU that was measured, where the trace does not say it. `ops` lists every op with
    bound and reason, `top` limits the list. `prices` are $ per hour by GPU, a price list, or a `Prices`. The what-ifs
    (`cpu_speed` … `attention_kernel`) and the other keywords mean what the options of `analyze` of the same names do;
    see docs/cli.md.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued, and TraceError
    for a file that is no trace.
    """
    from ...specs.match import describe_machines
    from ..analysis.analyze import report_on, run_analysis

    targets = as_names(to)
    gpus = find_named(targets, source, gpu_file)
    read = read_trace(trace, captures=captures, execution_trace=execution_trace, recover=recover, progress=progress)
    what_ifs = WhatIfs(
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
        library=sharpened.library if sharpened is not None else None,
        scenario=what_ifs.scenario(read, asks_for_batches=largest_batch),
        iteration=iteration,
        cluster=(machines or Machines()).cluster(gpus.catalog, targets),
        prices=read_prices(prices, gpus.catalog),
    )
    limit = SHORT_OP_COUNT if top is None and not ops else top
    report = report_on(result, ops_gpu=gpus.targets[0] if gpus.targets else None, op_limit=limit)
    if largest_batch:
        from ..analysis.batches import with_batches

        report = with_batches(result, report)
    named = (*targets, *([source] if source is not None else []))
    report = replace(report, warnings=(*describe_machines(gpus.catalog, named), *report.warnings))
    if sharpened is not None:
        report = replace(report, calibration=sharpened.corrections, rates=sharpened.rates)
    return IterationReport(name=trace_name(trace), report=report, analysis=result, has_op_details=ops)
