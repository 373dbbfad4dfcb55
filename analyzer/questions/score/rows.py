"""Predictions beside measurements, in columns with a row per measured one, and simpler predictions of the same rows."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats, Mask, Rows, row_blocks
from ....records import dataclass
from ....specs.fleet import build_fleet
from ....specs.gpu import chip_of
from ...measurements.samples import Samples
from ...models import registry
from ...models.frame.intervals import gpu_positions, separations
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
        for block in (rows[at] for at in row_blocks(len(rows), BLOCK_ROWS)):
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
    for block in (rows[at] for at in row_blocks(len(rows), BLOCK_ROWS)):
        found = library.predict(samples.model, as_columns(take_problems(samples.problems, block)), fleet)
        here, width = found.time_ns[:, 0], found.half_width[:, 0]
        factors.append(carried_factor(samples.measured_ns[block], here, found.anchor[:, 0], width, apart))
    return np.concatenate(factors)


def problem_keys(samples: Samples[Any]) -> Keys:
    """Return a number per row that is the same for equal problems of equal family and dtype, whatever the host."""
    named = problem_columns(samples.problems).items()
    columns = [column for name, column in named if not name.startswith("host_")]
    return mixed_keys((*columns, codes_of(samples.family)[1], codes_of(samples.dtype)[1]))


def mixed_keys(columns: Iterable[npt.NDArray[Any]]) -> Keys:
    """Return a number per row that is the same where all columns are."""
    mixed = np.zeros(1, dtype=np.uint64)
    for column in columns:
        mixed = mixed ^ np.ascontiguousarray(column, dtype=np.float64).view(np.uint64)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def codes_of(names: npt.NDArray[Any]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the distinct names in order of appearance and each row's index."""
    values = names.tolist()
    position: dict[str, int] = {name: index for index, name in enumerate(dict.fromkeys(values))}
    codes = np.fromiter((position[name] for name in values), dtype=np.int64, count=len(values))
    return tuple(str(name) for name in position), codes


def least_work(samples: Samples[Any]) -> WorkTable | None:
    """Return the least work of each row; None where nobody knows it."""
    if samples.work is not None or samples.model not in registry.OP_MODELS:
        return samples.work
    return registry.least_work(registry.OP_MODELS[samples.model], samples.problems)


def take_work(work: WorkTable, rows: npt.NDArray[Any]) -> WorkTable:
    """Return some rows of a table of work."""
    return WorkTable(flops=work.flops[rows], moved_bytes=work.moved_bytes[rows], rate=work.rate[rows])


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
                # For each row one of `among` with the same key, -1 where there is none.
                among = by_gpu[near]
                order = among[np.argsort(keys[among], kind="stable")]
                place = np.minimum(np.searchsorted(keys[order], keys[missing]), len(order) - 1)
                source[missing] = np.where(keys[order[place]] == keys[missing], order[place], -1)
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
