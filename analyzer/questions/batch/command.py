"""The `batch` command: many traces in, a table of all of them on all GPUs out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from ...asking.command import FAILED_EXIT_CODE, WavecastCommand
from ...asking.declared import HelpPart, grouped_option, options_of
from ...asking.output import progress_on_stderr, screen_for, write_result
from .api import BatchOptions

_FORMATS: Final = ("table", "json", "markdown")
_SHOWN_LINES: Final = 20


@click.command("batch", cls=WavecastCommand)
@click.argument("traces", metavar="FILE|FOLDER|PATTERN|archive://…", nargs=-1, required=True)
@options_of(BatchOptions)
@grouped_option(
    HelpPart.OUTPUT,
    "Of the summary.",
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="table",
    show_default=True,
)
def batch(traces: tuple[str, ...], output: Path, form: str, **asked: Any) -> None:
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
    from .api import batch as predict
    from .parts import parts_path

    with progress_on_stderr("Predicting") as progress:
        try:
            answer = predict(traces, output=output, progress=progress, **asked)
        except KeyboardInterrupt:
            kept = parts_path(output)
            if kept.is_dir():
                click.echo(f"Ended; what is done is kept in {kept.name}: the same command goes on.", err=True)
            raise
    write_result(answer.draw(form, screen_for(None)), None)
    report = answer.report
    _say_lines(f"{item.name}: passed over: {item.reason}" for item in report.skipped)
    _say_lines(
        (f"{item.trace}{f' ({item.what_if})' if item.what_if else ''}: failed: {item.reason}"
         for item in report.failures), limit=None,
    )  # fmt: skip
    if report.failures:
        click.get_current_context().exit(FAILED_EXIT_CODE)


def _say_lines(lines: Iterator[str], *, limit: int | None = _SHOWN_LINES) -> None:
    """Write lines to stderr, without anything a terminal could act upon."""
    from ....formats.trace.printable import clean_text

    found = [clean_text(" ".join(line.split())) for line in lines]
    for line in found[:limit]:
        click.echo(line, err=True)
    if limit is not None and len(found) > limit:
        click.echo(f"... and {len(found) - limit:,} more", err=True)
