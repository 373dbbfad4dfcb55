"""The `replay` command: how well the replay explains a recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .command import (
    FAILED_EXIT_CODE,
    WavecastCommand,
    complete_gpu_names,
    gpu_file_option,
    output_options,
    recover_option,
    trace_argument,
)
from .output import choose_format, screen_for, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ...formats.trace import Trace
    from ...specs.gpu import Gpu
    from ..replay.fidelity import Fidelity


@click.command("replay", cls=WavecastCommand, short_help="Replay a recording on its own GPU and compare.")
@trace_argument
@click.option(
    "--from",
    "source",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The GPU that was measured, where the trace does not say it or says it wrongly.",
)
@gpu_file_option
@click.option(
    "--max-error",
    "max_error_percent",
    type=click.FloatRange(min=0),
    metavar="PERCENT",
    help="Exit with status 1 if the replay of an iteration is further off than this.",
)
@output_options("table", "json")
@recover_option
@click.pass_context
def replay(
    context: click.Context,
    /,
    trace: Path,
    source: str | None,
    gpu_file: Path | None,
    max_error_percent: float | None,
    form: str | None,
    output: Path | None,
    recover: bool,
) -> None:
    """Replay the iterations of TRACE with their own measured times and compare.

    Kernels start when the rules of the op graph let them: after their launch, the kernel before
    them, and what they wait for. How near that comes to the recording says how far to trust the
    replay of the same graph with another GPU's times. TRACE is a wavecast trace or a PyTorch
    profiler file with GPU kernels; '-' reads standard input.

    \b
    Examples:
      wavecast replay trace.json.gz
      wavecast replay trace.json.gz --format json --max-error 2
    """
    from ...formats.files import load_trace
    from ..rendering.replay_text import draw_replay, draw_replay_json
    from ..replay.fidelity import check_fidelity

    with progress_on_stderr("Reading the trace") as progress:
        recording = load_trace(trace, recover=recover, progress=progress)
    fidelity = check_fidelity(recording, _measured_gpu(recording, source, gpu_file))
    if choose_format(form, output) == "json":
        write_result(draw_replay_json(fidelity), output)
    else:
        name = "standard input" if str(trace) == "-" else trace.name
        write_result(draw_replay(fidelity, screen_for(output), name=name), output)
    if max_error_percent is not None and (worst := _worst_error_percent(fidelity)) > max_error_percent:
        click.echo(f"Error: the replay is off by {worst:.2f} %, more than {max_error_percent:g} %", err=True)
        context.exit(FAILED_EXIT_CODE)


def _measured_gpu(trace: Trace, name: str | None, gpu_file: Path | None) -> Gpu | None:
    """Return the catalogue's entry of the GPU that was measured, None where it has none: any GPU can be replayed."""
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpu, match_device

    catalog = load_catalog(gpu_file)
    if name is not None:
        return find_gpu(catalog, name)
    devices: list[Any] = list(trace.devices)
    found = (
        match_device(catalog, item.name, sm_count=item.sm_count, memory_bytes=item.memory_bytes) for item in devices
    )
    return next((gpu for gpu in found if gpu is not None), None)


def _worst_error_percent(fidelity: Fidelity) -> float:
    return max(
        (abs(item.replayed_ns / item.measured_ns - 1) * 100 for item in fidelity.iterations if item.measured_ns > 0),
        default=0.0,
    )
