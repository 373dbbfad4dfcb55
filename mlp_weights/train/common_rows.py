"""Measured ops that several GPUs of one table share, with what weights that never saw a GPU's chip say of them.

The material of rank_errors.py and of rank_chances.py at f56f3bcf. A block is the rows of one table, model, family
and precision, a column per GPU: ops that all of some set of GPUs measured stand in one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...analyzer.measurements.readers import load_tables
from ...analyzer.measurements.samples import Samples
from ...analyzer.models.frame.intervals import separations
from ...analyzer.models.frame.problems import as_columns, take_problems
from ...analyzer.models.library import Library, Predicted, carried_factor
from ...analyzer.questions.score.rows import codes_of, problem_keys
from ...analyzer.questions.score.weights import Withheld, choose_weights
from ...arrays import Floats, Rows
from ...specs.fleet import build_fleet, take_gpus
from ...specs.gpu import Gpu

MOST_ROWS: Final = 1500
"""Of a block: more tell no more of 50 that are drawn."""
FEWEST_ROWS: Final = 50
LEAST_NS: Final = 5e3
"""Shorter ops were measured to whole microseconds, and weigh nothing in a sum."""
SEED: Final = 20261123


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommonRows:
    """Hold k ops that were measured on some of m GPUs; NaN where they were not."""

    name: str
    """Table, family and precision."""
    gpus: tuple[Gpu, ...]
    measured_ns: Floats
    """[k, m]."""
    predicted_ns: Floats
    """From shapes, each GPU by weights that never saw its chip, [k, m]."""
    half_width: Floats
    """Of the 90 % interval, natural log, [k, m]."""
    moved_ns: Floats
    """From the source's measurement, anchored as `analyze` does it, [source, k, m]; NaN where the source has none."""
    moved_half_width: Floats
    """[source, k, m]."""

    def shared_rows(self, *columns: int) -> Rows:
        """Return the rows that were measured on all of some GPUs."""
        return np.flatnonzero(~np.isnan(self.measured_ns[:, list(columns)]).any(axis=1))


def load_blocks(data: Path) -> Iterator[CommonRows]:
    """Yield the blocks of all tables whose ops several GPUs measured, collectives apart: those tell of links."""
    weights = choose_weights(left_out=Withheld.CHIPS)
    for samples in load_tables(data):
        if samples.model == "collective":
            continue
        libraries = [weights.library_for(gpu) for gpu in samples.gpus]
        if not all(samples.model in library.fitted for library in libraries):
            continue
        groups = np.unique(np.stack([codes_of(samples.family)[1], codes_of(samples.dtype)[1]]), axis=1)
        for family, dtype in groups.T.tolist():
            rows = np.flatnonzero((codes_of(samples.family)[1] == family) & (codes_of(samples.dtype)[1] == dtype))
            block = _block(samples, rows, libraries)
            if block is not None:
                yield block


def _block(samples: Samples[Any], rows: Rows, libraries: list[Library]) -> CommonRows | None:
    rows = rows[samples.measured_ns[rows] >= LEAST_NS]
    grid = _grid(problem_keys(samples)[rows], samples.gpu[rows], rows, len(samples.gpus))
    grid = grid[(grid >= 0).sum(axis=1) > 1]
    if len(grid) > MOST_ROWS:
        grid = grid[np.random.default_rng(SEED).choice(len(grid), MOST_ROWS, replace=False)]
    used = np.flatnonzero((grid >= 0).sum(axis=0) >= FEWEST_ROWS)
    grid = grid[:, used]
    grid = grid[(grid >= 0).sum(axis=1) > 1]
    if len(grid) < FEWEST_ROWS or len(used) < 2:
        return None
    gpus = tuple(samples.gpus[column] for column in used.tolist())
    measured = np.where(grid >= 0, samples.measured_ns[grid], np.nan)
    any_row = grid.max(axis=1)
    found = [_predict(samples, any_row, gpus, libraries[column]) for column in used.tolist()]
    own = [(item.time_ns[:, at], item.half_width[:, at]) for at, item in enumerate(found)]
    moved = [_moved(item, measured, at, gpus) for at, item in enumerate(found)]
    names = (samples.table, str(samples.family[any_row[0]]), str(samples.dtype[any_row[0]]))
    return CommonRows(
        name=" ".join(names),
        gpus=gpus,
        measured_ns=measured,
        predicted_ns=np.stack([time for time, _ in own], axis=1),
        half_width=np.stack([width for _, width in own], axis=1),
        moved_ns=np.stack([time for time, _ in moved], axis=2),
        moved_half_width=np.stack([width for _, width in moved], axis=2),
    )


def _grid(keys: Any, gpu: Rows, rows: Rows, count: int) -> Rows:
    """Return the first row of each op on each GPU, [ops, GPUs]; -1 where it was not measured there."""
    distinct, op = np.unique(keys, return_inverse=True)
    grid = np.full((len(distinct), count), -1, dtype=np.int64)
    grid[op[::-1], gpu[::-1]] = rows[::-1]
    return grid


def _predict(samples: Samples[Any], rows: Rows, gpus: tuple[Gpu, ...], library: Library) -> Predicted:
    """Predict ops on all GPUs with one set of weights, [k, m]."""
    problems = as_columns(take_problems(samples.problems, rows))
    found = library.predict(samples.model, problems, build_fleet(gpus))
    shape = (len(rows), len(gpus))
    return Predicted(**{
        name: np.broadcast_to(getattr(found, name), shape)
        for name in ("time_ns", "half_width", "anchor", "anchored_half_width", "foreign_half_width")
    })  # fmt: skip


def _moved(found: Predicted, measured_ns: Floats, target: int, gpus: tuple[Gpu, ...]) -> tuple[Floats, Floats]:
    """Return times and half-widths on one GPU from each source's measurement, [source, k]."""
    fleet = build_fleet(gpus)
    apart = separations(take_gpus(fleet, np.full(len(gpus), target)), fleet)
    factor = carried_factor(measured_ns, found.time_ns, found.anchor, found.half_width, apart[None, :])
    is_foreign = np.array([gpu.vendor != gpus[target].vendor for gpu in gpus])
    own, foreign = found.anchored_half_width[:, target], found.foreign_half_width[:, target]
    width = np.where(is_foreign[:, None] & ~np.isnan(foreign), foreign, own)
    return (found.time_ns[:, target, None] * factor).T, np.broadcast_to(width, (len(gpus), len(own)))
