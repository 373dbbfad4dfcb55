"""All scored rows of all tables in one set of columns, and the figures of its groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..fleet import Floats
from .forecast import Forecast, codes_of
from .metrics import error_figures, mean_error
from .records import EVERYTHING, MEAN, ScoreRow, Size, Split

Mask = npt.NDArray[np.bool_]
LABELS: Final = ("table", "family", "dtype", "gpu")
LEVELS: Final = (("table", "family", "dtype", "gpu"), ("table", "family", "dtype"), ("gpu",), ())
"""The labels that the groups of each level share; the others are pooled."""
LOWER_EDGE_NS: Final[Mapping[Size, float]] = {Size.ALL: 0.0, Size.OVER_20_US: 20e3, Size.OVER_100_US: 100e3}
UPPER_EDGE_NS: Final[Mapping[Size, float]] = {Size.UNDER_20_US: 20e3}
AVERAGED: Final = ("mape", "median_ape", "p90_ape", "bias", "coverage_90", "width_90")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Label:
    """Hold one label of n rows: distinct names, and each row's index."""

    names: tuple[str, ...]
    codes: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ledger:
    """Hold n scored rows."""

    labels: Mapping[str, Label]
    is_seen: Mask
    measured_ns: Floats
    predicted_ns: Floats
    low_ns: Floats
    high_ns: Floats
    baselines_ns: Mapping[str, Floats]
    """NaN where a baseline has nothing to say."""


def build_ledger(made: Sequence[Forecast], baselines: Sequence[Mapping[str, Floats]]) -> Ledger:
    """Join forecasts and their baselines."""
    names = {
        "table": [np.full(len(item.predicted_ns), item.samples.table, dtype=object) for item in made],
        "family": [item.samples.family for item in made],
        "dtype": [item.samples.dtype for item in made],
        "gpu": [np.array([gpu.name for gpu in item.samples.gpus], dtype=object)[item.samples.gpu] for item in made],
    }
    labels = {}
    for label, parts in names.items():
        distinct, codes = codes_of(np.concatenate(parts))
        labels[label] = Label(names=distinct, codes=codes)
    kinds = dict.fromkeys(kind for item in baselines for kind in item)
    return Ledger(
        labels=labels,
        is_seen=np.concatenate([item.is_seen for item in made]),
        measured_ns=np.concatenate([item.samples.measured_ns for item in made]),
        predicted_ns=np.concatenate([item.predicted_ns for item in made]),
        low_ns=np.concatenate([item.low_ns for item in made]),
        high_ns=np.concatenate([item.high_ns for item in made]),
        baselines_ns={
            kind: np.concatenate(
                [
                    found.get(kind, np.full(len(item.predicted_ns), np.nan))
                    for item, found in zip(made, baselines, strict=True)
                ]
            )
            for kind in kinds
        },
    )


def score_rows(ledger: Ledger) -> tuple[ScoreRow, ...]:
    """Return the figures of every group: by table, family, dtype and GPU, pooled over GPUs, and over everything."""
    rows = [row for level in LEVELS for row in _level_rows(ledger, level)]
    rows += _mean_rows(rows)
    places = {name: place for place, name in enumerate((*sorted({row.gpu for row in rows} - {EVERYTHING, MEAN}), MEAN))}
    last = len(places)
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                row.table == EVERYTHING,
                row.table,
                row.family,
                row.dtype,
                places.get(row.gpu, last),
                row.split,
                list(Size).index(row.size),
            ),
        )
    )


def _level_rows(ledger: Ledger, level: Sequence[str]) -> Iterator[ScoreRow]:
    code = ledger.is_seen.astype(np.int64)
    for label in level:
        code = code * len(ledger.labels[label].names) + ledger.labels[label].codes
    order = np.argsort(code, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(code[order])) + 1):
        names = {label: ledger.labels[label].names[ledger.labels[label].codes[group[0]]] for label in level}
        labels = {label: names.get(label, EVERYTHING) for label in LABELS}
        split = Split.SEEN if ledger.is_seen[group[0]] else Split.UNSEEN
        measured = ledger.measured_ns[group]
        for size in Size:
            fits = (measured >= LOWER_EDGE_NS.get(size, 0.0)) & (measured < UPPER_EDGE_NS.get(size, np.inf))
            if fits.any():
                yield _row(ledger, group[fits], labels, split, size)


def _row(ledger: Ledger, rows: npt.NDArray[np.int64], labels: Mapping[str, Any], split: Split, size: Size) -> ScoreRow:
    measured = ledger.measured_ns[rows]
    figures = error_figures(measured, ledger.predicted_ns[rows], ledger.low_ns[rows], ledger.high_ns[rows])
    errors, counts = {}, {}
    for kind, values in ledger.baselines_ns.items():
        error = mean_error(measured, values[rows])
        if error is not None:
            errors[kind], counts[kind] = error, int(np.isfinite(values[rows]).sum())
    return ScoreRow(**labels, split=split, size=size, **asdict(figures), baselines=errors, baseline_rows=counts)


def _mean_rows(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Return rows whose figures are the unweighted mean over the GPUs, where there are several."""
    groups: dict[tuple[Any, ...], list[ScoreRow]] = {}
    for row in rows:
        if EVERYTHING not in (row.table, row.gpu):
            groups.setdefault((row.table, row.family, row.dtype, row.split, row.size), []).append(row)
    return [_mean_row(found) for found in groups.values() if len(found) > 1]


def _mean_row(found: Sequence[ScoreRow]) -> ScoreRow:
    first = found[0]
    shared = [kind for kind in first.baselines if all(kind in row.baselines for row in found)]
    return ScoreRow(
        table=first.table,
        family=first.family,
        dtype=first.dtype,
        gpu=MEAN,
        split=first.split,
        size=first.size,
        rows=sum(row.rows for row in found),
        **{name: _mean(getattr(row, name) for row in found) for name in AVERAGED},
        baselines={kind: _mean(row.baselines[kind] for row in found) for kind in shared},
        baseline_rows={kind: sum(row.baseline_rows[kind] for row in found) for kind in shared},
    )


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))
