"""The `validate` command: a prediction beside what the predicted GPU really took."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from ...asking.answer import Report
from ...asking.command import report_command
from ...asking.inputs import TracePath
from .api import ValidateOptions


@report_command("validate", ValidateOptions, label="Reading the traces")
@click.argument("first", type=TracePath(), metavar="PREDICTED_FROM")
@click.argument("second", type=TracePath(), metavar="MEASURED_ON_TARGET")
@click.argument("more", type=TracePath(), metavar="[MORE PAIRS]...", nargs=-1)
def validate(first: Path, second: Path, more: tuple[Path, ...], **asked: Any) -> Report:
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

    ask = partial(compare, **asked)
    return validate_pairs((first, second, *more), ask) if more else ask(first, second)
