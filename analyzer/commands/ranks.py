"""The `ranks` command: several ranks' files of one job in, who waits for whom out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..api.question import Machines
from ..rendering.formats import REPORT_FORMATS
from .cluster_options import cluster_options, take_cluster
from .command import (
    WavecastCommand,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    output_options,
    recover_option,
    source_option,
)
from .output import choose_format, screen_for, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ..analysis.ranks.report import RanksReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksRequest:
    """Hold what the command line asked for, as parsed."""

    traces: tuple[str, ...]
    targets: tuple[str, ...]
    source: str | None
    gpu_file: Path | None
    iteration: int | str | None
    form: str | None
    output: Path | None
    recover: bool
    cluster: Machines


@click.command("ranks", cls=WavecastCommand, short_help="Say which ranks of a job wait for which.")
@click.argument("traces", type=str, metavar="FILE|FOLDER...", nargs=-1, required=True)
@click.option(
    "--to",
    "targets",
    metavar="GPU",
    multiple=True,
    shell_complete=complete_gpu_names,
    help="Predict the job on this GPU, too; repeat for several.",
)
@source_option()
@gpu_file_option
@cluster_options
@iteration_option()
@output_options(*REPORT_FORMATS)
@recover_option
def ranks(**options: Any) -> None:
    """Compare the ranks of one job: who comes late to collectives, why, and what that costs.

    Give the measured trace of each rank, or a folder that holds them. Collectives are aligned by
    group and number, so that clocks need not agree. All ranks are replayed together: as recorded,
    without each straggler, and on the GPUs of --to. Ranks may be missing.

    \b
    Examples:
      wavecast ranks traces/
      wavecast ranks trace.rank0.json.gz trace.rank1.json.gz --to h100 --format json -o ranks.json
    """
    cluster = take_cluster(options)
    request = RanksRequest(**options, cluster=cluster)
    write_result(_render(_compare(request), request), request.output)


def _compare(request: RanksRequest) -> RanksReport:
    from ...formats.files import load_trace
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpu, find_gpus
    from ..analysis.batch.inputs import find_inputs
    from ..analysis.ranks.compare import compare_ranks

    catalog = load_catalog(request.gpu_file)
    targets = list({gpu.name: gpu for name in request.targets for gpu in find_gpus(catalog, name)}.values())
    source = find_gpu(catalog, request.source) if request.source is not None else None
    found = find_inputs(request.traces).inputs
    with progress_on_stderr("Reading the traces") as progress:
        traces = [load_trace(item.location, recover=request.recover, progress=progress) for item in found]
    return compare_ranks(
        traces,
        catalog,
        targets=targets,
        source=source,
        iteration=request.iteration,
        cluster=request.cluster.cluster(catalog, request.targets),
    )


def _render(report: RanksReport, request: RanksRequest) -> str:
    from ..rendering.formats import render
    from ..rendering.ranks import describe_ranks, draw_ranks_csv, draw_ranks_json

    return render(
        choose_format(request.form, request.output),
        screen_for(request.output),
        page=lambda: describe_ranks(report),
        json=lambda: draw_ranks_json(report),
        csv=lambda: draw_ranks_csv(report),
    )
