"""What all commands share: one-line errors, quiet interruptions, and options that recur."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...errors import InputError, WavecastError, shorten, spelling_options
from ...progress import progress_on_stderr
from ..page.formats import DEFAULT_FORMAT, REPORT_FORMATS, SUFFIXES
from .declared import FunctionT, GroupedOption, HelpPart, grouped_option, options_of
from .output import OutputPath, check_paths, choose_format, explain_full_stdout, screen_for, write_result

if TYPE_CHECKING:
    from .answer import Report

INTERRUPTED_EXIT_CODE: Final = 130
"""What shells report for a command that Ctrl-C ended."""
FAILED_EXIT_CODE: Final = 1
_LONGEST_WORD, _LONGEST_MESSAGE = 400, 8000
"""Characters of an error's line: no path is as long, and nobody reads more of one."""
CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_NO_ARGUMENTS: Final = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""The whole help, which a group without arguments prints; click before 8.2 has no error for it."""
_ENDINGS: Final = ", ".join(SUFFIXES[form] for form in REPORT_FORMATS if form != DEFAULT_FORMAT)


class WavecastCommand(click.Command):
    """Turn the library's errors into one line on stderr and their exit status."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options["context_settings"] = {**CONTEXT_SETTINGS, **(options.get("context_settings") or {})}
        super().__init__(*args, **options)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show options that belong together in one part of the help."""
        parts: dict[str, list[tuple[str, str]]] = {"Options": [], **{group: [] for group in HelpPart}}
        for item in self.get_params(ctx):
            shown = item.get_help_record(ctx)
            if isinstance(item, click.Option) and shown is not None:
                is_usual = item.name in ("help", "version")
                other = HelpPart.OUTPUT if is_usual else "Options"
                parts[item.group if isinstance(item, GroupedOption) else other].append(shown)
        for part, rows in parts.items():
            if rows:
                with formatter.section(part):
                    formatter.write_dl(rows)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Read the command line."""
        with usage_errors_cleaned(), spelling_options():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless it would write over what it reads."""
        try:
            check_paths(ctx)
            with spelling_options():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            return ctx.exit(INTERRUPTED_EXIT_CODE)
        except (WavecastError, MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            click.echo(f"Error: {_one_line(_describe(error))}", err=True)
            return ctx.exit(error.exit_code if isinstance(error, WavecastError) else FAILED_EXIT_CODE)


@contextmanager
def usage_errors_cleaned() -> Iterator[None]:
    """Keep what was typed from steering the terminal when click says what is wrong with it."""
    try:
        yield
    except click.UsageError as error:
        message = error.format_message()
        if (message.isprintable() and len(message) < _LONGEST_WORD) or isinstance(error, _NO_ARGUMENTS):
            raise
        raise click.UsageError(_one_line(message), error.ctx) from None


def run_program(command: click.Command, name: str) -> None:
    """Run a command as a program of its own: standard output without room for its help is a failure, too.

    >>> run_program(lambda prog_name: print(prog_name, "ran"), "analyze")
    analyze ran
    """
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:  # closed by the caller: what is opened next must not take its place
            setattr(sys, stream, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    try:
        command(prog_name=name)
    except OSError as error:
        if error.filename is not None:
            raise
        click.echo(f"Error: {_one_line(str(explain_full_stdout(error)))}", err=True)
        sys.exit(FAILED_EXIT_CODE)


def output_options(*formats: str) -> Callable[[FunctionT], FunctionT]:
    """Add `-o` and `--format` with the given choices; without `--format`, the ending of the file decides."""

    def decorate(function: FunctionT) -> FunctionT:
        save = grouped_option(
            HelpPart.OUTPUT,
            "Write to FILE instead of standard output: whole or not at all.",
            "-o",
            "--output",
            type=OutputPath(path_type=Path, allow_dash=True),
            metavar="FILE",
        )
        choose = grouped_option(
            HelpPart.OUTPUT,
            f"How to write the result. Default: what the ending of -o says ({_ENDINGS}), else {DEFAULT_FORMAT}.",
            "--format",
            "form",
            type=click.Choice(formats),
        )
        return save(choose(function))

    return decorate


def timeline_option(explanation: str) -> Callable[[FunctionT], FunctionT]:
    """Add `--timeline`, a file that a report writes in Python."""
    return grouped_option(HelpPart.OUTPUT, explanation, "--timeline", type=OutputPath(path_type=Path), metavar="FILE")


def write_answer(report: Report, form: str | None, output: Path | None) -> None:
    """Write a report in the format asked for, or that the file's ending names."""
    from .answer import PNG, PicturedReport

    chosen = choose_format(form, output)
    if chosen == PNG and isinstance(report, PicturedReport) and output is not None:
        from ...formats.files.open import write_atomic

        write_atomic(output, report.picture(chosen))
    else:
        write_result(report.draw(chosen, screen_for(output)), output)


def report_command(
    name: str,
    *records: type,
    cls: type[click.Command] = WavecastCommand,
    label: str = "Reading the trace",
    formats: Sequence[str] = REPORT_FORMATS,
    **explanations: str,
) -> Callable[[Callable[..., Report]], click.Command]:
    """Make a command of a function that answers with a report: with the options of records, and where it is written.

    `label` is what is said to be done while that takes long, `explanations` are as `options_of` takes them. The exit
    status is 1 where the report complains.
    """

    def decorate(ask: Callable[..., Report]) -> click.Command:
        @wraps(ask)
        def run(*, form: str | None, output: Path | None, **asked: Any) -> None:
            if choose_format(form, output) == "png" and (output is None or str(output) == "-"):
                raise InputError("a PNG is no text: say where to write it with -o FILE.png")
            with progress_on_stderr(label):
                report = ask(**asked)
            write_answer(report, form, output)
            for text in report.complaints:
                click.echo(f"Error: {text}", err=True)
            if report.complaints:
                click.get_current_context().exit(FAILED_EXIT_CODE)

        with_options = output_options(*formats)(options_of(*records, **explanations)(run))
        return click.command(name, cls=cls)(with_options)

    return decorate


def max_error_option(explanation: str) -> Callable[[FunctionT], FunctionT]:
    """Add `--max-error`, a percentage that `check_max_error` looks at."""
    return grouped_option(
        HelpPart.OUTPUT,
        explanation,
        "--max-error",
        "max_error_percent",
        type=click.FloatRange(min=0),
        metavar="PERCENT",
    )


def check_max_error(percent: float | None) -> None:
    """Raise InputError for a limit that nothing could exceed."""
    if percent is not None and not isfinite(percent):
        raise InputError(f"--max-error {percent:g}: expected a percentage")


def name_of_trace(path: Path) -> str:
    """Return what a trace is called in what is shown."""
    from .answer import trace_name

    return trace_name(path)


def _describe(error: WavecastError | MemoryError | OSError) -> str:
    if isinstance(error, MemoryError):
        return "out of memory: use a machine with more, or record fewer iterations"
    if isinstance(error, OSError):
        return f"{error.filename or 'output'}: {error.strerror or error}"
    return str(error)


def _one_line(message: str) -> str:
    """Return the message on one line, without anything a terminal could act upon, and what was typed cut short."""
    from ...formats.trace.printable import clean_text

    whole = clean_text(shorten(" ".join(message.split())))
    return whole if len(whole) < _LONGEST_MESSAGE else f"{whole[:_LONGEST_MESSAGE]} …"
