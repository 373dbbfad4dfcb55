"""How many kernels an op launches, on which stream, and which waits for another stream's."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Mask, Rows, at_rows, group_rows
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.signature import Argument, Signature, TensorSpec
from ...formats.trace.tables import Trace
from ...records import dataclass
from ..work import Family, are_of_family, family_of, work_of
from .costs import HostCosts, spellings

STREAM: Final = 7
"""The default stream as CUPTI numbers it."""
_FIRST_GROUP: Final = 20
"""Stream of collectives without a group; those of group g run on the g-th after it."""
_SIDE: Final = 18
"""Stream of what packs parameters for a collective, as FSDP2 does it beside the layers that run meanwhile
(torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""
_RECORDED: Final = 1 << 20
"""Streams that the recording says ops were issued to are numbered from here: groups never get so far."""
_PACKING: Final = (Family.COPY, Family.ELEMENTWISE, Family.OPTIMIZER)
"""Families of ops that pack: copies and casts, of one tensor or of lists."""
_ROUNDS: Final = 4
"""Ops one after the other that pack for a collective, at most: casts, then copies into one buffer."""
WAITING_OPS: Final = frozenset({"_c10d_functional::wait_tensor", "c10d_functional::wait_tensor", "c10d::wait"})
"""Ops that make the compute stream wait for a result and do nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamPlan:
    """Hold the stream of each op, and w waits of one op's stream for what another op launched."""

    stream: Rows
    """Of each op of the trace."""
    is_collective: Mask
    source: Rows
    """The op whose kernels are waited for, [w]."""
    target: Rows
    """The op before whose kernels its stream waits, [w]."""
    on_stream: Rows
    """The stream that waits, [w]."""


def plan_streams(trace: Trace, launches: Rows) -> StreamPlan:
    """Return where the ops of a trace run and what waits for what, given how many kernels each op launches.

    A collective runs on its group's stream after what it reads was written, and whatever reads its result waits, or
    the op that says so does. Where the recording names no tensors, it runs after everything launched before it, and
    what comes after waits for it: from the next op, or, of asynchronous ones, from the next op that waits.
    """
    count = row_count(trace.ops)
    family = are_of_family(trace.strings, Family.COLLECTIVE)
    is_wait = np.array([name.split(".")[0] in WAITING_OPS for name in trace.strings], dtype=bool)[trace.ops.name]
    is_collective = family[trace.ops.name] & (launches > 0)
    group = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    table = trace.collectives
    known = table.op != MISSING
    group[table.op[known]] = table.group[known]
    stream = np.where(is_collective, _FIRST_GROUP + 1 + group, STREAM)
    if not is_collective.any():
        none = np.zeros(0, dtype=np.int64)
        return StreamPlan(stream=stream, is_collective=is_collective, source=none, target=none, on_stream=none)
    runs = launches > 0
    uses = _find_uses(trace, runs, is_wait, is_collective)
    packs = [family_of(name) in _PACKING or name.startswith("fsdp::") for name in trace.strings]
    packing = np.array(packs, dtype=bool)[trace.ops.name]
    stream[_packing(uses, runs & packing, is_collective)] = _SIDE
    aside = (trace.ops.stream > 0) & ~is_collective
    stream[aside] = _RECORDED + trace.ops.stream[aside]
    named = np.zeros(count, dtype=bool)
    named[trace.operands.op] = True
    more = _order_waits(trace, stream, runs, is_wait, is_collective & ~named)
    source, target = np.concatenate((uses.writer, more[0])), np.concatenate((uses.reader, more[1]))
    on_stream = np.where(is_wait[target], STREAM, stream[target])
    source, target, on_stream = _needed(source, target, on_stream, stream)
    return StreamPlan(stream=stream, is_collective=is_collective, source=source, target=target, on_stream=on_stream)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Uses:
    """Hold which op uses what another one wrote last, u of them; and what is written, and by whom used next, v."""

    writer: Rows
    reader: Rows
    maker: Rows
    user: Rows


def _find_uses(trace: Trace, runs: Mask, is_wait: Mask, is_collective: Mask) -> _Uses:
    """Return the flow of data between ops that launch kernels (`runs`) or only wait, by storage."""
    operands = trace.operands
    op, storage = operands.op.astype(np.int64), trace.tensors.storage[operands.tensor].astype(np.int64)
    used = (runs | is_wait)[op]
    writes = (operands.is_output.astype(bool) | _written(trace, runs & ~is_wait, is_collective)) & runs[op]
    op, storage, writes = op[used], storage[used], writes[used]
    # In order of storage, then op, an op's reads before its writes.
    order = np.lexsort((writes, op, storage))
    op, storage, writes = op[order], storage[order], writes[order]
    at = np.maximum.accumulate(np.where(writes, np.arange(len(op)), MISSING)) if len(op) else op
    before = np.append(MISSING, at[:-1])[: len(op)]
    is_same = (before >= 0) & (storage[before] == storage) & (op[before] != op)
    # Waits aside, whoever comes next on a storage: they are no use of their own.
    acts = np.flatnonzero(runs[op])
    follows = (storage[acts[1:]] == storage[acts[:-1]]) & (op[acts[1:]] != op[acts[:-1]]) & writes[acts[:-1]]
    return _Uses(
        writer=op[before[is_same]], reader=op[is_same], maker=op[acts[:-1][follows]], user=op[acts[1:][follows]]
    )


def _written(trace: Trace, acts: Mask, is_collective: Mask) -> Mask:
    """Mark the operands that ops write of which the recording tells no result.

    In-place ops write their first argument, a tensor or a list; others, and collectives, may write all they are given.
    """
    operands, ops = trace.operands, trace.ops
    is_silent = acts.copy()
    is_silent[operands.op[operands.is_output.astype(bool)]] = False
    found = is_silent[operands.op]
    in_place = np.array([name.split(".")[0].endswith("_") for name in trace.strings], dtype=bool)[ops.name]
    rows = np.flatnonzero(found & (in_place & ~is_collective)[operands.op])
    op = operands.op[rows].astype(np.int64)
    place = np.arange(len(op)) - np.searchsorted(op, op)
    signatures, of_row = np.unique(ops.signature[op], return_inverse=True)
    most = np.array([_first_size(trace, number) for number in signatures.tolist()], dtype=np.int64)
    found[rows] = place < most[of_row] if len(rows) else found[rows]
    return found


def _first_size(trace: Trace, signature: int) -> int:
    """Return how many tensors the first argument of a call holds; 1 where nothing tells."""
    first = trace.signatures[signature].arguments[:1] if signature != MISSING else ()
    return len(first[0]) if first and isinstance(first[0], tuple) else 1


def _packing(uses: _Uses, runs: Mask, is_collective: Mask) -> Mask:
    """Mark ops that only put together what a collective sends, of nothing that is computed before them."""
    packs = np.zeros(len(runs), dtype=bool)
    for _ in range(_ROUNDS):
        leads = np.zeros(len(runs), dtype=bool)
        leads[uses.maker[(is_collective | packs)[uses.user]]] = True
        leads[uses.maker[~(is_collective | packs)[uses.user]]] = False
        packs = leads & runs & ~is_collective
    for _ in range(_ROUNDS):
        packs[uses.reader[~packs[uses.writer]]] = False
    return packs


def _order_waits(trace: Trace, stream: Rows, runs: Mask, is_wait: Mask, chosen: Mask) -> tuple[Rows, Rows]:
    """Return the waits of some collectives as the order of issue has them."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return rows, rows
    is_async = np.zeros(len(runs), dtype=bool)
    table = trace.collectives
    issued = table.op[(table.op != MISSING) & table.is_async.astype(bool)]
    is_async[issued] = True
    is_async |= np.array([name.startswith("_c10d_functional::") for name in trace.strings], dtype=bool)[trace.ops.name]
    computing = np.flatnonzero(runs & (stream == STREAM))
    at = np.searchsorted(computing, rows)
    before, after = at_rows(computing, at - 1), at_rows(computing, at)
    before = np.where(at > 0, before, MISSING)
    waits = np.flatnonzero(is_wait)
    waiting = at_rows(waits, np.searchsorted(waits, rows))
    reader = np.where(is_async[rows], waiting, after)
    return (
        np.concatenate((before[before >= 0], rows[reader >= 0])),
        np.concatenate((rows[before >= 0], reader[reader >= 0])),
    )


def _needed(source: Rows, target: Rows, on_stream: Rows, stream: Rows) -> tuple[Rows, Rows, Rows]:
    """Leave out waits that earlier ones on the same stream, or later sources on the same other stream, imply."""
    order = np.lexsort((-source, target, stream[source], on_stream))
    source, target, on_stream = source[order], target[order], on_stream[order]
    # By pair of streams, targets in order, the latest source of each first: needed where it raises the latest so far.
    other = stream[source]
    is_next = (on_stream[1:] != on_stream[:-1]) | (other[1:] != other[:-1])
    pair = np.append(0, np.cumsum(is_next))[: len(source)]
    step = source.max(initial=0) + 2
    latest = np.maximum.accumulate(pair * step + source) if len(source) else source
    is_new = np.append(True, latest[1:] > latest[:-1])[: len(source)]
    is_apart = other != on_stream
    kept = is_new & is_apart
    return source[kept], target[kept], on_stream[kept]


_TENSORS_PER_LAUNCH: Final = (110, 64, 48, 36, 30)
"""Tensors that one multi-tensor kernel takes, by number of lists: `depth_to_max_tensors` of torch's
aten/src/ATen/native/cuda/MultiTensorApply.cuh."""
_BLOCKS_PER_LAUNCH: Final = 320
_CHUNK_ELEMENTS: Final = 65_536
"""`depth_to_max_blocks` and `kChunkSize` there."""
SYNCING_OPS: Final = frozenset(
    f"aten::{name}"
    for name in ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "_unique2", "equal")
)
"""Ops whose result the host reads: a copy to the host and a wait for its stream."""
_ONLY_COPYING: Final = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"})


def count_launches(trace: Trace, rows: Rows, costs: HostCosts) -> npt.NDArray[np.int64]:
    """Return the kernels that each op launches, per row of the trace's ops: 0 but for `rows`, 1 or more with work.

    Copies to the host are not counted. Multi-tensor ops (`_foreach_*`, `_fused_*`) launch by the size of their lists.
    """
    ops = trace.ops
    first, group = group_rows([ops.name[rows].astype(np.int64), ops.signature[rows].astype(np.int64)])
    counts = [
        _launches(trace.strings[name], trace.signatures[signature] if signature >= 0 else None, costs)
        for name, signature in zip(ops.name[rows[first]].tolist(), ops.signature[rows[first]].tolist(), strict=True)
    ]
    result = np.zeros(row_count(ops), dtype=np.int64)
    result[rows] = np.array(counts, dtype=np.int64)[group]
    return result


def _launches(name: str, signature: Signature | None, costs: HostCosts) -> int:
    plain = name.split(".", maxsplit=1)[0]
    if plain in _ONLY_COPYING or plain in WAITING_OPS:
        return 0
    if plain.startswith(("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")) and signature is not None:
        found = multi_tensor_launches(signature, is_in_place=plain.endswith("_"))
        if found:
            return found
    mean = next((costs.kernel_count[item] for item in spellings(name) if item in costs.kernel_count), 1.0)
    return max(round(mean), int(work_of(name, signature) is not None))


def multi_tensor_launches(signature: Signature, *, is_in_place: bool) -> int:
    """Count the launches of torch's multi_tensor_apply over the lists of a call; 0 where it has none.

    A launch is full when it holds its most tensors, or its most chunks; the tensor in hand goes on in the next.
    """
    lists = [item for item in signature.arguments if _is_tensor_list(item)]
    if not lists:
        return 0
    depth = min(len(lists) + (not is_in_place), len(_TENSORS_PER_LAUNCH))
    most_tensors, launches, tensors, blocks = _TENSORS_PER_LAUNCH[depth - 1], 0, 0, 0
    for tensor in lists[0]:  # type: ignore[union-attr]
        chunks = -(-tensor.element_count // _CHUNK_ELEMENTS)  # type: ignore[union-attr]
        if not chunks:
            continue
        tensors += 1
        full, blocks = divmod(blocks + chunks, _BLOCKS_PER_LAUNCH)
        launches += full
        if full:
            tensors = 1 if blocks else 0
        if tensors == most_tensors:
            launches, tensors, blocks = launches + 1, 0, 0
    return launches + (tensors > 0)


def _is_tensor_list(item: Argument) -> bool:
    return isinstance(item, tuple) and bool(item) and all(isinstance(entry, TensorSpec) for entry in item)
