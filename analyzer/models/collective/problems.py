"""Collectives as columns."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass
from ....specs.gpu import Rate
from ...work import Work
from ...work.communication import CollectiveDims, CollectiveKind, Implementation
from ...work.table import WorkTable
from ..frame.problems import dims_of, fp32_rates, shared_columns

GROUPS: Final = (
    *("within a machine, below 1 MB", "within a machine, 1 to 16 MB", "within a machine, from 16 MB"),
    *("between machines, below 16 MB", "between machines, from 16 MB"),
    *("frameworks' own all-reduce", "dispatch and combine"),
)
OWN: Final = (Implementation.FRAMEWORK, Implementation.TENSORRT_LLM)
SMALL_BYTES: Final = 1e6
LARGE_BYTES: Final = 16e6
USUAL_NODE: Final = 8.0
"""GPUs of most machines: groups of intervals must not depend on the GPU that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveProblems:
    """Hold collectives as columns; see `CollectiveDims` for what they mean."""

    kind: Codes
    """`CollectiveKind`."""
    implementation: Codes
    """`Implementation`."""
    message_bytes: Floats
    ranks: Floats
    run: Floats
    stride: Floats
    element_bytes: Floats


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> CollectiveProblems:  # noqa: ARG001
    """Return the problems of collectives; the unit that computes says nothing."""
    return problems_of_dims(dims_of(works, CollectiveDims))


def problems_of_dims(dims: Sequence[CollectiveDims]) -> CollectiveProblems:
    """Return collectives as columns.

    >>> dims = CollectiveDims(kind=CollectiveKind.ALL_REDUCE, message_bytes=2e6, ranks=8, run=8)
    >>> problems_of_dims([dims]).message_bytes
    array([2000000.])
    """

    return CollectiveProblems(**shared_columns(CollectiveProblems, dims, CollectiveDims))


def neighbours(problems: CollectiveProblems, domain: Floats) -> Floats:
    """Return how many of each group's ranks stand among `domain` neighbours, such as the GPUs of a node.

    >>> dims = CollectiveDims(kind=CollectiveKind.ALL_REDUCE, message_bytes=2e6, ranks=16, run=16)
    >>> neighbours(problems_of_dims([dims]), np.array([8.0]))
    array([8.])
    """
    p = problems
    runs = np.where(p.ranks > p.run, np.maximum(1.0, domain // np.maximum(p.stride, 1.0)), 1.0)
    return np.asarray(np.maximum(1.0, np.minimum(p.ranks, runs * np.minimum(p.run, domain))))


def is_kind(problems: CollectiveProblems, *kinds: CollectiveKind) -> Mask:
    """Say which collectives are of these kinds."""
    return np.isin(problems.kind, [int(kind) for kind in kinds])


def group(problems: CollectiveProblems) -> Codes:
    """Return the index into `GROUPS` of each problem: what it is, its size, whether machines of eight part it."""
    p = problems
    crosses = neighbours(p, np.full(1, USUAL_NODE)) < p.ranks
    within = (p.message_bytes >= SMALL_BYTES).astype(np.int64) + (p.message_bytes >= LARGE_BYTES)
    between = 3 + (p.message_bytes >= LARGE_BYTES)
    found = np.where(crosses, between, within)
    found = np.where(np.isin(p.implementation, OWN), 5, found)
    return np.where(is_kind(p, CollectiveKind.DISPATCH, CollectiveKind.COMBINE), 6, found).astype(np.int64)


def wire_bytes(problems: CollectiveProblems) -> Floats:
    """Return what each rank must send, by a ring: nccl-tests' "bus" bytes."""
    p = problems
    others = (p.ranks - 1.0) / p.ranks
    whole = is_kind(p, CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.SEND_RECEIVE)
    twice = np.where(is_kind(p, CollectiveKind.ALL_REDUCE), 2.0 * others, others)
    return np.asarray(p.message_bytes * np.where(whole, np.minimum(p.ranks - 1.0, 1.0), twice))


def least_work(problems: CollectiveProblems) -> WorkTable:
    """Return what sums add up, each element once, and what the memory moves: a rank reads and writes its message."""
    p = problems
    sums = is_kind(p, CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE)
    return WorkTable(
        flops=np.where(sums, p.message_bytes / p.element_bytes, 0.0),
        moved_bytes=p.message_bytes * 2.0,
        rate=fp32_rates(p),
    )
