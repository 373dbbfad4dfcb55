"""The `sweep` command: figures of a GPU, or sizes of an iteration, vary; where more stops to help, and why."""

from pathlib import Path
from typing import Any

from ....errors import InputError
from ...asking.command import report_command
from ...asking.inputs import trace_argument
from ...page.formats import PICTURE_FORMATS, REPORT_FORMATS
from .api import SensitivityAnswer, SweepAnswer, SweepOptions


@report_command("sweep", SweepOptions, formats=(*REPORT_FORMATS, *PICTURE_FORMATS))
@trace_argument
def sweep(trace: Path, vary: tuple[str, ...], **asked: Any) -> SweepAnswer | SensitivityAnswer:
    """Predict the iteration recorded in TRACE while one or two parameters vary.

    How much faster each value is, where more of it stops to help, and what the time goes to there.
    Without --vary: what 1 % more of each figure of the GPU's datasheet buys. With it, a file
    that ends in .svg or .png gets the picture.

    \b
    Examples:
      sweep trace.json.gz --on h100sxm --vary memory.bandwidth=2x
      sweep trace.json.gz --on h100sxm --vary bandwidth=1x..4x -o sweep.svg
      sweep trace.json.gz --on l40s --vary bandwidth=1x..4x --vary sms=71,142
      sweep trace.json.gz --on a100sxm80 --vary batch=1..64 -o sweep.html
      sweep trace.json.gz --on h100sxm

    \b
    Figures of the GPU; other numbers have the name of their catalogue key:
      memory.bandwidth  memory.size  memory.pin_rate  memory.bus  l2.size
      sms  clock        peak rates follow SM count x clock
      matrix  vector    the rates alone
      link.bandwidth  pcie.bandwidth  tdp
    Of the iteration:
      batch  sequence-length  cached-tokens  precision  host

    \b
    Values:
      1x..4x, 1x..4x:9      equal ratios: 17 points (9 of two parameters), nine
      8..64, 8..64:+8       sizes go in powers of two; steps of 8
      66,132,264            a list
      6.7TB/s 1.2GHz 700W   with a unit, else in the catalogue's
    """
    from .api import sweep as predict

    return predict(trace, vary=_read_vary(vary), **asked)


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
