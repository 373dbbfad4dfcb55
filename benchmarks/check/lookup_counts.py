"""How well the histogram of one iteration's lookups tells how lookups are spread over an embedding table's rows.

Run: python -m benchmarks.check.lookup_counts [SEEDS [FIRST_SEED]]

Indices are drawn from spreads that are known: Zipf's law (exponents 0 to 1.5), the same without its hottest rows, with
its hottest rows in another order of magnitude, over a part of the rows alone, and mixed with uniform lookups; tables of
10^3 to 10^7 rows, samples of 2,048 to 524,288 lookups. They are counted as the tracer counts them, the counts go where
a recording's go, and what the estimate says is held against draws that it has not seen: what of them an LRU cache
finds (caches of 0.1 to 50 % of the rows; simulated, lookup by lookup), and how many different rows a quarter, four and
sixteen times as many lookups touch (log ratio). Beside it stands what the default says (Zipf's law of exponent 1.05).
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from wavecast.analyzer.models.embedding.estimate import estimate_indices
from wavecast.analyzer.models.embedding.hits import characteristic_time, steady_misses, touched_rows
from wavecast.analyzer.models.embedding.spread import spread_of
from wavecast.analyzer.work.indices import USUAL, Indices
from wavecast.analyzer.work.lookup_counts import LookupCounts

CACHES = (0.001, 0.01, 0.1, 0.5)
TIMES = (0.25, 4.0, 16.0)
MOST_DRAWS = 2_000_000
LRU_DRAWS = 300_000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Hold a table whose spread is known, and how often it is looked up."""

    name: str
    share: Floats
    lookups: int


def main() -> None:
    """Print the errors by kind of spread."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    rows: dict[str, list[tuple[Floats, Floats, Floats, Floats]]] = {}
    spent = []
    for seed in range(first, first + seeds):
        for case in draw_cases(seed):
            source = np.random.default_rng([seed, 1])
            sample = draw(source, case.share, case.lookups)
            begin = time.perf_counter()
            found = estimate_indices(count(sample), len(case.share))
            spent.append(time.perf_counter() - begin)
            hits, distinct = held_out(np.random.default_rng([seed, 2]), case)
            rows.setdefault(case.name, []).append(
                (*errors(found, case, hits, distinct), *errors(USUAL, case, hits, distinct))
            )
    print(f"{sum(map(len, rows.values()))} samples, {1e3 * float(np.median(spent)):.1f} ms for an estimate\n")
    print(f"{'':22s}{'hit rate off by':>32s}{'distinct rows off by (log)':>34s}")
    print(f"{'spread':22s}{'mean':>8s}{'most':>8s}{'default':>16s}{'mean':>10s}{'most':>8s}{'default':>16s}")
    everything: list[tuple[Floats, Floats, Floats, Floats]] = []
    for name, found_rows in rows.items():
        everything += found_rows
        print(line(name, found_rows))
    print(line("all", everything))


def line(name: str, found: list[tuple[Floats, Floats, Floats, Floats]]) -> str:
    """Return what is printed of a kind."""
    hit, distinct, usual_hit, usual_distinct = (np.abs(np.concatenate(part)) for part in zip(*found, strict=True))
    return (
        f"{name:22s}{hit.mean():8.4f}{hit.max():8.3f}{usual_hit.mean():8.3f}{usual_hit.max():8.3f}"
        f"{distinct.mean():10.3f}{distinct.max():8.3f}{usual_distinct.mean():8.3f}{usual_distinct.max():8.3f}"
    )


def draw_cases(seed: int) -> list[Case]:
    """Return a table of each kind."""
    source = np.random.default_rng([seed, 0])
    found = []
    for kind in ("zipf", "uniform", "without the head", "head lifted", "part of the rows", "mixture"):
        rows = int(10 ** source.uniform(3, 7))
        lookups = int(2 ** source.integers(11, 20))
        exponent = float(source.uniform(0.2, 1.5))
        weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
        if kind == "uniform":
            weights[:] = 1.0
        elif kind == "without the head":
            weights = np.arange(1, rows + 1, dtype=np.float64) + float(10 ** source.uniform(0.5, 2.5))
            weights = weights**-exponent
        elif kind == "head lifted":
            weights[: int(source.integers(1, 30))] *= float(source.uniform(0.1, 10))
        elif kind == "part of the rows":
            weights[int(rows * source.uniform(0.05, 0.9)) :] = 0.0
        elif kind == "mixture":
            part = float(source.uniform(0.1, 0.9))
            weights = part * weights / weights.sum() + (1 - part) / rows
        found.append(Case(kind, source.permutation(weights / weights.sum()), lookups))
    return found


def draw(source: np.random.Generator, share: Floats, number: int) -> npt.NDArray[np.int64]:
    """Return rows, drawn one by one."""
    total = np.cumsum(share)
    found = np.searchsorted(total, source.random(number) * total[-1])
    return np.asarray(np.minimum(found, len(share) - 1), dtype=np.int64)


def count(indices: npt.NDArray[np.int64]) -> LookupCounts:
    """Return the histogram, counted without the tracer's code."""
    often = np.bincount(indices)
    often = often[often > 0]
    classes = []
    least = 1
    while least <= often.max():
        inside = often[(often >= least) & (often < 2 * least)]
        if len(inside):
            classes.append((least, len(inside), int(inside.sum())))
        least *= 2
    return LookupCounts(tables=1, classes=tuple(classes))


def held_out(source: np.random.Generator, case: Case) -> tuple[Floats, Floats]:
    """Return the hit rates of caches, and the rows that more and fewer lookups touch, in draws of their own."""
    drawn = draw(source, case.share, LRU_DRAWS)
    hits = np.array([hit_rate(drawn, max(int(len(case.share) * part), 1)) for part in CACHES])
    numbers = np.minimum(case.lookups * np.array(TIMES), MOST_DRAWS).astype(int)
    distinct = np.array([len(np.unique(draw(source, case.share, number))) for number in numbers.tolist()])
    return hits, distinct.astype(np.float64)


def hit_rate(drawn: npt.NDArray[np.int64], room: int) -> float:
    """Return what an LRU cache finds of the second half of some lookups; NaN where the first does not fill it."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits, half, is_full = 0, len(drawn) // 2, False
    for at, index in enumerate(drawn.tolist()):
        if index in cache:
            cache.move_to_end(index)
            hits += at >= half
            continue
        cache[index] = None
        if len(cache) > room:
            cache.popitem(last=False)
            is_full |= at < half
    return hits / (len(drawn) - half) if is_full else float("nan")


def errors(indices: Indices, case: Case, hits: Floats, distinct: Floats) -> tuple[Floats, Floats]:
    """Return how far off hit rates and the log of distinct rows are."""
    rows = len(case.share)
    counts, share = spread_of(indices, float(rows))
    known = ~np.isnan(hits)
    room = np.maximum((rows * np.array(CACHES)).astype(int), 1)[known].astype(np.float64)
    found = np.array([1 - steady_misses(counts, share, characteristic_time(counts, share, one)) for one in room])
    numbers = np.minimum(case.lookups * np.array(TIMES), MOST_DRAWS).astype(int)
    touched = np.array([touched_rows(counts, share, np.array(float(number))) for number in numbers])
    return found - hits[known], np.log(touched / distinct)


if __name__ == "__main__":
    main()
