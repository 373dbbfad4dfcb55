"""The `replay` command: how well the replay with its own times explains a recording."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...errors import InputError
from .command import (
    FAILED_EXIT_CODE,
    WavecastCommand,
    capture_option,
    check_max_error,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    load_captures,
    max_error_option,
    name_of_trace,
    output_options,
    recover_option,
    source_option,
    trace_argument,
)
from .output import OutputPath, choose_format, screen_for, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ...formats.trace import Trace
    from ...specs.gpu import Gpu
    from ..rendering.timeline.bars import Excerpt
    from ..replay.fidelity import Fidelity

_RERUN_OPTIONS: Final = {"device": "--device", "seconds": "--seconds", "top": "--top"}
_RENAMED: Final = "wavecast: 'replay --run' is 'wavecast rerun' now; the old name goes with the next version"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
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
    iteration: int | str | None
    captures: tuple[Path, ...]

    def __post_init__(self) -> None:
        check_max_error(self.max_error_percent)
        if self.figure is None and (self.stretch is not None or self.target is not None):
            raise InputError("--to and --stretch say what --figure draws: add --figure FILE")
        if self.stretch is None:
            return
        begin, end = self.stretch
        if not (isfinite(begin) and isfinite(end)):
            raise InputError(f"--stretch {begin:g} {end:g}: expected two instants in ms")
        if end <= begin:
            raise InputError(f"--stretch {begin:g} {end:g}: it ends before it starts; give FROM and TO in ms")

    @property
    def excerpt(self) -> Excerpt | None:
        """Return the stretch to draw; None: all."""
        from ..rendering.timeline.bars import Excerpt

        if self.stretch is None:
            return None
        return Excerpt(start_ns=round(self.stretch[0] * 1e6), end_ns=round(self.stretch[1] * 1e6))


@click.command("replay", cls=WavecastCommand, short_help="Replay a recording and compare.")
@trace_argument
@source_option()
@gpu_file_option
@iteration_option("Compare this iteration alone: its number, median, longest, or all as one. Default: each one.")
@capture_option()
@max_error_option("Exit with status 1 if the replay of an iteration is further off than this.")
@click.option(
    "--figure",
    type=OutputPath(path_type=Path),
    metavar="FILE",
    help="Draw the recorded iteration above its replay, as SVG.",
)
@click.option(
    "--to",
    "target",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The GPU whose replay --figure draws. Default: the one that was measured.",
)
@click.option(
    "--stretch",
    type=(click.FloatRange(min=0), click.FloatRange(min=0)),
    metavar="FROM TO",
    help="Draw this stretch of the iteration only, in ms.",
)
@click.option("--run", "is_run", is_flag=True, hidden=True, help="Do what 'wavecast rerun' does.")
@click.option("--device", hidden=True, help="With --run: as for 'wavecast rerun'.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    hidden=True,
    help="With --run: as for 'wavecast rerun'.",
)
@click.option("--top", type=click.IntRange(min=0), hidden=True, help="With --run: as for 'wavecast rerun'.")
@output_options("table", "json")
@recover_option
@click.pass_context
def replay(context: click.Context, /, **options: Any) -> None:
    """Replay the iterations of TRACE with their own measured times and compare.

    Kernels start when the rules of the op graph let them: after their launch, the kernel before
    them, and what they wait for. How near that comes to the recording says how far to trust the
    replay of the same graph with another GPU's times. TRACE is a wavecast trace or a PyTorch
    profiler file with GPU kernels; '-' reads standard input.

    \b
    Examples:
      wavecast replay trace.json.gz
      wavecast replay trace.json.gz --format json --max-error 2
      wavecast replay trace.json.gz --iteration longest
      wavecast replay trace.json.gz --to L40S --figure timeline.svg --stretch 1 3
    """
    is_run = options.pop("is_run")
    asked = {name: value for name in _RERUN_OPTIONS if (value := options.pop(name)) is not None}
    if is_run:
        context.exit(_rerun(context, options, asked))
    if asked:
        raise InputError(f"{_RERUN_OPTIONS[next(iter(asked))]} is an option of 'wavecast rerun'")
    context.exit(replay_recording(ReplayRequest(**options)))


def _rerun(context: click.Context, options: dict[str, Any], asked: dict[str, Any]) -> int:
    """Do what 'wavecast rerun' does, under the name that it had."""
    from .rerun import SECONDS, SHORT_OP_COUNT, RerunRequest, rerun_trace

    if options.pop("figure") is not None or options.pop("stretch") is not None:
        raise InputError("--figure and --stretch draw a replay, and --run replays nothing: leave out one or the other")
    if options.pop("iteration") is not None or options.pop("captures"):
        raise InputError(
            "--iteration and --capture are for a replay, and --run replays nothing: leave out one or the other"
        )
    click.echo(_RENAMED, err=True)
    defaults = {"device": None, "seconds": SECONDS, "top": SHORT_OP_COUNT}
    return rerun_trace(RerunRequest(**options, **(defaults | asked)), context.obj)


def replay_recording(request: ReplayRequest) -> int:
    """Replay a recording with its own times, write what comes of it, and return the exit status."""
    from ...formats.files import load_trace
    from ..prediction.capture_join import join_captures
    from ..recorded.choice import choose_iteration
    from ..recorded.graphs import refuse_capture
    from ..recorded.window import select_window
    from ..rendering.page.terminal import draw_terminal
    from ..rendering.replay import describe_replay, draw_replay_json
    from ..replay.fidelity import check_fidelity

    with progress_on_stderr("Reading the trace") as progress:
        trace = load_trace(request.trace, recover=request.recover, progress=progress)
        trace = join_captures(trace, load_captures(request.captures, progress))
    measured = _measured_gpu(trace, request.source, request.gpu_file)
    chosen, choice = choose_iteration(trace, request.iteration)
    refuse_capture(chosen, select_window(chosen, choice.index))
    asked = None if request.iteration is None else choice
    fidelity = check_fidelity(chosen, measured, iteration=None if asked is None else asked.index)
    if request.figure is not None:
        _draw_figure(trace, measured, request)
    if choose_format(request.form, request.output) == "json":
        write_result(draw_replay_json(fidelity, asked), request.output)
    else:
        page = describe_replay(fidelity, name=name_of_trace(request.trace))
        write_result(draw_terminal(page, screen_for(request.output)), request.output)
    limit = request.max_error_percent
    if limit is not None and (worst := _worst_error_percent(fidelity)) > limit:
        click.echo(f"Error: the replay is off by {worst:.2f} %, more than {limit:g} %", err=True)
        return FAILED_EXIT_CODE
    return 0


def _draw_figure(trace: Trace, measured: Gpu | None, request: ReplayRequest) -> None:
    """Draw the timeline of the recording above that of its replay."""
    from ...formats.files import write_atomic
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpu
    from ..analysis.analyze import run_analysis
    from ..analysis.gpu_replay import lay_out, replay_on
    from ..rendering.timeline.svg import draw_timeline

    catalog = load_catalog(request.gpu_file)
    target = measured if request.target is None else find_gpu(catalog, request.target)
    targets = [] if target is None else [target]
    result = run_analysis(trace, catalog, targets=targets, source=measured, iteration=request.iteration)
    timeline = lay_out(result, replay_on(result, result.prediction.fleet.gpus[0].name))
    length_ns = max(process.iteration_ns for process in timeline.processes)
    excerpt = request.excerpt
    if excerpt is not None and excerpt.start_ns >= length_ns:
        raise InputError(f"--stretch {excerpt.start_ns / 1e6:g}: the iteration lasts {length_ns / 1e6:.4g} ms")
    path = request.figure or Path("-")
    write_atomic(path, draw_timeline(timeline, excerpt=excerpt).encode())


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
