"""`wavecast.score` and the `score` command: predictions beside measurement tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....errors import InputError, parameter
from ....records import dataclass
from ...asking.answer import Drawn, Report, as_names
from ...asking.choice import complete_gpu_names
from ...asking.command import report_command
from ...asking.keywords import check_choice, checks_kinds
from ...asking.question import find_named

if TYPE_CHECKING:
    from .report import Score

LEFT_OUT: Final = ("chips", "shapes")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScoreReport(Report):
    """Hold how wrong predictions were: `report` has the figures. Its table is `groups`: op families by GPU."""

    report: Score

    def _drawn(self) -> Drawn:
        from .page.page import describe_score
        from .page.records import draw_score_json, score_table

        return Drawn(
            page=lambda: describe_score(self.report),
            json=lambda: draw_score_json(self.report),
            tables={"groups": lambda: score_table(self.report)},
        )

    def _headline(self) -> str:
        from ...page.quantity import format_count

        return f"of {format_count(len(self.report.rows), 'group')} of measurements"


@checks_kinds
def score(directory: str | Path, *, leave_out: str | None = None, exclude_gpu: str | Sequence[str] = ()) -> ScoreReport:
    """Predict every measurement in a folder of tables, or a file of `wavecast measure`, and say how wrong that was.

    `leave_out="chips"` predicts each GPU as one never seen, `"shapes"` scores only shapes never seen; `exclude_gpu`
    leaves out the chips of these GPUs. A folder needs pyarrow: pip install 'wavecast[score]'.
    Raises InputError for what cannot be read or asked, and UnknownGpuError for a GPU that is not catalogued.

    >>> len(score(tables).to_records()) > 0
    True
    """
    from .scoring import score_directory
    from .weights import Withheld, choose_weights

    check_choice("leave_out", leave_out, LEFT_OUT)
    if not isinstance(directory, str | Path):
        raise InputError(f"directory: expected a path, got {type(directory).__name__}")
    excluded = as_names(exclude_gpu, "exclude_gpu")
    if leave_out and excluded:
        raise InputError(
            f"{parameter('leave_out', leave_out)} says which weights predict: it goes without "
            f"{parameter('exclude_gpu')}"
        )
    named = find_named(excluded, None, None)
    weights = choose_weights(named.targets, left_out=Withheld(leave_out) if leave_out else None)
    return ScoreReport(report=score_directory(Path(directory), weights))


@report_command("score", label="Predicting")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR|FILE")
@click.option(
    "--leave-out",
    type=click.Choice(LEFT_OUT),
    help="chips: predict each GPU with weights that were trained without its chip, as a GPU never seen. "
    "shapes: score only shapes that the weights never trained on, on GPUs that they saw.",
)
@click.option(
    "--exclude-gpu",
    metavar="GPU",
    multiple=True,
    shell_complete=complete_gpu_names,
    help="Predict all with weights that were trained without the chip of this GPU (its twins left out too).",
)
def score_command(directory: Path, **asked: Any) -> ScoreReport:
    """Predict every measurement in DIR or FILE and say how wrong that was, beside simpler predictions.

    FILE is what 'wavecast measure' wrote. DIR holds measurement tables: ops/*.parquet (single ops),
    models/*.parquet (whole networks) and traces/ (the same step recorded on two GPUs); what is not
    there is left out. Rows of GPUs whose chip the weights were trained on are marked as seen: those
    errors say little about other GPUs.
    Reading tables in DIR needs pyarrow: pip install 'wavecast[score]'.

    \b
    Examples:
      wavecast score l40s.json.gz
      wavecast score DIR --leave-out chips
      wavecast score DIR --leave-out shapes
      wavecast score DIR --exclude-gpu L40S --format json -o score.json
    """
    return score(directory, **asked)
