"""Which GPUs are asked about, in which order, and how many of them are shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from ....errors import InputError, parameter
from ....specs.gpu import Gpu
from ..report import GpuPrediction
from .amounts import COST, ENERGY, THROUGHPUT, TIME, Selection

SHOWN_DIGITS: Final = 4
"""Values that look alike in a table are alike in its order."""
SHOWN_ROWS: Final = 15
_WILD: Final = re.compile(r"[*?\[]")


def _time(row: GpuPrediction) -> float | None:
    return row.iteration_ns


def _seconds_per_sample(row: GpuPrediction) -> float | None:
    """Return the time of a sample at the best batch where batches are compared, else of the samples of an iteration.

    These are as many on every GPU, known or not.
    """
    if row.batches is None:
        return row.iteration_ns
    rate = row.batches.best_samples_per_s
    return 1 / rate if rate else None


def _cost(row: GpuPrediction) -> float | None:
    """Return $ per sample at the best batch where batches are compared, else $ per 1,000 iterations."""
    if row.batches is None:
        return row.usd_per_1000_iterations
    time = _seconds_per_sample(row)
    return None if time is None or row.price_usd_per_hour is None else row.price_usd_per_hour * time / 3600


def _joule(row: GpuPrediction) -> float | None:
    """Return what is paid for of an iteration's energy; nothing tells that of other batches."""
    return row.billed_j if row.batches is None else None


SORTS: Final[Mapping[str, Callable[[GpuPrediction], float | None]]] = {
    TIME: _time,
    COST: _cost,
    THROUGHPUT: _seconds_per_sample,
    ENERGY: _joule,
}
"""What rows may be sorted by: the least stands first, rows without it last. Another is a function and a row here."""


def sort_of(selection: Selection, rows: Sequence[GpuPrediction]) -> str:
    """Return what rows are sorted by. Raises InputError where no row has it."""
    if selection.sort is None:
        return THROUGHPUT if any(row.batches is not None for row in rows) else TIME
    if rows and all(SORTS[selection.sort](row) is None for row in rows):
        if selection.sort == ENERGY:
            raise InputError(
                f"{parameter('sort', 'energy')} is about one batch: leave {parameter('largest_batch')} out"
            )
        raise InputError(f"{parameter('sort', selection.sort)}: no GPU here has a price")
    return selection.sort


def does_not_fit(row: GpuPrediction) -> bool:
    """Say whether the iteration surely or likely does not fit; where batches are compared, none of them."""
    return row.fits is False if row.batches is None else row.batches.best_batch is None


def select_rows(
    rows: Sequence[GpuPrediction], gpus: Sequence[Gpu], selection: Selection, named: Sequence[str] = ()
) -> tuple[GpuPrediction, ...]:
    """Return the rows that pass the filters, sorted, what does not fit last; the source stays as a reference.

    `named` are the GPUs that were asked for by name: the source beside them is a reference, too.
    Raises InputError where no row is left, with what each filter alone leaves.
    """
    filters = list(_filters(selection, {gpu.name: gpu for gpu in gpus}))
    passing = [row for row in rows if (not named or row.gpu in named) and all(passes(row) for _, passes in filters)]
    if not passing:
        alone = ", ".join(f"{words} leaves {sum(map(passes, rows)):,}" for words, passes in filters)
        unknown = "; whether it fits is not known" if all(row.fits is None for row in rows) else ""
        both = "" if len(filters) < 2 else "; together they leave none"
        raise InputError(f"no GPU is left of {len(rows):,}: {alone}{both}{unknown}")
    key = SORTS[sort_of(selection, passing)]
    names = {row.gpu for row in passing}
    kept = [*passing, *(replace(row, is_reference=True) for row in rows if row.is_source and row.gpu not in names)]

    def place(row: GpuPrediction) -> tuple[bool, bool, float, float]:
        value = key(row)
        shown = 0.0 if value is None else float(f"{value:.{SHOWN_DIGITS}g}")
        return does_not_fit(row), value is None, shown, row.gpu_busy_ns

    return tuple(sorted(kept, key=place))


_Filter = tuple[str, Callable[["GpuPrediction"], bool]]


def _filters(selection: Selection, gpus: Mapping[str, Gpu]) -> Iterator[_Filter]:
    """Yield each filter that is asked for, with the words that asked."""
    if selection.vendors:
        wanted = {_vendor(name, gpus) for name in selection.vendors}
        yield f"{parameter('vendor')} {' or '.join(selection.vendors)}", lambda row: row.vendor in wanted
    least = selection.min_memory_bytes
    if least is not None:
        yield parameter("min_memory", selection.min_memory), lambda row: gpus[row.gpu].memory_bytes >= least
    if selection.priced:
        yield parameter("priced"), lambda row: row.price_usd_per_hour is not None
    if selection.fits:
        yield parameter("fits"), lambda row: not does_not_fit(row) and row.fits is not None
    if selection.only:
        yield (
            f"{parameter('only')} {' or '.join(map(repr, selection.only))}",
            lambda row: _is_named(row.gpu, selection.only),
        )


def _vendor(typed: str, gpus: Mapping[str, Gpu]) -> str:
    """Return the vendor that is meant. Raises InputError for one that has no GPU here."""
    known = sorted({gpu.vendor for gpu in gpus.values()})
    found = next((name for name in known if name.casefold() == typed.strip().casefold()), None)
    if found is None:
        raise InputError(f"{parameter('vendor', typed)}: expected {', '.join(known)}")
    return found


def _is_named(gpu: str, patterns: Sequence[str]) -> bool:
    name = gpu.casefold()
    return any(
        fnmatchcase(name, pattern.casefold()) if _WILD.search(pattern) else pattern.casefold() in name
        for pattern in patterns
    )
