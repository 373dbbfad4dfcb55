"""The `wavecast` command: a group whose commands are loaded when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from .version import __version__

if TYPE_CHECKING:
    from .analyzer.questions.rerun.command import Runner

COMMANDS = {
    "record": "tracer.commands.record",
    "measure": "tracer.commands.measure",
    "analyze": "analyzer.questions.analyze.command",
    "batch": "analyzer.questions.batch.command",
    "scale": "analyzer.questions.scale.command",
    "shard": "analyzer.questions.shard.command",
    "recommender": "analyzer.questions.recommender.command",
    "sweep": "analyzer.questions.sweep.command",
    "ranks": "analyzer.questions.ranks.command",
    "show": "analyzer.questions.show.command",
    "archive": "analyzer.questions.archive.command",
    "replay": "analyzer.questions.replay.command",
    "rerun": "analyzer.questions.rerun.command",
    "validate": "analyzer.questions.validate.command",
    "compare": "analyzer.questions.compare.command",
    "convert": "analyzer.questions.convert.command",
    "graph": "analyzer.questions.graph.command",
    "gpus": "analyzer.questions.catalog.gpus_command",
    "nodes": "analyzer.questions.catalog.nodes_command",
    "hosts": "analyzer.questions.catalog.hosts_command",
    "score": "analyzer.questions.score.command",
    "doctor": "analyzer.questions.doctor.command",
}
"""Command name → module that holds a command of that name."""


class LazyGroup(click.Group):
    """Import a command's module only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return the names in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load the command."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f".{COMMANDS[cmd_name]}", __package__), cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant; name one that is spelt alike where there is none."""
        from difflib import get_close_matches

        near = get_close_matches(args[0], COMMANDS, n=1) if args[0] not in COMMANDS else []
        if near:
            ctx.fail(f"No such command {args[0]!r}; did you mean {near[0]}?")
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


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "obj": load_runner},
)
@click.version_option(__version__, prog_name="wavecast", message="%(prog)s %(version)s")
def wavecast() -> None:
    """Record one iteration on the GPU you have; know its time on every GPU you don't."""


def main() -> None:
    """Run the command line."""
    from .analyzer.asking.command import run_program

    run_program(wavecast, "wavecast")


if __name__ == "__main__":
    main()
