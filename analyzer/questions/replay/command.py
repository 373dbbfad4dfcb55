"""`wavecast.replay` and the `replay` command: how well the replay with its own times explains a recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....records import dataclass, replace
from ...asking.answer import Drawn, Report, trace_name
from ...asking.command import check_max_error, max_error_option, report_command
from ...asking.declared import asks
from ...asking.inputs import AskedIteration, AskedSource, Captures, Recover, trace_argument
from ...asking.keywords import check_iteration
from ...asking.question import read_trace

if TYPE_CHECKING:
    from ....formats.trace.tables import Trace
    from ....specs.gpu import Gpu
    from ...page.page import Page
    from ...recorded.choice import IterationChoice
    from ...replay.fidelity import Fidelity


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReplayReport(Report):
    """Hold a recording beside its replay: `fidelity` has the figures. Its table is `iterations`."""

    name: str
    """Of the trace."""
    fidelity: Fidelity
    trace: Trace
    gpu: Gpu | None
    """The one that was measured; None where it is not catalogued."""
    choice: IterationChoice | None = None
    """The one iteration that was asked for; None: each."""
    asked: int | str | None = None
    """As it was asked for."""
    max_error_percent: float | None = None
    """What a replay may be off; None: no limit."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """Return what goes beyond the limit; none: it passes."""
        worst, most = 100 * self.worst_error_ratio, self.max_error_percent
        return () if most is None or worst <= most else (f"the replay is off by {worst:.2f} %, more than {most:g} %",)

    @property
    def worst_error_ratio(self) -> float:
        """Return the furthest that a replayed iteration lies from the measured one."""
        found = (item for item in self.fidelity.iterations if item.measured_ns > 0)
        return max((abs(item.replayed_ns / item.measured_ns - 1) for item in found), default=0.0)

    def _drawn(self) -> Drawn:
        from .page import describe_replay, draw_replay_json, iteration_table

        return Drawn(
            page=lambda: describe_replay(self.fidelity, name=self.name),
            json=lambda: draw_replay_json(self.fidelity, self.choice),
            tables={"iterations": lambda: iteration_table(self.fidelity)},
        )

    def illustrated_page(self) -> Page:
        """Return it with the timelines of the iteration that was asked for, else of the median one."""
        from ...iteration.gpu_replay import lay_out_rules
        from ...page.plot import place_charts
        from ...page.timeline.chart import chart_timeline
        from ...recorded.recording import choose_recording

        timeline = lay_out_rules(choose_recording(self.trace, self.asked), self.gpu)
        told = "The recording, and when the same kernels start by rule."
        chart = chart_timeline(timeline, title="Recorded and replayed timeline", told=told)
        return place_charts(self.page(), headline=f"Replay {self._headline()}", details=[chart])

    def _headline(self) -> str:
        from ...page.quantity import format_count, format_error

        found = format_count(len(self.fidelity.iterations), "iteration")
        return f"of {found} of {self.name}: within {format_error(self.worst_error_ratio)} of the recording"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(AskedIteration, AskedSource, Captures, Recover):
    """Hold what may be asked of a replay."""


@asks(ReplayOptions)
def replay(trace: str | Path | Trace, asked: ReplayOptions) -> ReplayReport:
    """Replay a recording with its own measured times and compare: each iteration, or the one that is asked for.

    Keywords mean what the options of `replay` of the same names do. Raises InputError for what cannot be read, or holds
    no GPU times, UnknownGpuError for a GPU that is not catalogued, and TraceError for a file that is no trace.

    >>> report = replay("samples/bert_small-inference-bf16-b1-h100.json.gz")
    >>> report.fidelity.gpu, report.worst_error_ratio < 0.02
    ('H100 SXM5 80GB', True)
    """
    from ...recorded.devices import first_known_gpu
    from ...recorded.graphs import refuse_capture
    from ...recorded.recording import choose_recording
    from ...replay.fidelity import check_fidelity

    iteration = check_iteration(asked.iteration)
    read = read_trace(trace, captures=asked.captures, recover=asked.recover)
    named = asked.named()
    measured = named.source or first_known_gpu(named.catalog, read)
    chosen = choose_recording(read, iteration)
    refuse_capture(chosen.trace, chosen.window)
    fidelity = check_fidelity(chosen.trace, measured, iteration=None if iteration is None else chosen.choice.index)
    return ReplayReport(
        name=trace_name(trace),
        fidelity=fidelity,
        trace=read,
        gpu=measured,
        choice=None if iteration is None else chosen.choice,
        asked=iteration,
    )


@report_command(
    "replay",
    ReplayOptions,
    iteration="Compare this iteration alone: its number, median, longest, or all as one. Default: each one.",
)
@trace_argument
@max_error_option("Exit with status 1 if the replay of an iteration is further off than this.")
def replay_command(trace: Path, max_error_percent: float | None, **asked: Any) -> ReplayReport:
    """Replay the iterations of TRACE with their own measured times and compare.

    Kernels start when the rules of the op graph let them: after their launch, the kernel before
    them, and what they wait for. How near that comes to the recording says how far to trust the
    replay of the same graph with another GPU's times. TRACE is a wavecast trace or a PyTorch
    profiler file with GPU kernels; '-' reads standard input.

    \b
    Examples:
      wavecast replay trace.json.gz
      wavecast replay trace.json.gz --format json --max-error 2
      wavecast replay trace.json.gz --iteration longest
    """
    check_max_error(max_error_percent)
    return replace(replay(trace, **asked), max_error_percent=max_error_percent)
