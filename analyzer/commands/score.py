"""The `score` command: predictions beside measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..rendering.formats import REPORT_FORMATS
from .command import WavecastCommand, complete_gpu_names, output_options
from .output import choose_format, screen_for, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ..accuracy.score.weights import Weights


@click.command("score", cls=WavecastCommand, short_help="Compare predictions with measurement tables.")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--leave-out",
    "left_out",
    type=click.Choice(("chips", "shapes")),
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
    """Predict every measurement in DIR and say how wrong that was, beside simpler predictions.

    DIR holds measurement tables: ops/*.parquet (single ops), models/*.parquet (whole networks) and
    traces/ (the same step recorded on two GPUs); what is not there is left out. Rows of GPUs whose
    chip the weights were trained on are marked as seen: those errors say little about other GPUs.
    Reading tables needs pyarrow: pip install 'wavecast[score]'.

    \b
    Examples:
      wavecast score DIR --leave-out chips
      wavecast score DIR --leave-out shapes
      wavecast score DIR --exclude-gpu L40S --format json -o score.json
    """
    from ..accuracy.score.scoring import score_directory
    from ..rendering.formats import render
    from ..rendering.score.csv import draw_score_csv
    from ..rendering.score.json import draw_score_json
    from ..rendering.score.text import describe_score

    weights = _weights(excluded, left_out, leave_one_out=leave_one_out)
    with progress_on_stderr("Predicting") as progress:
        found = score_directory(directory, weights, progress)
    text = render(
        choose_format(form, output),
        screen_for(output),
        page=lambda: describe_score(found),
        json=lambda: draw_score_json(found),
        csv=lambda: draw_score_csv(found),
    )
    write_result(text, output)


def _weights(excluded: tuple[str, ...], left_out: str | None, *, leave_one_out: bool) -> Weights:
    from ...errors import InputError
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpus
    from ..accuracy.score.weights import Withheld, choose_weights

    if leave_one_out and left_out not in (None, Withheld.CHIPS):
        raise InputError(f"--leave-one-out leaves out chips: it goes without --leave-out {left_out}")
    chosen = Withheld.CHIPS if leave_one_out else left_out and Withheld(left_out)
    if chosen and excluded:
        raise InputError(f"--leave-out {chosen} says which weights predict: it goes without --exclude-gpu")
    gpus = {gpu.name: gpu for name in excluded for gpu in find_gpus(load_catalog(), name)}
    return choose_weights(tuple(gpus.values()), left_out=chosen or None)
