"""Learn from measured jobs the error that all their kernels' times share under a parallel plan.

    python -m wavecast.mlp_weights.train.job_widths DATA [--write]

Reads the iterations of language models without experts that `wavecast score` reads, and predicts each as it does, with
the GPU's chip left out and without a shared error: its interval is then that of what kernels, links and the host err by
each on their own.

A prediction's half-width is hypot(own, c * shared), c the share of the step that kernels take. The shared half-width
is the least that holds 90 % of the jobs, who published them counting alike, times sqrt(1 + 1 / n) for n publishers:
another one's jobs (their software, what their iteration does beside the model) are as far from the mean of these as one
of them; and times Student's quantile over the normal one, since few publishers tell little of how far they spread.
`without` holds it for each publisher from the others' jobs: so a score judges it on jobs that it was not learned from.
`recommenders` holds the same of MLPerf's recommenders, of their whole iterations, and of submitters for publishers.

`bias` is the mean of log(measured / predicted), `spread` its root mean square about that, `held` the share of a
publisher's jobs inside the intervals that the others' jobs give, `width` their median half-width.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import click
import numpy as np

from ...analyzer.questions.score.distributed.forecast import Known, forecast_row
from ...analyzer.questions.score.distributed.recommenders import RECOMMENDERS, forecast_recommenders
from ...analyzer.questions.score.distributed.rows import ITERATIONS, gpu_of, publisher_of, read_iterations
from ...analyzer.questions.score.weights import Weights, Withheld, choose_weights
from ...analyzer.work.indices import USUAL
from ...arrays import group_by
from ...errors import InputError
from ...records import dataclass
from .calibrate import least_held_width, leave_out
from .constants import Fitted, program

NAME: Final = "job_widths"
ABOUT: Final = (
    "90 % half-widths, natural log, of the error that all kernels of a job share under a parallel plan, as measured "
    "iterations of language models show it on chips left out: from every publisher's jobs, and without each. "
    "recommenders: of what their whole iterations differ by, and submitters. counts: jobs by either."
)
STEP: Final = 0.01
WIDEST: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """Compare a measured iteration with its prediction."""

    publisher: str
    log_ratio: float
    """log(measured / predicted)."""
    own_log_width: float
    """Half-width of its interval without a shared error."""
    computing_share: float
    """Of its time, what goes with the speed of kernels."""

    def log_width(self, shared: float) -> float:
        """Return the half-width of its interval with a shared error of this one."""
        return float(np.hypot(self.own_log_width, self.computing_share * shared))

    def is_held(self, shared: float) -> bool:
        """Say whether the measurement is inside that."""
        return abs(self.log_ratio) <= self.log_width(shared)


Groups = Mapping[str, Sequence[JobError]]
"""Jobs by publisher."""


@program(NAME, ABOUT, __doc__)
def main(data: Path) -> Fitted:
    """Print a line per publisher, and the half-widths."""
    weights = choose_weights(left_out=Withheld.CHIPS)
    groups, recommenders = by_publisher(read_errors(data, weights)), by_publisher(read_recommenders(data, weights))
    values = {**widths_of(groups), "recommenders": widths_of(recommenders)}
    print_groups(groups, values)
    print_groups(recommenders, values["recommenders"])
    counts = {name: len(jobs) for name, jobs in {**groups, **recommenders}.items()}
    return values, counts, [data / ITERATIONS, data / RECOMMENDERS]


def read_errors(data: Path, weights: Weights) -> list[JobError]:
    """Return the errors of all jobs that can be predicted."""
    known: Known = {}
    found = []
    for row in read_iterations(data):
        if not (row.is_language_model and row.has_plan) or row.experts:
            continue
        with suppress(InputError):
            gpu = gpu_of(row)
            forecast = forecast_row(row, gpu, weights.library_for(gpu), known, shared_log_width=0.0)
            found.append(
                JobError(
                    publisher=publisher_of(row.source),
                    log_ratio=float(np.log(row.step_ns / forecast.step_ns)),
                    own_log_width=float(np.log(forecast.high_ns / forecast.step_ns)),
                    computing_share=forecast.computing_share,
                )
            )
    return found


def read_recommenders(data: Path, weights: Weights) -> list[JobError]:
    """Return the errors of all recommenders that can be predicted."""
    return [
        JobError(
            publisher=row.submitter.lower(),
            log_ratio=float(np.log(row.step_ns / found[USUAL].step_ns[0])),
            own_log_width=float(found[USUAL].log_width[0]),
            computing_share=1.0,
        )
        for row, found in forecast_recommenders(data, weights)[0]
    ]


def by_publisher(jobs: Iterable[JobError]) -> Groups:
    """Return jobs by who published them, sorted."""
    return dict(sorted(group_by(jobs, lambda job: job.publisher).items()))


def widths_of(groups: Groups) -> dict[str, Any]:
    """Return the shared half-widths: from every publisher's jobs, and without each."""
    without = {name: half_width_of(leave_out(groups, name)) for name in groups if len(groups) > 1}
    return {"every": half_width_of(groups), "without": without}


def half_width_of(groups: Groups) -> float:
    """Return the half-width for jobs of a publisher that is not among these."""
    return round(least_held_width(groups, np.arange(0.0, WIDEST, STEP)) * _few_publishers(len(groups)), 3)


def _few_publishers(count: int) -> float:
    """Return by what a bound of 90 % that few groups show is widened: Student's quantile over the normal one.

    Cornish and Fisher's expansion: t = z + (z³ + z) / 4ν + (5 z⁵ + 16 z³ + 3 z) / 96ν², ν = count - 1.
    """
    z, free = NormalDist().inv_cdf(0.95), max(count - 1, 1)
    first, second = (z**3 + z) / 4.0, (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    return 1.0 + (first / free + second / free**2) / z


def print_groups(groups: Groups, values: Mapping[str, Any]) -> None:
    """Print each publisher's jobs and what the others' half-width holds of them."""
    click.echo(f"{'':16} {'jobs':>5} {'bias':>7} {'spread':>7} {'shared':>7} {'held':>7} {'width':>7}")
    total = 0.0
    for name, jobs in groups.items():
        ratios, shared = np.array([job.log_ratio for job in jobs]), values["without"].get(name, values["every"])
        held = float(np.mean([job.is_held(shared) for job in jobs]))
        total += held * len(jobs)
        width = np.median([job.log_width(shared) for job in jobs])
        click.echo(
            f"{name:16} {len(jobs):5} {ratios.mean():7.3f} {ratios.std():7.3f} {shared:7.3f} {held:7.1%} {width:7.3f}"
        )
    count = sum(map(len, groups.values()))
    click.echo(f"{'all':16} {count:5} {values['every']:23.3f} {total / count:7.1%}")


if __name__ == "__main__":
    main()
