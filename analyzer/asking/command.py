"""What all commands share: one-line errors, quiet interruptions, and options that recur."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from ...errors import InputError, WavecastError, spelling_options
from ..page.formats import DEFAULT_FORMAT, SUFFIXES
from .output import OutputPath, check_paths, explain_full_stdout

if TYPE_CHECKING:
    pass

INTERRUPTED_EXIT_CODE: Final = 130
"""What shells report for a command that Ctrl-C ended."""
FAILED_EXIT_CODE: Final = 1
CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_SOURCE_HELP: Final = "The GPU that was measured, where the trace does not say it or says it wrongly."
ITERATION_RULES: Final = ("median", "longest", "all")
_ITERATION_HELP: Final = (
    "Which iteration of the recording: its number as in 'wavecast show', median (default), longest, or all as one."
)
_CAPTURE_HELP: Final = (
    "A recording of the capture of a CUDA graph that TRACE launches: its ops explain the kernels. Repeat for several."
)
_NO_ARGUMENTS: Final = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""The whole help, which a group without arguments prints; click before 8.2 has no error for it."""
_MOST_DIGITS: Final = 18
"""More are no row of any file; the first ones are as wrong as all."""
_BETWEEN_NAMES: Final = re.compile(r",(?![^(]*\))")
"""A comma between names, and none of `B200 SXM (HGX, 180GB)`."""
_ENDINGS: Final = ", ".join(suffix for form, suffix in SUFFIXES.items() if form != DEFAULT_FORMAT)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class TracePath(click.Path):
    """Name a trace: a file, `-` for standard input, or one of an archive (archive://DIR#ID)."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; of an archived trace, one that `load_trace` understands."""
        if isinstance(value, str) and value.startswith("archive:"):
            from ...formats.files.reference import as_path, is_reference

            if is_reference(value):
                try:
                    return as_path(value)
                except InputError as error:
                    self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the ids and tags of an archive that begin as was typed after `#`; else leave files to the shell."""
        place, hash_sign, beginning = incomplete.partition("#")
        if not (hash_sign and place.startswith("archive:")):
            return super().shell_complete(ctx, param, incomplete)
        location = place.removeprefix("archive:").removeprefix("//")
        return [CompletionItem(f"{place}#{name}") for name in _archived_names(location, beginning)]


class WavecastCommand(click.Command):
    """Turn the library's errors into one line on stderr and their exit status."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options["context_settings"] = {**CONTEXT_SETTINGS, **(options.get("context_settings") or {})}
        super().__init__(*args, **options)

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
        if message.isprintable() or isinstance(error, _NO_ARGUMENTS):
            raise
        raise click.UsageError(_one_line(message), error.ctx) from None


def run_program(command: click.Command, name: str) -> None:
    """Run a command as a program of its own: standard output without room for its help is a failure, too."""
    try:
        command(prog_name=name)
    except OSError as error:
        if error.filename is not None:
            raise
        click.echo(f"Error: {_one_line(str(explain_full_stdout(error)))}", err=True)
        sys.exit(FAILED_EXIT_CODE)


def output_options(*formats: str) -> Callable[[FunctionT], FunctionT]:
    """Add `--format` with the given choices and `-o`; without `--format`, the ending of the file decides."""

    def decorate(function: FunctionT) -> FunctionT:
        choose = click.option(
            "--format",
            "form",
            type=click.Choice(formats),
            help=f"How to write the result. Default: what the ending of -o says ({_ENDINGS}), else {DEFAULT_FORMAT}.",
        )
        save = click.option(
            "-o",
            "--output",
            type=OutputPath(path_type=Path, allow_dash=True),
            metavar="FILE",
            help="Write to FILE instead of standard output: whole or not at all.",
        )
        return choose(save(function))

    return decorate


def gpu_file_option(function: FunctionT) -> FunctionT:
    """Add `--gpu-file`."""
    return click.option(
        "--gpu-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read more GPUs (yours, unreleased, imagined) from this TOML file; see 'wavecast catalog --help'.",
    )(function)


def source_option(explanation: str = _SOURCE_HELP) -> Callable[[FunctionT], FunctionT]:
    """Add `--from`, a GPU's name."""
    return click.option("--from", "source", metavar="GPU", shell_complete=complete_gpu_names, help=explanation)


def iteration_option(explanation: str = _ITERATION_HELP) -> Callable[[FunctionT], FunctionT]:
    """Add `--iteration`, a number or a rule."""
    return click.option("--iteration", metavar="N|RULE", callback=_read_iteration, help=explanation)


def _read_iteration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | str | None:
    """Return the number, or the name of the rule."""
    if text is None or text in ITERATION_RULES:
        return text
    if not (text.isascii() and text.isdigit()):
        rules = f"{', '.join(ITERATION_RULES[:-1])} or {ITERATION_RULES[-1]}"
        raise click.BadParameter(f"{text!r}: expected a number, {rules}")
    return int(text[:_MOST_DIGITS])


def capture_option(explanation: str = _CAPTURE_HELP) -> Callable[[FunctionT], FunctionT]:
    """Add `--capture`, files that may be given several times."""
    return click.option("--capture", "captures", type=TracePath(), metavar="FILE", multiple=True, help=explanation)


def execution_trace_option(function: FunctionT) -> FunctionT:
    """Add `--execution-trace`, the file beside a profiler's."""
    return click.option(
        "--execution-trace",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The PyTorch execution trace of the same run as the profiler file: exact inputs, types and tensors.",
    )(function)


def max_error_option(explanation: str) -> Callable[[FunctionT], FunctionT]:
    """Add `--max-error`, a percentage that `check_max_error` looks at."""
    return click.option(
        "--max-error", "max_error_percent", type=click.FloatRange(min=0), metavar="PERCENT", help=explanation
    )


def recover_option(function: FunctionT) -> FunctionT:
    """Add `--recover`."""
    return click.option(
        "--recover",
        is_flag=True,
        help="Read a truncated or damaged profiler file as far as it goes; count what is lost.",
    )(function)


def trace_argument(function: FunctionT) -> FunctionT:
    """Add the argument TRACE."""
    return click.argument("trace", type=TracePath(), metavar="TRACE")(function)


def check_max_error(percent: float | None) -> None:
    """Raise InputError for a limit that nothing could exceed."""
    if percent is not None and not isfinite(percent):
        raise InputError(f"--max-error {percent:g}: expected a percentage")


def name_of_trace(path: Path) -> str:
    """Return what a trace is called in what is shown."""
    from .answer import trace_name

    return trace_name(path)


def read_gpu_names(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of GPUs, each given once or in a list with commas; those in brackets belong to a name."""
    found = (_BETWEEN_NAMES.split(text.strip().strip(",")) for text in texts)
    return tuple(dict.fromkeys(word.strip() for words in found for word in words))


def complete_gpu_equals(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return `GPU=` for the catalogued GPUs that hold what was typed; what follows the sign is the user's."""
    return [f"{name}=" for name in complete_gpu_names(context, parameter, incomplete)] if "=" not in incomplete else []


def complete_gpu_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the catalogued GPUs that hold what was typed, or its slices after a `/`, for the shell's completion."""
    from ...specs.catalog import load_catalog
    from ...specs.variants import slice_names

    base, mark, part = incomplete.partition("/")
    if mark:
        return [f"{base}/{name}" for name in slice_names(load_catalog(), base) if name.startswith(part)]
    typed = incomplete.casefold()
    return [gpu.name for gpu in load_catalog().gpus if typed in gpu.name.casefold()]


def complete_archived(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids and tags of the archive DIR that begin as was typed, for the shell's completion."""
    return _archived_names(str(context.params.get("directory") or ""), incomplete)


def _archived_names(location: str, beginning: str) -> list[str]:
    """Return ids and tags of an archive in a folder; a bucket is not asked between two keys."""
    from ...formats.archive import open_archive

    if not location or "://" in location:
        return []
    try:
        with open_archive(location, say=lambda _text: None) as archive:
            return archive.names(beginning)
    except WavecastError:
        return []


def _describe(error: WavecastError | MemoryError | OSError) -> str:
    if isinstance(error, MemoryError):
        return "out of memory: use a machine with more, or record fewer iterations"
    if isinstance(error, OSError):
        return f"{error.filename or 'output'}: {error.strerror or error}"
    return str(error)


def _one_line(message: str) -> str:
    """Return the message on one line, without anything a terminal could act upon."""
    from ...formats.trace.printable import clean_text

    return clean_text(" ".join(message.split()))
