"""The `analyze` command: a trace in, a prediction for every catalogued GPU out."""

from pathlib import Path
from typing import Any, Final

import click

from ....formats.trace.version import __version__
from ...asking.command import WavecastCommand, report_command, run_program, timeline_option
from ...asking.inputs import trace_argument
from .api import AnalyzeOptions, IterationReport

_OF_PLANS: Final = ("--gpus", "--plan", "--global-batch")


class _AnalyzeCommand(WavecastCommand):
    """Say which command takes several files, or many GPUs."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Read the command line."""
        try:
            return super().make_context(*args, **options)
        except click.UsageError as error:
            unknown = error.option_name if isinstance(error, click.NoSuchOption) else None
            if unknown in _OF_PLANS:
                raise click.UsageError(f"{unknown} is about many GPUs: ask 'wavecast scale'", error.ctx) from None
            if unknown != "--ranks" and "unexpected extra argument" not in error.message:
                raise
            message = "one trace at a time: 'wavecast ranks' takes the files of a job's ranks, 'wavecast batch' any"
            raise click.UsageError(message, error.ctx) from None


@report_command("analyze", AnalyzeOptions, cls=_AnalyzeCommand)
@trace_argument
@timeline_option("Write the predicted timeline of the first --to GPU (default: the source) for ui.perfetto.dev.")
@click.version_option(__version__, prog_name="wavecast", message="%(prog)s %(version)s")
def analyze(trace: Path, timeline: Path | None, **asked: Any) -> IterationReport:
    """Predict the iteration recorded in TRACE on every catalogued GPU.

    TRACE is a wavecast trace or a PyTorch profiler file, gzipped or not, recognised by its content;
    '-' reads standard input. The answer comes first: the fastest GPU and the
    cheapest, or the one for your run; then the GPUs by predicted iteration time, the measured one
    marked.

    \b
    Examples:
      analyze trace.json.gz
      analyze trace.json.gz --to H100 --to L40S --ops
      analyze trace.json.gz --for "3 epochs of 1281167 samples" --deadline 24h
      analyze trace.json.gz --sort cost --fits --vendor nvidia --min-memory 40GB
      analyze trace.json.gz --format json -o prediction.json
      analyze trace.json.gz --to H100 --batch 64 --precision bf16 --cuda-graph
      analyze trace.json.gz --to L40S --timeline timeline.json.gz
      analyze trace.json.gz --to L40S --calibration l40s.json.gz
      analyze trace.json.gz --iteration longest
      analyze execution.json.gz --capture capture.json.gz
    """
    from .api import analyze as predict

    found = predict(trace, **asked)
    if timeline is not None:
        found.save_timeline(timeline)
    return found


def main() -> None:
    """Run `analyze` as a console command."""
    run_program(analyze, "analyze")
