"""Whether a better GPU is ever predicted slower, on samples and recordings, beside what is known.

    python -m benchmarks.check.monotony [TRACE...] [--gpus NAME,NAME...] [--write]

Predicts each trace (default: the samples) on each GPU (default: one per chip of the catalogue) with every figure of
`better_gpus.FIGURES` multiplied, one by one and all together, and on the GPUs of the catalogue that are better than
another of their architecture in every figure. An op may be 5 % slower, an iteration 0.5 %: prints the worst beyond, per
family of ops and figure, beside what monotony.csv knows, and what it knows that no longer is. `--write` writes the
table; give it the public traces too, which its rows need: samples/*.json.gz DATA/traces/*.json.gz.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.models.registry import model_of
from wavecast.analyzer.prediction.prediction import METHODS, Method
from wavecast.errors import WavecastError
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

from .better_gpus import FACTORS, FIGURES, better, dominated_pairs, one_per_chip, unmeasured

OP_SLACK: Final = 1.05
ITERATION_SLACK: Final = 1.005
ITERATION: Final = "iteration"
"""Stands where a family of ops does, for the whole step."""
CATALOGUE: Final = "catalogue pair"
"""Stands where a figure does, for a GPU of the catalogue and a better one."""
ARROW: Final = " → "
SAMPLES: Final = Path(__file__).parents[2] / "samples"
TABLE: Final = Path(__file__).with_suffix(".csv")
MODELLED: Final = {Method.OP_MODEL: "", Method.ANCHORED_MODEL: " (anchored)"}
CATALOG: Final = load_catalog()
Key = tuple[str, str]
Case = tuple[str, float]
"""A figure and its factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Hold how much slower a better GPU is predicted to run the worst op of a family, or the whole iteration."""

    family: str
    figure: str
    factor: float
    ratio: float
    trace: str
    gpu: str
    """Of a pair of the catalogue both, with an arrow between."""

    @property
    def key(self) -> Key:
        """Return what the table has one row of."""
        return self.family, self.figure

    @property
    def slack(self) -> float:
        """Return up to which ratio it is none."""
        return ITERATION_SLACK if self.family == ITERATION else OP_SLACK


def sweep(trace: Trace, name: str, gpus: Sequence[Gpu], cases: Sequence[Case]) -> Iterator[Slowdown]:
    """Yield how the worst op of each family, and the iteration, fare on each GPU with a figure multiplied."""
    for gpu in gpus:
        targets = [unmeasured(gpu), *(better(gpu, figure, factor) for figure, factor in cases)]
        result = run_analysis(trace, CATALOG, targets=targets)
        for column, (figure, factor) in enumerate(cases, 1):
            for family, ratio in _worst(result, 0, column):
                yield Slowdown(family=family, figure=figure, factor=factor, ratio=ratio, trace=name, gpu=gpu.name)


def sweep_pairs(trace: Trace, name: str, gpus: Sequence[Gpu]) -> Iterator[Slowdown]:
    """Yield the same of the pairs of GPUs of which one is better in every figure."""
    result = run_analysis(trace, CATALOG, targets=[unmeasured(gpu) for gpu in gpus])
    for one, other in dominated_pairs(gpus):
        pair = f"{gpus[one].name}{ARROW}{gpus[other].name}"
        for family, ratio in _worst(result, one, other):
            yield Slowdown(family=family, figure=CATALOGUE, factor=1.0, ratio=ratio, trace=name, gpu=pair)


def today(trace: Trace, known: Sequence[Slowdown]) -> dict[Key, float]:
    """Return the ratios that rows of the table, all of one trace, have today."""
    found: dict[Key, float] = {}
    for names in dict.fromkeys(row.gpu for row in known):
        wanted = [row for row in known if row.gpu == names]
        gpus = [find_gpu(CATALOG, name) for name in names.split(ARROW)]
        cases = [(row.figure, row.factor) for row in wanted]
        every = sweep_pairs(trace, "", gpus) if len(gpus) > 1 else sweep(trace, "", gpus, cases)
        ratios = {(item.family, item.figure, item.factor): item.ratio for item in every}
        found.update({row.key: ratios.get((row.family, row.figure, row.factor), 1.0) for row in wanted})
    return found


def _worst(result: Analysis, base: int, column: int) -> Iterator[tuple[str, float]]:
    """Yield how many times slower the worst op of each family, and the iteration, are in a column than in a base.

    What nothing models on either GPU (collectives without a link) has no time there; nor has the iteration then.
    """
    before, after = result.prediction.time_ns[:, base], result.prediction.time_ns[:, column]
    is_known = (result.prediction.method[:, [base, column]] != METHODS.index(Method.UNMODELLED)).all(axis=1)
    ratio = np.divide(after, before, out=np.ones_like(after), where=before > 0)
    worst: dict[str, float] = {}
    weights = result.prediction.weight.tolist()
    for family, found, weight, known in zip(families(result), ratio.tolist(), weights, is_known.tolist(), strict=True):
        if weight > 0 and known:
            worst[family] = max(worst.get(family, 0.0), found)
    iteration_ns = result.forecast.iteration_ns
    yield from worst.items()
    if not is_known.all() and (result.prediction.method[:, base] != result.prediction.method[:, column]).any():
        return
    yield ITERATION, float(iteration_ns[column] / iteration_ns[base])


def families(result: Analysis) -> list[str]:
    """Return by what each row is predicted: its model and family, or how it is moved."""
    found = []
    works = zip(result.workload.works, result.workload.work.rate, result.prediction.method[:, 0].tolist(), strict=True)
    for work, rate, code in works:
        method = METHODS[code]
        model = model_of(work, rate) if work is not None and method in MODELLED else None
        found.append(f"{model.name} {work.family}{MODELLED[method]}" if model and work else method.value)
    return found


def worst_of(found: Iterable[Slowdown]) -> dict[Key, Slowdown]:
    """Return the worst slowdown per family and figure, of those beyond their slack."""
    worst: dict[Key, Slowdown] = {}
    for item in found:
        if item.ratio > item.slack and (item.key not in worst or item.ratio > worst[item.key].ratio):
            worst[item.key] = item
    return dict(sorted(worst.items()))


def read_known(path: Path = TABLE) -> dict[Key, Slowdown]:
    """Return the rows of the table of known slowdowns."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            Slowdown(**{**row, "factor": float(row["factor"]), "ratio": float(row["ratio"])})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]
    return {row.key: row for row in rows}


def write_known(found: Mapping[Key, Slowdown], path: Path) -> None:
    """Write the table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [item.name for item in fields(Slowdown)], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**asdict(item), "ratio": f"{item.ratio:.3f}"} for item in found.values())


def main() -> None:
    """Sweep, print, and write where asked; 1 where something is slower that is not known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, nargs="*")
    parser.add_argument("--gpus", help="names of the catalogue, separated by commas")
    parser.add_argument("--write", action="store_true", help="write what is found as what is known")
    options = parser.parse_args()
    names = options.gpus.split(",") if options.gpus else []
    gpus = [find_gpu(CATALOG, name) for name in names] or one_per_chip(CATALOG.gpus)
    every = [gpu for gpu in CATALOG.gpus if not gpu.is_package]
    found: dict[Key, Slowdown] = {}
    for path in options.traces or sorted(SAMPLES.glob("*.json.gz")):
        found = worst_of([*found.values(), *_sweep_file(path, gpus, every)])
    known = read_known(TABLE) if TABLE.exists() else {}
    _print(found, known)
    if options.write:
        write_known(found, TABLE)
    elif found.keys() - known.keys():
        sys.exit(1)


def _sweep_file(path: Path, gpus: Sequence[Gpu], every: Sequence[Gpu]) -> Iterator[Slowdown]:
    cases = [(figure, factor) for figure in FIGURES for factor in FACTORS]
    try:
        trace = load_trace(path)
        yield from sweep(trace, path.name, gpus, cases)
        yield from sweep_pairs(trace, path.name, every)
    except WavecastError as error:
        print(f"{path.name}: {error}", file=sys.stderr)


def _print(found: Mapping[Key, Slowdown], known: Mapping[Key, Slowdown]) -> None:
    print(f"{'family':38} {'figure':14} {'factor':>6} {'slower':>7} {'known':>7}  where")
    for key in sorted(found.keys() | known.keys()):
        item, listed = found.get(key), known.get(key)
        shown = item or listed
        assert shown is not None
        today, before = (f"{row.ratio:.3f}" if row else "no" for row in (item, listed))
        where = f"{shown.trace.removesuffix('.json.gz')}, {shown.gpu}"
        print(f"{shown.family:38} {shown.figure:14} {shown.factor:6} {today:>7} {before:>7}  {where}")


if __name__ == "__main__":
    main()
