"""Where a command's result goes: a terminal, a pipe or a file."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...errors import InputError
from ..page.formats import DEFAULT_FORMAT, REPORT_FORMATS, SUFFIXES

if TYPE_CHECKING:
    from ...errors import WavecastError
    from ..page.terminal import Screen

FORMAT_OF_SUFFIX: Final = {suffix: form for form, suffix in SUFFIXES.items()}


class OutputPath(click.Path):
    """Mark a parameter that names a file to write; all other paths of a command are read."""


def check_paths(context: click.Context) -> None:
    """Raise OutputError where a command would write over what it reads, or twice to one place. See `destinations`."""
    from ...formats.files.destinations import check_destinations

    outputs, inputs = dict[str, Path](), dict[str, Path]()
    for parameter in context.command.params:
        path = context.params.get(parameter.name or "")
        if isinstance(parameter.type, OutputPath):
            if path is not None or parameter.name == "output":
                outputs[_label(parameter)] = path or Path("-")
        elif isinstance(parameter.type, click.Path) and path is not None:
            several = enumerate(path) if parameter.multiple or parameter.nargs == -1 else [(0, path)]
            inputs |= {_label(parameter) + (f" {number + 1}" if number else ""): one for number, one in several}
    check_destinations(outputs, inputs)


def _label(parameter: click.Parameter) -> str:
    """Return what the help calls it: `-o`, `TRACE`."""
    return parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[0]


def choose_format(form: str | None, output: Path | None) -> str:
    """Return the format asked for, or the one that the output's ending names; table where it has none.

    Raises InputError for an ending that names no format of the command.
    """
    if form is not None:
        return form
    ending = "" if output is None else output.suffix or (output.name if output.name in FORMAT_OF_SUFFIX else "")
    if output is None or not _is_file(output) or not ending:
        return DEFAULT_FORMAT
    context = click.get_current_context(silent=True)
    kinds = [] if context is None else [item.type for item in context.command.params if item.name == "form"]
    offered = [str(name) for kind in kinds if isinstance(kind, click.Choice) for name in kind.choices]
    offered = offered or list(REPORT_FORMATS)
    found = FORMAT_OF_SUFFIX.get(ending.lower())
    if found is None or found not in offered:
        endings = ", ".join(SUFFIXES[name] for name in offered)
        raise InputError(f"-o {output}: expected a name that ends in {endings}; --format says what another one holds")
    return found


def screen_for(output: Path | None) -> Screen:
    """Return the width and colours of where the result goes; see `stdout_screen`."""
    from ..page.terminal import stdout_screen

    return stdout_screen(is_file=_is_file(output))


def write_result(text: str, output: Path | None) -> None:
    """Write the finished text to the file, or to standard output."""
    if output is not None and _is_file(output):
        from ...formats.files.open import write_atomic

        write_atomic(output, text.encode())
        return
    from ..page.terminal import encodable

    try:
        click.echo(encodable(text), nl=False, color=True)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # who reads has seen enough
        raise explain_full_stdout(error) from None


def explain_full_stdout(error: OSError) -> WavecastError:
    """Return the error for standard output that cannot be written; what Python still holds for it goes nowhere."""
    from ...formats.files.open import explain_unwritable

    with suppress(OSError, ValueError):  # ValueError: it has no file, as in tests
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return explain_unwritable("standard output", error)


def _is_file(output: Path | None) -> bool:
    return output is not None and str(output) != "-"
