"""The options of `analyze` that say what is to be decided: which GPUs, in which order, and for what run."""

from __future__ import annotations

from typing import Any, Final

import click

from ...errors import InputError
from ..iteration.decision.goal import Goal
from ..iteration.decision.selection import SHOWN_ROWS, SORTS, Selection
from .command import FunctionT

ALL_ROWS: Final = "all"
_MOST_DIGITS: Final = 9


def decision_options(function: FunctionT) -> FunctionT:
    """Add the options that `take_selection` and `take_goal` read."""
    for option in reversed((*_selection_options(), *_goal_options())):
        function = option(function)
    return function


def take_selection(options: dict[str, Any]) -> Selection:
    """Take the GPUs that are asked about out of a command's options."""
    return Selection(
        sort=options.pop("sort"),
        vendors=options.pop("vendors"),
        min_memory=options.pop("min_memory"),
        priced=options.pop("priced"),
        fits=options.pop("fits"),
        only=options.pop("only"),
        rows=_row_count(options.pop("rows")),
    )


def take_goal(options: dict[str, Any]) -> Goal | None:
    """Take what is to be run out of a command's options; None where nothing is.

    Raises InputError for what says nothing, and for limits of no run.
    """
    words = options.pop("goal")
    limits = {name: options.pop(name) for name in ("allowance", "budget", "deadline")}
    if words is not None:
        return Goal.read(words, **limits)
    alone = next((name for name, value in limits.items() if value is not None), None)
    if alone is not None:
        raise InputError(f'--{alone} is of a whole run: say which, such as --for "3 epochs of 1281167 samples"')
    return None


def complete_vendors(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the catalogue's vendors that begin as typed, for the shell's completion."""
    from ...specs.catalog import load_catalog

    known = sorted({gpu.vendor for gpu in load_catalog().gpus})
    return [name for name in known if name.casefold().startswith(incomplete.casefold())]


def _row_count(text: str | None) -> int | None:
    """Return how many rows are asked for, 0 for all."""
    if text is None:
        return None
    if text.strip().casefold() == ALL_ROWS:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"--rows {text}: expected a number of rows, or {ALL_ROWS}")
    return int(text[:_MOST_DIGITS])


def _selection_options() -> tuple[Any, ...]:
    """Return the options of a selection, in the order of the help."""
    return (
        click.option(
            "--sort",
            type=click.Choice(list(SORTS)),
            help="What stands first: the shortest iteration (default), the cheapest, the most samples per second, the "
            "least energy.",
        ),
        click.option(
            "--vendor",
            "vendors",
            metavar="NAME",
            multiple=True,
            shell_complete=complete_vendors,
            help="Only GPUs of this vendor; repeat for several.",
        ),
        click.option(
            "--min-memory",
            metavar="SIZE",
            help="Only GPUs with at least this much memory (40GB, 40GiB).",
        ),
        click.option("--priced", is_flag=True, help="Only GPUs whose price is known."),
        click.option("--fits", is_flag=True, help="Only GPUs whose memory the iteration fits."),
        click.option(
            "--only",
            metavar="PATTERN",
            multiple=True,
            help="Only GPUs whose name has this part or is this pattern ('*SXM*'); repeat for several.",
        ),
        click.option(
            "--rows",
            metavar="N|all",
            help=f"Rows of the table; 0 or all: all. Default: the best {SHOWN_ROWS}, the source and the cheapest that "
            "fits, of GPUs that tie a few. JSON and CSV hold all.",
        ),
    )


def _goal_options() -> tuple[Any, ...]:
    """Return the options of a goal, in the order of the help."""
    return (
        click.option(
            "--for",
            "goal",
            metavar="RUN",
            help="The whole run, for its time and cost: '90000 iterations', '3 epochs of 1281167 samples', "
            "'2e9 tokens'.",
        ),
        click.option(
            "--allowance",
            metavar="PERCENT",
            help="What the run takes beside its iterations (loading, evaluation, checkpoints), on top of them. "
            "Default: 0%.",
        ),
        click.option("--budget", metavar="USD", help="Say which GPUs the run costs no more on."),
        click.option("--deadline", metavar="TIME", help="Say on which GPUs the run finishes within 90min, 24h, 3d."),
    )
