"""The option that says what users measured themselves, for `analyze`."""

from __future__ import annotations

from typing import Any

import click

from .command import FunctionT, complete_gpu_equals
from .observed import split_observed


def observed_option(function: FunctionT) -> FunctionT:
    """Add `--observed`; the command gets `observed`."""
    return click.option(
        "--observed",
        metavar="GPU=TIME",
        multiple=True,
        shell_complete=complete_gpu_equals,
        help="You measured this iteration there ('L40S=212ms'; s, ms or us): correct that GPU by it, and others as far "
        "as they share its errors; repeat for several.",
    )(function)


def take_observed(options: dict[str, Any]) -> dict[str, str]:
    """Take the option's values out of a command's options: times by GPU."""
    return split_observed(options.pop("observed"))
