"""`wavecast.recommender` and the `recommender` command: how long a described recommender takes on many GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....errors import InputError, parameter
from ....records import dataclass, field, replace
from ...asking.answer import Drawn, Report, as_names
from ...asking.choice import GPU_NAMES
from ...asking.command import report_command
from ...asking.declared import FILE, HelpPart, asks, declare, grouped_option, option
from ...asking.inputs import AskedLookups, GpuFile
from ...asking.machines import GlobalBatch, Machines
from ...asking.output import OutputPath
from ...asking.prices import Power
from ...asking.question import find_named

if TYPE_CHECKING:
    from .report import RecommenderReport


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RecommenderAnswer(Report):
    """Hold a recommender's iteration on types of GPUs: `report` has the figures. Its table: `gpus`."""

    report: RecommenderReport

    def _drawn(self) -> Drawn:
        from .page import describe_recommender, draw_recommender_json, recommender_table

        return Drawn(
            page=lambda: describe_recommender(self.report),
            json=lambda: draw_recommender_json(self.report),
            tables={"gpus": lambda: recommender_table(self.report)},
        )

    def save_trace(self, path: str | Path) -> None:
        """Write what the busiest GPU of the fastest type runs, as a recording of shapes with its collectives."""
        from ....formats.files.open import save_trace

        save_trace(self.report.trace, path)

    def _headline(self) -> str:
        from ...page.quantity import format_time

        best, training = self.report.rows[0], self.report.training
        return f"{self.report.sizes.name} on {training.gpus} × {best.gpu}: {format_time(best.step_ns)}"


@dataclass(frozen=True, kw_only=True)
class RecommenderOptions(GlobalBatch, Machines, Power, GpuFile, AskedLookups):
    """Hold what may be asked of a described recommender."""

    to: str | Sequence[str] = field(
        metadata=declare(HelpPart.GPUS, "The type of the GPUs; several with commas, or repeat.", **GPU_NAMES)
    )
    sort: str | None = option(
        HelpPart.GPUS,
        "What stands first: the fastest (default), the least energy.",
        type=click.Choice(("time", "energy")),
    )
    gpus: int | None = option(
        HelpPart.MANY, "How many GPUs. Default: what FILE says.", type=click.IntRange(min=1, max=1024), metavar="N"
    )


@asks(RecommenderOptions)
def recommender(description: str | Path, asked: RecommenderOptions) -> RecommenderAnswer:
    """Predict a training iteration of the recommender that a TOML file describes, on GPUs of each type of `to`.

    `gpus` and `global_batch` stand in for what the file says; `indices` says how lookups are spread ("zipf:1.05").
    The keywords mean what the options of `recommender` of the same names do.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued.

    >>> answer = recommender("samples/dlrm-dcnv2.toml", to="H100 SXM")
    >>> [(row["gpu"], round(row["step_ns"] / 1e6, 1)) for row in answer.to_records()]
    [('H100 SXM5 80GB', 3.7)]
    """
    from ...models.library import load_library
    from ...work.indices import read_indices
    from .report import report_recommender
    from .sizes import read_recommender

    named = find_named(as_names(asked.to), None, asked.gpu_file)
    if not named.targets:
        raise InputError(f"{parameter('to')} says on which GPUs: add {parameter('to', 'h100sxm')}")
    sizes, training = read_recommender(Path(description))
    training = replace(
        training, gpus=asked.gpus or training.gpus, global_batch=asked.global_batch or training.global_batch
    )
    if training.global_batch < training.gpus:
        raise InputError(
            f"{parameter('global_batch', training.global_batch)}: expected at least a sample for each of "
            f"{training.gpus} GPUs"
        )
    if asked.spread() is not None:
        training = replace(training, indices=read_indices(str(asked.indices)))
    report = report_recommender(
        sizes,
        training,
        named.targets,
        load_library(),
        asked.cluster(named.catalog, [gpu.name for gpu in named.targets]),
        electricity=asked.power(),
        sort=asked.sort or "time",
    )
    return RecommenderAnswer(report=report)


@report_command("recommender", RecommenderOptions, label="Predicting")
@click.argument("description", **FILE)
@grouped_option(
    HelpPart.OUTPUT,
    "Write what the busiest GPU runs, as a trace of shapes, for the fastest type.",
    "--save-trace",
    type=OutputPath(path_type=Path),
    metavar="FILE",
)
def recommender_command(description: Path, save_trace: Path | None, **asked: Any) -> RecommenderAnswer:
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
    found = recommender(description, **asked)
    if save_trace is not None:
        found.save_trace(save_trace)
    return found
