"""The rows of a report that ranks on GPUs and ranks on hosts have alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows, none_for_nan
from ....errors import InputError
from ...recorded.waiting import AlignedRanks
from .report import CollectiveRow, CollectiveWait

_DOUBTFUL_SHARE: Final = 0.05
_IMPOSSIBLE_SHARE: Final = 0.5
"""Of the iteration, by how much ends of one collective may lie apart: a busy host's threads note an end late."""
LEAST_CAUSED: Final = 0.01
"""Share of the job's iteration that a rank must be waited for to be told of."""


def last_and_caused(aligned: AlignedRanks, rows: Rows) -> tuple[Rows, Floats]:
    """Return how often each rank came last to some of the collectives, and for how long it was waited for, [r] each."""
    waited = np.where(np.isnan(aligned.waiting_ns[rows]), np.inf, aligned.waiting_ns[rows])
    count = len(aligned.ranks)
    if not len(rows):
        return np.zeros(count, dtype=np.int64), np.zeros(count)
    last, second = waited.argmin(axis=1), np.sort(waited, axis=1)[:, 1]
    caused = np.bincount(last, weights=second, minlength=count).astype(np.float64)
    return np.bincount(last, minlength=count).astype(np.int64), caused


def check_clocks(aligned: AlignedRanks, iteration_ns: float) -> tuple[str, ...]:
    """Return a warning where ends of collectives agree badly. Raises InputError where that cannot be one job's."""
    apart_ns = aligned.clock_error_ns
    if apart_ns <= _DOUBTFUL_SHARE * iteration_ns:
        return ()
    found = f"{apart_ns / 1e6:.3g} ms (95 %), of an iteration of {iteration_ns / 1e6:.3g} ms"
    if apart_ns > _IMPOSSIBLE_SHARE * iteration_ns:
        raise InputError(
            f"the ranks' clocks cannot be aligned: ends of the same collectives lie up to {found}, apart however they "
            "are set; give files of one run that recorded the same steps"
        )
    return (f"ends of the same collectives lie up to {found}, apart: who waits for whom is as uncertain",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedTimes:
    """Part what each of c shared collectives takes after its last recorded rank came: the three add up to that."""

    size: Rows
    """Ranks of its group; -1 where not known."""
    transfer_ns: Floats
    unseen_ns: Floats
    """Waiting for ranks that no file is of; NaN where there are none, or nobody knows."""
    undivided_ns: Floats
    """One or the other; NaN where they are told apart."""


def part_shared(aligned: AlignedRanks, world: int | None, most_ns: Floats) -> SharedTimes:
    """Part the collectives' times; `most_ns` [c] is what the links take at the most, NaN where nobody knows.

    What is more than that was waiting for ranks that no file is of.
    """
    size = np.where(aligned.group_size > 0, aligned.group_size, world or -1)
    is_partial = size > (aligned.kernel >= 0).sum(axis=1)
    unseen = np.where(is_partial, np.maximum(aligned.transfer_ns - most_ns, 0.0), np.nan)
    undivided = np.where(is_partial & np.isnan(most_ns), aligned.transfer_ns, np.nan)
    transfer = aligned.transfer_ns - np.nan_to_num(unseen) - np.nan_to_num(undivided)
    return SharedTimes(size=size, transfer_ns=transfer, unseen_ns=unseen, undivided_ns=undivided)


def collective_rows(aligned: AlignedRanks, inside: Mask, shared: SharedTimes) -> tuple[CollectiveRow, ...]:
    """Return the shared collectives of the iteration by name and group, the longest first."""
    keys = {at: (aligned.name[at], int(shared.size[at])) for at in np.flatnonzero(inside).tolist()}
    rows = []
    for key in dict.fromkeys(keys.values()):
        members = np.array([at for at, found in keys.items() if found == key])
        rows.append(
            CollectiveRow(
                name=key[0],
                group_size=key[1] if key[1] > 0 else None,
                count=len(members),
                transfer_ns=float(shared.transfer_ns[members].sum()),
                unseen_ns=_known_sum(shared.unseen_ns[members]),
                undivided_ns=_known_sum(shared.undivided_ns[members]),
                waiting_ns=float(np.nansum(aligned.waiting_ns[members])),
            )
        )
    return tuple(sorted(rows, key=lambda row: -(_after_last(row) + row.waiting_ns)))


def _known_sum(values: Floats) -> float | None:
    return None if np.isnan(values).all() else float(np.nansum(values))


def _after_last(row: CollectiveRow) -> float:
    return row.transfer_ns + (row.unseen_ns or 0.0) + (row.undivided_ns or 0.0)


def wait_rows(aligned: AlignedRanks, inside: Mask, shared: SharedTimes, end_ns: Floats) -> tuple[CollectiveWait, ...]:
    """Return how long each rank waits in each collective of the iteration, in order of their ends, [c]."""
    rows = np.flatnonzero(inside)
    waited = np.where(np.isnan(aligned.waiting_ns), np.inf, aligned.waiting_ns)
    return tuple(
        CollectiveWait(
            number=at,
            name=aligned.name[at],
            group_size=int(shared.size[at]) if shared.size[at] > 0 else None,
            end_ns=float(end_ns[at]),
            transfer_ns=float(shared.transfer_ns[at]),
            unseen_ns=none_for_nan(float(shared.unseen_ns[at])),
            undivided_ns=none_for_nan(float(shared.undivided_ns[at])),
            last_rank=aligned.ranks[int(waited[at].argmin())],
            waiting_ns=tuple(none_for_nan(value) for value in aligned.waiting_ns[at].tolist()),
        )
        for at in rows[np.argsort(end_ns[rows], kind="stable")].tolist()
    )


def covered_ns(start_ns: Floats, end_ns: Floats) -> float:
    """Return the length of the union of stretches."""
    if not len(start_ns):
        return 0.0
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], end_ns[order]
    latest = np.maximum.accumulate(end_ns)
    new = np.maximum(end_ns[1:] - np.maximum(start_ns[1:], latest[:-1]), 0)
    return float(end_ns[0] - start_ns[0] + new.sum())
