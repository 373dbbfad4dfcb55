"""`wavecast.overview` and the `show` command: what a trace holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....records import dataclass
from ...asking.answer import Drawn, Report, trace_name
from ...asking.command import report_command
from ...asking.inputs import AskedWindow, Recover, trace_argument
from ...asking.keywords import check_count, checks_kinds
from ...asking.question import read_recording

if TYPE_CHECKING:
    from ....formats.trace.tables import Trace
    from ...page.page import Page
    from ...recorded.overview import Overview

SHOWN_NAMES: Final = 10
"""Ops and kernels where nobody says how many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OverviewReport(Report):
    """Hold what a trace holds: `report` has the figures. Its tables are `ops`, `kernels`, `phases`, `iterations`."""

    name: str
    """Of the trace."""
    report: Overview
    trace: Trace

    def _drawn(self) -> Drawn:
        from ...page.encoding import table_of
        from ...recorded.overview import IterationLine, NameLine, PhaseLine
        from .page import describe_overview, draw_overview_json

        return Drawn(
            page=lambda: describe_overview(self.report),
            json=lambda: draw_overview_json(self.report),
            tables={
                "ops": lambda: table_of(self.report.ops, NameLine),
                "kernels": lambda: table_of(self.report.kernels, NameLine),
                "phases": lambda: table_of(self.report.phases, PhaseLine),
                "iterations": lambda: table_of(self.report.iterations, IterationLine),
            },
        )

    def illustrated_page(self) -> Page:
        """Return it with the timeline of the iteration."""
        from ...iteration.gpu_replay import lay_out_recording
        from ...page.plot import place_charts
        from ...page.timeline.chart import chart_timeline
        from ...recorded.recording import choose_recording

        chart = None
        if self.report.kernel_count:
            timeline = lay_out_recording(choose_recording(self.trace))
            chart = chart_timeline(timeline, title="Timeline of the iteration", told="As recorded.")
        return place_charts(self.page(), headline=f"Overview {self._headline()}", lead=[chart])

    def _headline(self) -> str:
        from ...page.quantity import format_count

        kernels = f", {format_count(self.report.kernel_count, 'kernel')}" if self.report.kernel_count else ""
        return f"of {self.name}: {format_count(self.report.op_count, 'op')}{kernels}"


@checks_kinds
def overview(
    trace: str | Path | Trace,
    *,
    top: int | None = SHOWN_NAMES,
    window_ns: tuple[int | None, int | None] | None = None,
    recover: bool = False,
) -> OverviewReport:
    """Return what a trace holds: devices, iterations, phases, and its `top` ops and kernels (None: all).

    Of `window_ns` (ns since the recording's start, either end None) only what the host began then is shown.

    Raises InputError for what cannot be read, and TraceError for a file that is no trace.

    >>> overview("samples/bert_small-inference-bf16-b1-h100.json.gz", top=3).report.devices[0].name
    'NVIDIA H100 80GB HBM3'
    """
    from ...recorded.overview import describe_trace

    check_count("top", top, least=0)
    read = read_recording(trace, window_ns=window_ns, recover=recover).trace
    return OverviewReport(name=trace_name(trace), report=describe_trace(read, limit=top), trace=read)


@report_command("show", AskedWindow, Recover)
@trace_argument
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, metavar="N", help="Ops and kernels.")
def show_command(trace: Path, **asked: Any) -> OverviewReport:
    """Show what TRACE holds: devices, iterations, phases, top ops and kernels, gaps.

    TRACE is a wavecast trace or a PyTorch profiler file, recognised by its content; '-' reads
    standard input.
    """
    return overview(trace, **asked)
