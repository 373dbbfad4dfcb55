"""`wavecast.ranks` and the `ranks` command: several ranks' traces of one job, and who waits for whom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....errors import InputError, parameter
from ....formats.trace.printable import clean_text
from ....records import dataclass, replace
from ...asking.answer import Drawn, Report, as_names
from ...asking.choice import GPU_NAMES
from ...asking.command import report_command, timeline_option
from ...asking.declared import HelpPart, asks, option
from ...asking.inputs import AskedIteration, AskedSource, Recover
from ...asking.keywords import check_iteration
from ...asking.machines import Machines
from ...asking.question import read_trace

_RANK: Final = re.compile(r"rank[_\-.]?(\d{1,6})", re.IGNORECASE)
_NAMED: Final = 3

if TYPE_CHECKING:
    from ....formats.trace.tables import Trace
    from ....specs.gpu import Catalog
    from .job import OtherMachine
    from .report import RanksReport


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class JobReport(Report):
    """Hold the ranks of a job: `report` has the figures. Its tables are `ranks`, `collectives` and `gpus`."""

    report: RanksReport
    traces: tuple[Trace, ...]
    asked: int | str | None = None
    """The iteration, as it was asked for."""

    def _drawn(self) -> Drawn:
        from ...page.encoding import table_of
        from .page import describe_ranks, draw_ranks_json
        from .report import CollectiveRow, JobRow, RankRow

        return Drawn(
            page=lambda: describe_ranks(self.report),
            json=lambda: draw_ranks_json(self.report),
            tables={
                "ranks": lambda: table_of(self.report.ranks, RankRow),
                "collectives": lambda: table_of(self.report.collectives, CollectiveRow),
                "gpus": lambda: table_of(self.report.jobs, JobRow),
            },
        )

    def save_timeline(self, path: str | Path) -> None:
        """Write what all ranks do in the iteration, on one clock, for ui.perfetto.dev."""
        from ....formats.perfetto.timeline import save_events
        from .activity import rank_activity, rank_events

        save_events(rank_events(rank_activity(self.traces, self.asked, self.report.waits)), path)

    def _headline(self) -> str:
        from ...page.quantity import format_count, format_time

        waited = ", ".join(str(item.rank) for item in self.report.stragglers) or "none"
        found = format_count(len(self.report.ranks), "rank")
        return f"of {found}, {format_time(self.report.iteration_ns)}: waited for {waited}"


@dataclass(frozen=True, kw_only=True)
class RanksOptions(Machines, AskedIteration, AskedSource, Recover):
    """Hold what may be asked of a job's ranks."""

    to: str | Sequence[str] = option(
        HelpPart.GPUS, "Predict the job on this GPU, too; several with commas, or repeat.", **GPU_NAMES
    )
    to_node: str | Sequence[str] = option(
        HelpPart.MANY,
        "Predict the job on its own GPUs in this machine, too: one of 'wavecast catalog nodes', or that of a TOML "
        "file as --cluster-file takes; repeat for several.",
        metavar="NODE|FILE",
        multiple=True,
    )


@asks(RanksOptions)
def ranks(traces: str | Path | Sequence[str | Path | Trace], asked: RanksOptions) -> JobReport:
    """Compare the ranks of one job: who comes late to collectives, why, what that costs, and the job on other GPUs.

    `traces` are the files of the ranks, folders that hold them, or traces that were read. The keywords mean what the
    options of `ranks` of the same names do. Raises InputError for what cannot be read or compared, UnknownGpuError for
    a GPU that is not catalogued, and TraceError for a file that is no trace.

    >>> report = ranks(job)
    >>> [(row["rank"], row["waiting_ns"]) for row in report.to_records()], report.report.stragglers[0].rank
    ([(0, 700000.0), (1, 0.0)], 1)
    """
    from .compare import compare_ranks

    iteration = check_iteration(asked.iteration)
    named = asked.named(asked.to)
    if not isinstance(traces, str | Path | Iterable):
        raise InputError(f"traces: expected paths or Traces, got {type(traces).__name__}")
    given = [traces] if isinstance(traces, str | Path) else list(traces)
    places = [str(item) for item in given if isinstance(item, str | Path)]
    read = [read_trace(item, joins=False) for item in given if not isinstance(item, str | Path)]
    if not given:
        raise InputError("traces: expected the files of a job's ranks, or a folder that holds them")
    passed_over = ""
    if places:
        files, passed_over = _read_files(places, asked)
        read += files
    if len(read) < 2:
        raise InputError(
            "one rank's file tells nothing of others: give those of two ranks or more"
            + f" ({passed_over})" * bool(passed_over)
        )
    report = compare_ranks(
        read,
        named.catalog,
        machines=[_other_machine(name, named.catalog) for name in as_names(asked.to_node)],
        targets=named.targets,
        source=named.source,
        iteration=iteration,
        cluster=asked.cluster(named.catalog, as_names(asked.to)),
    )
    if passed_over:
        report = replace(report, warnings=(*report.warnings, f"passed over: {passed_over}"))
    return JobReport(report=report, traces=tuple(read), asked=iteration)


def _other_machine(text: str, catalog: Catalog) -> OtherMachine:
    """Return a machine by its name, or those of a TOML file."""
    from ....specs.cluster import Cluster, find_node, load_cluster
    from .job import OtherMachine

    is_file = text.lower().endswith(".toml")
    cluster = load_cluster(Path(text), catalog) if is_file else Cluster().placed(find_node(text, catalog))
    return OtherMachine(asked=parameter("to_node", clean_text(text)), cluster=cluster)


def _read_files(places: Sequence[str], asked: Recover) -> tuple[list[Trace], str]:
    """Return the traces that files and folders hold, and what was passed over there; one that lacks its rank has that
    of its file's name, as in `rank3.json`.

    Raises InputError for two files of one rank and for files of jobs of unequal sizes, by the files' names.
    """
    from ..batch.inputs import ARCHIVE, find_inputs

    found = find_inputs(places)
    traces: list[Trace] = []
    for item in found.inputs:
        location = f"{ARCHIVE}{item.location}#{item.trace_id}" if item.in_archive else item.location
        trace = read_trace(location, joins=False, recover=asked.recover)
        number = _RANK.search(Path(item.name).name) if trace.meta.rank is None else None
        if number is not None:
            trace = replace(trace, meta=replace(trace.meta, rank=int(number[1])))
        traces.append(trace)
    names = [clean_text(item.name) for item in found.inputs]
    _check_alone(names, traces)
    skipped = [f"{clean_text(item.name)}: {item.reason}" for item in found.skipped]
    more = f" and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
    return traces, "; ".join(skipped[:_NAMED]) + more


def _check_alone(names: Sequence[str], traces: Sequence[Trace]) -> None:
    """Raise InputError for two files of one rank, and for files of jobs of unequal sizes."""
    of_rank, of_size = dict[int, str](), dict[int, str]()
    for name, trace in zip(names, traces, strict=True):
        rank, size = trace.meta.rank, trace.meta.world_size
        if size is not None:
            of_size.setdefault(size, name)
        if rank is not None and of_rank.setdefault(rank, name) != name:
            raise InputError(
                f"{of_rank[rank]} and {name} are both of rank {rank}: give one file of each rank of one job"
            )
    if len(of_size) > 1:
        (one, first), (other, second), *_ = of_size.items()
        raise InputError(
            f"{first} is of a job of {one} ranks, {second} of one of {other}: give the files of one job's ranks"
        )


@report_command("ranks", RanksOptions, label="Reading the traces")
@click.argument("traces", type=str, metavar="FILE|FOLDER...", nargs=-1, required=True)
@timeline_option("Write what all ranks do in the iteration, on one clock, for ui.perfetto.dev.")
def ranks_command(traces: tuple[str, ...], timeline: Path | None, **asked: Any) -> JobReport:
    """Compare the ranks of one job: who comes late to collectives, why, and what that costs.

    Give the measured trace of each rank, or a folder that holds them. Collectives are aligned by
    group and number, so that clocks need not agree. All ranks are replayed together: as recorded,
    without each straggler, and on the GPUs of --to. Ranks may be missing.

    \b
    Examples:
      wavecast ranks traces/
      wavecast ranks traces/ --timeline ranks.json.gz
      wavecast ranks rank0.json.gz rank1.json.gz --to h100 -o ranks.json
      wavecast ranks traces/ --to-node p4d.24xlarge --to-node my-cluster.toml
    """
    from ....formats.files.destinations import check_destinations
    from ..batch.inputs import find_inputs

    written = {"-o": click.get_current_context().params["output"], "--timeline": timeline}
    named = {label: path for label, path in written.items() if path is not None}
    if named:
        found = find_inputs(traces).inputs
        check_destinations(named, {item.name: item.location for item in found if not item.in_archive})
    report = ranks(traces, **asked)
    if timeline is not None:
        report.save_timeline(timeline)
    return report
