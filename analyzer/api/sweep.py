"""`wavecast.sweep`: one trace while figures of a GPU, or sizes of the iteration, vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from ..rendering.page.picture import PICTURE_FORMATS
from .question import Machines, WhatIfs, find_named, read_trace
from .report import Report, trace_name

if TYPE_CHECKING:
    from ...formats.importers import Progress
    from ...formats.trace import Trace
    from ...specs.gpu import Gpu
    from ..analysis.sweep.report import SensitivityReport, SweepReport
    from ..rendering.page.chart import Chart
    from ..rendering.page.page import Page
    from .question import Gpus

Values = str | float | Sequence[float | str]
"""`"1x..4x"`, one value, or several."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweepAnswer(Report):
    """Hold a sweep, or the sensitivity to every figure where nothing was said to vary."""

    name: str
    """Of the trace, where its workload has none."""
    report: SweepReport | SensitivityReport

    def page(self) -> Page:
        """Return the report in words and sheets."""
        from ..analysis.sweep.report import SweepReport
        from ..rendering.sweep.sensitivity import describe_sensitivity
        from ..rendering.sweep.text import describe_sweep

        if isinstance(self.report, SweepReport):
            return describe_sweep(self.report, name=self.name)
        return describe_sensitivity(self.report, name=self.name)

    def illustrated_page(self) -> Page:
        """Return it with charts, after the answer."""
        from ..rendering.page.page import Page

        blocks = self.page().blocks
        return Page(blocks=(*blocks[:1], *self.charts(), *blocks[1:]))

    def charts(self) -> tuple[Chart, ...]:
        """Return the pictures."""
        from ..analysis.sweep.report import SweepReport
        from ..rendering.sweep.charts import sensitivity_chart, sweep_charts

        return sweep_charts(self.report) if isinstance(self.report, SweepReport) else (sensitivity_chart(self.report),)

    def picture(self, form: str = "svg") -> bytes:
        """Return all charts as one picture, `svg` or `png`. Raises InputError where nothing draws it."""
        from ..analysis.sweep.report import SweepReport
        from ..rendering.page.picture import draw_picture
        from ..rendering.sweep.charts import sensitivity_chart, sweep_picture

        if form not in PICTURE_FORMATS:
            raise InputError(f"picture {form!r}: expected {' or '.join(PICTURE_FORMATS)}")
        if isinstance(self.report, SweepReport):
            return draw_picture(sweep_picture(self.report), form)
        return draw_picture(sensitivity_chart(self.report), form)

    def to_json(self) -> str:
        """Return the report as JSON, with all digits; docs/sweep.md has its layout."""
        from ..analysis.sweep.report import SweepReport
        from ..rendering.sweep.records import draw_sensitivity_json, draw_sweep_json

        if isinstance(self.report, SweepReport):
            return draw_sweep_json(self.report)
        return draw_sensitivity_json(self.report)

    def to_csv(self) -> str:
        """Return a row per point, or per figure, as CSV."""
        from ..analysis.sweep.report import SweepReport
        from ..rendering.sweep.records import draw_sensitivity_csv, draw_sweep_csv

        if isinstance(self.report, SweepReport):
            return draw_sweep_csv(self.report)
        return draw_sensitivity_csv(self.report)

    def save(self, path: str | Path) -> None:
        """Write the report, whole or not at all; besides what any report offers, as a picture (.svg, .png)."""
        from ...formats.files import write_atomic

        form = next((name for name, ending in PICTURE_FORMATS.items() if ending == Path(path).suffix.lower()), None)
        if form is None:
            Report.save(self, path)
        else:
            write_atomic(Path(path), self.picture(form))


def sweep(  # noqa: PLR0913 (all that one may ask, by name)
    trace: str | Path | Trace,
    *,
    on: str | None = None,
    vary: Mapping[str, Values] | None = None,
    source: str | None = None,
    iteration: int | str | None = None,
    plan: str | None = None,
    global_batch: int | None = None,
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
    gpu_file: str | Path | None = None,
    machines: Machines | None = None,
    captures: Sequence[str | Path] = (),
    execution_trace: str | Path | None = None,
    recover: bool = False,
    progress: Progress | None = None,
) -> SweepAnswer:
    """Predict a recorded iteration while one or two parameters vary; without `vary`, what 1 % more of each figure buys.

    `on` is the GPU that is varied: by default the one that was measured. `vary` names figures of its datasheet, or
    sizes of the iteration, with their values: `{"memory.bandwidth": "1x..4x", "sms": [66, 132]}`; docs/sweep.md lists
    them. `{"gpus": "8..512"}` needs a `plan`. The other keywords mean what those of `analyze` do.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued.

    >>> answer = sweep(trace, on="l40s", vary={"memory.bandwidth": "1x,2x"})
    >>> [round(point.speedup, 2) for point in answer.report.points]
    [1.0, 1.12]
    """
    from ..analysis.sweep.plans import sweep_plans
    from ..analysis.sweep.sensitivity import find_sensitivity
    from ..analysis.sweep.sweep import SweepQuestion, sweep_trace
    from ..analysis.sweep.values import join_values

    gpus = find_named([] if on is None else [on], source, gpu_file)
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
    varied = {name: join_values(values) for name, values in (vary or {}).items()}
    names = [on] if on is not None else []
    question = SweepQuestion(
        trace=read,
        catalog=gpus.catalog,
        gpu=_one_gpu(gpus, read, on),
        source=gpus.source,
        gpu_file=None if gpu_file is None else Path(gpu_file),
        scenario=what_ifs.scenario(read, asks_for_batches=bool(varied)),
        iteration=iteration,
        cluster=(machines or Machines()).cluster(gpus.catalog, names),
    )
    if plan is not None:
        found = sweep_plans(question, varied, plan, global_batch)
        return SweepAnswer(name=trace_name(trace), report=found)
    if global_batch is not None:
        raise InputError("--global-batch is for many GPUs: add --plan and --vary gpus=8..512 (one GPU's is --batch)")
    report = sweep_trace(question, varied) if varied else find_sensitivity(question)
    return SweepAnswer(name=trace_name(trace), report=report)


def _one_gpu(gpus: Gpus, trace: Trace, name: str | None) -> Gpu:
    """Return the GPU that is varied. Raises InputError where a name means several, or nothing says which."""
    from ..recorded.devices import first_known_gpu

    if len(gpus.targets) > 1:
        listed = "; ".join(gpu.name for gpu in gpus.targets)
        raise InputError(f"--on {name} means {len(gpus.targets)} GPUs: {listed}; name one of them")
    found = next(iter(gpus.targets), None) or gpus.source
    found = found or (first_known_gpu(gpus.catalog, trace) if trace.is_measured else None)
    if found is None:
        raise InputError("--on says which GPU is varied: a recording of shapes has none of its own; add --on h100sxm")
    return found
