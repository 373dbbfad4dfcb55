"""The `validate` command: a prediction beside what the predicted GPU really took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...asking.command import (
    FunctionT,
    TracePath,
    WavecastCommand,
    capture_option,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    output_options,
    recover_option,
    source_option,
)
from ...asking.output import choose_format, screen_for, write_result
from ...asking.progress import progress_on_stderr
from ...asking.what_if_options import host_option, take_host
from ...page.formats import REPORT_FORMATS
from .api import SHORT_OP_COUNT

if TYPE_CHECKING:
    from .api import ValidationReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest:
    """Hold what the command line asked for, as parsed."""

    first: Path
    second: Path
    source: str | None
    target: str | None
    gpu_file: Path | None
    host: str | None
    with_ops: bool
    top: int | None
    form: str | None
    output: Path | None
    recover: bool
    iteration: int | str | None
    captures: tuple[Path, ...]


def _trace_argument(name: str, metavar: str) -> Callable[[FunctionT], FunctionT]:
    return click.argument(name, type=TracePath(), metavar=metavar)


@click.command("validate", cls=WavecastCommand)
@_trace_argument("first", "PREDICTED_FROM")
@_trace_argument("second", "MEASURED_ON_TARGET")
@source_option("The GPU of PREDICTED_FROM, where that does not say it or says it wrongly.")
@click.option(
    "--to",
    "target",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The GPU of MEASURED_ON_TARGET, where that does not say it or says it wrongly.",
)
@gpu_file_option
@iteration_option(
    "Which iteration of either trace: its number as in 'wavecast show', median (default), longest, or all as one."
)
@capture_option(
    "A recording of the capture of a CUDA graph that one of the traces launches, or both do. Repeat for several."
)
@click.option("--ops", "with_ops", is_flag=True, help="List every op with its interval, bound and reason.")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Ops listed, those with the largest errors; 0: none. Default: {SHORT_OP_COUNT}, with --ops or CSV all.",
)
@host_option(
    "Predict for this host: its speed relative to that of PREDICTED_FROM (1.2: 20 % faster), a name, or a file; "
    "MEASURED_ON_TARGET itself stands for its own."
)
@output_options(*REPORT_FORMATS)
@recover_option
def validate(**options: Any) -> None:
    """Predict the GPU of one trace from another and compare.

    Two traces of the same workload: PREDICTED_FROM, on any GPU or of shapes alone, is predicted on
    the GPU of MEASURED_ON_TARGET, and held against what that took: the iteration and what its error
    comes from, every family of kernels, and the ops that are furthest off. Ops are matched by what
    they compute, on which shapes, and by order; names may differ between vendors and versions.

    \b
    Examples:
      wavecast validate h100.json.gz mi300x.json.gz
      wavecast validate shapes.json.gz l40s.json.gz --ops
      wavecast validate h100.json.gz h200.json.gz --host 1.1 -o out.json
      wavecast validate h100.json.gz h200.json.gz --iteration longest
    """
    take_host(options)
    request = ValidateRequest(**options)
    form = choose_format(request.form, request.output)
    write_result(_validate(request).draw(form, screen_for(request.output)), request.output)


def _validate(request: ValidateRequest) -> ValidationReport:
    from .api import validate as compare

    with progress_on_stderr("Reading the traces") as progress:
        return compare(
            request.first,
            request.second,
            source=request.source,
            to=request.target,
            gpu_file=request.gpu_file,
            iteration=request.iteration,
            captures=request.captures,
            ops=request.with_ops,
            top=request.top,
            host=request.host,
            recover=request.recover,
            progress=progress,
        )
