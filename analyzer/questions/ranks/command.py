"""The `ranks` command: several ranks' files of one job in, who waits for whom out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...asking.cluster_options import cluster_options, take_cluster
from ...asking.command import (
    WavecastCommand,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    output_options,
    read_gpu_names,
    recover_option,
    source_option,
)
from ...asking.output import OutputPath, choose_format, screen_for, write_result
from ...asking.progress import progress_on_stderr
from ...asking.question import Machines
from ...page.formats import REPORT_FORMATS

if TYPE_CHECKING:
    from .api import JobReport


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
    timeline: Path | None
    to_node: tuple[str, ...]
    cluster: Machines


@click.command("ranks", cls=WavecastCommand)
@click.argument("traces", type=str, metavar="FILE|FOLDER...", nargs=-1, required=True)
@click.option(
    "--to",
    "targets",
    metavar="GPU,…",
    multiple=True,
    callback=read_gpu_names,
    shell_complete=complete_gpu_names,
    help="Predict the job on this GPU, too; several with commas, or repeat.",
)
@source_option()
@gpu_file_option
@cluster_options
@click.option(
    "--to-node",
    "to_node",
    metavar="NODE|FILE",
    multiple=True,
    help="Predict the job on its own GPUs in this machine, too: one of 'wavecast catalog nodes', or that of a TOML "
    "file as --cluster-file takes; repeat for several.",
)
@iteration_option()
@click.option(
    "--timeline",
    type=OutputPath(path_type=Path),
    metavar="FILE",
    help="Write what all ranks do in the iteration, on one clock, for ui.perfetto.dev.",
)
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
      wavecast ranks traces/ --timeline ranks.json.gz
      wavecast ranks rank0.json.gz rank1.json.gz --to h100 -o ranks.json
      wavecast ranks traces/ --to-node p4d.24xlarge --to-node my-cluster.toml
    """
    cluster = take_cluster(options)
    request = RanksRequest(**options, cluster=cluster)
    _check_destinations(request)
    report = _compare(request)
    if request.timeline is not None:
        report.save_timeline(request.timeline)
    write_result(report.draw(choose_format(request.form, request.output), screen_for(request.output)), request.output)


def _check_destinations(request: RanksRequest) -> None:
    """Raise OutputError where a rank's file would be written over."""
    from ....formats.files.destinations import check_destinations
    from ..batch.inputs import find_inputs

    outputs = {"-o": request.output, "--timeline": request.timeline}
    named = {label: path for label, path in outputs.items() if path is not None}
    if named:
        found = find_inputs(request.traces).inputs
        check_destinations(named, {item.name: item.location for item in found if not item.in_archive})


def _compare(request: RanksRequest) -> JobReport:
    from .api import ranks as compare

    with progress_on_stderr("Reading the traces") as progress:
        return compare(
            request.traces,
            to=request.targets,
            source=request.source,
            gpu_file=request.gpu_file,
            machines=request.cluster,
            to_node=request.to_node,
            iteration=request.iteration,
            recover=request.recover,
            progress=progress,
        )
