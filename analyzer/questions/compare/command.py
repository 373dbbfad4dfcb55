"""`wavecast.compare` and the `compare` command: what changed between two traces, and a gate for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....records import dataclass
from ...asking.answer import Drawn, Report, trace_name
from ...asking.choice import GPU_NAMES
from ...asking.command import report_command
from ...asking.declared import LIST_LENGTH, HelpPart, asks, option
from ...asking.inputs import AskedIteration, AskedSource, Recover, TracePath
from ...asking.keywords import check_iteration, read_percent
from ...asking.prices import Power
from ...asking.question import read_trace, refuse_input_twice
from ...asking.what_ifs import WhatIfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....formats.trace.tables import Trace
    from .report import Comparison, GpuChange

SHOWN_CHANGES: Final = 20
"""Where nobody says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLimits:
    """Say how much slower and larger the new trace may be; ratios, None: no limit."""

    slowdown: float | None = None
    memory_growth: float | None = None
    strict: bool = False
    """Whether the predicted slowdown itself counts, not the end of its interval."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ComparisonReport(Report):
    """Hold what changed between two traces: `report` has the figures. Its tables are `gpus` and `changes`."""

    old_name: str
    new_name: str
    """Of the traces."""
    report: Comparison
    limits: ChangeLimits = ChangeLimits()
    shown_count: int = SHOWN_CHANGES
    """Changes in its page."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """Return what goes beyond the limits; none: it passes."""
        return tuple(self._complaints())

    def _drawn(self) -> Drawn:
        from .page import change_table, changed_gpu_table, describe_comparison, draw_comparison_json

        status = int(bool(self.complaints))
        return Drawn(
            page=lambda: describe_comparison(
                self.report,
                old_name=self.old_name,
                new_name=self.new_name,
                max_slowdown=self.limits.slowdown,
                mark="✗ " if self.complaints else "✓ " if self.limits != ChangeLimits() else "",
                top=self.shown_count,
            ),
            json=lambda: draw_comparison_json(self.report, max_slowdown=self.limits.slowdown, exit_status=status),
            tables={"gpus": lambda: changed_gpu_table(self.report), "changes": lambda: change_table(self.report)},
        )

    def _headline(self) -> str:
        from ...page.quantity import format_change

        worst = max(self.report.gpus, key=lambda gpu: gpu.change)
        return f"{self.old_name} → {self.new_name}: {format_change(worst.change)} on {worst.gpu}"

    def _complaints(self) -> Iterator[str]:
        for gpu in self.report.gpus:
            yield from self._complaints_of(gpu)
        growth, most = self.report.memory_growth, self.limits.memory_growth
        if most is not None and growth is not None and growth > most:
            yield f"peak memory grows by {_percent(growth)}, more than {_percent(most)}"

    def _complaints_of(self, gpu: GpuChange) -> Iterator[str]:
        from .report import Verdict

        most = self.limits.slowdown
        if most is not None:
            verdict = gpu.verdict(most)
            if verdict is Verdict.FAILED or (self.limits.strict and verdict is Verdict.UNCERTAIN):
                yield f"{_percent(gpu.change)} slower on {gpu.gpu}, more than {_percent(most)}"
        if gpu.no_longer_fits and (self.limits.strict or not gpu.is_tight):
            yield f"the iteration no longer fits the memory of {gpu.gpu}"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(WhatIfs, Power, AskedIteration, AskedSource, Recover):
    """Hold what may be asked of two traces."""

    on: str | Sequence[str] = option(
        HelpPart.GPUS,
        "Compare on this GPU; several with commas, or repeat. Default: the GPUs that were measured.",
        **GPU_NAMES,
    )
    max_slowdown: str | None = option(
        HelpPart.OUTPUT,
        "Exit with status 1 where NEW is slower than OLD by more than this, beyond the interval.",
        metavar="PERCENT",
    )
    max_memory_growth: str | None = option(
        HelpPart.OUTPUT, "Exit with status 1 where the peak memory grows by more than this.", metavar="PERCENT"
    )
    strict: bool = option(
        HelpPart.OUTPUT, "Gate on the predicted slowdown itself, not on the end of its interval.", default=False
    )
    top: int = option(HelpPart.OUTPUT, "Changes listed in the table; 0: none.", default=SHOWN_CHANGES, **LIST_LENGTH)


@asks(CompareOptions)
def compare(old: str | Path | Trace, new: str | Path | Trace, asked: CompareOptions) -> ComparisonReport:
    """Say what changed between two traces, and what it does to time and memory on the GPUs that `on` names.

    Without `on` these are the GPUs that were measured. `max_slowdown` and `max_memory_growth` are percentages ("3%");
    what goes beyond them is in `complaints` of the report. What-ifs are asked of both traces. The keywords mean what
    the options of `compare` of the same names do.
    Raises InputError for what cannot be read or compared, UnknownGpuError for a GPU that is not catalogued, and
    TraceError for a file that is no trace.

    >>> pair = [f"samples/gpt2_small-inference-{precision}-b4-shapes.json.gz" for precision in ("bf16", "fp32")]
    >>> report = compare(*pair, on="H100 SXM", max_slowdown="50%")
    >>> len(report.complaints), [row["gpu"] for row in report.to_records()]
    (1, ['H100 SXM5 80GB'])
    """
    from .compare import ComparedTrace, compare_traces

    limits = ChangeLimits(
        slowdown=read_percent("max_slowdown", asked.max_slowdown),
        memory_growth=read_percent("max_memory_growth", asked.max_memory_growth),
        strict=asked.strict,
    )
    refuse_input_twice(old, new)
    named, iteration = asked.named(asked.on, "on"), check_iteration(asked.iteration)
    before, after = (read_trace(trace, joins=False, recover=asked.recover) for trace in (old, new))
    first, second = (
        None if isinstance(iteration, int) and int(trace.iterations.profiled.sum()) < 2 else iteration
        for trace in (before, after)
    )
    report = compare_traces(
        ComparedTrace(trace=before, source=named.source, iteration=first, scenario=asked.scenario(before)),
        ComparedTrace(trace=after, source=named.source, iteration=second, scenario=asked.scenario(after)),
        named.catalog,
        targets=named.targets,
        electricity=asked.power(),
    )
    return ComparisonReport(
        old_name=trace_name(old), new_name=trace_name(new), report=report, limits=limits, shown_count=asked.top
    )


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.3g} %"


@report_command("compare", CompareOptions, label="Reading the traces")
@click.argument("old", type=TracePath(), metavar="OLD")
@click.argument("new", type=TracePath(), metavar="NEW")
def compare_command(old: Path, new: Path, **asked: Any) -> ComparisonReport:
    """Compare two traces of changed code: what changed, and what it does to time and memory.

    OLD and NEW are traces, measured or of shapes alone, of the same or other GPUs. Ops are aligned
    module by module; the likely causes come first. The exit status is 1 where NEW is slower than
    --max-slowdown allows, outside the interval, or no longer fits the memory of an --on GPU.

    \b
    Examples:
      wavecast compare main.json.gz branch.json.gz --on h100
      wavecast compare main.json.gz branch.json.gz --on h100 --max-slowdown 3%
      wavecast compare before.json.gz after.json.gz --max-memory-growth 5%
    """
    return compare(old, new, **asked)
