"""Sizes of a collective: what is sent among whom, wherever these stand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class CollectiveKind(IntEnum):
    """Name what ranks do together."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    ALL_TO_ALL = 3
    BROADCAST = 4
    REDUCE = 5
    SEND_RECEIVE = 6
    """One rank sends to one other, or both ways at once."""
    DISPATCH = 7
    """Tokens to their experts' ranks, by a library's own kernels rather than by an all-to-all."""
    COMBINE = 8
    """The experts' results back."""


class Implementation(IntEnum):
    """Name whose kernels do it."""

    NCCL = 0
    """NCCL, RCCL; of dispatch and combine, the kernels for many tokens."""
    FRAMEWORK = 1
    """An all-reduce that a serving framework brings along: vLLM's, SGLang's, TensorRT-LLM's, torch's symmetric memory."""
    LOW_LATENCY = 2
    """Dispatch and combine for few tokens: each expert gets its own copy, straight from the sender."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveDims:
    """Hold a collective of `ranks` ranks, by nccl-tests' convention of its size.

    The ranks stand in runs of `run` neighbours, whose first ones are `stride` apart: 8 ranks of one node are one run of
    8; of 16 ranks that are each the first of a node of 8, `run` is 1 and `stride` 8.
    """

    kind: CollectiveKind
    message_bytes: float
    """All-reduce, broadcast, reduce, send: the buffer. All-gather: what each rank has afterwards. Reduce-scatter: what
    each had before. All-to-all, dispatch, combine: what each rank sends to all, itself included; a token counts once
    per rank that gets a copy (low latency: per expert)."""
    ranks: int
    run: int = 1
    stride: int = 1
    element_bytes: float = 2.0
    implementation: Implementation = Implementation.NCCL


def ranks_per_domain(ranks: float, run: float, stride: float, domain: float) -> float:
    """Return how many of a group's ranks stand among `domain` neighbours, such as the GPUs of a node.

    >>> ranks_per_domain(16, 1, 8, domain=8), ranks_per_domain(8, 1, 1, domain=4), ranks_per_domain(64, 2, 8, domain=8)
    (1, 4, 2)
    """
    runs = max(1, int(domain // max(stride, 1))) if ranks > run else 1
    return int(max(1, min(ranks, runs * min(run, domain))))
