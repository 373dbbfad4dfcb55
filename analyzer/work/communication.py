"""Sizes of a collective: what is sent among whom, wherever these stand."""

from enum import IntEnum
from typing import Final

from ...records import dataclass


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
    """An all-reduce that a framework brings along: vLLM's, SGLang's, torch's symmetric memory."""
    LOW_LATENCY = 2
    """Dispatch and combine for few tokens: each expert gets its own copy, straight from the sender."""
    HYBRID = 3
    """Dispatch and combine by HybridEP, whose copies keep few multiprocessors busy."""
    TENSORRT_LLM = 4
    """TensorRT-LLM's all-reduce, which starts sooner than other frameworks'."""


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


_KINDS: Final = (
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("gatheralong", CollectiveKind.ALL_GATHER),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("dispatch", CollectiveKind.DISPATCH),
    ("combine", CollectiveKind.COMBINE),
    ("broadcast", CollectiveKind.BROADCAST),
    ("scatter", CollectiveKind.BROADCAST),
    ("reduce", CollectiveKind.REDUCE),
    ("gather", CollectiveKind.REDUCE),
    ("send", CollectiveKind.SEND_RECEIVE),
    ("recv", CollectiveKind.SEND_RECEIVE),
    ("receive", CollectiveKind.SEND_RECEIVE),
)
"""What the letters of a name say, first to last the first that holds. Of a gather to one rank, or a scatter from one,
that rank's link decides, as of a reduce or a broadcast."""


def kind_of_collective(name: str) -> CollectiveKind | None:
    """Return what an op or a process group's record does by its name; None for what moves nothing, or is not known.

    >>> kind_of_collective("_c10d_functional::reduce_scatter_tensor"), kind_of_collective("c10d::barrier")
    (<CollectiveKind.REDUCE_SCATTER: 2>, None)
    """
    letters = name.rpartition("::")[2].lower().replace("_", "")
    return next((kind for part, kind in _KINDS if part in letters), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFacts:
    """Hold what the recording says of a collective beside its signature."""

    ranks: int
    """-1: not known."""
    run: int
    stride: int
    kind: CollectiveKind | None = None
    in_bytes: float = 0.0
    """What a rank gives; 0: not recorded."""
    out_bytes: float = 0.0
    dtype: str = "float32"


def sent_bytes(kind: CollectiveKind, ranks: int, given: float, taken: float) -> float:
    """Return the message of a collective by nccl-tests' convention, from what a rank gives and takes; 0: not known."""
    if kind is CollectiveKind.ALL_GATHER:
        return taken or given * max(ranks, 0)
    if kind is CollectiveKind.REDUCE_SCATTER:
        return given or taken * max(ranks, 0)
    if kind is CollectiveKind.SEND_RECEIVE:
        return max(given, taken)
    return given or taken


def ranks_of_sizes(kind: CollectiveKind, given: float, taken: float) -> int:
    """Return how many ranks sizes alone tell of; -1 where they tell nothing."""
    if min(given, taken) <= 0 or kind not in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return -1
    larger, smaller = (taken, given) if kind is CollectiveKind.ALL_GATHER else (given, taken)
    return max(1, round(larger / smaller))
