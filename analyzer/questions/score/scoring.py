"""From a directory of measurements to the score: the one function behind `score`."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Final

import numpy as np

from ....arrays import Floats
from ....errors import InputError
from ....formats.files.open import load_trace
from ....formats.measured.ops_file import read_ops
from ....progress import tell
from ....specs.catalog import load_catalog
from ....specs.match import find_gpu
from ...iteration.analyze import analyze_trace
from ...iteration.report import GpuPrediction, Source
from ...measurements.readers import TRACES, check_directory, load_tables
from ...measurements.samples import take_samples
from ...models.frame.problems import Problems, problem_columns
from . import rows as baselines
from .decisions import plan_decisions, score_decisions
from .distributed.recommenders import score_recommenders
from .distributed.scoring import score_iterations
from .end_to_end import score_networks
from .ledger import forecast_entries, join_entries, network_entries, pooled_rows, score_rows, throughput_entries
from .own_networks import predict_on, score_own
from .report import Score, ScoreRow, Split, TraceRow, WorstRow
from .rows import PredictedSamples, codes_of, predict_samples
from .serving import score_serving
from .throughput import score_throughput
from .weights import Weights, Withheld, trained_share

WORST_COUNT: Final = 20
CPU_NOTE: Final = "the file holds times of a CPU under a GPU's name: its errors say nothing of that GPU"
WHOLES_NOTE: Final = "whole networks and traces left out: shapes are of single ops"


def score_directory(data: Path, weights: Weights) -> Score:
    """Predict every measurement in a directory laid out as the measurement tables are, and say how wrong that was.

    It may be a file of `wavecast measure` instead.
    Raises InputError where the directory holds nothing that can be scored, or a table lacks what its layout asks for.

    >>> from wavecast.analyzer.questions.score.weights import choose_weights
    >>> score_directory(tables, choose_weights()).rows[0].gpu
    'L4'
    """
    check_directory(data)
    made, notes = _forecasts(data, weights)
    if data.is_file() and read_ops(data).device == "cpu":
        notes.insert(0, CPU_NOTE)
    if not made and (data.is_file() or weights.left_out is Withheld.SHAPES):
        raise InputError(f"{data}: nothing to score: {notes[-1] if notes else 'none of its rows can be'}")
    if weights.left_out is Withheld.SHAPES:
        return Score(
            weights=weights.description,
            left_out=str(weights.left_out),
            rows=_score_rows(made, weights),
            worst=worst_rows(made, WORST_COUNT),
            notes=(*notes, WHOLES_NOTE),
        )
    tell("networks")
    networks = score_networks(data, weights)
    tell("published throughputs")
    throughput, throughput_notes = score_throughput(data, weights)
    tell("pairs of traces")
    traces, trace_notes = score_traces(data / TRACES, weights)
    tell("iterations on many GPUs")
    iterations, iteration_notes = score_iterations(data, weights)
    tell("recommenders")
    recommenders, recommender_notes = score_recommenders(data, weights)
    tell("served models")
    serving, serving_decisions, serving_notes = score_serving(data, weights)
    tell("own networks")
    own_families, own_networks = score_own(data, weights)
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
        decisions=(*score_decisions(networks), *plan_decisions(iterations), *serving_decisions),
        traces=traces,
        serving=serving,
        own_families=own_families,
        own_networks=own_networks,
        notes=(*notes, *throughput_notes, *trace_notes, *iteration_notes, *recommender_notes, *serving_notes),
    )


def _forecasts(data: Path, weights: Weights) -> tuple[list[PredictedSamples], list[str]]:
    """Return the forecasts of every table, and which of their rows no weights cover."""
    made: list[PredictedSamples] = []
    notes: list[str] = []
    done = 0
    tables = list(load_tables(data))
    if weights.left_out is Withheld.SHAPES:
        tables = [take_samples(item, np.flatnonzero(item.share >= trained_share(item.model))) for item in tables]
    total = sum(len(samples.measured_ns) for samples in tables)
    for samples in tables:
        notes += samples.notes
        if not len(samples.measured_ns):
            continue
        if all(samples.model in weights.library_for(gpu).fitted for gpu in samples.gpus):
            made.append(predict_samples(samples, weights))
        else:
            notes.append(
                f"{len(samples.measured_ns):,} rows of {samples.table} left out: no weights of {samples.model}"
            )
        done += len(samples.measured_ns)
        tell("", done, total)
    return made, notes


def _score_rows(made: list[PredictedSamples], weights: Weights) -> tuple[ScoreRow, ...]:
    if not made:
        return ()
    entries = join_entries([forecast_entries(item, _baselines(item, weights)) for item in made])
    return (*pooled_rows(entries), *score_rows(entries))


def _baselines(made: PredictedSamples, weights: Weights) -> Mapping[str, Floats]:
    source = baselines.source_rows(made.samples)
    return {
        baselines.ROOFLINE: made.roofline_ns,
        baselines.FITTED_ROOFLINE: baselines.fitted_roofline_ns(made),
        baselines.BANDWIDTH_RATIO: baselines.bandwidth_ratio_ns(made.samples, source),
        baselines.ANCHORED: baselines.anchored_ns(made, source, weights),
        **made.samples.peers_ns,
    }


LEAST_NS: Final = 20e3
"""Shorter rows are left out: there, launches decide."""

DERIVED: Final = frozenset(
    {"kind", "flops", "elements", "read_bytes", "written_bytes", "moved_bytes", "element_bytes", "library", "rate"}
    | {"fused_blocks", "least_fused_blocks", "tiles", "is_event_timed", "host_ratio", "host_floor_ns"}
)
"""Columns of problems that follow from others, or from family and dtype."""


def worst_rows(made: Sequence[PredictedSamples], limit: int) -> tuple[WorstRow, ...]:
    """Return the worst row over 20 us of each family, dtype and GPU, the `limit` worst of these."""
    found = [row for item in made for row in _worst_of_groups(item)]
    found.sort(key=lambda pair: -pair[0])
    return tuple(row for _, row in found[:limit])


def _worst_of_groups(made: PredictedSamples) -> list[tuple[float, WorstRow]]:
    samples = made.samples
    (families, family), (dtypes, dtype) = codes_of(samples.family), codes_of(samples.dtype)
    error = np.abs(np.log(made.predicted_ns / samples.measured_ns))
    rows = np.flatnonzero(samples.measured_ns >= LEAST_NS)
    group = (family[rows] * len(dtypes) + dtype[rows]) * len(samples.gpus) + samples.gpu[rows]
    order = rows[np.lexsort((-error[rows], group))]
    first = np.unique(np.sort(group), return_index=True)[1]
    return [
        (
            float(error[row]),
            WorstRow(
                table=samples.table,
                family=families[family[row]],
                dtype=dtypes[dtype[row]],
                gpu=samples.gpus[samples.gpu[row]].name,
                split=Split.SEEN if made.is_seen[row] else Split.UNSEEN,
                problem=_describe_problem(samples.problems, row),
                measured_ns=float(samples.measured_ns[row]),
                predicted_ns=float(made.predicted_ns[row]),
                low_ns=float(made.low_ns[row]),
                high_ns=float(made.high_ns[row]),
            ),
        )
        for row in order[first].tolist()
    ]


def _describe_problem(problems: Problems, row: int) -> str:
    """Return the sizes of one problem, e.g. `m=64 n=4096 k=4096`; what is 0, unknown or derived is left out."""
    columns = problem_columns(problems).items()
    values = [(name, float(column[row])) for name, column in columns if name not in DERIVED]
    return " ".join(f"{name}={value:.10g}" for name, value in values if value and np.isfinite(value))


ENDINGS: Final = (".json", ".json.gz")


def score_traces(folder: Path, weights: Weights) -> tuple[tuple[TraceRow, ...], tuple[str, ...]]:
    """Predict each trace of a workload from each other one; return that, and what could not be used and why.

    Files are named `<gpu>_<workload>.json.gz`; those of equal workload are the same step on different GPUs.
    """
    workloads: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*_*")) if folder.is_dir() else ():
        if path.name.endswith(ENDINGS):
            workloads.setdefault(_stem(path).split("_", 1)[1], []).append(path)
    rows: list[TraceRow] = []
    notes = []
    for name, paths in workloads.items():
        try:
            rows += _score_workload(name, paths, weights) if len(paths) > 1 else ()
        except InputError as error:
            notes.append(f"traces of {name} left out: {error}")
    return tuple(rows), tuple(notes)


def _score_workload(workload: str, paths: list[Path], weights: Weights) -> list[TraceRow]:
    traces = {path: load_trace(path) for path in paths}
    measured = {path: analyze_trace(trace, load_catalog(), op_limit=0).source for path, trace in traces.items()}
    rows = []
    for source, target in permutations(paths, 2):
        there, here = measured[target], measured[source]
        if there.gpu is not None and here.gpu not in (None, there.gpu):
            gpu = find_gpu(load_catalog(), there.gpu)
            rows.append(_row(workload, source, target, predict_on(traces[source], gpu, weights), there))
    return rows


def _row(workload: str, source: Path, target: Path, predicted: GpuPrediction, measured: Source) -> TraceRow:
    return TraceRow(
        workload=workload,
        source=_stem(source),
        target=_stem(target),
        predicted_busy_ns=predicted.gpu_busy_ns,
        measured_busy_ns=float(measured.gpu_busy_ns or 0.0),
        predicted_iteration_ns=predicted.iteration_ns,
        measured_iteration_ns=float(measured.iteration_ns or 0.0),
    )


def _stem(path: Path) -> str:
    return path.name.split(".json", 1)[0]
