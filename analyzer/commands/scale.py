"""The `scale` command: a recording of one GPU in, plans on many GPUs out, ranked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...errors import InputError
from ..rendering.formats import REPORT_FORMATS
from .command import (
    WavecastCommand,
    capture_option,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    load_captures,
    name_of_trace,
    output_options,
    recover_option,
    source_option,
    trace_argument,
)
from .output import OutputPath, choose_format, screen_for, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ..analysis.plans.report import ScaleReport

SVG: Final = "svg"
SHOWN_PLANS: Final = 10
"""Without --top."""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)", re.IGNORECASE)
_FACTORS: Final = {"": 30, "g": 30, "gib": 30, "gi": 30, "m": 20, "mib": 20, "mi": 20, "t": 40, "tib": 40, "ti": 40}
_DECIMAL_FACTORS: Final = {"gb": 1e9, "mb": 1e6, "tb": 1e12}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|µs)?")
_LENGTHS_NS: Final = {None: 1e6, "ms": 1e6, "s": 1e9, "us": 1e3, "µs": 1e3}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequest:
    """Hold what the command line asked for, as parsed."""

    trace: Path
    targets: tuple[str, ...]
    gpu_counts: tuple[int, ...]
    plans: tuple[str, ...]
    search: bool
    global_batch: int | None
    max_memory_bytes: float | None
    measured_step_ns: float | None
    source: str | None
    gpu_file: Path | None
    iteration: int | str | None
    captures: tuple[Path, ...]
    top: int
    timeline: Path | None
    form: str | None
    output: Path | None
    recover: bool


def read_counts(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
    """Return the numbers of GPUs, each given once or in a list with commas."""
    words = [word.strip() for text in texts for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 9 and int(word)):
            raise click.BadParameter(f"{word!r}: expected a number of GPUs, or several as in 8,64,512")
    return tuple(dict.fromkeys(map(int, words)))


def _read_names(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of GPUs, each given once or in a list with commas."""
    return tuple(dict.fromkeys(word.strip() for text in texts for word in text.split(",") if word.strip()))


def read_size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Return bytes: 70GiB, 70 (GiB), 80GB."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    unit = found[2].lower() if found else "?"
    if found is None or not (unit in _FACTORS or unit in _DECIMAL_FACTORS):
        raise click.BadParameter(f"{text!r}: expected a size such as 70GiB or 80GB")
    value = float(found[1]) * (_DECIMAL_FACTORS.get(unit) or 2.0 ** _FACTORS[unit])
    if not (isfinite(value) and value >= 1):
        raise click.BadParameter(f"{text!r}: expected a size such as 70GiB or 80GB")
    return value


def read_time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Return ns: 350ms, 350 (ms), 1.2s."""
    if text is None:
        return None
    found = _TIME.fullmatch(text.strip().lower())
    if found is None or not 0 < float(found[1]) < 1e9:
        raise click.BadParameter(f"{text!r}: expected a time such as 350ms or 1.2s")
    return float(found[1]) * _LENGTHS_NS[found[2]]


@click.command("scale", cls=WavecastCommand, short_help="Predict parallel plans on many GPUs.")
@trace_argument
@click.option(
    "--to",
    "targets",
    metavar="GPU,…",
    multiple=True,
    callback=_read_names,
    shell_complete=complete_gpu_names,
    help="GPU types, names as for 'analyze --to', with commas or repeated. Default: the one that was measured.",
)
@click.option(
    "--gpus",
    "gpu_counts",
    metavar="N,…",
    multiple=True,
    callback=read_counts,
    help="How many GPUs: 64, or several as in 8,64,512.",
)
@click.option(
    "--plan",
    "plans",
    metavar="PLAN|FILE",
    multiple=True,
    help="A plan, such as fsdp=8,tp=2 or a TOML file; an axis left open (tp=2; fsdp=*) takes the rest of --gpus. "
    "Repeat for several. Default: the best ones are looked for.",
)
@click.option("--search", is_flag=True, help="Look for the best plans as well where --plan is given.")
@click.option(
    "--global-batch",
    type=click.IntRange(min=1, max=1_000_000_000),
    metavar="N",
    help="Samples of an iteration, on however many GPUs. Default: a recorded batch for every GPU.",
)
@click.option(
    "--max-memory", "max_memory_bytes", metavar="SIZE", callback=read_size, help="What a rank may use, as 70GiB."
)
@click.option(
    "--measured-step",
    "measured_step_ns",
    metavar="TIME",
    callback=read_time,
    help="What the recorded iteration takes on the one GPU of --from, as 350ms: scales all plans, for recordings "
    "without times.",
)
@source_option()
@gpu_file_option
@iteration_option()
@capture_option()
@click.option(
    "--top", type=click.IntRange(min=0), default=SHOWN_PLANS, show_default=True, metavar="N", help="Plans listed."
)
@click.option(
    "--timeline",
    type=OutputPath(path_type=Path),
    metavar="FILE",
    help="Write the timeline of the first plan, a track per stage and stream, for ui.perfetto.dev.",
)
@output_options(*REPORT_FORMATS, SVG)
@recover_option
def scale(**options: Any) -> None:
    """Predict the iteration recorded in TRACE on many GPUs, under the best parallel plans or given ones.

    TRACE is a recording of one GPU, measured or of shapes. What each rank runs under a plan is derived
    from it. Plans are ranked by samples per second; time, cost, memory and what limits each are told.
    A file that ends in .svg gets the scaling curve.

    \b
    Examples:
      scale trace.json.gz --to h100 --gpus 64
      scale trace.json.gz --to h100,b200 --gpus 8,64,512 --global-batch 1024 -o curve.svg
      scale trace.json.gz --to h100 --gpus 64 --plan fsdp=64 --plan fsdp=*,tp=2 --plan tp=8,pp=4,vp=2
      scale trace.json.gz --to h100 --plan plan.toml --timeline timeline.json.gz

    \b
    A plan has words with numbers (ranks = dp x fsdp x tp x cp x pp):
      dp=N       replicas              zero=1|2  shard optimizer, gradients among them
      fsdp=N     sharded parameters    tp=N      tensor parallel (sp=off: whole sequences between)
      cp=N       context parallel      ep=N      experts, among dp x fsdp x cp
      pp=N       pipeline stages       vp=N      pieces per stage (interleaved)
      mb=N       samples of a micro batch        ga=N  micro batches
      schedule=1f1b|interleaved|gpipe            recompute=none|selective|full
      overlap=off  gradients after the backward  overlap_tensor=on  prefetch=N layers (fsdp)
    """
    request = ScaleRequest(**options)
    report = _predict(request)
    write_result(render_scale(report, request.trace, request.form, request.output, request.top), request.output)


def _predict(request: ScaleRequest) -> ScaleReport:
    from ...formats.files import load_trace
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpu, find_gpus
    from ..analysis.plans.scale import scale_trace
    from ..prediction.capture_join import join_captures
    from ..recorded.devices import first_known_gpu

    catalog = load_catalog(request.gpu_file)
    targets = list({gpu.name: gpu for name in request.targets for gpu in find_gpus(catalog, name)}.values())
    source = find_gpu(catalog, request.source) if request.source is not None else None
    if request.measured_step_ns is not None and source is None:
        raise InputError("--measured-step says how long one GPU takes: say which with --from GPU")
    with progress_on_stderr("Reading the trace") as progress:
        trace = load_trace(request.trace, recover=request.recover, progress=progress)
        trace = join_captures(trace, load_captures(request.captures, progress))
    if not targets:
        known = source or (first_known_gpu(catalog, trace) if trace.is_measured else None)
        if known is None:
            raise InputError("--to says on which GPUs: a recording of shapes has none of its own; add --to h100")
        targets = [known]
    return scale_trace(
        trace,
        catalog,
        targets=targets,
        gpu_counts=request.gpu_counts,
        plans=request.plans,
        search=request.search,
        global_batch=request.global_batch,
        max_memory_bytes=request.max_memory_bytes,
        measured_step_ns=request.measured_step_ns,
        source=source,
        iteration=request.iteration,
    )


def render_scale(report: ScaleReport, trace: Path, form: str | None, output: Path | None, top: int) -> str:
    """Write a report of plans in the format asked for; a file's ending may ask for the figure."""
    from ..rendering.formats import render
    from ..rendering.plans.records import draw_scale_csv, draw_scale_json
    from ..rendering.plans.svg import draw_scaling
    from ..rendering.plans.text import describe_scale

    name = name_of_trace(trace)
    if form == SVG or (form is None and output is not None and output.suffix.lower() == ".svg"):
        return draw_scaling(report, name=name)
    return render(
        choose_format(form, output),
        screen_for(output),
        page=lambda: describe_scale(report, name=name, top=top),
        json=lambda: draw_scale_json(report),
        csv=lambda: draw_scale_csv(report),
    )
