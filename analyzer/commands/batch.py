"""The `batch` command: many traces in, a table of all of them on all GPUs out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...errors import InputError, OutputError
from ..api.prices import Prices
from .analyze import PRECISIONS
from .command import FAILED_EXIT_CODE, WavecastCommand, complete_gpu_names, gpu_file_option
from .output import OutputPath, screen_for, write_result
from .price_options import price_options, take_prices
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ..analysis.batch.inputs import BatchInput, FoundInputs
    from ..analysis.batch.parts import PartFolder
    from ..analysis.batch.processes import Delivery
    from ..analysis.batch.question import BatchQuestion
    from ..analysis.batch.report import BatchReport, MixRequest

_FORMATS: Final = ("table", "json", "markdown")
_SHOWN_LINES: Final = 20
_SCHEMES: Final = ("tcp://", "tls://")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """Hold what the command line asked for, as parsed."""

    places: tuple[str, ...]
    targets: tuple[str, ...]
    output: Path
    precisions: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    sequence_lengths: tuple[int, ...]
    cpu_speeds: tuple[str, ...]
    cuda_graph: bool
    fuse_elementwise: bool
    as_recorded: bool
    prices: Prices | None
    weights: Path | None
    max_kinds: int | None
    utilisation: float | None
    gpu_file: Path | None
    jobs: int | None
    scheduler: str | None
    restart: bool
    form: str

    @property
    def mix(self) -> MixRequest | None:
        """Return what a mix has to keep to; None where nothing was said of it."""
        from ..analysis.batch.report import MixRequest

        if self.max_kinds is None and self.utilisation is None:
            return None
        if self.utilisation is not None and isnan(self.utilisation):
            raise InputError("--utilisation nan: expected a ratio above 0 and up to 1")
        if self.weights is None:
            raise InputError("--max-kinds and --utilisation are for a mix of GPUs: add --weights FILE")
        return MixRequest(max_kinds=self.max_kinds, utilisation=self.utilisation or 1.0)


@click.command("batch", cls=WavecastCommand, short_help="Predict many traces on many GPUs, as one table.")
@click.argument("places", metavar="FILE|FOLDER|PATTERN|archive://…", nargs=-1, required=True)
@click.option(
    "--to",
    "targets",
    metavar="GPU",
    multiple=True,
    shell_complete=complete_gpu_names,
    help="Predict for this GPU only; repeat for several. Default: every catalogued GPU.",
)
@click.option(
    "-o",
    "--output",
    type=OutputPath(path_type=Path),
    metavar="FILE",
    required=True,
    help="The table (.parquet, .csv), or a report with charts (.html). What is done is kept in FILE.parts.",
)
@click.option("--batch", "batch_sizes", type=click.IntRange(min=1), metavar="N", multiple=True, help="What if the "
              "batch were N? This and the next three may be repeated: every combination is asked.")  # fmt: skip
@click.option(
    "--sequence-length",
    "sequence_lengths",
    type=click.IntRange(min=1),
    metavar="N",
    multiple=True,
    help="What if each sample had N tokens?",
)
@click.option(
    "--precision", "precisions", type=click.Choice(PRECISIONS), multiple=True, help="What if it ran in this precision?"
)
@click.option("--cpu-speed", "cpu_speeds", metavar="RATIO", multiple=True, help="Speed of the target's host, or a "
              "named host.")  # fmt: skip
@click.option("--cuda-graph", is_flag=True, help="What if CUDA graphs launched it?")
@click.option("--fuse-elementwise", is_flag=True, help="What if a compiler merged pointwise ops?")
@click.option("--as-recorded", is_flag=True, help="Beside what-ifs, ask what was recorded, too.")
@price_options
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Runs per day by trace, tag or workload: CSV of name and number, or TOML. Adds the cheapest mix of GPUs.",
)
@click.option("--max-kinds", type=click.IntRange(min=1), metavar="N", help="GPU types that the mix may have.")
@click.option(
    "--utilisation",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="RATIO",
    help="How busy a GPU of the mix may be. Default: 1.",
)
@gpu_file_option
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes. Default: one per core.")
@click.option(
    "--scheduler",
    metavar="local|ADDRESS",
    help="Work on a Dask cluster: one that is started here, or that of a scheduler (tcp://HOST:PORT).",
)
@click.option("--restart", is_flag=True, help="Throw away what an earlier run kept, and begin anew.")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="table", show_default=True, help="Of the summary."
)
def batch(**options: Any) -> None:
    """Predict many traces on many GPUs under what-ifs, as one table, and say which GPUs carry them for the least money.

    Traces are files, what folders (with all below them) and patterns hold of traces, and an archive's:
    archive://DIR, archive://DIR#ID or "archive://DIR?QUERY". A run that was ended goes on where it was
    when it is started again; so does one to which traces were added.

    \b
    Examples:
      batch traces/ -o results.parquet
      batch "runs/*.json.gz" --to h100 --to b200 --batch 8 --batch 16 -o results.csv
      batch "archive://traces?model~llama" --to h100 --weights runs.csv -o fleet.parquet
      batch traces/ --scheduler tcp://head:8786 -o results.parquet
    """
    from ..rendering.batch import describe_batch, draw_batch_json
    from ..rendering.formats import PAGE_FORMATS

    prices = take_prices(options)
    request = BatchRequest(**options, prices=prices)
    report = _predict(request)
    if request.form == "json":
        text = draw_batch_json(report)
    else:
        page = describe_batch(report, output=request.output.name)
        drawer = next(item for item in PAGE_FORMATS if item.name == request.form)
        text = drawer.draw(page, screen_for(None))
    write_result(text, None)
    _say_lines(f"{item.name}: passed over: {item.reason}" for item in report.skipped)
    _say_lines(
        (f"{item.trace}{f' ({item.what_if})' if item.what_if else ''}: failed: {item.reason}"
         for item in report.failures), limit=None,
    )  # fmt: skip
    if report.failures:
        click.get_current_context().exit(FAILED_EXIT_CODE)


def _predict(request: BatchRequest) -> BatchReport:
    from ...formats.files import write_atomic
    from ..analysis.batch.inputs import find_inputs
    from ..analysis.batch.lists import read_weights
    from ..analysis.batch.parts import PartFolder, parts_path
    from ..analysis.batch.question import describe_settings
    from ..analysis.batch.report import all_rows, report_batch
    from ..analysis.batch.run import fill_parts
    from ..rendering.batch_table import HTML, encode_table

    suffix = _check_output(request.output)
    question = _question(request)
    mix, weights = request.mix, None if request.weights is None else read_weights(request.weights)
    found = find_inputs(request.places)
    _check_inputs(found, request.output)
    answering = _answering(request, question)
    folder = PartFolder(parts_path(request.output), describe_settings(question, request.gpu_file))
    folder.open(restart=request.restart)
    try:
        with progress_on_stderr("Predicting") as progress:
            unanswered = fill_parts(folder, found.inputs, answering, progress)
    except KeyboardInterrupt:
        click.echo(f"Ended; what is done is kept in {folder.path.name}: the same command goes on.", err=True)
        raise
    report = report_batch(folder, found.inputs, unanswered, weights=weights, mix=mix)
    skipped = tuple(item for item in found.skipped if Path(item.name).name != request.output.name)
    report = replace(report, skipped=skipped)
    if report.row_count:
        rows = partial(all_rows, folder, found.inputs)
        is_page = suffix == HTML
        data = _draw_page(report, folder, found, request) if is_page else encode_table(suffix, rows())
        write_atomic(request.output, data)
    return report


def _draw_page(report: BatchReport, folder: PartFolder, found: FoundInputs, request: BatchRequest) -> bytes:
    """Return the report with charts, as HTML."""
    from ..analysis.batch.report import times_of
    from ..rendering.charts.batch import illustrate_batch
    from ..rendering.page.html import draw_html

    times = times_of(folder, found.inputs)
    return draw_html(illustrate_batch(report, output=request.output.name, times=times)).encode()


def _check_output(output: Path) -> str:
    """Return the ending of the table. Raises InputError for another one, OutputError where it cannot be written."""
    from ..rendering.batch_table import HTML, TABLE_SUFFIXES, check_table

    suffix = output.suffix.lower()
    if suffix not in (*TABLE_SUFFIXES, HTML):
        endings = f"{', '.join(TABLE_SUFFIXES)} or {HTML}"
        raise InputError(f"-o {output}: expected a file that ends in {endings}; found {suffix or 'no ending'}")
    if output.is_dir():
        raise OutputError(f"-o {output}: it is a directory; name a file in it")
    if not output.parent.is_dir():
        raise OutputError(f"-o {output}: its directory does not exist")
    if suffix == HTML:
        from ..rendering.page.vega import chart_library

        chart_library()
    check_table(suffix)
    return suffix


def _check_inputs(found: FoundInputs, output: Path) -> None:
    """Raise InputError where the table would take the place of a trace."""
    target = str(output.resolve())
    for item in found.inputs:
        if not item.in_archive and item.location == target:
            raise InputError(f"-o {output}: it is one of the traces; write to another file")


def _question(request: BatchRequest) -> BatchQuestion:
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpus
    from ..analysis.batch.question import BatchQuestion, combine_changes, installed_identity
    from ..host.speed import check_cpu_speed

    catalog = load_catalog(request.gpu_file)
    targets = {gpu.name: gpu for name in request.targets for gpu in find_gpus(catalog, name)}
    for speed in request.cpu_speeds:
        check_cpu_speed(speed)
    return BatchQuestion(
        catalog=catalog,
        targets=tuple(targets.values()),
        changes=combine_changes(
            precisions=request.precisions,
            batch_sizes=request.batch_sizes,
            sequence_lengths=request.sequence_lengths,
            cpu_speeds=request.cpu_speeds,
            cuda_graph=request.cuda_graph,
            fuse_elementwise=request.fuse_elementwise,
            as_recorded=request.as_recorded,
        ),
        prices=(request.prices or Prices()).book(catalog),
        has_own_prices=request.prices is not None,
        identity=installed_identity(),
    )


def _answering(request: BatchRequest, question: BatchQuestion) -> Callable[[Sequence[BatchInput]], Iterator[Delivery]]:
    """Return what answers traces: processes of this machine, or a Dask cluster."""
    from ..analysis.batch.answer import answer_input
    from ..analysis.batch.processes import answer_on_processes

    work, count = partial(answer_input, question), request.jobs or os.cpu_count() or 1
    if request.scheduler is None:
        return lambda items: answer_on_processes(work, items, count)
    from ..analysis.batch.dask_cluster import LOCAL, answer_on_dask, check_dask

    scheduler = request.scheduler
    if scheduler != LOCAL and not scheduler.startswith(_SCHEMES):
        raise InputError(f"--scheduler {scheduler!r}: expected local, or an address as tcp://HOST:8786")
    if scheduler != LOCAL and request.jobs is not None:
        raise InputError("--jobs is for processes of this machine: a cluster's workers are as many as there are")
    check_dask()
    return lambda items: answer_on_dask(work, items, scheduler, count)


def _say_lines(lines: Iterator[str], *, limit: int | None = _SHOWN_LINES) -> None:
    """Write lines to stderr, without anything a terminal could act upon."""
    from ...formats.printable import clean_text

    found = [clean_text(" ".join(line.split())) for line in lines]
    for line in found[:limit]:
        click.echo(line, err=True)
    if limit is not None and len(found) > limit:
        click.echo(f"... and {len(found) - limit:,} more", err=True)
