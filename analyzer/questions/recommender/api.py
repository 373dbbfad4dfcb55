"""`wavecast.recommender`: how long a described recommender's iteration takes on many GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import InputError, parameter
from ...asking.answer import Report, as_names
from ...asking.electricity import read_electricity
from ...asking.keywords import check_choice, check_count, checks_kinds
from ...asking.lookups import with_spread
from ...asking.question import Machines, find_named

if TYPE_CHECKING:
    from ...asking.answer import Tables
    from ...iteration.decision.electricity import Electricity
    from ...page.page import Page
    from .report import RecommenderReport


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RecommenderAnswer(Report):
    """Hold a recommender's iteration on types of GPUs: `report` has the figures. Its table: `gpus`."""

    report: RecommenderReport

    def page(self) -> Page:
        """Return the report in words and a sheet."""
        from .page import describe_recommender

        return describe_recommender(self.report)

    def to_json(self) -> str:
        """Return the report as JSON, with all digits; docs/recommenders.md has its layout."""
        from .records import draw_recommender_json

        return draw_recommender_json(self.report)

    def save_trace(self, path: str | Path) -> None:
        """Write what the busiest GPU of the fastest type runs, as a recording of shapes with its collectives."""
        from ....formats.files.open import save_trace

        save_trace(self.report.trace, path)

    def _tables(self) -> Tables:
        from .records import recommender_table

        return {"gpus": lambda: recommender_table(self.report)}

    def _headline(self) -> str:
        from ...page.quantity import format_time

        best, training = self.report.rows[0], self.report.training
        return f"{self.report.sizes.name} on {training.gpus} × {best.gpu}: {format_time(best.step_ns)}"


@checks_kinds
def recommender(  # noqa: PLR0913 (all that one may ask, by name)
    description: str | Path,
    *,
    to: str | Sequence[str],
    gpus: int | None = None,
    global_batch: int | None = None,
    indices: str | Path | None = None,
    gpu_file: str | Path | None = None,
    machines: Machines | None = None,
    electricity: Electricity | float | None = None,
    sort: str | None = None,
) -> RecommenderAnswer:
    """Predict a training iteration of the recommender that a TOML file describes, on GPUs of each type of `to`.

    `gpus` and `global_batch` stand in for what the file says; `indices` says how lookups are spread ("zipf:1.05").
    `electricity` is $ per kWh, or an `Electricity`; `sort` is "time" or "energy".
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued.

    >>> answer = recommender("samples/dlrm-dcnv2.toml", to="H100 SXM")
    >>> [(row["gpu"], round(row["step_ns"] / 1e6, 1)) for row in answer.to_records()]
    [('H100 SXM5 80GB', 3.6)]
    """
    from ...models.library import load_library
    from ...work.indices import read_indices
    from .description import MOST_GPUS, MOST_SAMPLES, read_recommender
    from .report import report_recommender

    check_choice("sort", sort, ("time", "energy"))
    named = find_named(as_names(to), None, gpu_file)
    if not named.targets:
        raise InputError(f"{parameter('to')} says on which GPUs: add {parameter('to', 'h100sxm')}")
    sizes, training = read_recommender(Path(description))
    count, samples = check_count("gpus", gpus), check_count("global_batch", global_batch)
    if count is not None and count > MOST_GPUS:
        raise InputError(f"{parameter('gpus', count)}: expected {MOST_GPUS:,} GPUs at most")
    if samples is not None and samples > MOST_SAMPLES:
        raise InputError(f"{parameter('global_batch', samples)}: expected {MOST_SAMPLES:,} samples at most")
    training = replace(training, gpus=count or training.gpus, global_batch=samples or training.global_batch)
    if training.global_batch < training.gpus:
        raise InputError(
            f"{parameter('global_batch', training.global_batch)}: expected at least a sample for each of "
            f"{training.gpus} GPUs"
        )
    if indices is not None:
        with_spread(None, indices)
        training = replace(training, indices=read_indices(str(indices)))
    cluster = (machines or Machines()).cluster(named.catalog, [gpu.name for gpu in named.targets])
    report = report_recommender(
        sizes,
        training,
        named.targets,
        load_library(),
        cluster,
        electricity=read_electricity(electricity),
        sort=sort or "time",
    )
    return RecommenderAnswer(report=report)
