"""From a directory of measurements to the score: the one function behind `score`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import Floats
from ...measurements.readers import TRACES, check_directory, load_tables
from ...measurements.samples import Samples, take_samples
from .baselines import (
    ANCHORED,
    BANDWIDTH_RATIO,
    FITTED_ROOFLINE,
    ROOFLINE,
    anchored_ns,
    bandwidth_ratio_ns,
    fitted_roofline_ns,
    source_rows,
)
from .decisions import score_decisions
from .distributed.pairs import plan_decisions
from .distributed.recommenders import score_recommenders
from .distributed.scoring import score_iterations
from .end_to_end import score_networks
from .ledger import (
    forecast_entries,
    join_entries,
    network_entries,
    pooled_rows,
    score_rows,
    throughput_entries,
)
from .report import Score, ScoreRow
from .rows import PredictedSamples, predict_samples
from .throughput import score_throughput
from .traces import score_traces
from .weights import Weights, Withheld, trained_share
from .worst import worst_rows

WORST_COUNT: Final = 20
WHOLES_NOTE: Final = "whole networks and traces left out: shapes are of single ops"
Progress = Callable[[int, int], None]
"""Takes the rows done and their total."""


def score_directory(data: Path, weights: Weights, progress: Progress | None = None) -> Score:
    """Predict every measurement in a directory laid out as the measurement tables are, and say how wrong that was.

    Raises InputError where the directory holds nothing that can be scored, or a table lacks what its layout asks for.

    >>> from wavecast.analyzer.questions.score.weights import choose_weights
    >>> score_directory(tables, choose_weights()).rows[0].gpu
    'L4'
    """
    check_directory(data)
    made, notes = _forecasts(data, weights, progress)
    if weights.left_out is Withheld.SHAPES:
        return Score(
            weights=weights.description,
            left_out=str(weights.left_out),
            rows=_score_rows(made, weights),
            worst=worst_rows(made, WORST_COUNT),
            notes=(*notes, WHOLES_NOTE),
        )
    networks = score_networks(data, weights)
    throughput, throughput_notes = score_throughput(data, weights)
    traces, trace_notes = score_traces(data / TRACES, weights)
    iterations, iteration_notes = score_iterations(data, weights)
    recommenders, recommender_notes = score_recommenders(data, weights)
    return Score(
        weights=weights.description,
        left_out="" if weights.left_out is None else str(weights.left_out),
        rows=(
            *_score_rows(made, weights),
            *(score_rows(network_entries(networks)) if networks else ()),
            *(score_rows(throughput_entries(throughput)) if throughput else ()),
        ),
        worst=worst_rows(made, WORST_COUNT),
        networks=networks,
        throughput=throughput,
        iterations=iterations,
        recommenders=recommenders,
        decisions=(*score_decisions(networks), *plan_decisions(iterations)),
        traces=traces,
        notes=(*notes, *throughput_notes, *trace_notes, *iteration_notes, *recommender_notes),
    )


def _forecasts(data: Path, weights: Weights, progress: Progress | None) -> tuple[list[PredictedSamples], list[str]]:
    """Return the forecasts of every table, and which of their rows no weights cover."""
    made, notes, done = [], [], 0
    tables = list(load_tables(data))
    if weights.left_out is Withheld.SHAPES:
        tables = [kept for samples in tables if len((kept := untrained_shapes(samples)).measured_ns)]
    total = sum(len(samples.measured_ns) for samples in tables)
    for samples in tables:
        if _is_covered(samples, weights):
            made.append(predict_samples(samples, weights))
        else:
            notes.append(
                f"{len(samples.measured_ns):,} rows of {samples.table} left out: no weights of {samples.model}"
            )
        done += len(samples.measured_ns)
        if progress is not None:
            progress(done, total)
    return made, notes


def untrained_shapes(samples: Samples[Any]) -> Samples[Any]:
    """Return the rows of shapes that the shipped weights never trained on; training drew shapes by `Samples.share`.

    >>> from wavecast.analyzer.measurements.readers import load_tables
    >>> [len(untrained_shapes(samples).measured_ns) for samples in load_tables(tables)]
    [29]
    """
    return take_samples(samples, np.flatnonzero(samples.share >= trained_share(samples.model)))


def _score_rows(made: list[PredictedSamples], weights: Weights) -> tuple[ScoreRow, ...]:
    if not made:
        return ()
    entries = join_entries([forecast_entries(item, _baselines(item, weights)) for item in made])
    return (*pooled_rows(entries), *score_rows(entries))


def _is_covered(samples: Samples[Any], weights: Weights) -> bool:
    return all(samples.model in weights.library_for(gpu).fitted for gpu in samples.gpus)


def _baselines(made: PredictedSamples, weights: Weights) -> Mapping[str, Floats]:
    source = source_rows(made.samples)
    return {
        ROOFLINE: made.roofline_ns,
        FITTED_ROOFLINE: fitted_roofline_ns(made),
        BANDWIDTH_RATIO: bandwidth_ratio_ns(made.samples, source),
        ANCHORED: anchored_ns(made, source, weights),
        **made.samples.peers_ns,
    }
