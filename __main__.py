"""The `wavecast` command: a group whose commands are loaded when they are used."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from .formats.trace.version import __version__

if TYPE_CHECKING:
    from .analyzer.questions.rerun.command import Runner

COMMAND_GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Record": {
        "record": "Record iterations of a training or inference script.",
        "measure": "Time ops on the GPU that is here.",
    },
    "Ask": {
        "analyze": "Predict a recorded iteration on other GPUs.",
        "show": "Show what a trace holds.",
        "compare": "Say what changed between two traces; a gate for CI.",
        "sweep": "Vary figures of a GPU, or the iteration's sizes.",
        "batch": "Predict many traces on many GPUs, as one table.",
    },
    "Many GPUs": {
        "scale": "Predict parallel plans on many GPUs.",
        "serve": "Predict a served language model from its sizes.",
        "ranks": "Say which ranks of a job wait for which.",
        "shard": "Share embedding tables among GPUs.",
        "recommender": "Predict a recommender from its sizes.",
    },
    "Check": {
        "validate": "Compare a prediction with a measurement, op by op.",
        "replay": "Replay a recording with its own times and compare.",
        "rerun": "Run a trace's ops again on this machine and compare.",
        "score": "Compare predictions with measurement tables.",
    },
    "Keep and convert": {
        "archive": "Keep traces, find them again, check them.",
        "convert": "Convert a trace, or write its graph.",
    },
    "Catalogue": {
        "catalog": "List GPUs, nodes and hosts, or all facts of one.",
    },
}
"""Heading → command → what it does; the most used stand first. A new command is its folder and a row here."""
COMMANDS: Final = {name: line for commands in COMMAND_GROUPS.values() for name, line in commands.items()}
_OF_TRACER: Final = ("record", "measure")
_OBJECTS_PER_COLLECTION: Final = 200_000
"""New objects after which Python looks for cycles: of modules and records, which stay, 700 find none all the time."""


class LazyGroup(click.Group):
    """Import a command's module only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return the names in the order of use."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands under their headings."""
        width = max(map(len, COMMANDS))
        for heading, commands in COMMAND_GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin as was typed."""
        commands = [CompletionItem(name, help=line) for name, line in COMMANDS.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load the command."""
        if cmd_name not in COMMANDS:
            return None
        module = f".tracer.commands.{cmd_name}" if cmd_name in _OF_TRACER else f".analyzer.questions.{cmd_name}.command"
        found = vars(import_module(module, __package__)).values()
        return next(item for item in found if isinstance(item, click.Command) and item.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant; name one that is spelt alike where there is none."""
        if args[0] not in COMMANDS:
            from difflib import get_close_matches

            for near in get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"No such command {args[0]!r}; did you mean {near}?")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Read the command line up to the command."""
        from .analyzer.asking.command import usage_errors_cleaned

        with usage_errors_cleaned():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        from .analyzer.asking.command import usage_errors_cleaned

        with usage_errors_cleaned():
            return super().invoke(ctx)


def load_runner() -> Runner:
    """Return the part of the tracer that runs ops. Raises ImportError without torch."""
    from .tracer import rerun

    return rerun


def _print_version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    text = f"wavecast {__version__}\n"
    if context.params["verbose"]:
        from .analyzer.asking.machine import describe_installation
        from .analyzer.page.terminal import draw_terminal, encodable, stdout_screen

        text = encodable(draw_terminal(describe_installation(), stdout_screen()))
    click.echo(text, nl=False, color=True)
    context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "obj": load_runner},
    epilog="'wavecast COMMAND -h' says what a command takes.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version; with -v also which GPU is seen, and what each extra adds.",
)
@click.option("-v", "verbose", is_flag=True, is_eager=True, help="With --version: say more.")
def wavecast(verbose: bool) -> None:
    """Record one iteration on the GPU you have; know its time on every GPU you don't."""
    if verbose:
        raise click.UsageError("-v goes with --version")


def main() -> None:
    """Run the command line."""
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    # At its end Python looks for cycles again and again, in all that the system is about to take back at once.
    atexit.register(gc.freeze)
    # Products here are small: on several cores OpenBLAS spends more time on waking threads than on them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from .analyzer.asking.command import run_program

    run_program(wavecast, "wavecast")


if __name__ == "__main__":
    main()
