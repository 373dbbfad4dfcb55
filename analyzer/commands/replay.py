"""What `replay` does without `--run`: how well the replay explains a recording."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .command import FAILED_EXIT_CODE
from .output import choose_format, screen_for, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ...formats.trace import Trace
    from ...specs.gpu import Gpu
    from ..replay.fidelity import Fidelity


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Hold what the command line asked for, as parsed."""

    trace: Path
    source: str | None
    gpu_file: Path | None
    max_error_percent: float | None
    figure: Path | None
    target: str | None
    stretch: tuple[float, float] | None
    form: str | None
    output: Path | None
    recover: bool

    @property
    def name(self) -> str:
        """Return what the trace is called in what is shown."""
        return "standard input" if str(self.trace) == "-" else self.trace.name

    def check_limit(self) -> None:
        """Raise InputError for a limit that nothing could exceed."""
        from ...errors import InputError

        if self.max_error_percent is not None and not isfinite(self.max_error_percent):
            raise InputError(f"--max-error {self.max_error_percent:g}: expected a percentage")

    @property
    def stretch_ns(self) -> tuple[int, int] | None:
        """Return the stretch to draw in ns. Raises InputError where it ends before it starts, or nothing is drawn."""
        from ...errors import InputError

        if self.figure is None and (self.stretch is not None or self.target is not None):
            raise InputError("--to and --stretch say what --figure draws: add --figure FILE")
        if self.stretch is None:
            return None
        begin, end = self.stretch
        if not (isfinite(begin) and isfinite(end)):
            raise InputError(f"--stretch {begin:g} {end:g}: expected two instants in ms")
        if end <= begin:
            raise InputError(f"--stretch {begin:g} {end:g}: it ends before it starts; give FROM and TO in ms")
        return round(begin * 1e6), round(end * 1e6)


def replay_recording(request: Request) -> int:
    """Replay a recording with its own times, write what comes of it, and return the exit status."""
    from ...formats.files import load_trace
    from ..rendering.replay import draw_replay, draw_replay_json
    from ..replay.fidelity import check_fidelity

    request.check_limit()
    stretch_ns = request.stretch_ns
    with progress_on_stderr("Reading the trace") as progress:
        trace = load_trace(request.trace, recover=request.recover, progress=progress)
    measured = _measured_gpu(trace, request.source, request.gpu_file)
    fidelity = check_fidelity(trace, measured)
    if request.figure is not None:
        _draw_figure(trace, measured, request, stretch_ns)
    if choose_format(request.form, request.output) == "json":
        write_result(draw_replay_json(fidelity), request.output)
    else:
        write_result(draw_replay(fidelity, screen_for(request.output), name=request.name), request.output)
    limit = request.max_error_percent
    if limit is not None and (worst := _worst_error_percent(fidelity)) > limit:
        click.echo(f"Error: the replay is off by {worst:.2f} %, more than {limit:g} %", err=True)
        return FAILED_EXIT_CODE
    return 0


def _draw_figure(trace: Trace, measured: Gpu | None, request: Request, stretch_ns: tuple[int, int] | None) -> None:
    """Draw the timeline of the recording above that of its replay."""
    from ...errors import InputError
    from ...formats.files import write_atomic
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpu
    from ..analysis.analyze import run_analysis
    from ..analysis.gpu_replay import lay_out, replay_on
    from ..rendering.timeline.svg import draw_timeline

    catalog = load_catalog(request.gpu_file)
    target = measured if request.target is None else find_gpu(catalog, request.target)
    result = run_analysis(trace, catalog, targets=[] if target is None else [target], source=measured)
    timeline = lay_out(result, replay_on(result, result.prediction.fleet.gpus[0].name))
    length_ns = max(process.iteration_ns for process in timeline.processes)
    if stretch_ns is not None and stretch_ns[0] >= length_ns:
        raise InputError(f"--stretch {stretch_ns[0] / 1e6:g}: the iteration lasts {length_ns / 1e6:.4g} ms")
    path = request.figure or Path("-")
    write_atomic(path, draw_timeline(timeline, stretch_ns=stretch_ns).encode())


def _measured_gpu(trace: Trace, name: str | None, gpu_file: Path | None) -> Gpu | None:
    """Return the catalogue's entry of the GPU that was measured, None where it has none: any GPU can be replayed."""
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpu
    from ..recorded.devices import first_known_gpu

    catalog = load_catalog(gpu_file)
    return find_gpu(catalog, name) if name is not None else first_known_gpu(catalog, trace)


def _worst_error_percent(fidelity: Fidelity) -> float:
    return max(
        (abs(item.replayed_ns / item.measured_ns - 1) * 100 for item in fidelity.iterations if item.measured_ns > 0),
        default=0.0,
    )
