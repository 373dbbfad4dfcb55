"""The `validate` command: a prediction beside what the predicted GPU really took."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from ....progress import progress_on_stderr
from ...asking.command import WavecastCommand, output_options, write_answer
from ...asking.declared import options_of
from ...asking.inputs import TracePath
from ...page.formats import REPORT_FORMATS
from .api import ValidateOptions


@click.command("validate", cls=WavecastCommand)
@click.argument("first", type=TracePath(), metavar="PREDICTED_FROM")
@click.argument("second", type=TracePath(), metavar="MEASURED_ON_TARGET")
@click.argument("more", type=TracePath(), metavar="[MORE PAIRS]...", nargs=-1)
@output_options(*REPORT_FORMATS)
@options_of(ValidateOptions)
def validate(
    first: Path, second: Path, more: tuple[Path, ...], form: str | None, output: Path | None, **asked: Any
) -> None:
    """Predict the GPU of one trace from another and compare.

    Two traces of the same workload: PREDICTED_FROM, on any GPU or of shapes alone, is predicted on
    the GPU of MEASURED_ON_TARGET, and held against what that took: the iteration and what its error
    comes from, every family of kernels, and the ops that are furthest off. Ops are matched by what
    they compute, on which shapes, and by order; names may differ between vendors and versions.
    More traces, in pairs, give a table of all pairs instead, and the mean errors by the two GPUs.

    \b
    Examples:
      wavecast validate h100.json.gz mi300x.json.gz
      wavecast validate shapes.json.gz l40s.json.gz --ops
      wavecast validate h100.json.gz h200.json.gz --host 1.1 -o out.json
      wavecast validate h100.json.gz h200.json.gz --iteration longest
      wavecast validate a.h100.json a.h200.json b.h100.json b.h200.json
    """
    from .api import validate as compare
    from .pairs import validate_pairs

    with progress_on_stderr("Reading the traces"):
        ask = partial(compare, **asked)
        found = validate_pairs((first, second, *more), ask) if more else ask(first, second)
    write_answer(found, form, output)
