"""The `score` command: predictions beside measurements."""

from pathlib import Path

import click

from ....progress import progress_on_stderr
from ...asking.choice import complete_gpu_names
from ...asking.command import WavecastCommand, output_options, write_answer
from ...page.formats import REPORT_FORMATS
from .api import LEFT_OUT


@click.command("score", cls=WavecastCommand)
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR|FILE")
@click.option(
    "--leave-out",
    "left_out",
    type=click.Choice(LEFT_OUT),
    help="chips: predict each GPU with weights that were trained without its chip, as a GPU never seen. "
    "shapes: score only shapes that the weights never trained on, on GPUs that they saw.",
)
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
    directory: Path, left_out: str | None, excluded: tuple[str, ...], form: str | None, output: Path | None
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

    with progress_on_stderr("Predicting"):
        found = score_tables(directory, leave_out=left_out, exclude_gpu=excluded)
    write_answer(found, form, output)
