"""The rows of a report that ranks on GPUs and ranks on hosts have alike."""

from __future__ import annotations

import numpy as np

from ....arrays import Floats, Mask, Rows, none_for_nan
from ...recorded.waiting import AlignedRanks
from .report import CollectiveRow, CollectiveWait

LEAST_CAUSED = 0.01
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


def collective_rows(aligned: AlignedRanks, inside: Mask, size: Rows, unseen_ns: Floats) -> tuple[CollectiveRow, ...]:
    """Return the shared collectives of the iteration by name and group, the longest first; `unseen_ns` [c] may be NaN."""
    keys = {at: (aligned.name[at], int(size[at])) for at in np.flatnonzero(inside).tolist()}
    rows = []
    for key in dict.fromkeys(keys.values()):
        members = np.array([at for at, found in keys.items() if found == key])
        unseen = unseen_ns[members]
        rows.append(
            CollectiveRow(
                name=key[0],
                group_size=key[1] if key[1] > 0 else None,
                count=len(members),
                transfer_ns=float((aligned.transfer_ns[members] - np.nan_to_num(unseen)).sum()),
                unseen_ns=None if np.isnan(unseen).all() else float(np.nansum(unseen)),
                waiting_ns=float(np.nansum(aligned.waiting_ns[members])),
            )
        )
    return tuple(sorted(rows, key=lambda row: -(row.transfer_ns + (row.unseen_ns or 0.0) + row.waiting_ns)))


def wait_rows(
    aligned: AlignedRanks, inside: Mask, size: Rows, unseen_ns: Floats, end_ns: Floats
) -> tuple[CollectiveWait, ...]:
    """Return how long each rank waits in each collective of the iteration, in order of their ends, [c]."""
    rows = np.flatnonzero(inside)
    waited = np.where(np.isnan(aligned.waiting_ns), np.inf, aligned.waiting_ns)
    return tuple(
        CollectiveWait(
            name=aligned.name[at],
            group_size=int(size[at]) if size[at] > 0 else None,
            end_ns=float(end_ns[at]),
            transfer_ns=float(aligned.transfer_ns[at] - np.nan_to_num(unseen_ns[at])),
            unseen_ns=none_for_nan(float(unseen_ns[at])),
            last_rank=aligned.ranks[int(waited[at].argmin())],
            waiting_ns=tuple(none_for_nan(value) for value in aligned.waiting_ns[at].tolist()),
        )
        for at in rows[np.argsort(end_ns[rows], kind="stable")].tolist()
    )
