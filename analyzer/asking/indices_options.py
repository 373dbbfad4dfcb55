"""The option that says how lookups in embedding tables are spread over rows."""

from __future__ import annotations

import click

from .command import FunctionT


def indices_option(function: FunctionT) -> FunctionT:
    """Add `--indices`; the API reads its text."""
    return click.option(
        "--indices",
        metavar="SPREAD",
        help="How embedding lookups are spread over a table's rows: 'uniform', 'zipf:1.05', or a histogram file "
        "(.json, .toml, .csv). Default: as recorded, else zipf:1.05.",
    )(function)
