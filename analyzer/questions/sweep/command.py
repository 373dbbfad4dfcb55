"""The `sweep` command: figures of a GPU, or sizes of an iteration, vary; where more stops to help, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ....errors import InputError
from ....progress import progress_on_stderr
from ...asking.command import WavecastCommand, output_options
from ...asking.declared import options_of
from ...asking.inputs import trace_argument
from ...asking.output import choose_format, screen_for, write_result
from ...page.formats import PICTURE_FORMATS, REPORT_FORMATS
from .api import SweepOptions


@click.command("sweep", cls=WavecastCommand)
@trace_argument
@output_options(*REPORT_FORMATS, *PICTURE_FORMATS)
@options_of(SweepOptions)
def sweep(trace: Path, form: str | None, output: Path | None, vary: tuple[str, ...], **asked: Any) -> None:
    """Predict the iteration recorded in TRACE while one or two parameters vary.

    How much faster each value is, where more of it stops to help, and what the time goes to there.
    Without --vary: what 1 % more of each figure of the GPU's datasheet buys. A file that ends in
    .svg or .png gets the picture.

    \b
    Examples:
      sweep trace.json.gz --on h100sxm --vary memory.bandwidth=2x
      sweep trace.json.gz --on h100sxm --vary bandwidth=1x..4x -o sweep.svg
      sweep trace.json.gz --on l40s --vary bandwidth=1x..4x --vary sms=71,142
      sweep trace.json.gz --on a100sxm80 --vary batch=1..64 -o sweep.html
      sweep trace.json.gz --on h100sxm --vary gpus=8..512 --plan fsdp
      sweep trace.json.gz --on h100sxm

    \b
    Figures of the GPU; other numbers have the name of their catalogue key:
      memory.bandwidth  memory.size  memory.pin_rate  memory.bus  l2.size
      sms  clock        peak rates follow SM count x clock
      matrix  vector    the rates alone
      link.bandwidth  pcie.bandwidth  tdp
    Of the iteration:
      batch  sequence-length  cached-tokens  precision  host  gpus

    \b
    Values:
      1x..4x, 1x..4x:9      equal ratios: 17 points (9 of two parameters), nine
      8..64, 8..64:+8       sizes go in powers of two; steps of 8
      66,132,264            a list
      6.7TB/s 1.2GHz 700W   with a unit, else in the catalogue's
    """
    from .api import sweep as predict

    form = choose_format(form, output)
    if form == "png" and (output is None or str(output) == "-"):
        raise InputError("a PNG is no text: say where to write it with -o FILE.png")
    with progress_on_stderr("Reading the trace"):
        answer = predict(trace, vary=_read_vary(vary), **asked)
    if form == "png" and output is not None:
        from ....formats.files.open import write_atomic

        write_atomic(output, answer.picture(form))
    else:
        write_result(answer.draw(form, screen_for(output)), output)


def _read_vary(texts: tuple[str, ...]) -> dict[str, str]:
    """Return values by name. Raises InputError for a text without either, and for a name that comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not (name.strip() and equals):
            raise InputError(f"--vary {text}: expected NAME=VALUES, such as memory.bandwidth=1x..4x")
        if name in found:
            raise InputError(f"--vary: {name} stands there twice: give all its values in one, as in {name}=1x,2x,4x")
        found[name] = values
    return found
