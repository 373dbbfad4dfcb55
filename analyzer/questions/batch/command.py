"""The `batch` command: many traces in, a table of all of them on all GPUs out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...asking.command import FAILED_EXIT_CODE, WavecastCommand, complete_gpu_names, gpu_file_option, read_gpu_names
from ...asking.output import OutputPath, screen_for, write_result
from ...asking.price_options import price_options, take_prices
from ...asking.prices import Prices
from ...asking.progress import progress_on_stderr
from ...asking.what_if_options import HOSTS, complete_hosts, take_host
from ..analyze.command import PRECISIONS

if TYPE_CHECKING:
    from .api import TracesReport

_FORMATS: Final = ("table", "json", "markdown")
_SHOWN_LINES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """Hold what the command line asked for, as parsed."""

    places: tuple[str, ...]
    targets: tuple[str, ...]
    output: Path
    precisions: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    sequence_lengths: tuple[int, ...]
    hosts: tuple[str, ...]
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


@click.command("batch", cls=WavecastCommand)
@click.argument("places", metavar="FILE|FOLDER|PATTERN|archive://…", nargs=-1, required=True)
@click.option(
    "--to",
    "targets",
    metavar="GPU,…",
    multiple=True,
    callback=read_gpu_names,
    shell_complete=complete_gpu_names,
    help="Predict for this GPU only; several with commas, or repeat. Default: every catalogued GPU.",
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
@click.option("--host", "hosts", metavar=HOSTS, multiple=True, shell_complete=complete_hosts, help="Speed of the "
              "target's host, a named host, or a file that tells one.")  # fmt: skip
@click.option("--cpu-speed", "cpu_speeds", hidden=True, multiple=True, help="What --host was called before.")
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
      batch "runs/*.json.gz" --to h100 --batch 8 --batch 16 -o results.csv
      batch "archive://traces?model~llama" --weights runs.csv -o fleet.parquet
      batch traces/ --scheduler tcp://head:8786 -o results.parquet
    """
    prices = take_prices(options)
    take_host(options, "hosts", "cpu_speeds")
    request = BatchRequest(**options, prices=prices)
    answer = _predict(request)
    write_result(answer.draw(request.form, screen_for(None)), None)
    report = answer.report
    _say_lines(f"{item.name}: passed over: {item.reason}" for item in report.skipped)
    _say_lines(
        (f"{item.trace}{f' ({item.what_if})' if item.what_if else ''}: failed: {item.reason}"
         for item in report.failures), limit=None,
    )  # fmt: skip
    if report.failures:
        click.get_current_context().exit(FAILED_EXIT_CODE)


def _predict(request: BatchRequest) -> TracesReport:
    from .api import batch as predict
    from .parts import parts_path

    with progress_on_stderr("Predicting") as progress:
        try:
            return predict(
                request.places,
                output=request.output,
                to=request.targets,
                batch=request.batch_sizes,
                sequence_length=request.sequence_lengths,
                precision=request.precisions,
                host=request.hosts,
                cuda_graph=request.cuda_graph,
                fuse_elementwise=request.fuse_elementwise,
                as_recorded=request.as_recorded,
                prices=request.prices,
                weights=request.weights,
                max_kinds=request.max_kinds,
                utilisation=request.utilisation,
                gpu_file=request.gpu_file,
                jobs=request.jobs,
                scheduler=request.scheduler,
                restart=request.restart,
                progress=progress,
            )
        except KeyboardInterrupt:
            kept = parts_path(request.output)
            if kept.is_dir():
                click.echo(f"Ended; what is done is kept in {kept.name}: the same command goes on.", err=True)
            raise


def _say_lines(lines: Iterator[str], *, limit: int | None = _SHOWN_LINES) -> None:
    """Write lines to stderr, without anything a terminal could act upon."""
    from ....formats.trace.printable import clean_text

    found = [clean_text(" ".join(line.split())) for line in lines]
    for line in found[:limit]:
        click.echo(line, err=True)
    if limit is not None and len(found) > limit:
        click.echo(f"... and {len(found) - limit:,} more", err=True)
