"""The `analyze` command: a trace in, a prediction for every catalogued GPU out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ... import __version__
from ...errors import InputError
from ..rendering.formats import REPORT_FORMATS
from .cluster_options import ClusterRequest, cluster_options, read_cluster, take_cluster
from .command import (
    WavecastCommand,
    capture_option,
    complete_gpu_names,
    execution_trace_option,
    gpu_file_option,
    iteration_option,
    load_captures,
    load_with_execution_trace,
    name_of_trace,
    output_options,
    recover_option,
    run_program,
    source_option,
    trace_argument,
)
from .output import OutputPath, choose_format, screen_for, write_result
from .plan_options import SHOWN_PLANS, plan_options, render_scale
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ...formats.trace import Trace
    from ...specs.gpu import Catalog, Gpu
    from ..analysis.report import Report
    from ..measurements.calibration import CalibratedLibrary
    from ..whatif.scenario import Scenario

PRECISIONS: Final = ("bf16", "fp16", "tf32", "fp8", "nvfp4", "int8-weights", "int4-weights")
ATTENTION: Final = ("flash2", "flash3", "cudnn", "efficient", "math", "triton", "ck")
SHORT_OP_COUNT: Final = 10
"""Ops shown without --ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeRequest:
    """Hold what the command line asked for, as parsed."""

    trace: Path
    targets: tuple[str, ...]
    source: str | None
    gpu_file: Path | None
    with_ops: bool
    top: int | None
    form: str | None
    output: Path | None
    recover: bool
    iteration: int | str | None
    captures: tuple[Path, ...]
    execution_trace: Path | None
    cpu_speed: str | None
    precision: str | None
    batch_size: int | None
    from_batch: int | None
    sequence_length: int | None
    from_sequence_length: int | None
    cached_tokens: int | None
    largest_batch: bool
    cuda_graph: bool
    fuse_elementwise: bool
    attention_kernel: str | None
    timeline: Path | None
    calibration: Path | None
    gpu_counts: tuple[int, ...]
    plans: tuple[str, ...]
    global_batch: int | None
    cluster: ClusterRequest

    @property
    def is_of_plans(self) -> bool:
        """Say whether it is about many GPUs. Raises InputError where only a part of that is said."""
        if self.gpu_counts and not self.plans:
            raise InputError("--gpus says how many, not how they share the work: add --plan, or use 'wavecast scale'")
        if self.global_batch is not None and not self.plans:
            raise InputError("--global-batch is for many GPUs: add --gpus and --plan (one GPU's is --batch)")
        return bool(self.plans)


@click.command("analyze", cls=WavecastCommand, short_help="Predict a recorded iteration on other GPUs.")
@trace_argument
@click.option(
    "--to",
    "targets",
    metavar="GPU",
    multiple=True,
    shell_complete=complete_gpu_names,
    help="Predict for this GPU only ('h100': all its variants; 'p4d.24xlarge': one of the instance's); repeat for "
    "several. Default: every catalogued GPU.",
)
@source_option()
@gpu_file_option
@cluster_options
@iteration_option()
@capture_option()
@execution_trace_option
@plan_options()
@click.option("--ops", "with_ops", is_flag=True, help="List every op with its physical bound, method and reason.")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Rows of the op table; 0 leaves it out. Default: {SHORT_OP_COUNT}, with --ops all.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE",
    help="Sharpen the models for the GPUs that these measurement tables (DIR/ops/*.parquet) hold.",
)
@click.option(
    "--cpu-speed",
    metavar="RATIO",
    help="Speed of the target's host relative to the recorded one (1.2: 20 % faster), or a named host.",
)
@click.option("--precision", type=click.Choice(PRECISIONS), help="What if it ran in this precision?")
@click.option("--batch", "batch_size", type=click.IntRange(min=1), metavar="N", help="What if the batch were N?")
@click.option(
    "--from-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="The batch size of the recording, for --batch, where the trace does not say it.",
)
@click.option("--sequence-length", type=click.IntRange(min=1), metavar="N", help="What if each sample had N tokens?")
@click.option(
    "--from-sequence-length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens per sample of the recording, for --sequence-length, where its shapes do not tell.",
)
@click.option(
    "--cached-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="What if the keys and values of N tokens per sample were in the cache?",
)
@click.option(
    "--largest-batch",
    is_flag=True,
    help="Also find, for each GPU, the largest batch that fits and the one of most samples per second; rank by that.",
)
@click.option("--cuda-graph", is_flag=True, help="What if CUDA graphs launched it?")
@click.option("--fuse-elementwise", is_flag=True, help="What if a compiler merged pointwise ops?")
@click.option(
    "--attention-kernel",
    type=click.Choice(ATTENTION),
    help="What if this attention ran, where it exists? Default: the GPU's own choice.",
)
@click.option(
    "--timeline",
    type=OutputPath(path_type=Path),
    metavar="FILE",
    help="Write the predicted timeline of the first --to GPU (default: the source) for ui.perfetto.dev.",
)
@output_options(*REPORT_FORMATS)
@recover_option
@click.version_option(__version__, prog_name="wavecast", message="%(prog)s %(version)s")
def analyze(**options: Any) -> None:
    """Predict the iteration recorded in TRACE on every catalogued GPU.

    TRACE is a wavecast trace or a PyTorch profiler file, gzipped or not, recognised by its content;
    '-' reads standard input. The GPUs are ranked by predicted iteration time; the one that was
    measured is marked.

    \b
    Examples:
      analyze trace.json.gz
      analyze trace.json.gz --to H100 --to L40S --ops
      analyze trace.json.gz --format json -o prediction.json
      analyze trace.json.gz --to H100 --batch 64 --precision bf16 --cuda-graph
      analyze trace.json.gz --to L40S --timeline timeline.json.gz
      analyze trace.json.gz --to L40S --calibration measured/
      analyze trace.json.gz --iteration longest
      analyze trace.json.gz --to H100 --gpus 64 --plan fsdp=8,tp=8
      analyze execution.json.gz --capture capture.json.gz
    """
    cluster = take_cluster(options)
    request = AnalyzeRequest(**options, cluster=cluster)
    if request.is_of_plans:
        write_result(_predict_plans(request), request.output)
        return
    report = _predict(request)
    write_result(_render(report, request), request.output)


def main() -> None:
    """Run `analyze` as a console command."""
    run_program(analyze, "analyze")


def _predict(request: AnalyzeRequest) -> Report:
    from ...specs.catalog import load_catalog
    from ...specs.match import describe_machines, find_gpu, find_gpus
    from ..analysis.analyze import report_on, run_analysis
    from ..prediction.capture_join import join_captures

    catalog = load_catalog(request.gpu_file)
    targets = list({gpu.name: gpu for name in request.targets for gpu in find_gpus(catalog, name)}.values())
    source = find_gpu(catalog, request.source) if request.source is not None else None
    with progress_on_stderr("Reading the trace") as progress:
        trace = load_with_execution_trace(
            request.trace, request.execution_trace, recover=request.recover, progress=progress
        )
        trace = join_captures(trace, load_captures(request.captures, progress))
    limit = SHORT_OP_COUNT if request.top is None and not request.with_ops else request.top
    sharpened = _sharpen(request.calibration, trace, catalog, targets, source) if request.calibration else None
    result = run_analysis(
        trace,
        catalog,
        targets=targets,
        source=source,
        library=sharpened.library if sharpened is not None else None,
        scenario=_scenario(request, trace),
        iteration=request.iteration,
        cluster=read_cluster(request.cluster, catalog, request.targets),
    )
    report = report_on(result, ops_gpu=targets[0] if targets else None, op_limit=limit)
    if request.largest_batch:
        from ..analysis.batches import with_batches

        report = with_batches(result, report)
    named = (*request.targets, *([request.source] if request.source is not None else []))
    report = replace(report, warnings=(*describe_machines(catalog, named), *report.warnings))
    if sharpened is not None:
        report = replace(report, calibration=sharpened.corrections, rates=sharpened.rates)
    if request.timeline is not None:
        from ..analysis.gpu_replay import save_timeline

        save_timeline(result, report.ops_gpu, request.timeline)
    return report


_ONE_GPU_OPTIONS: Final = {
    "with_ops": "--ops",
    "largest_batch": "--largest-batch",
    "cuda_graph": "--cuda-graph",
    "fuse_elementwise": "--fuse-elementwise",
    "cpu_speed": "--cpu-speed",
}
"""What nothing says of plans yet."""


def _predict_plans(request: AnalyzeRequest) -> str:
    """Predict plans on many GPUs, and write what `wavecast scale` would of them."""
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpu, find_gpus
    from ..analysis.plans.scale import scale_trace

    for name, option in _ONE_GPU_OPTIONS.items():
        if getattr(request, name):
            raise InputError(f"{option} is for one GPU: leave it out beside --plan")
    catalog = load_catalog(request.gpu_file)
    targets = list({gpu.name: gpu for name in request.targets for gpu in find_gpus(catalog, name)}.values())
    source = find_gpu(catalog, request.source) if request.source is not None else None
    with progress_on_stderr("Reading the trace") as progress:
        trace = load_with_execution_trace(
            request.trace, request.execution_trace, recover=request.recover, progress=progress
        )
    sharpened = _sharpen(request.calibration, trace, catalog, targets, source) if request.calibration else None
    report = scale_trace(
        trace,
        catalog,
        targets=targets,
        gpu_counts=request.gpu_counts,
        plans=request.plans,
        global_batch=request.global_batch,
        recorded_batch=request.from_batch,
        source=source,
        library=sharpened.library if sharpened is not None else None,
        scenario=_scenario(request, trace),
        iteration=request.iteration,
        cluster=read_cluster(request.cluster, catalog, request.targets),
        timeline=request.timeline,
    )
    top = SHOWN_PLANS if request.top is None else request.top
    return render_scale(report, request.trace, request.form, request.output, top)


def _sharpen(
    path: Path, trace: Trace, catalog: Catalog, targets: Sequence[Gpu], source: Gpu | None
) -> CalibratedLibrary:
    """Calibrate the models for the targets, all GPUs where none is given, and the one that was measured."""
    from ..measurements.calibration import calibrate_library
    from ..models.library import load_library
    from ..recorded.devices import first_known_gpu

    origin = source or (first_known_gpu(catalog, trace) if trace.is_measured else None)
    gpus = [*targets, *([origin] if origin is not None else [])] if targets else []
    return calibrate_library(load_library(), path, gpus, catalog)


def _scenario(request: AnalyzeRequest, trace: Trace) -> Scenario:
    from ..host.speed import read_cpu_speed
    from ..whatif.scenario import Scenario, TargetAttention, TargetPrecision

    if request.from_batch is not None and not (request.batch_size or request.largest_batch or request.plans):
        raise InputError("--from-batch says what --batch rescales: add --batch N")
    if request.from_sequence_length is not None and request.sequence_length is None:
        raise InputError("--from-sequence-length says what --sequence-length rescales: add --sequence-length N")
    return Scenario(
        cpu_speed=None if request.cpu_speed is None else read_cpu_speed(request.cpu_speed, trace),
        precision=None if request.precision is None else TargetPrecision(request.precision),
        batch_size=request.batch_size,
        recorded_batch_size=request.from_batch,
        sequence_length=request.sequence_length,
        recorded_sequence_length=request.from_sequence_length,
        cached_tokens=request.cached_tokens,
        cuda_graph=request.cuda_graph,
        fuse_elementwise=request.fuse_elementwise,
        attention=None if request.attention_kernel is None else TargetAttention(request.attention_kernel),
    )


def _render(report: Report, request: AnalyzeRequest) -> str:
    from ..rendering.analysis.csv import draw_gpus_csv, draw_ops_csv
    from ..rendering.analysis.json import draw_report_json
    from ..rendering.analysis.text import describe_report
    from ..rendering.formats import render

    return render(
        choose_format(request.form, request.output),
        screen_for(request.output),
        page=lambda: describe_report(report, name=name_of_trace(request.trace), detailed_ops=request.with_ops),
        json=lambda: draw_report_json(report, with_ops=request.with_ops),
        csv=lambda: draw_ops_csv(report) if request.with_ops else draw_gpus_csv(report),
    )
