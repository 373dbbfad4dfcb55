"""Prints what a few measurements of the target are worth: errors of a model on each GPU unseen, before and after.

Usage: python -m benchmarks.check.few_shot DATA [--model matmul] [--points 20,50,100] [--draws 5]
       python -m benchmarks.check.few_shot DATA --model matmul --own 15 [--draws 30]
       python -m benchmarks.check.few_shot DATA --rows 100 [--gpu L40S]
       python -m benchmarks.check.few_shot DATA --grid [--draws 5]

DATA is a directory of measurement tables (ops/*.parquet). For each GPU the weights never saw its chip; the points are
drawn at random from its rows, and the error is that of all other rows (MAPE, over all sizes / over 20 us, mean over
draws).

With --own, what measuring the calls of a workload is worth, as `wavecast measure TRACE` does: so many rows over 20 us
that share their number of tokens (products) or batch and heads (attention) are taught with 35 others, or 100 others
are taught in their stead. Errors of the own rows: MAPE / of their sum.

With --rows, what `wavecast measure` and `analyze --calibration` are worth together: so many rows of each table are
drawn for one GPU (default: each in turn), written as measurements of it, and correct all models as the command does,
where its own test of left-out rows lets them. By family, the error of the other rows, at most 4,000 per model: of all /
of those over 20 us, before and after, and beside them the mean difference of the table's own repetitions, if any.

With --grid, what `calibration.Prior` was chosen by, on the A100s alone: errors of rows left out, for 100 and 1,000 rows
taught, mean over models and draws, every family counting alike. First over local spread and reach, for models with
features; then over the kinds' spread, for models that tell kinds apart. Some minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from wavecast.analyzer.measurements.attention import load_decode, load_prefill
from wavecast.analyzer.measurements.calibration import calibrate_library, tells_of_kernels
from wavecast.analyzer.measurements.gaussian_process import PRIOR, Prior, calibrated_ns, fit_calibration
from wavecast.analyzer.measurements.matmul import load_quantized_samples, load_training_samples
from wavecast.analyzer.measurements.readers import load_tables
from wavecast.analyzer.measurements.samples import Samples, read_table
from wavecast.analyzer.models.frame.problems import problem_columns, take_problems
from wavecast.analyzer.models.library import Fitted, Library, corrected_ns, load_library, simulate
from wavecast.arrays import group_rows
from wavecast.mlp_weights.train.variant import Pool, join_samples
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet, take_gpus
from wavecast.specs.gpu import Gpu, chip_of
from wavecast.specs.match import find_gpu

LOADERS: dict[str, Callable[[Path], Sequence[Samples[Any]]]] = {
    "matmul": load_training_samples,
    "matmul_quantized": load_quantized_samples,
    "attention_prefill": load_prefill,
    "attention_decode": load_decode,
}
ROWS = 4000
LONG_NS = 20e3
SHARED = {"matmul": ("m",), "attention_prefill": ("batch", "heads")}
"""What the calls of one workload have in common."""
CHOSEN_ON = "A100"
GRID_COUNTS = (100, 1000)
GRID_ROWS = 2000
LOCAL_SPREADS = (0.0, 0.1, 0.15, 0.2, 0.3, 0.4)
REACHES = (0.25, 0.35, 0.5, 0.7, 1.0)
KIND_SPREADS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.4)
TABLES = ("matmul", "attention", "convolution", "vector")
GPUS = ("A100 SXM4 80GB", "H100 SXM5 80GB", "B200 SXM (HGX, 180GB)", "L40S", "Tesla V100 PCIe 32GB", "Tesla T4")
"""Those with rows of several tables; GB200 is B200's chip."""


def errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    wrong = np.abs(predicted / measured - 1)
    return np.array([wrong.mean(), wrong[measured > LONG_NS].mean()])


def draw(fitted: Fitted, pool: Pool, gpu: int, counts: list[int], seed: int) -> list[np.ndarray]:
    """Return the errors without and with each number of points."""
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(pool.gpu == gpu))
    few, rest = rows[: max(counts)], rows[max(counts) : max(counts) + ROWS]
    fleet = take_gpus(build_fleet(pool.gpus), np.full(len(rest), gpu))
    problems, measured = take_problems(pool.problems, rest), pool.measured_ns[rest]
    found = [errors(corrected_ns(fitted, simulate(fitted, problems, fleet)), measured)]
    for count in counts:
        known = few[:count]
        calibration = fit_calibration(
            fitted,
            take_problems(pool.problems, known),
            take_gpus(build_fleet(pool.gpus), pool.gpu[known]),
            pool.measured_ns[known],
        )
        found.append(errors(calibrated_ns(calibration, fitted, problems, fleet), measured))
    return found


def compare_own(options: argparse.Namespace, pool: Pool) -> None:
    """Print what it is worth to measure the calls of a workload themselves."""
    print(f"{options.model:28}{'untaught':>16}{'100 others':>16}{'own + 35':>16}")
    shared = np.stack([np.asarray(getattr(pool.problems, name)) for name in SHARED[options.model]])
    for row, gpu in enumerate(pool.gpus):
        fitted = load_library(frozenset({chip_of(gpu)})).fitted[options.model]
        rows = np.flatnonzero(pool.gpu == row)
        found = []
        for seed in range(options.draws):
            random = np.random.default_rng(seed)
            like = (shared[:, rows] == shared[:, [random.choice(rows)]]).all(axis=0)
            alike = rows[like & (pool.measured_ns[rows] > LONG_NS)]
            if len(alike) >= options.own:
                own = random.choice(alike, options.own, replace=False)
                found.append(own_errors(fitted, pool, own, random.permutation(np.setdiff1d(rows, own))))
        print(f"{gpu.name:28}" + "".join(f"{every:>8.1%} /{total:>6.1%}" for every, total in np.mean(found, axis=0)))


def own_errors(fitted: Fitted, pool: Pool, own: np.ndarray, others: np.ndarray) -> list[tuple[float, float]]:
    fleet, problems = take_gpus(build_fleet(pool.gpus), pool.gpu[own]), take_problems(pool.problems, own)
    measured = pool.measured_ns[own]
    predictions = [corrected_ns(fitted, simulate(fitted, problems, fleet))]
    for known in (others[:100], np.concatenate([own, others[:35]])):
        known_fleet = take_gpus(build_fleet(pool.gpus), pool.gpu[known])
        taught = fit_calibration(fitted, take_problems(pool.problems, known), known_fleet, pool.measured_ns[known])
        predictions.append(calibrated_ns(taught, fitted, problems, fleet))
    return [(np.abs(item / measured - 1).mean(), abs(item.sum() / measured.sum() - 1)) for item in predictions]


def split_tables(data: Path, gpu: str, count: int, folders: tuple[Path, Path]) -> None:
    """Write `count` rows of each table that has the GPU to the first folder, and others to the second."""
    for path in sorted((data / "ops").glob("*.parquet")):
        if path.stem not in TABLES:
            continue
        whole = parquet.read_table(path)
        rows = whole.filter(pc.equal(whole["gpu"], pa.scalar(gpu, whole["gpu"].type)))
        order = np.random.default_rng(0).permutation(rows.num_rows)
        for folder, chosen in zip(folders, (order[:count], order[count:]), strict=True):
            (folder / "ops").mkdir(parents=True, exist_ok=True)
            if len(chosen):
                parquet.write_table(rows.take(pa.array(np.sort(chosen))), folder / "ops" / path.name)


def print_gain(gpu: Gpu, taught: Path, rest: Path) -> None:
    plain = load_library(frozenset({chip_of(gpu)}))
    found = calibrate_library(plain, taught, [gpu])
    for item in found.rates:
        rates = ", ".join(f"{name} {value:.2f}" for name, value in asdict(item.factors).items())
        errors = f"{item.error_before:.1%} to {item.error_after:.1%}"
        print(f"{gpu.name:24}rates: {rates}; {errors}{'' if item.is_applied else ', not applied'}", flush=True)
    counts = {item.model: item.point_count for item in found.corrections}
    for samples in load_tables(rest):
        kernels = np.flatnonzero(tells_of_kernels(samples))
        rows = np.random.default_rng(0).permutation(kernels)[:ROWS]
        if samples.model not in plain.fitted or not len(rows):
            continue
        measured = samples.measured_ns[rows]
        before, after = (predict(library, samples, rows) for library in (plain, found.library))
        note = "" if samples.model in found.library.calibrations else "  rates only"
        for family in np.unique(samples.family[rows].astype(str)):
            own = samples.family[rows].astype(str) == family
            long = own & (measured > LONG_NS)
            wrong = [[np.abs(predicted[part] / measured[part] - 1).mean() if part.any() else np.nan
                      for part in (own, long)] for predicted in (before, after)]  # fmt: skip
            count = counts.get(samples.model, 0)
            label = samples.model if family == "matmul" else family
            cells = "".join(f"{every:>9.1%} /{large:>6.1%}" for every, large in wrong)
            noise = own_noise(samples, rows[own])
            print(f"{gpu.name:24}{label:34}{count:>8}{own.sum():>8}{cells}{noise:>8.1%}{note}", flush=True)


def own_noise(samples: Samples[Any], rows: np.ndarray) -> float:
    """Return the mean difference of two measurements of equal problems; NaN: none."""
    columns = problem_columns(take_problems(samples.problems, rows)).values()
    keys = [np.unique(np.nan_to_num(np.asarray(column)), return_inverse=True)[1] for column in columns]
    _, group = group_rows(keys)
    order = np.argsort(group, kind="stable")
    twice = np.flatnonzero(group[order][1:] == group[order][:-1])
    times = samples.measured_ns[rows][order]
    return float(np.abs(times[twice + 1] / times[twice] - 1).mean()) if len(twice) else np.nan


def product_noise(data: Path, gpu: str) -> tuple[float, float]:
    """Return the mean difference of bf16 products between two versions of a library, of all and of long ones."""
    first, again = (read_table(data / "ops" / name, ["gpu", "m", "n", "k", "dtype", "latency_us"])
                    for name in ("matmul.parquet", "matmul_repeat.parquet"))  # fmt: skip
    times: list[dict[tuple[int, ...], float]] = []
    for table in (first, again):
        rows = np.flatnonzero((table["gpu"] == gpu) & (table["dtype"] == "bf16"))
        sizes = zip(*(table[name][rows].tolist() for name in ("m", "n", "k")), strict=True)
        times.append(dict(zip(sizes, table["latency_us"][rows].tolist(), strict=True)))
    shared = np.array([(times[0][key], times[1][key]) for key in times[0].keys() & times[1].keys()]).reshape(-1, 2)
    wrong, is_long = np.abs(shared[:, 1] / shared[:, 0] - 1), shared.min(axis=1) > LONG_NS / 1e3
    return (float(wrong.mean()), float(wrong[is_long].mean())) if len(wrong) else (np.nan, np.nan)


def predict(library: Library, samples: Samples[Any], rows: np.ndarray) -> np.ndarray:
    problems, fleet = take_problems(samples.problems, rows), take_gpus(build_fleet(samples.gpus), samples.gpu[rows])
    return library.predict(samples.model, problems, fleet).time_ns


def compare_tables(data: Path, count: int, names: Sequence[str]) -> None:
    """Print by family what rows of its own are worth to each GPU."""
    print(f"{'GPU':24}{'family':34}{'taught':>8}{'rows':>8}{'before':>17}{'after':>17}{'noise':>8}")
    for name in names or GPUS:
        gpu = find_gpu(load_catalog(), name)
        with TemporaryDirectory() as folder:
            folders = (Path(folder) / "taught", Path(folder) / "rest")
            split_tables(data, gpu.name, count, folders)
            print_gain(gpu, *folders)
        every, large = product_noise(data, gpu.name)
        if not np.isnan(every):
            print(f"{gpu.name:24}products by two versions of one library differ by {every:.1%} / {large:.1%}")


@cache
def grid_samples(data: Path) -> list[tuple[Fitted, Samples[Any], np.ndarray]]:
    """Return the model that never saw the chip, the table, and its rows, for each A100 with enough of them."""
    found = []
    for samples in load_tables(data):
        for at, gpu in enumerate(samples.gpus):
            rows = np.flatnonzero((samples.gpu == at) & tells_of_kernels(samples))
            fitted = load_library(frozenset({chip_of(gpu)})).fitted.get(samples.model)
            if CHOSEN_ON in gpu.name and fitted is not None and len(rows) > GRID_ROWS:
                found.append((fitted, samples, rows))
    return found


def left_out_error(fitted: Fitted, samples: Samples[Any], rows: np.ndarray, count: int, prior: Prior) -> float:
    taught, rest = rows[:count], rows[count : count + GRID_ROWS]
    fleets = [take_gpus(build_fleet(samples.gpus), samples.gpu[part]) for part in (taught, rest)]
    problems = [take_problems(samples.problems, part) for part in (taught, rest)]
    calibration = fit_calibration(fitted, problems[0], fleets[0], samples.measured_ns[taught], prior)
    wrong = np.abs(calibrated_ns(calibration, fitted, problems[1], fleets[1]) / samples.measured_ns[rest] - 1)
    family = samples.family[rest].astype(str)
    return float(np.mean([wrong[family == name].mean() for name in np.unique(family)]))


def grid_error(data: Path, draws: int, prior: Prior, *, with_features: bool) -> Iterator[float]:
    """Yield the error for each count of `GRID_COUNTS`."""
    for count in GRID_COUNTS:
        yield float(
            np.mean([
                left_out_error(fitted, samples, np.random.default_rng(seed).permutation(rows), count, prior)
                for fitted, samples, rows in grid_samples(data)
                if (len(fitted.model.feature_names) > 0) == with_features
                for seed in range(draws)
            ])
        )  # fmt: skip


def print_grid(data: Path, draws: int) -> None:
    for with_features in (True, False):
        names = [f"{item.model} ({item.gpus[item.gpu[rows[0]]].name})" for fitted, item, rows in grid_samples(data)
                 if (len(fitted.model.feature_names) > 0) == with_features]  # fmt: skip
        print(", ".join(names))
    print(f"{'reach':>30}" + "".join(f"{reach:>16}" for reach in REACHES))
    for local_spread in LOCAL_SPREADS:
        priors = [replace(PRIOR, local_spread=local_spread, reach=reach) for reach in REACHES]
        print_errors(f"local spread {local_spread}", data, draws, priors, with_features=True)
    for kind_spread in KIND_SPREADS:
        prior = replace(PRIOR, kind_spread=kind_spread)
        print_errors(f"kinds' spread {kind_spread}", data, draws, [prior], with_features=False)


def print_errors(label: str, data: Path, draws: int, priors: Sequence[Prior], *, with_features: bool) -> None:
    cells = [list(grid_error(data, draws, prior, with_features=with_features)) for prior in priors]
    print(f"{label:>30}" + "".join(f"{few:>8.2%} /{many:>6.2%}" for few, many in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", choices=sorted(LOADERS), default="matmul")
    parser.add_argument("--points", default="20,50,100")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--own", type=int, help="calls of a workload that are measured themselves")
    parser.add_argument("--rows", type=int, help="rows per table, for all models as analyze --calibration does it")
    parser.add_argument("--gpu", action="append", default=[], help="with --rows: this GPU only; repeat for several")
    parser.add_argument("--grid", action="store_true", help="what the prior was chosen by")
    options = parser.parse_args()
    if options.grid:
        print_grid(options.data, options.draws)
        return
    if options.rows is not None:
        compare_tables(options.data, options.rows, options.gpu)
        return
    if options.own is not None and options.model not in SHARED:
        parser.error(f"--own: expected --model {' or '.join(SHARED)}, got {options.model}")
    counts = [int(item) for item in options.points.split(",")]
    pool = join_samples(LOADERS[options.model](options.data))
    if options.own is not None:
        compare_own(options, pool)
        return
    print(f"{options.model:28}" + "".join(f"{count:>16} points" for count in (0, *counts)))
    for row, gpu in enumerate(pool.gpus):
        fitted = load_library(frozenset({chip_of(gpu)})).fitted[options.model]
        mean = np.mean([draw(fitted, pool, row, counts, seed) for seed in range(options.draws)], axis=0)
        print(f"{gpu.name:28}" + "".join(f"{every:>13.1%} / {large:>6.1%}" for every, large in mean))


if __name__ == "__main__":
    main()
