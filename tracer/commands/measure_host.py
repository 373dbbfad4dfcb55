"""What `measure --host` does: times this machine's host, shows it beside a reference, and writes it to a file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...errors import CaptureError, InputError
from .messages import say

if TYPE_CHECKING:
    from ...formats.trace.meta import HostTimes

_WORDS: Final = {
    "python_ns": ("plain Python", "a round of calls, attributes, small containers, strings"),
    "dispatch_ns": ("dispatch", "an op on a tensor of one element"),
    "autograd_ns": ("autograd", "what gradients add to such an op, forward and backward"),
    "module_ns": ("modules", "a call of a module that does nothing"),
    "optimizer_ns": ("optimizer", "a parameter's turn in Adam's loop"),
    "allocation_ns": ("allocation", "a tensor made and dropped"),
    "launch_ns": ("launches", "a kernel of one element"),
}
_WIDE_SPREAD: Final = 0.15
_MOST_S: Final = 600.0


def measure_host_speed(output: Path | None, seconds: float | None) -> None:
    """Measure the host, print what was found, and write it where `output` says.

    Raises InputError or OutputError before anything is measured where it can, CaptureError where nothing can be.
    """
    from ...formats.measured.host_file import HostFile, save_host
    from ...version import __version__

    if seconds is not None and not (isfinite(seconds) and seconds <= _MOST_S):
        raise InputError(f"--seconds {seconds:g}: expected at most {_MOST_S:g} for --host: a few do")
    is_stream = str(output) == "-"
    if output is not None and output.is_dir():
        raise InputError(f"-o {output}: a directory; --host writes one file, for example host.json")
    try:
        from ..description.device import describe_framework
        from ..host_times.measure import THOROUGH_S, measure_host
        from ..measured.files import check_output

        if output is not None and not is_stream:
            check_output(output)
        times = measure_host(THOROUGH_S if seconds is None else seconds)
    except RuntimeError as error:
        raise CaptureError(f"the host could not be measured: {str(error).splitlines()[0]}") from error
    found = HostFile(
        producer=f"wavecast {__version__}",
        date=datetime.now(tz=UTC).date().isoformat(),
        framework=describe_framework(),
        host=times,
    )
    if not is_stream:
        click.echo("\n".join(_lines(found.framework, times)))
    if output is not None:
        save_host(output, found)
        say(f"wavecast: {'standard output' if is_stream else output}: this host's times")


def _lines(framework: str | None, times: HostTimes) -> Iterator[str]:
    from ...formats.measured.host_speed import REFERENCE_HOST, host_ratios, host_speed

    ratios, speed = host_ratios(times), host_speed(times)
    yield f"Host: {times.processor or 'unknown processor'}, Python {times.python_version}, {framework}"
    yield ""
    yield f"{'kind':14}{'time':>10}{'speed':>8}   of"
    for kind, (name, unit) in _WORDS.items():
        time_ns = getattr(times, kind)
        if time_ns is not None:
            ratio = f"{ratios[kind]:.2f}" if kind in ratios else ""
            yield f"{name:14}{time_ns / 1e3:>7.2f} us{ratio:>8}   {unit}"
    yield ""
    reference = f"{REFERENCE_HOST.processor}, Python {REFERENCE_HOST.python_version}"
    spread = times.spread or 0.0
    if speed is not None:
        yield f"{'in all':14}{speed:>18.2f}   times as fast as the reference ({reference}); rounds within {spread:.0%}"
    if spread > _WIDE_SPREAD:
        yield "The rounds lie far apart: something else runs here. Measure again when the machine is idle."
