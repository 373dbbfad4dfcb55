"""`wavecast.analyze` and the `analyze` command: one trace, predicted on other GPUs.

Times of the iteration that users measured themselves, as they give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, SupportsFloat

import click

from ....errors import InputError, parameter
from ....formats.trace.version import __version__
from ....records import dataclass, replace
from ...asking.answer import Drawn, Report, as_names, trace_name
from ...asking.choice import GPU_NAMES, Goals, GpuSelection, complete_gpu_equals
from ...asking.command import WavecastCommand, report_command, run_program, timeline_option
from ...asking.declared import LIST_LENGTH, HelpPart, asks, option
from ...asking.inputs import AskedCalibration, AskedLookups, AskedRecording, AskedSource, trace_argument
from ...asking.machines import Machines
from ...asking.prices import Power, Prices
from ...asking.what_ifs import WhatIfs
from ...iteration.decision.amounts import TIMES_NS, find_amount

if TYPE_CHECKING:
    from ....formats.trace.tables import Trace
    from ...asking.question import Gpus
    from ...iteration.decision.observed import Observation
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

    def _drawn(self) -> Drawn:
        from .page.records import draw_report_json, gpu_table, op_table

        return Drawn(
            page=self._page,
            json=lambda: draw_report_json(self.report, with_ops=self.has_op_details),
            tables={"gpus": lambda: gpu_table(self.report), "ops": lambda: op_table(self._with_all_ops())},
        )

    def _page(self) -> Page:
        from .page.page import describe_report

        return describe_report(self.report, name=self.name, detailed_ops=self.has_op_details)

    def illustrated_page(self) -> Page:
        """Return it with charts: cost against time, what the time goes to, roofline, timeline, memory, what-ifs."""
        from .page.charts import illustrate

        return illustrate(self.page(), self.report, self.analysis, name=self.name)

    def to_csv(self) -> str:
        """Return a row per GPU as CSV, or per op where they are detailed."""
        return self._table("ops" if self.has_op_details else "gpus").to_csv()

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


@dataclass(frozen=True, kw_only=True)
class _LargestBatch:
    largest_batch: bool = option(
        HelpPart.WHAT_IF,
        "Also find, for each GPU, the largest batch that fits and the one of most samples per second; rank by that.",
        default=False,
    )


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions(
    GpuSelection,
    WhatIfs,
    _LargestBatch,
    Goals,
    Prices,
    Power,
    Machines,
    AskedRecording,
    AskedSource,
    AskedCalibration,
    AskedLookups,
):
    """Hold what may be asked of one trace."""

    to: str | Sequence[str] = option(
        HelpPart.GPUS,
        "Predict for this GPU only ('h100': all its variants; 'p4d.24xlarge': one of the instance's); several with "
        "commas, or repeat. Default: every catalogued GPU.",
        **GPU_NAMES,
    )
    observed: Mapping[str, str | float] | Sequence[str] = option(
        HelpPart.INPUT,
        "You measured this iteration there ('L40S=212ms'; s, ms or us): correct that GPU by it, and others as far as "
        "they share its errors; repeat for several.",
        metavar="GPU=TIME",
        multiple=True,
        shell_complete=complete_gpu_equals,
    )
    ops: bool = option(HelpPart.OUTPUT, "List every op with its physical bound, method and reason.", default=False)
    top: int | None = option(
        HelpPart.OUTPUT,
        f"Rows of the op table; 0 leaves it out. Default: {SHORT_OP_COUNT}, with --ops all.",
        **LIST_LENGTH,
    )


@asks(AnalyzeOptions)
def analyze(trace: str | Path | Trace, asked: AnalyzeOptions) -> IterationReport:
    """Predict a recorded iteration on other GPUs: on all that are catalogued, or on those that `to` names.

    `trace` is a file in any format that is read, an archived trace (`archive://DIR#ID`), or what `load_trace` and
    `record` return. `observed` holds how long the iteration took on GPUs of yours ({"L40S": "212 ms"}, or seconds);
    `goal` is what is to be run in all ("3 epochs of 1281167 samples"); `prices` are $ per hour by GPU, or a list. The
    keywords mean what the options of `analyze` of the same names do; see docs/reference/cli.md.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued, and TraceError
    for a file that is no trace.

    >>> report = analyze("samples/gpt2_small-inference-bf16-b4-shapes.json.gz", to=["H100 SXM", "L4"])
    >>> [row["gpu"] for row in report.to_records()]
    ['H100 SXM5 80GB', 'L4']
    """
    from ....specs.match import describe_machines
    from ...iteration.analyze import run_analysis

    targets = as_names(asked.to)
    gpus, seen = with_observed(asked.named(targets), asked.observed, largest_batch=asked.largest_batch)
    recording = asked.read(trace)
    read, is_of_run = recording.trace, asked.goal is not None
    sharpened = asked.sharpened(read, gpus)
    result = run_analysis(
        read,
        gpus.catalog,
        targets=gpus.targets,
        source=gpus.source,
        library=asked.spread(sharpened.library if sharpened is not None else None),
        scenario=asked.scenario(read, asks_for_batches=True, counts_tokens=is_of_run),
        iteration=recording.iteration,
        cluster=asked.cluster(gpus.catalog, targets),
        prices=asked.book(gpus.catalog),
    )
    if not result.forecast.iteration_ns.all() or result.window.duration_ns == 0:
        raise InputError("the iteration takes no time: its times are 0, or in another unit than µs")
    check_observed(seen, result)
    report = _report(result, gpus, asked, seen)
    named = (*targets, *([asked.source] if asked.source is not None else []))
    report = replace(report, warnings=(*describe_machines(gpus.catalog, named), *report.warnings))
    if sharpened is not None:
        said = (*report.warnings, *sharpened.warnings)
        report = replace(report, calibration=sharpened.corrections, rates=sharpened.rates, warnings=said)
    return IterationReport(name=trace_name(trace), report=report, analysis=result, has_op_details=asked.ops)


def _report(
    result: Analysis, gpus: Gpus, asked: AnalyzeOptions, observations: tuple[Observation, ...]
) -> AnalysisReport:
    """Return what is said of a result: corrected by what was observed, of the GPUs that are meant, with chances."""
    from ...iteration.analyze import report_on
    from ...iteration.decision.decide import add_run, bill, decide, first_asked

    selection, goal, power = asked.selection(), asked.run(), asked.power()
    chosen = asked.of_class(gpus) if gpus.targets else ()
    shown = chosen[0] if chosen else result.origin or first_asked(result, gpus.catalog, selection, power)
    op_limit = SHORT_OP_COUNT if asked.top is None and not asked.ops else asked.top
    report = report_on(result, ops_gpu=shown, op_limit=op_limit)
    if asked.largest_batch:
        from ...iteration.batches import with_batches

        report = with_batches(result, report)
    if power is not None:
        report = bill(report, power, has_goal=goal is not None)
    named = [gpu.name for gpu in gpus.targets]
    report = decide(report, result, selection=selection, catalog=gpus.catalog, named=named, observations=observations)
    return report if goal is None else add_run(report, result, goal)


_OF_PLANS: Final = ("--gpus", "--plan", "--global-batch")


class _AnalyzeCommand(WavecastCommand):
    """Say which command takes several files, or many GPUs."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Read the command line."""
        try:
            return super().make_context(*args, **options)
        except click.UsageError as error:
            unknown = error.option_name if isinstance(error, click.NoSuchOption) else None
            if unknown in _OF_PLANS:
                raise click.UsageError(f"{unknown} is about many GPUs: ask 'wavecast scale'", error.ctx) from None
            if unknown != "--ranks" and "unexpected extra argument" not in error.message:
                raise
            message = "one trace at a time: 'wavecast ranks' takes the files of a job's ranks, 'wavecast batch' any"
            raise click.UsageError(message, error.ctx) from None


@report_command("analyze", AnalyzeOptions, cls=_AnalyzeCommand)
@trace_argument
@timeline_option("Write the predicted timeline of the first --to GPU (default: the source) for ui.perfetto.dev.")
@click.version_option(__version__, prog_name="wavecast", message="%(prog)s %(version)s")
def analyze_command(trace: Path, timeline: Path | None, **asked: Any) -> IterationReport:
    """Predict the iteration recorded in TRACE on every catalogued GPU.

    TRACE is a wavecast trace or a PyTorch profiler file, gzipped or not, recognised by its content;
    '-' reads standard input. The answer comes first: the fastest GPU and the
    cheapest, or the one for your run; then the GPUs by predicted iteration time, the measured one
    marked.

    \b
    Examples:
      analyze trace.json.gz
      analyze trace.json.gz --to H100 --to L40S --ops
      analyze trace.json.gz --for "3 epochs of 1281167 samples" --deadline 24h
      analyze trace.json.gz --sort cost --fits --vendor nvidia --min-memory 40GB
      analyze trace.json.gz --format json -o prediction.json
      analyze trace.json.gz --to H100 --batch 64 --precision bf16 --cuda-graph
      analyze trace.json.gz --to L40S --timeline timeline.json.gz
      analyze trace.json.gz --to L40S --calibration l40s.json.gz
      analyze trace.json.gz --iteration longest
      analyze execution.json.gz --capture capture.json.gz
    """
    found = analyze(trace, **asked)
    if timeline is not None:
        found.save_timeline(timeline)
    return found


def main() -> None:
    """Run `analyze` as a console command."""
    run_program(analyze_command, "analyze")


_LONGEST_NS: Final = 1e15
"""Eleven days: no iteration takes longer."""


def with_observed(
    gpus: Gpus, observed: Mapping[str, str | float] | Sequence[str], *, largest_batch: bool
) -> tuple[Gpus, tuple[Observation, ...]]:
    """Return the GPUs that were named with those that were observed, where not all are meant, and what was observed.

    Raises InputError for what is no time, and for a GPU that stands twice.
    """
    from ....specs.match import find_gpu
    from ...iteration.decision.observed import Observation

    if observed and largest_batch:
        raise InputError(
            f"an observed time is of one batch: leave {parameter('observed')} out beside {parameter('largest_batch')}"
        )
    if isinstance(observed, list | tuple):
        observed = split_observed(observed)
    if not isinstance(observed, Mapping):
        raise InputError(f"observed: expected times by GPU, e.g. {{'L40S': '212 ms'}}, got {type(observed).__name__}")
    targets, found = {gpu.name: gpu for gpu in gpus.targets}, dict[str, Observation]()
    for name, time in observed.items():
        gpu = find_gpu(gpus.catalog, name)
        if gpu.name in found:
            raise InputError(f"{gpu.name} was observed twice: give one time per GPU, e.g. the median")
        found[gpu.name] = Observation(gpu=gpu.name, time_ns=read_observed_ns(name, time))
        targets[gpu.name] = gpu
    return replace(gpus, targets=tuple(targets.values())) if gpus.targets else gpus, tuple(found.values())


def check_observed(observations: Iterable[Observation], result: Analysis) -> None:
    """Raise InputError for what was observed on the recorded GPU, and on those that are not predicted."""
    known = {gpu.name for gpu in result.prediction.fleet.gpus}
    for item in observations:
        if item.gpu not in known:
            raise InputError(
                f"{item.gpu} was observed, but is none of the GPUs predicted: name it with {parameter('to')}"
            )
        if result.origin is not None and item.gpu == result.origin.name and not result.scenario.changes_anything:
            raise InputError(f"{item.gpu} is the GPU that was recorded: its time is known; observe another")


def read_observed_ns(name: str, time: str | float) -> float:
    """Return a time in ns: `212ms`, `0.2 s`, `850 µs`; a number counts seconds. Raises InputError for anything else."""
    if isinstance(time, str):
        if find_amount(time, {"": 1.0}) is not None:
            raise InputError(f"observed on {name}: {time!r} has no unit; expected s, ms or us, e.g. {time.strip()}ms")
        if (value := find_amount(time, TIMES_NS)) is None:
            raise InputError(f"observed on {name}: {time!r} is no time; expected one such as 212ms, 0.2s or 850us")
    else:
        value = float(time) * 1e9 if isinstance(time, SupportsFloat) else float("nan")
    if not (isfinite(value) and 0 < value <= _LONGEST_NS):
        raise InputError(f"observed on {name}: {time!r} is no time that an iteration takes; expected e.g. 212ms")
    return value


def split_observed(options: Iterable[str]) -> dict[str, str]:
    """Return the times by GPU of options like `L40S=212ms`. Raises InputError for one without `=`, or a GPU twice."""
    found: dict[str, str] = {}
    for text in options:
        name, equals, time = str(text).rpartition("=")
        if not equals or not name.strip():
            raise InputError(
                f"{parameter('observed')} {text!r}: expected a GPU and its time, e.g. {parameter('observed')} "
                "'L40S=212ms'"
            )
        if name.strip() in found:
            raise InputError(f"{name.strip()} was observed twice: give one time per GPU, e.g. the median")
        found[name.strip()] = time
    return found
