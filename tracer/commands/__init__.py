"""The commands that record, and what they say on stderr."""

import click

from ...formats.trace.printable import clean_text


def say(message: str) -> None:
    """Write a message on one line, without anything a terminal could act upon."""
    click.echo(clean_text(message), err=True)


def say_error(error: Exception | str) -> None:
    """Write what went wrong, on one line."""
    say(f"Error: {' '.join(str(error).split())}")
