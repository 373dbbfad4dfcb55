"""Simpler predictions on the same rows, to compare with. NaN where one has nothing to say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ....arrays import Floats, Rows
from ....specs.fleet import build_fleet
from ...measurements.samples import Samples, chip_of
from ...models.frame.intervals import gpu_positions
from .rows import Keys, PredictedSamples, carried_from, codes_of, problem_keys
from .weights import Weights

ROOFLINE: Final = "roofline"
FITTED_ROOFLINE: Final = "fitted_roofline"
BANDWIDTH_RATIO: Final = "bandwidth_ratio"
PEAK_RATIO: Final = "peak_ratio"
"""Whole networks alone: the other GPU's measurement times the ratio of peak float16 rates."""
ROOFLINE_RATIO: Final = "roofline_ratio"
"""Whole networks alone: the other GPU's measurement times the ratio of rooflines."""
ANCHORED: Final = "wavecast_anchored"
"""No baseline but wavecast itself, where it is given what the bandwidth ratio is given: the other GPU's measurement."""
FITTED_FROM_NS: Final = 20e3
"""Shorter rows measure launches more than the efficiency that is fitted."""


def fitted_roofline_ns(made: PredictedSamples) -> Floats:
    """Return roofline / efficiency, with one efficiency per family and dtype, fitted on the other chips.

    The efficiency is the geometric mean over the other chips of each one's median roofline / measured.
    """
    samples, result = made.samples, np.full_like(made.roofline_ns, np.nan)
    chip = _chip_codes(samples)
    log_ratio = np.log(samples.measured_ns / made.roofline_ns)
    for rows in _families(samples):
        by_chip = {code: rows[chip[rows] == code] for code in np.unique(chip[rows]).tolist()}
        typical = {code: float(np.median(log_ratio[_long_rows(samples, mine)])) for code, mine in by_chip.items()}
        for code, mine in by_chip.items():
            others = [value for other, value in typical.items() if other != code]
            if others:
                result[mine] = made.roofline_ns[mine] * np.exp(np.mean(others))
    return result


def source_rows(samples: Samples[Any]) -> Rows:
    """Return for each row the row of the same problem on another chip's GPU, the nearest that has it; -1: none.

    Near is what the intervals call near: a small distance between datasheets.
    """
    keys, chip = problem_keys(samples), _chip_codes(samples)
    here = gpu_positions(build_fleet(samples.gpus))
    distance = np.asarray(np.sqrt(((here[:, None, :] - here[None, :, :]) ** 2).sum(axis=-1)))
    source = np.full(len(keys), -1, dtype=np.int64)
    by_gpu = [np.flatnonzero(samples.gpu == column) for column in range(len(samples.gpus))]
    for target, rows in enumerate(by_gpu):
        for near in np.argsort(distance[target], kind="stable").tolist():
            missing = rows[source[rows] < 0]
            if len(missing) and len(by_gpu[near]) and chip[missing[0]] != chip[by_gpu[near][0]]:
                source[missing] = _find(keys, missing, by_gpu[near])
    return source


def bandwidth_ratio_ns(samples: Samples[Any], source: Rows) -> Floats:
    """Return the source's measurement times the ratio of datasheet bandwidths."""
    bandwidth = np.array([gpu.memory_bandwidth_bytes_per_s for gpu in samples.gpus])[samples.gpu]
    moved = samples.measured_ns[source] * bandwidth[source] / bandwidth
    return np.where(source >= 0, moved, np.nan)


def anchored_ns(made: PredictedSamples, source: Rows, weights: Weights) -> Floats:
    """Return the prediction anchored at the source's measurement, by the rule of `analyze`."""
    samples, result = made.samples, np.full_like(made.predicted_ns, np.nan)
    for column, gpu in enumerate(samples.gpus):
        library = weights.library_for(gpu)
        for origin in range(len(samples.gpus)):
            rows = np.flatnonzero((samples.gpu == column) & (source >= 0) & (samples.gpu[source] == origin))
            if len(rows):
                result[rows] = made.predicted_ns[rows] * carried_from(samples, source[rows], library, origin, column)
    return result


def _chip_codes(samples: Samples[Any]) -> Rows:
    """Return a number per row that is the same for GPUs of one chip."""
    chips = [chip_of(gpu) for gpu in samples.gpus]
    return np.array([chips.index(name) for name in chips])[samples.gpu]


def _families(samples: Samples[Any]) -> Iterator[Rows]:
    names, dtypes = codes_of(samples.family)[1], codes_of(samples.dtype)[1]
    group = names * (dtypes.max(initial=0) + 1) + dtypes
    for code in np.unique(group).tolist():
        yield np.flatnonzero(group == code)


def _long_rows(samples: Samples[Any], rows: Rows) -> Rows:
    long = rows[samples.measured_ns[rows] >= FITTED_FROM_NS]
    return long if len(long) else rows


def _find(keys: Keys, rows: Rows, among: Rows) -> Rows:
    """Return for each row one of `among` with the same key, -1 where there is none."""
    order = among[np.argsort(keys[among], kind="stable")]
    place = np.minimum(np.searchsorted(keys[order], keys[rows]), len(order) - 1)
    return np.where(keys[order[place]] == keys[rows], order[place], -1)
