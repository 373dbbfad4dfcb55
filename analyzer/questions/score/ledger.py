"""Scored rows of all tables in one set of columns, and the figures of its groups."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats, Mask, group_by
from ....records import asdict, dataclass, replace
from ....specs.catalog import load_catalog
from ....specs.fleet import build_fleet
from ....specs.match import find_gpu
from ...measurements.metrics import error_figures, mean_error
from ...models.frame.intervals import GPU_CLASSES, gpu_class
from .report import CLASS_LABELS, EVERYTHING, MEAN, NetworkRow, ScoreRow, Size, Split, ThroughputRow
from .rows import PredictedSamples, codes_of

Labels = npt.NDArray[Any]
LABELS: Final = ("table", "family", "dtype", "gpu")
LEVELS: Final = (("table", "family", "dtype", "gpu"), ("table", "family", "dtype"))
"""The labels that the groups of each level share; the others are pooled."""
POOLED_LEVELS: Final = (("gpu",), ())
AUTOCAST: Final = "fp16 autocast"
NETWORK_FAMILIES: Final = {"inf": "network inference", "train": "network training"}
LOWER_EDGE_NS: Final[Mapping[Size, float]] = {Size.ALL: 0.0, Size.OVER_20_US: 20e3, Size.OVER_100_US: 100e3}
UPPER_EDGE_NS: Final[Mapping[Size, float]] = {Size.UNDER_20_US: 20e3}
AVERAGED: Final = ("mape", "median_ape", "p90_ape", "bias", "coverage_90", "width_90", "median_width_90", "median_bias")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entries:
    """Hold n scored rows of one table."""

    labels: Mapping[str, Labels]
    """Table, family, dtype and GPU of each row: object arrays [n]."""
    is_seen: Mask
    measured_ns: Floats
    predicted_ns: Floats
    low_ns: Floats
    high_ns: Floats
    baselines_ns: Mapping[str, Floats]
    """NaN where a baseline has nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Label:
    """Hold one label of n rows: distinct names, and each row's index."""

    names: tuple[str, ...]
    codes: npt.NDArray[np.int64]


def forecast_entries(made: PredictedSamples, baselines_ns: Mapping[str, Floats]) -> Entries:
    """Return the entries of one model's predict_samples."""
    samples = made.samples
    names = np.array([gpu.name for gpu in samples.gpus], dtype=object)
    table = np.full(len(made.predicted_ns), samples.table, dtype=object)
    return Entries(
        labels={"table": table, "family": samples.family, "dtype": samples.dtype, "gpu": names[samples.gpu]},
        is_seen=made.is_seen,
        measured_ns=samples.measured_ns,
        predicted_ns=made.predicted_ns,
        low_ns=made.low_ns,
        high_ns=made.high_ns,
        baselines_ns=baselines_ns,
    )


def network_entries(rows: Sequence[NetworkRow]) -> Entries:
    """Return the entries of the networks whose measurements are to be trusted."""
    trusted = [row for row in rows if not row.is_suspect]
    return _whole_entries(trusted, [(NETWORK_FAMILIES.get(row.mode, row.mode), row.dtype) for row in trusted])


def throughput_entries(rows: Sequence[ThroughputRow]) -> Entries:
    """Return the entries of measured throughputs, in one family per layout, software and way to run."""
    return _whole_entries(rows, [(throughput_family(row), AUTOCAST) for row in rows])


def throughput_family(row: ThroughputRow) -> str:
    """Name the group of measurements that a row belongs to."""
    return f"timm inference, {row.layout.upper()}, {row.software}{', compiled' if row.is_compiled else ''}"


def _whole_entries(rows: Sequence[NetworkRow | ThroughputRow], groups: Sequence[tuple[str, str]]) -> Entries:
    """Return the entries of whole networks; `groups` holds the family and dtype of each."""
    kinds = dict.fromkeys(kind for row in rows for kind in row.baselines_ns)
    return Entries(
        labels={
            "table": _objects(row.table for row in rows),
            "family": _objects(family for family, _ in groups),
            "dtype": _objects(dtype for _, dtype in groups),
            "gpu": _objects(row.gpu for row in rows),
        },
        is_seen=np.array([row.split is Split.SEEN for row in rows], dtype=bool),
        measured_ns=_floats(row.measured_ns for row in rows),
        predicted_ns=_floats(row.predicted_ns for row in rows),
        low_ns=_floats(row.low_ns for row in rows),
        high_ns=_floats(row.high_ns for row in rows),
        baselines_ns={kind: _floats(row.baselines_ns.get(kind) for row in rows) for kind in kinds},
    )


def join_entries(parts: Sequence[Entries]) -> Entries:
    """Join the entries of several tables."""
    kinds = dict.fromkeys(kind for part in parts for kind in part.baselines_ns)
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("is_seen", "measured_ns", "predicted_ns", "low_ns", "high_ns")
    }
    return Entries(
        labels={label: np.concatenate([part.labels[label] for part in parts]) for label in LABELS},
        baselines_ns={kind: np.concatenate([_baseline(part, kind) for part in parts]) for kind in kinds},
        **columns,
    )


def _baseline(part: Entries, kind: str) -> Floats:
    return part.baselines_ns.get(kind, np.full(len(part.measured_ns), np.nan))


def _objects(values: Iterable[str]) -> Labels:
    return np.array(list(values), dtype=object)


def _floats(values: Iterable[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def score_rows(entries: Entries) -> tuple[ScoreRow, ...]:
    """Return the figures of every group: by table, family, dtype and GPU, and pooled over GPUs; ordered by those."""
    labels = _labels(entries)
    rows = [row for level in LEVELS for row in _level_rows(entries, labels, level)]
    # Further rows: the unweighted mean over the GPUs, where there are several.
    of_gpus = (row for row in rows if EVERYTHING not in (row.table, row.gpu))
    groups = group_by(of_gpus, lambda row: (row.table, row.family, row.dtype, row.split, row.size))
    means = [_mean_row(found) for found in groups.values() if len(found) > 1]
    return tuple(sorted([*rows, *means], key=_order))


def pooled_rows(entries: Entries) -> tuple[ScoreRow, ...]:
    """Return the figures of all tables together: by GPU, by class of GPU and over all GPUs."""
    labels = _labels(entries)
    rows = [row for level in POOLED_LEVELS for row in _level_rows(entries, labels, level)]
    gpus = labels["gpu"]
    fleet = build_fleet([find_gpu(load_catalog(), name) for name in gpus.names])
    names = tuple(CLASS_LABELS[item] for item in GPU_CLASSES)
    classes = _level_rows(entries, labels | {"gpu": Label(names=names, codes=gpu_class(fleet)[gpus.codes])}, ("gpu",))
    return tuple(sorted([*rows, *classes], key=_order))


def _labels(entries: Entries) -> dict[str, Label]:
    found = {name: codes_of(column) for name, column in entries.labels.items()}
    return {name: Label(names=names, codes=codes) for name, (names, codes) in found.items()}


def _order(row: ScoreRow) -> tuple[object, ...]:
    """Sort by name, and what pools GPUs after them."""
    place = {**dict.fromkeys(CLASS_LABELS.values(), 1), MEAN: 1, EVERYTHING: 2}.get(row.gpu, 0)
    return row.table, row.family, row.dtype, place, row.gpu, row.split, list(Size).index(row.size)


def _level_rows(entries: Entries, labels: Mapping[str, Label], level: Sequence[str]) -> Iterator[ScoreRow]:
    code = entries.is_seen.astype(np.int64)
    for name in level:
        code = code * len(labels[name].names) + labels[name].codes
    order = np.argsort(code, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(code[order])) + 1):
        shared = {name: labels[name].names[labels[name].codes[group[0]]] for name in level}
        split = Split.SEEN if entries.is_seen[group[0]] else Split.UNSEEN
        measured = entries.measured_ns[group]
        for size in Size:
            fits = (measured >= LOWER_EDGE_NS.get(size, 0.0)) & (measured < UPPER_EDGE_NS.get(size, np.inf))
            if fits.any():
                yield _row(entries, group[fits], dict.fromkeys(LABELS, EVERYTHING) | shared, split, size)


def _row(
    entries: Entries, rows: npt.NDArray[np.int64], labels: Mapping[str, Any], split: Split, size: Size
) -> ScoreRow:
    measured = entries.measured_ns[rows]
    figures = error_figures(measured, entries.predicted_ns[rows], entries.low_ns[rows], entries.high_ns[rows])
    errors, counts = {}, {}
    for kind, values in entries.baselines_ns.items():
        error = mean_error(measured, values[rows])
        if error is not None:
            errors[kind], counts[kind] = error, int(np.isfinite(values[rows]).sum())
    return ScoreRow(**labels, split=split, size=size, **asdict(figures), baselines=errors, baseline_rows=counts)


def _mean_row(found: Sequence[ScoreRow]) -> ScoreRow:
    first = found[0]
    shared = [kind for kind in first.baselines if all(kind in row.baselines for row in found)]
    means: dict[str, Any] = {name: _mean(getattr(row, name) for row in found) for name in AVERAGED}
    return replace(
        first,
        gpu=MEAN,
        rows=sum(row.rows for row in found),
        **means,
        baselines={kind: _mean(row.baselines[kind] for row in found) for kind in shared},
        baseline_rows={kind: sum(row.baseline_rows[kind] for row in found) for kind in shared},
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
