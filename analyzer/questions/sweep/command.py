"""`wavecast.sweep` and the `sweep` command: one trace while figures of a GPU, or sizes of the iteration, vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....errors import InputError, parameter
from ....records import dataclass
from ...asking.answer import Drawn, PicturedReport, Report, trace_name
from ...asking.choice import GPU_NAME
from ...asking.command import report_command
from ...asking.declared import HelpPart, asks, option
from ...asking.inputs import AskedRecording, AskedSource, trace_argument
from ...asking.machines import Machines
from ...asking.prices import Power
from ...asking.what_ifs import WhatIfs
from ...page.formats import PICTURE_FORMATS, REPORT_FORMATS

if TYPE_CHECKING:
    from ....formats.trace.tables import Trace
    from ....specs.gpu import Gpu
    from ...asking.question import Gpus
    from ...page.page import Chart, Page
    from .report import SensitivityReport, SweepReport

Values = str | float | Sequence[float | str]
"""`"1x..4x"`, one value, or several."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SweepAnswer(PicturedReport):
    """Hold an iteration while parameters vary: `report` has the figures. Its table is `points`: a row per point."""

    name: str
    """Of the trace, where its workload has none."""
    report: SweepReport

    def _drawn(self) -> Drawn:
        from .page.page import describe_sweep
        from .page.records import draw_sweep_json, point_table

        return Drawn(
            page=lambda: describe_sweep(self.report, name=self.name),
            json=lambda: draw_sweep_json(self.report),
            tables={"points": lambda: point_table(self.report)},
        )

    def illustrated_page(self) -> Page:
        """Return it with charts."""
        from ...page.plot import place_charts
        from .page.charts import sweep_charts

        return place_charts(self.page(), lead=sweep_charts(self.report))

    def chart(self) -> Chart:
        """Return its charts as one."""
        from .page.charts import sweep_picture

        return sweep_picture(self.report)

    def _headline(self) -> str:
        names = " and ".join(axis.name for axis in self.report.axes)
        best = max(point.speedup for point in self.report.points)
        where = f"{self.report.trace.name or self.name}, {self.report.gpu} by {names}"
        return f"{where}: {len(self.report.points)} points, up to {best:.3g} times as fast"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SensitivityAnswer(Report):
    """Hold what 1 % more of each figure buys: `report` has the figures. Its table is `figures`: a row per figure."""

    name: str
    """Of the trace, where its workload has none."""
    report: SensitivityReport

    def _drawn(self) -> Drawn:
        from .page.records import draw_sensitivity_json, figure_table
        from .page.sensitivity import describe_sensitivity

        return Drawn(
            page=lambda: describe_sensitivity(self.report, name=self.name),
            json=lambda: draw_sensitivity_json(self.report),
            tables={"figures": lambda: figure_table(self.report)},
        )

    def _headline(self) -> str:
        most = self.report.figures[0]
        where = f"{self.report.trace.name or self.name} on {self.report.gpu}"
        return f"{where}: 1 % more {most.name} is {-most.elasticity:.2f} % faster, the most of all figures"


def _complete_parameters(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return what can be varied that holds what was typed, each with the sign that values follow."""
    from .axes import known_names

    if "=" in incomplete:
        return []
    return [f"{name}=" for name in known_names() if incomplete.casefold() in name.casefold()]


@dataclass(frozen=True, kw_only=True)
class SweepOptions(WhatIfs, Power, Machines, AskedRecording, AskedSource):
    """Hold what may be asked while parameters vary."""

    on: str | None = option(HelpPart.GPUS, "The GPU that is varied. Default: the one that was measured.", **GPU_NAME)
    vary: Mapping[str, Values] | None = option(
        HelpPart.GPUS,
        "What varies, and how; twice for two. Default: 1 % more of each figure of the GPU in turn.",
        metavar="NAME=VALUES",
        multiple=True,
        shell_complete=_complete_parameters,
    )


@asks(SweepOptions)
def sweep(trace: str | Path | Trace, asked: SweepOptions) -> SweepAnswer | SensitivityAnswer:
    """Predict a recorded iteration while one or two parameters vary; without `vary`, what 1 % more of each figure buys.

    `on` is the GPU that is varied: by default the one that was measured. `vary` names figures of its datasheet, or
    sizes of the iteration, with their values: `{"memory.bandwidth": "1x..4x", "sms": [66, 132]}`; all are listed in
    docs/reference/sweep.md. The other keywords mean what those of `analyze` do.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued.

    >>> answer = sweep(trace, on="l40s", vary={"memory.bandwidth": "1x,2x"})
    >>> [round(point.speedup, 2) for point in answer.report.points]
    [1.0, 1.11]
    """
    from .sensitivity import find_sensitivity
    from .sweep import SweepQuestion, sweep_trace
    from .values import join_values

    on = asked.on
    gpus = asked.named(() if on is None else [on], "on")
    recording = asked.read(trace)
    read = recording.trace
    varied = {name: join_values(values) for name, values in (asked.vary or {}).items()}
    question = SweepQuestion(
        trace=read,
        catalog=gpus.catalog,
        gpu=_one_gpu(gpus, read, on),
        source=gpus.source,
        gpu_file=None if asked.gpu_file is None else Path(asked.gpu_file),
        scenario=asked.scenario(read, asks_for_batches=bool(varied)),
        iteration=recording.iteration,
        cluster=asked.cluster(gpus.catalog, () if on is None else (on,)),
        electricity=asked.power(),
    )
    if not varied and question.electricity is not None:
        raise InputError(
            f"{parameter('electricity')}, {parameter('pue')}, {parameter('host_watts')} and {parameter('carbon')} are "
            f"told of {parameter('vary')}: say what varies"
        )
    if not varied:
        return SensitivityAnswer(name=trace_name(trace), report=find_sensitivity(question))
    return SweepAnswer(name=trace_name(trace), report=sweep_trace(question, varied))


def _one_gpu(gpus: Gpus, trace: Trace, name: str | None) -> Gpu:
    """Return the GPU that is varied. Raises InputError where a name means several, or nothing says which."""
    if len(gpus.targets) > 1:
        listed = "; ".join(gpu.name for gpu in gpus.targets)
        raise InputError(f"{parameter('on', name)} means {len(gpus.targets)} GPUs: {listed}; name one of them")
    return next(iter(gpus.targets), None) or gpus.expect_measured(trace, "on", "which GPU is varied", "h100sxm")


@report_command("sweep", SweepOptions, formats=(*REPORT_FORMATS, *PICTURE_FORMATS))
@trace_argument
def sweep_command(trace: Path, vary: tuple[str, ...], **asked: Any) -> SweepAnswer | SensitivityAnswer:
    """Predict the iteration recorded in TRACE while one or two parameters vary.

    How much faster each value is, where more of it stops to help, and what the time goes to there.
    Without --vary: what 1 % more of each figure of the GPU's datasheet buys. With it, a file
    that ends in .svg or .png gets the picture.

    \b
    Examples:
      sweep trace.json.gz --on h100sxm --vary memory.bandwidth=2x
      sweep trace.json.gz --on h100sxm --vary bandwidth=1x..4x -o sweep.svg
      sweep trace.json.gz --on l40s --vary bandwidth=1x..4x --vary sms=71,142
      sweep trace.json.gz --on a100sxm80 --vary batch=1..64 -o sweep.html
      sweep trace.json.gz --on h100sxm

    \b
    Figures of the GPU; other numbers have the name of their catalogue key:
      memory.bandwidth  memory.size  memory.pin_rate  memory.bus  l2.size
      sms  clock        peak rates follow SM count x clock
      matrix  vector    the rates alone
      link.bandwidth  pcie.bandwidth  tdp
    Of the iteration:
      batch  sequence-length  cached-tokens  precision  host

    \b
    Values:
      1x..4x, 1x..4x:9      equal ratios: 17 points (9 of two parameters), nine
      8..64, 8..64:+8       sizes go in powers of two; steps of 8
      66,132,264            a list
      6.7TB/s 1.2GHz 700W   with a unit, else in the catalogue's
    """
    return sweep(trace, vary=_read_vary(vary), **asked)


def _read_vary(texts: tuple[str, ...]) -> dict[str, str]:
    """Return values by name. Raises InputError for a text without either, and for a name that comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not (name.strip() and equals):
            raise InputError(f"--vary {text}: expected NAME=VALUES, such as memory.bandwidth=1x..4x")
        if name in found:
            raise InputError(f"--vary: {name} stands there twice: give all its values in one, as in {name}=1x,2x,4x")
        found[name] = values
    return found
