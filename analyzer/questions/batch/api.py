"""`wavecast.batch`: many traces on many GPUs under what-ifs, as one table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....errors import InputError, OutputError, parameter, spells_options
from ...asking.answer import Report, as_names
from ...asking.keywords import check_choice, check_count, checks_kinds
from ...asking.prices import Prices, read_prices
from ...asking.question import find_named, pick_host

if TYPE_CHECKING:
    from ....formats.files.importers import Progress
    from ...asking.answer import Tables
    from ...asking.question import Gpus
    from ...page.page import Page
    from .inputs import BatchInput, FoundInputs
    from .parts import PartFolder
    from .processes import Delivery
    from .question import BatchChange, BatchQuestion
    from .report import BatchReport, MixRequest

    AnyPrices = Prices | Mapping[str, float] | str | Path | None
    AnyHosts = float | str | Path | Sequence[float | str | Path]

SCHEMES: Final = ("tcp://", "tls://")
"""Of a Dask scheduler's address."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TracesReport(Report):
    """Hold what a batch comes to: `report` sums it up, its table `predictions` has a row per trace, what-if and GPU."""

    report: BatchReport
    output: Path
    """The file that the table is in."""
    folder: PartFolder
    inputs: tuple[BatchInput, ...]

    def page(self) -> Page:
        """Return the summary in words and sheets."""
        from .page import describe_batch

        return describe_batch(self.report, output=self.output.name)

    def illustrated_page(self) -> Page:
        """Return it with charts."""
        from .charts import illustrate_batch
        from .report import times_of

        return illustrate_batch(self.report, output=self.output.name, times=times_of(self.folder, self.inputs))

    def to_json(self) -> str:
        """Return the summary as JSON; docs/batch.md has its layout."""
        from .page import draw_batch_json

        return draw_batch_json(self.report)

    def _tables(self) -> Tables:
        from .report import all_rows
        from .table import prediction_table

        return {"predictions": lambda: prediction_table(all_rows(self.folder, self.inputs))}

    def _headline(self) -> str:
        from ...page.quantity import format_count

        failed = f", {len(self.report.failures)} failed" if self.report.failures else ""
        return f"of {format_count(len(self.inputs), 'trace')}: {format_count(self.report.row_count, 'row')}{failed}"


@checks_kinds
def batch(  # noqa: PLR0913 (all that one may ask, by name)
    traces: str | Path | Sequence[str | Path],
    *,
    output: str | Path,
    to: str | Sequence[str] = (),
    batch: int | Sequence[int] = (),
    sequence_length: int | Sequence[int] = (),
    precision: str | Sequence[str] = (),
    host: float | str | Path | Sequence[float | str | Path] = (),
    cpu_speed: float | str | Sequence[float | str] = (),
    cuda_graph: bool = False,
    fuse_elementwise: bool = False,
    as_recorded: bool = False,
    prices: AnyPrices = None,
    weights: str | Path | None = None,
    max_kinds: int | None = None,
    utilisation: float | None = None,
    gpu_file: str | Path | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> TracesReport:
    """Predict many traces on many GPUs under what-ifs, as one table in a file, and say which GPUs carry them for least.

    `traces` are files, folders, patterns and archives. `output` ends in .parquet, .csv or .html; what is done is kept
    in a folder beside it, so that the same call goes on where it was ended. What-ifs take one value or several: every
    combination is asked. The keywords mean what the options of `batch` of the same names do. Processes are started
    (`jobs`): a script calls this below `if __name__ == "__main__":`.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued, OutputError
    where the file cannot be written. What a trace refuses is in `report.failures`.
    """
    from .inputs import find_inputs
    from .lists import read_weights
    from .parts import PartFolder, parts_path
    from .question import combine_changes, describe_settings
    from .report import report_batch
    from .run import fill_parts

    path, gpus = Path(output), find_named(as_names(to), None, gpu_file)
    _check_output(path)
    changes = combine_changes(
        precisions=_precisions(precision),
        batch_sizes=_counts("batch", batch),
        sequence_lengths=_counts("sequence_length", sequence_length),
        hosts=_hosts(host, cpu_speed),
        cuda_graph=cuda_graph,
        fuse_elementwise=fuse_elementwise,
        as_recorded=as_recorded,
    )
    question = _question(gpus, changes, prices)
    mix = _mix(max_kinds, utilisation, has_weights=weights is not None)
    runs = None if weights is None else read_weights(Path(weights))
    found = find_inputs(as_names(traces, "traces"))
    _check_inputs(found, path)
    answering = _answering(question, check_count("jobs", jobs), scheduler)
    folder = PartFolder(parts_path(path), describe_settings(question, None if gpu_file is None else Path(gpu_file)))
    folder.open(restart=restart)
    unanswered = fill_parts(folder, found.inputs, answering, progress)
    report = report_batch(folder, found.inputs, unanswered, weights=runs, mix=mix)
    skipped = tuple(item for item in found.skipped if Path(item.name).name != path.name)
    answer = TracesReport(report=replace(report, skipped=skipped), output=path, folder=folder, inputs=found.inputs)
    if report.row_count:
        _write(answer)
    return answer


def _write(answer: TracesReport) -> None:
    """Write the table, or the page with charts."""
    from ....formats.files.open import write_atomic
    from .report import all_rows
    from .table import HTML, encode_table

    suffix = answer.output.suffix.lower()
    is_page = suffix == HTML
    data = answer.draw("html").encode() if is_page else encode_table(suffix, all_rows(answer.folder, answer.inputs))
    write_atomic(answer.output, data)


def _check_output(output: Path) -> None:
    """Raise InputError for another ending than tables have, OutputError where it cannot be written."""
    from .table import HTML, TABLE_SUFFIXES, check_table

    suffix = output.suffix.lower()
    if suffix not in (*TABLE_SUFFIXES, HTML):
        endings = f"{', '.join(TABLE_SUFFIXES)} or {HTML}"
        raise InputError(
            f"{parameter('output', output)}: expected a file that ends in {endings}; found {suffix or 'no ending'}"
        )
    if output.is_dir():
        raise OutputError(f"{parameter('output', output)}: it is a directory; name a file in it")
    if not output.parent.is_dir():
        raise OutputError(f"{parameter('output', output)}: its directory does not exist")
    if suffix == HTML:
        from ...page.vega import chart_library

        chart_library()
    check_table(suffix)


def _check_inputs(found: FoundInputs, output: Path) -> None:
    """Raise InputError where the table would take the place of a trace."""
    target = str(output.resolve())
    for item in found.inputs:
        if not item.in_archive and item.location == target:
            raise InputError(f"{parameter('output', output)}: it is one of the traces; write to another file")


def _question(gpus: Gpus, changes: tuple[BatchChange, ...], prices: AnyPrices) -> BatchQuestion:
    from .question import BatchQuestion, installed_identity

    return BatchQuestion(
        catalog=gpus.catalog,
        targets=gpus.targets,
        changes=changes,
        prices=read_prices(prices, gpus.catalog) or Prices().book(gpus.catalog),
        has_own_prices=prices is not None,
        identity=installed_identity(),
    )


def _precisions(value: str | Sequence[str]) -> tuple[str, ...]:
    from ...whatif.scenario import TargetPrecision

    asked = as_names(value, "precision")
    for name in asked:
        check_choice("precision", name, [item.value for item in TargetPrecision])
    return asked


def _counts(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    several = value if isinstance(value, Sequence) else [value]
    return tuple(count for item in several if (count := check_count(name, item)) is not None)


def _hosts(host: AnyHosts, cpu_speed: AnyHosts) -> tuple[str, ...]:
    """Return the hosts that are asked about, under their name or their old one. Raises InputError for what is none."""
    from ...host.speed import check_host

    several = _several_hosts(host)
    if old := _several_hosts(cpu_speed):
        pick_host(several[0] if several else None, old[0])
    for text in (*several, *old):
        check_host(text)
    return several or old


def _several_hosts(value: AnyHosts) -> tuple[str, ...]:
    return tuple(map(str, [value] if isinstance(value, str | Path | float | int) else value))


def _mix(max_kinds: int | None, utilisation: float | None, *, has_weights: bool) -> MixRequest | None:
    """Return what a mix has to keep to; None where nothing was said of it."""
    from .report import MixRequest

    check_count("max_kinds", max_kinds)
    if max_kinds is None and utilisation is None:
        return None
    if utilisation is not None and not 0 < utilisation <= 1:
        raise InputError(f"{parameter('utilisation', f'{utilisation:g}')}: expected a ratio above 0 and up to 1")
    if not has_weights:
        raise InputError(
            f"{parameter('max_kinds')} and {parameter('utilisation')} are for a mix of GPUs: add "
            f"{parameter('weights', 'FILE')}"
        )
    return MixRequest(max_kinds=max_kinds, utilisation=utilisation or 1.0)


def _answering(
    question: BatchQuestion, jobs: int | None, scheduler: str | None
) -> Callable[[Sequence[BatchInput]], Iterator[Delivery]]:
    """Return what answers traces: processes of this machine, or a Dask cluster."""
    from .answer import answer_input
    from .processes import answer_on_processes

    work, count = partial(answer_input, question, spells_options()), jobs or os.cpu_count() or 1
    if scheduler is None:
        return lambda items: answer_on_processes(work, items, count)
    from .dask_cluster import LOCAL, answer_on_dask, check_dask

    if scheduler != LOCAL and not scheduler.startswith(SCHEMES):
        raise InputError(f"{parameter('scheduler')} {scheduler!r}: expected local, or an address as tcp://HOST:8786")
    if scheduler != LOCAL and jobs is not None:
        raise InputError(
            f"{parameter('jobs')} is for processes of this machine: a cluster's workers are as many as there are"
        )
    check_dask()
    return lambda items: answer_on_dask(work, items, scheduler, count)
