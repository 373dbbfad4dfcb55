"""What is said about each predicted kernel: its op, method, reason, bound and interval."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Rows, at_rows
from ..prediction.bounds import LAUNCH_FLOOR_NS, rate_matrix
from ..prediction.prediction import Prediction
from ..prediction.workload import GpuWorkload
from ..work import Family

FAMILIES: Final = tuple(Family)
_CODE: Final = {family: code for code, family in enumerate(FAMILIES)}
NOTHING: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelNotes:
    """Hold what is known of each of a graph's n nodes; -1 and NaN where nothing is, as for host nodes."""

    op: Rows
    """Row of the op that explains it."""
    family: npt.NDArray[np.int8]
    """Index into `FAMILIES`."""
    method: npt.NDArray[np.int8]
    """Index into `prediction.METHODS`."""
    reason: Rows
    """Index into `reasons`."""
    reasons: tuple[str, ...]
    bound_ns: Floats
    """Physical lower bound of the kernel's share of its op."""
    bound_by: npt.NDArray[np.int8]
    """`bounds.Limit`."""
    low_ns: Floats
    """Ends of the 90 % interval."""
    high_ns: Floats


def no_notes(count: int) -> KernelNotes:
    """Return notes that say nothing, for a graph of `count` nodes."""
    codes, rows, times = np.full(count, NOTHING, dtype=np.int8), np.full(count, NOTHING), np.full(count, np.nan)
    return KernelNotes(
        op=rows,
        family=codes,
        method=codes,
        reason=rows,
        reasons=(),
        bound_ns=times,
        bound_by=codes,
        low_ns=times,
        high_ns=times,
    )


def op_notes(workload: GpuWorkload, rows: Rows) -> KernelNotes:
    """Say of each node only which op and family it belongs to, as of a recording.

    `rows` holds the workload row of each node, [n]: negative or past the last where none stands for it.
    """
    at = _known_rows(workload, rows)
    family = np.array([NOTHING if item is None else _CODE[item] for item in workload.family], dtype=np.int8)
    return replace(
        no_notes(len(rows)),
        op=at_rows(workload.op, at, NOTHING),
        family=np.append(family, np.int8(NOTHING))[at],
    )


def kernel_notes(
    workload: GpuWorkload, prediction: Prediction, column: int, rows: Rows, duration_ns: Floats
) -> KernelNotes:
    """Say of each node what the prediction for one GPU says of its workload row.

    `rows` as in `op_notes`; `duration_ns` is the replayed duration of each node, [n].
    """
    at = _known_rows(workload, rows)
    width = at_rows(prediction.half_width[:, column], at, np.nan)
    fall = at_rows(prediction.fall(column=column), at, np.nan)
    bound = np.where(workload.has_work, prediction.bounds.lower_ns[:, column] * workload.op_share, np.nan)
    return replace(
        op_notes(workload, rows),
        method=np.append(prediction.method[:, column], np.int8(NOTHING))[at],
        reason=at,
        reasons=prediction.reason,
        bound_ns=at_rows(bound, at, np.nan),
        bound_by=np.append(_limits(workload, prediction, column), np.int8(NOTHING))[at],
        low_ns=duration_ns * (1.0 - fall),
        high_ns=duration_ns * np.exp(width),
    )


def _known_rows(workload: GpuWorkload, rows: Rows) -> Rows:
    return np.where((rows >= 0) & (rows < len(workload.op)), rows, NOTHING)


def _limits(workload: GpuWorkload, prediction: Prediction, column: int) -> npt.NDArray[np.int8]:
    """Return what the roofline of each row is made of; -1 without a formula."""
    work, fleet = workload.work, prediction.fleet
    compute = work.flops / rate_matrix(work.rate, fleet)[:, column] * 1e9
    memory = work.moved_bytes / fleet.bandwidth_bytes_per_s[column] * 1e9
    limit = np.argmax(np.stack([compute, memory, np.full_like(compute, LAUNCH_FLOOR_NS)]), axis=0)
    return np.where(workload.has_work, limit, NOTHING).astype(np.int8)
