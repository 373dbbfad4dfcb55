"""The `ranks` command: several ranks' files of one job in, who waits for whom out."""

from pathlib import Path
from typing import Any

import click

from ...asking.command import report_command, timeline_option
from .api import JobReport, RanksOptions


@report_command("ranks", RanksOptions, label="Reading the traces")
@click.argument("traces", type=str, metavar="FILE|FOLDER...", nargs=-1, required=True)
@timeline_option("Write what all ranks do in the iteration, on one clock, for ui.perfetto.dev.")
def ranks(traces: tuple[str, ...], timeline: Path | None, **asked: Any) -> JobReport:
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
    from ....formats.files.destinations import check_destinations
    from ..batch.inputs import find_inputs
    from .api import ranks as compare

    written = {"-o": click.get_current_context().params["output"], "--timeline": timeline}
    named = {label: path for label, path in written.items() if path is not None}
    if named:
        found = find_inputs(traces).inputs
        check_destinations(named, {item.name: item.location for item in found if not item.in_archive})
    report = compare(traces, **asked)
    if timeline is not None:
        report.save_timeline(timeline)
    return report
