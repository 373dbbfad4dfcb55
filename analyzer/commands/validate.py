"""The `validate` command: a prediction beside what the predicted GPU really took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..rendering.formats import REPORT_FORMATS
from .command import (
    FunctionT,
    TracePath,
    WavecastCommand,
    capture_option,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    load_captures,
    output_options,
    recover_option,
    source_option,
)
from .output import choose_format, screen_for, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ..accuracy.validate.report import Validation

SHORT_OP_COUNT: Final = 10
"""Ops shown without --ops."""
STANDARD_INPUT: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest:
    """Hold what the command line asked for, as parsed."""

    first: Path
    second: Path
    source: str | None
    target: str | None
    gpu_file: Path | None
    cpu_speed: str | None
    with_ops: bool
    top: int | None
    form: str | None
    output: Path | None
    recover: bool
    iteration: int | str | None
    captures: tuple[Path, ...]

    @property
    def form_chosen(self) -> str:
        """Return the format to write."""
        return choose_format(self.form, self.output)

    @property
    def op_limit(self) -> int | None:
        """Return the number of ops to list; None: all."""
        if self.top is not None:
            return self.top
        return None if self.with_ops or self.form_chosen == "csv" else SHORT_OP_COUNT


def _trace_argument(name: str, metavar: str) -> Callable[[FunctionT], FunctionT]:
    return click.argument(name, type=TracePath(), metavar=metavar)


@click.command("validate", cls=WavecastCommand, short_help="Compare a prediction with a measurement, op by op.")
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
@click.option(
    "--cpu-speed",
    metavar="RATIO",
    help="Predict for a host this much faster than that of PREDICTED_FROM (1.2: 20 %), or for a named host.",
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
      wavecast validate h100.json.gz h200.json.gz --cpu-speed 1.1 --format json -o validation.json
      wavecast validate h100.json.gz h200.json.gz --iteration longest
    """
    request = ValidateRequest(**options)
    write_result(_render(_validate(request), request), request.output)


def _validate(request: ValidateRequest) -> Validation:
    from ...errors import InputError
    from ...formats.files import load_trace
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpu
    from ..accuracy.validate.validation import validate_traces
    from ..host.speed import read_cpu_speed
    from ..prediction.capture_join import join_either
    from ..whatif.scenario import Scenario

    if str(request.first) == str(request.second) == STANDARD_INPUT:
        raise InputError("standard input holds one trace: give a file for the other")
    catalog = load_catalog(request.gpu_file)
    source, target = (
        find_gpu(catalog, name) if name is not None else None for name in (request.source, request.target)
    )
    with progress_on_stderr("Reading the traces") as progress:
        first, second = (
            load_trace(path, recover=request.recover, progress=progress) for path in (request.first, request.second)
        )
        first, second = join_either((first, second), load_captures(request.captures, progress))
    speed = None if request.cpu_speed is None else read_cpu_speed(request.cpu_speed, first)
    return validate_traces(
        first,
        second,
        catalog,
        source=source,
        target=target,
        op_limit=request.op_limit,
        scenario=Scenario(cpu_speed=speed),
        iteration=request.iteration,
    )


def _render(validation: Validation, request: ValidateRequest) -> str:
    from ..rendering.formats import render
    from ..rendering.validate.json import draw_validation_csv, draw_validation_json
    from ..rendering.validate.text import describe_validation

    first, second = (
        "standard input" if str(path) == STANDARD_INPUT else path.name for path in (request.first, request.second)
    )
    return render(
        request.form_chosen,
        screen_for(request.output),
        page=lambda: describe_validation(
            validation, source_name=first, target_name=second, detailed_ops=request.with_ops
        ),
        json=lambda: draw_validation_json(validation),
        csv=lambda: draw_validation_csv(validation),
    )
