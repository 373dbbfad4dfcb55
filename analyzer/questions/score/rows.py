"""Predictions beside measurements: one row per measured row of a table, all in columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats, Mask
from ....specs.fleet import build_fleet
from ...measurements.samples import Samples, chip_of
from ...models import registry
from ...models.frame.intervals import separations
from ...models.frame.problems import as_columns, problem_columns, take_problems
from ...models.library import Library, carried_factor
from ...prediction.bounds import bound_ops
from ...work.table import WorkTable
from .weights import Weights

BLOCK_ROWS: Final = 4096
"""Rows predicted at a time, so that candidates stay in the processor's cache."""

Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictedSamples:
    """Hold what was predicted for n samples of one model."""

    samples: Samples[Any]
    predicted_ns: Floats
    low_ns: Floats
    high_ns: Floats
    is_seen: Mask
    """Whether the weights that predicted the row were trained on its chip."""
    roofline_ns: Floats
    """NaN where the least work is not known."""


def predict_samples(samples: Samples[Any], weights: Weights) -> PredictedSamples:
    """Predict every sample with the weights that its GPU asks for."""
    count = len(samples.measured_ns)
    predicted, low, high, roofline = (np.full(count, np.nan) for _ in range(4))
    is_seen, work = np.zeros(count, dtype=bool), least_work(samples)
    for column, gpu in enumerate(samples.gpus):
        rows = np.flatnonzero(samples.gpu == column)
        library, fleet = weights.library_for(gpu), build_fleet([gpu])
        is_seen[rows] = chip_of(gpu) in library.trained_chips(samples.model)
        for block in _blocks(rows):
            found = library.predict(samples.model, as_columns(take_problems(samples.problems, block)), fleet)
            predicted[block], low[block], high[block] = (
                values[:, 0] for values in (found.time_ns, found.low_ns, found.high_ns)
            )
        if work is not None:
            roofline[rows] = bound_ops(take_work(work, rows), fleet).roofline_ns[:, 0]
    return PredictedSamples(
        samples=samples, predicted_ns=predicted, low_ns=low, high_ns=high, is_seen=is_seen, roofline_ns=roofline
    )


def carried_from(
    samples: Samples[Any], rows: npt.NDArray[np.int64], library: Library, source: int, target: int
) -> Floats:
    """Return by what these rows, measured on GPU `source`, change the prediction of their problems on `target`."""
    fleet, factors = build_fleet([samples.gpus[source]]), []
    apart = separations(build_fleet([samples.gpus[target]]), fleet)
    for block in _blocks(rows):
        found = library.predict(samples.model, as_columns(take_problems(samples.problems, block)), fleet)
        here, width = found.time_ns[:, 0], found.half_width[:, 0]
        factors.append(carried_factor(samples.measured_ns[block], here, found.anchor[:, 0], width, apart))
    return np.concatenate(factors)


def problem_keys(samples: Samples[Any]) -> Keys:
    """Return a number per row that is the same for equal problems of equal family and dtype, whatever the host."""
    mixed = np.zeros(len(samples.measured_ns), dtype=np.uint64)
    named = problem_columns(samples.problems).items()
    columns = [column for name, column in named if not name.startswith("host_")]
    for column in (*columns, codes_of(samples.family)[1], codes_of(samples.dtype)[1]):
        mixed ^= np.ascontiguousarray(column, dtype=np.float64).view(np.uint64)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def codes_of(names: npt.NDArray[Any]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the distinct names in order of appearance and each row's index."""
    values = names.tolist()
    position: dict[str, int] = {name: index for index, name in enumerate(dict.fromkeys(values))}
    codes = np.fromiter((position[name] for name in values), dtype=np.int64, count=len(values))
    return tuple(str(name) for name in position), codes


def _blocks(rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    for begin in range(0, len(rows), BLOCK_ROWS):
        yield rows[begin : begin + BLOCK_ROWS]


def least_work(samples: Samples[Any]) -> WorkTable | None:
    """Return the least work of each row; None where nobody knows it."""
    if samples.work is not None or samples.model not in registry.OP_MODELS:
        return samples.work
    return registry.least_work(registry.OP_MODELS[samples.model], samples.problems)


def take_work(work: WorkTable, rows: npt.NDArray[Any]) -> WorkTable:
    """Return some rows of a table of work."""
    return WorkTable(flops=work.flops[rows], moved_bytes=work.moved_bytes[rows], rate=work.rate[rows])
