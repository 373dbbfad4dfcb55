"""The `score` command: predictions beside measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from ....errors import InputError
from ....progress import progress_on_stderr
from ...asking.choice import complete_gpu_names
from ...asking.command import WavecastCommand, output_options, write_answer
from ...page.formats import REPORT_FORMATS
from .api import LEFT_OUT

CHIPS: Final = LEFT_OUT[0]


@click.command("score", cls=WavecastCommand)
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR|FILE")
@click.option(
    "--leave-out",
    "left_out",
    type=click.Choice(LEFT_OUT),
    help="chips: predict each GPU with weights that were trained without its chip, as a GPU never seen. "
    "shapes: score only shapes that the weights never trained on, on GPUs that they saw.",
)
@click.option("--leave-one-out", is_flag=True, help="The same as --leave-out chips.")
@click.option(
    "--exclude-gpu",
    "excluded",
    metavar="GPU",
    multiple=True,
    shell_complete=complete_gpu_names,
    help="Predict all with weights that were trained without the chip of this GPU (its twins left out too).",
)
@output_options(*REPORT_FORMATS)
def score(
    directory: Path,
    left_out: str | None,
    leave_one_out: bool,
    excluded: tuple[str, ...],
    form: str | None,
    output: Path | None,
) -> None:
    """Predict every measurement in DIR or FILE and say how wrong that was, beside simpler predictions.

    FILE is what 'wavecast measure' wrote. DIR holds measurement tables: ops/*.parquet (single ops),
    models/*.parquet (whole networks) and traces/ (the same step recorded on two GPUs); what is not
    there is left out. Rows of GPUs whose chip the weights were trained on are marked as seen: those
    errors say little about other GPUs.
    Reading tables in DIR needs pyarrow: pip install 'wavecast[score]'.

    \b
    Examples:
      wavecast score l40s.json.gz
      wavecast score DIR --leave-out chips
      wavecast score DIR --leave-out shapes
      wavecast score DIR --exclude-gpu L40S --format json -o score.json
    """
    from .api import score as score_tables

    if leave_one_out and left_out not in (None, CHIPS):
        raise InputError(f"--leave-one-out leaves out chips: it goes without --leave-out {left_out}")
    with progress_on_stderr("Predicting"):
        withheld = CHIPS if leave_one_out else left_out
        found = score_tables(directory, leave_out=withheld, exclude_gpu=excluded)
    write_answer(found, form, output)
