"""The `recommender` command: how long a described recommender's training iteration takes on many GPUs."""

from pathlib import Path
from typing import Any

import click

from ...asking.command import report_command
from ...asking.declared import FILE, HelpPart, grouped_option
from ...asking.output import OutputPath
from .api import RecommenderAnswer, RecommenderOptions


@report_command("recommender", RecommenderOptions, label="Predicting")
@click.argument("description", **FILE)
@grouped_option(
    HelpPart.OUTPUT,
    "Write what the busiest GPU runs, as a trace of shapes, for the fastest type.",
    "--save-trace",
    type=OutputPath(path_type=Path),
    metavar="FILE",
)
def recommender(description: Path, save_trace: Path | None, **asked: Any) -> RecommenderAnswer:
    """Predict the training iteration of the recommender that FILE describes, on many GPUs.

    FILE is TOML: the sizes of tables and layers, the batch, how many GPUs, and which library shares
    the tables among them how. No recording is needed. What the iteration's time goes to is told,
    with its interval: lookups and updates, layers, what is sent, the host.

    \b
    Examples:
      recommender dlrm.toml --to h100sxm
      recommender dlrm.toml --to a100sxm80 --to h100sxm --gpus 64
      recommender dlrm.toml --to h100sxm --indices zipf:0.8
    """
    from .api import recommender as predict

    found = predict(description, **asked)
    if save_trace is not None:
        found.save_trace(save_trace)
    return found
