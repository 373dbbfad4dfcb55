"""The `batch` command: many traces in, a table of all of them on all GPUs out."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from ....progress import progress_on_stderr
from ...asking.command import FAILED_EXIT_CODE, WavecastCommand
from ...asking.declared import HelpPart, grouped_option, options_of
from ...asking.output import screen_for, write_result
from .api import BatchOptions

_FORMATS: Final = ("table", "json", "markdown")
_SHOWN_NAMES: Final = 20


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
    """
    from .api import batch as predict
    from .parts import parts_path

    with progress_on_stderr("Predicting"):
        try:
            answer = predict(traces, output=output, **asked)
        except KeyboardInterrupt:
            kept = parts_path(output)
            if kept.is_dir():
                click.echo(f"Ended; what is done is kept in {kept.name}: the same command goes on.", err=True)
            raise
    write_result(answer.draw(form, screen_for(None)), None)
    report = answer.report
    _say("passed over", ((item.name, item.reason) for item in report.skipped))
    _say("failed", ((f"{item.trace}{f' ({item.what_if})' * bool(item.what_if)}", item.reason)
                    for item in report.failures))  # fmt: skip
    if report.failures:
        click.get_current_context().exit(FAILED_EXIT_CODE)


def _say(what: str, found: Iterable[tuple[str, str]]) -> None:
    """Write to stderr what became of which traces, a line for each reason; JSON holds all names."""
    from ....formats.trace.printable import clean_text

    names = dict[str, list[str]]()
    for name, reason in found:
        names.setdefault(clean_text(" ".join(reason.split())), []).append(clean_text(name))
    for reason, named in names.items():
        more = f" and {len(named) - _SHOWN_NAMES:,} more" if len(named) > _SHOWN_NAMES else ""
        click.echo(f"{', '.join(named[:_SHOWN_NAMES])}{more}: {what}: {reason}", err=True)
