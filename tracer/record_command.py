"""The `record` command: an unmodified script, some of its iterations in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..errors import CaptureError, InputError, WavecastError

if TYPE_CHECKING:
    from .recorder import Plan, Recorder

_INTERRUPTED_EXIT_CODE: Final = 130
"""What shells report for a command that Ctrl-C ended."""
_FAILED_EXIT_CODE: Final = 1


@click.command(
    "record",
    context_settings={
        "allow_interspersed_args": False,
        "ignore_unknown_options": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    short_help="Run a training or inference script and record some of its iterations.",
)
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("trace.json.gz"),
    show_default=True,
    metavar="FILE",
    help="Write the trace to FILE (.json or .json.gz); with several ranks, to FILE with the rank before its ending.",
)
@click.option(
    "--iterations",
    default="10:15",
    show_default=True,
    metavar="FIRST:END",
    help="Capture iterations FIRST to before END, numbered from 0.",
)
@click.option("--stop", is_flag=True, help="End the script once the trace is complete. Default: let it go on.")
@click.option(
    "--mode",
    type=click.Choice(["training", "inference"]),
    help="What an iteration is: up to an optimizer's step, or one forward pass. Default: what is seen.",
)
@click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is a module's name, as for python -m.")
@click.option("--name", metavar="TEXT", help="Name of the workload, for reports.")
@click.option(
    "--batch-size", type=int, metavar="N", help="Samples per iteration, for throughput and 'analyze --batch'."
)
def record(  # noqa: PLR0913 - one parameter per option
    script: str,
    arguments: tuple[str, ...],
    *,
    output: Path,
    iterations: str,
    stop: bool,
    mode: str | None,
    is_module: bool,
    name: str | None,
    batch_size: int | None,
) -> None:
    """Run SCRIPT with its ARGUMENTS, unmodified, and record some of its iterations.

    An iteration ends with an optimizer's step; in a script without one, with the forward pass of the outermost
    module. Some are captured with the profiler, at least ten others are timed without it where the script runs
    long enough. The script's output, results and exit status are its own; what was recorded is said on stderr.

    \b
      wavecast record train.py data/
      wavecast record --stop -o run.json.gz -m mypackage.train --lr 0.1
    """
    try:
        from .recorder import Recorder
        from .script import run_script, show_error, stop_script

        plan = _make_plan(iterations, name, mode, batch_size)
        recorder = Recorder(output, plan, stop_script if stop else None)
        with recorder:
            raised = run_script(script, arguments, is_module=is_module)
    except ImportError as error:
        if error.name != "torch":
            raise
        _exit_with(CaptureError("recording needs torch: pip install 'wavecast[tracer]'"))
    except WavecastError as error:
        _exit_with(error)
    if raised is not None and not isinstance(raised, SystemExit):
        show_error(raised)
    _report(recorder)
    if isinstance(raised, SystemExit):
        if recorder.error is None or raised.code not in (None, 0):
            raise raised
    elif raised is not None:
        sys.exit(_INTERRUPTED_EXIT_CODE if isinstance(raised, KeyboardInterrupt) else _FAILED_EXIT_CODE)
    if recorder.error is not None:
        sys.exit(_FAILED_EXIT_CODE)


def _make_plan(iterations: str, name: str | None, mode: str | None, batch_size: int | None) -> Plan:
    from ..formats.trace import Workload
    from .recorder import Plan

    first, colon, end = iterations.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal()):
        raise InputError(f"--iterations: expected FIRST:END, for example 10:15, got {iterations!r}")
    workload = Workload(name=name, mode=mode, batch_size=batch_size, samples_per_iteration=batch_size)
    return Plan(first=int(first), end=int(end), workload=workload)


def _report(recorder: Recorder) -> None:
    """Say on stderr what was recorded, or why nothing was."""
    from .recorder import summarise

    if recorder.is_elsewhere:
        return
    if recorder.trace is not None:
        click.echo(f"wavecast: {recorder.path}: {summarise(recorder.trace)}", err=True)
    if recorder.error is not None:
        click.echo(f"Error: {' '.join(str(recorder.error).split())}", err=True)


def _exit_with(error: WavecastError) -> None:
    click.echo(f"Error: {' '.join(str(error).split())}", err=True)
    sys.exit(error.exit_code)
