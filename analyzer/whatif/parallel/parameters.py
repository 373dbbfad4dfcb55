"""The parameters of a recorded iteration, their gradients, and which of the optimizer's tensors are whose."""

from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows, at_rows
from ....formats.trace.column import MISSING, row_count, take_rows
from ....formats.trace.signature import Argument, Signature, TensorSpec
from ....formats.trace.tables import MemoryTable, Phase, Trace
from ....records import dataclass, replace
from ...prediction.workload import tensor_bytes
from .layers import tail_start
from .lives import storage_bytes

_INTEGERS: Final = ("int", "bool")
_ROUNDS: Final = 3
"""Passes over the optimizer's ops in which owners spread from list to list; two do for torch's own optimizers."""
_Cuts = dict[tuple[int, int], tuple[TensorSpec, TensorSpec]]
"""A tensor by its identity and into how many parts it is cut: itself, which keeps the identity its own, and a part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parameters:
    """Hold the parameters of an iteration in order of first use, n rows; those without a gradient are frozen."""

    storage: Rows
    tensor: Rows
    """The tensor by which it is first read."""
    element_count: Rows
    row_count: Rows
    """Length of its first dimension."""
    size_bytes: Floats
    first_op: Rows
    """The first forward op that reads it."""
    ready_op: Rows
    """The backward op that finishes its gradient; -1: it has none."""
    gradient: Rows
    """Tensor of the gradient, -1: none."""
    gradient_bytes: Floats

    @property
    def has_gradient(self) -> Mask:
        """Mark those that are trained."""
        return self.ready_op >= 0


def find_parameters(trace: Trace) -> Parameters:
    """Return the parameters: what existed before the iteration and has a gradient, or is read as they are.

    A gradient is the last result in backward of the op that reads the parameter itself, of as many elements.
    """
    operands, ops = trace.operands, trace.ops
    storage_of = trace.tensors.storage.astype(np.int64)
    tail = tail_start(trace)
    reads = np.flatnonzero(~operands.is_output & (operands.op < tail) & (ops.phase[operands.op] != Phase.BACKWARD))
    made = _made(trace)
    is_float = ~np.array([any(kind in text for kind in _INTEGERS) for text in trace.strings], dtype=bool)
    tensor = operands.tensor[reads].astype(np.int64)
    keep = ~made[storage_of[tensor]] & is_float[trace.tensors.dtype[tensor]] & (trace.tensors.device[tensor] >= 0)
    reads, tensor = reads[keep], tensor[keep]
    _, first = np.unique(storage_of[tensor], return_index=True)
    first = np.sort(first)
    tensor, first_op = tensor[first], operands.op[reads[first]].astype(np.int64)
    in_tail = np.isin(storage_of[tensor], storage_of[operands.tensor[operands.op >= tail]])
    if in_tail.any():  # an optimizer knows its parameters: statistics of batch norms are none
        tensor, first_op = tensor[in_tail], first_op[in_tail]
    gradient, ready = _gradients(trace, storage_of[tensor], tail)
    # What has neither a gradient nor a place in the optimizer is frozen or an input: a batch of images is no parameter.
    is_kept = (ready >= 0) | in_tail.any() | ~(ops.phase == Phase.BACKWARD).any()
    tensor, first_op, gradient, ready = tensor[is_kept], first_op[is_kept], gradient[is_kept], ready[is_kept]
    sizes, whole = tensor_bytes(trace), storage_bytes(trace)
    return Parameters(
        storage=storage_of[tensor],
        tensor=tensor,
        element_count=trace.tensors.element_count[tensor].astype(np.int64),
        row_count=_first_dimensions(trace, tensor, first_op),
        size_bytes=whole[storage_of[tensor]],
        first_op=first_op,
        ready_op=ready,
        gradient=gradient,
        gradient_bytes=np.where(gradient >= 0, at_rows(sizes, gradient, 0.0), 0.0),
    )


def owners_of_tail(trace: Trace, parameters: Parameters) -> Rows:
    """Return per storage the parameter (row) it belongs to, -1: none, as the optimizer's lists pair them.

    In a list of as many tensors as others of the call, those of one position belong to one parameter; so do all
    tensors of a call without lists. Owners spread from parameters and gradients until all are known.
    """
    owner: Rows = np.full(int(trace.tensors.storage.max(initial=-1)) + 1, MISSING, dtype=np.int64)
    storage = trace.tensors.storage.astype(np.int64)
    trained = np.flatnonzero(parameters.has_gradient)
    owner[storage[parameters.gradient[trained]]] = trained
    owner[parameters.storage] = np.arange(len(parameters.storage))
    calls = [_lists(trace, op, storage) for op in range(tail_start(trace), row_count(trace.ops))]
    for _ in range(_ROUNDS):
        before = int((owner >= 0).sum())
        for lists in calls:
            for rows in _by_length(lists):
                known = owner[rows].max(axis=0)
                np.maximum.at(owner, rows, np.broadcast_to(known, rows.shape))
        if int((owner >= 0).sum()) == before:
            break
    return owner


def cut_tail(trace: Trace, owner: Rows, over: Rows) -> Trace:
    """Return the trace whose clipping and optimizer hold but an `over[p]`-th of each parameter `p` and its state.

    Where `over` is 0 the parameter is left out of the lists, and calls that are left with nothing are dropped in
    `without_empty_tail`. A tensor is cut in its first dimension, rounded up.
    """
    storage, operands = trace.tensors.storage.astype(np.int64), trace.operands
    signatures = list(trace.signatures)
    numbers = trace.ops.signature.copy()
    tail = tail_start(trace)
    bounds = np.searchsorted(operands.op, np.arange(row_count(trace.ops) + 1))
    kept = np.ones(row_count(operands), dtype=bool)
    known: _Cuts = {}
    lookup = np.append(over, 1)
    for op in range(tail, row_count(trace.ops)):
        uses = slice(bounds[op], bounds[op + 1])
        share = lookup[owner[storage[operands.tensor[uses]]]]
        number = int(numbers[op])
        if number < 0 or (share == 1).all():
            continue
        is_output = operands.is_output[uses].astype(bool)
        signature = signatures[number]
        arguments = _cut(signature.arguments, share[~is_output], known)
        results = _cut_results(signature.results, share[is_output], known)
        kept[uses] = share > 0
        if arguments is None:
            continue
        signatures.append(Signature(arguments, signature.results if results is None else results))
        numbers[op] = len(signatures) - 1
    element_count = _cut_counts(trace, owner, over, tail)
    return replace(
        trace,
        signatures=tuple(signatures),
        ops=replace(trace.ops, signature=numbers),
        operands=take_rows(operands, np.flatnonzero(kept)),
        tensors=replace(trace.tensors, element_count=element_count),
        memory=_cut_memory(trace, owner, over, tail),
    )


def empty_tail_ops(trace: Trace, before: Trace) -> Mask:
    """Mark the ops after backward that used tensors in `before`, op by op the same, and use none now."""
    used, uses = (np.zeros(row_count(trace.ops), dtype=bool) for _ in range(2))
    used[before.operands.op], uses[trace.operands.op] = True, True
    return used & ~uses & (np.arange(len(used)) >= tail_start(trace))


def _gradients(trace: Trace, storages: Rows, tail: int) -> tuple[Rows, Rows]:
    """Return per storage the tensor of its gradient, and the op that makes it; -1 for those without."""
    operands, ops, tensors = trace.operands, trace.ops, trace.tensors
    row_of: Rows = np.full(int(tensors.storage.max(initial=-1)) + 1, MISSING, dtype=np.int64)
    row_of[storages] = np.arange(len(storages))
    # Each forward op that reads a parameter may have a gradient for it: pairs of (op, parameter).
    forward = np.flatnonzero(~operands.is_output & (operands.op < tail) & (ops.phase[operands.op] != Phase.BACKWARD))
    parameter = row_of[tensors.storage[operands.tensor[forward]]]
    reads = forward[parameter >= 0]
    parameter = parameter[parameter >= 0]
    made = np.flatnonzero(operands.is_output & (ops.phase[operands.op] == Phase.BACKWARD) & (operands.op < tail))
    made = made[row_of[tensors.storage[operands.tensor[made]]] < 0]  # a view of a parameter is no gradient
    source = ops.forward[operands.op[made]].astype(np.int64)
    made, source = made[source >= 0], source[source >= 0]
    count = tensors.element_count.astype(np.int64)
    keys_made = _pair(source, count[operands.tensor[made]])
    keys_read = _pair(operands.op[reads].astype(np.int64), count[operands.tensor[reads]])
    order, read_order = np.argsort(keys_made, kind="stable"), np.argsort(keys_read, kind="stable")
    keys_made, keys = keys_made[order], keys_read[read_order]
    # Of m parameters of one size the op's backward makes the gradients last, in the same order.
    end = np.searchsorted(keys_made, keys, side="right")
    following = np.searchsorted(keys, keys, side="right") - np.arange(len(keys))
    at = end - following
    found = (at >= np.searchsorted(keys_made, keys)) & (end > 0)
    parameter, use = parameter[read_order][found], made[order[at[found]]]
    gradient, ready = (np.full(len(storages), MISSING, dtype=np.int64) for _ in range(2))
    rank = np.argsort(operands.op[use], kind="stable")  # of a shared parameter, the last one counts
    gradient[parameter[rank]] = operands.tensor[use][rank]
    ready[parameter[rank]] = operands.op[use][rank]
    return gradient, ready


def _pair(op: Rows, count: Rows) -> Rows:
    return op * (1 << 40) + np.minimum(count, (1 << 40) - 1)


def _made(trace: Trace) -> Mask:
    """Mark the storages that the iteration makes."""
    made = np.zeros(int(trace.tensors.storage.max(initial=-1)) + 1, dtype=bool)
    storages = trace.tensors.storage[trace.operands.tensor]
    made[storages[::-1]] = trace.operands.is_output[::-1]  # of several uses the first one stays
    events = trace.memory
    if row_count(events) and (events.time_ns == MISSING).all():
        block = events.block[(events.size_bytes > 0) & (events.block >= 0) & (events.block < len(made))]
        made[block] = True
    return made


def _first_dimensions(trace: Trace, tensors: Rows, ops: Rows) -> Rows:
    """Return the length of each tensor's first dimension, as the op that reads it states it; 1 for scalars."""
    operands = trace.operands
    bounds = np.searchsorted(operands.op, np.stack([ops, ops + 1]))
    found = []
    for tensor, op, begin, end in zip(tensors.tolist(), ops.tolist(), *bounds.tolist(), strict=True):
        read = operands.tensor[begin:end][~operands.is_output[begin:end]].tolist()
        number = int(trace.ops.signature[op])
        specs = trace.signatures[number].tensors() if number >= 0 else ()
        shape = specs[read.index(tensor)].shape if len(specs) == len(read) else ()
        found.append(shape[0] if shape else int(trace.tensors.element_count[tensor]))
    return np.maximum(np.array(found, dtype=np.int64), 1)


def _lists(trace: Trace, op: int, storage: Rows) -> list[Rows]:
    """Return the storages of each tensor or list of tensors of a call."""
    number = int(trace.ops.signature[op])
    if number < 0:
        return []
    begin, end = np.searchsorted(trace.operands.op, [op, op + 1])
    is_output = trace.operands.is_output[begin:end].astype(bool)
    used = storage[trace.operands.tensor[begin:end]]
    sizes = [_tensor_count(item) for item in trace.signatures[number].arguments]
    read, written = used[~is_output], used[is_output]
    found = [written] if len(written) else []  # results are written one by one, even of a list
    if sum(sizes) == len(read):
        bounds = np.cumsum([0, *sizes])
        found += [read[bounds[at] : bounds[at + 1]] for at, size in enumerate(sizes) if size]
    return found


def _by_length(lists: list[Rows]) -> list[Rows]:
    """Return the lists of each length as one array [lists, length]."""
    lengths = {len(rows) for rows in lists}
    return [np.stack(same) for length in lengths if len(same := [rows for rows in lists if len(rows) == length]) > 1]


def _tensor_count(argument: Argument) -> int:
    if isinstance(argument, TensorSpec):
        return 1
    return sum(isinstance(item, TensorSpec) for item in argument) if isinstance(argument, tuple) else 0


def _cut(arguments: tuple[Argument, ...], share: Rows, known: _Cuts) -> tuple[Argument, ...] | None:
    """Return the arguments with their tensors cut; None where operands and tensors do not match."""
    if sum(map(_tensor_count, arguments)) != len(share):
        return None
    rest = iter(share.tolist())

    def cut(item: TensorSpec, over: int) -> TensorSpec:
        if over == 1 or not item.shape:
            return item
        key = id(item), over
        if key not in known:
            known[key] = item, TensorSpec(item.dtype, (-(-item.shape[0] // over), *item.shape[1:]))
        return known[key][1]

    found: list[Argument] = []
    for item in arguments:
        if isinstance(item, TensorSpec):
            found.append(cut(item, max(next(rest), 1)))
        elif isinstance(item, tuple) and _tensor_count(item) == len(item) > 0:
            pairs = [(part, next(rest)) for part in item]
            found.append(tuple(cut(part, over) for part, over in pairs if over and isinstance(part, TensorSpec)))
        else:
            found.append(item)
    return tuple(found)


def _cut_results(results: tuple[Argument, ...], share: Rows, known: _Cuts) -> tuple[Argument, ...] | None:
    """Return the results cut, those of left out parameters left out, where each is one tensor."""
    cut = _cut(results, share, known)
    if cut is None or len(results) != len(share):
        return cut
    return tuple(item for item, over in zip(cut, share.tolist(), strict=True) if over)


def _cut_counts(trace: Trace, owner: Rows, over: Rows, tail: int) -> Rows:
    """Return the tensors' sizes: those that nothing before the tail uses are shards."""
    tensors = trace.tensors
    share = at_rows(np.maximum(over, 1), owner[tensors.storage], 1)
    before = np.zeros(row_count(tensors), dtype=bool)
    before[trace.operands.tensor[trace.operands.op < tail]] = True
    return np.where(before | (tensors.element_count <= 1), tensors.element_count, -(-tensors.element_count // share))


def _cut_memory(trace: Trace, owner: Rows, over: Rows, tail: int) -> MemoryTable:
    """Return the memory events with those of what the tail makes cut, and those of left out parameters dropped."""
    events = trace.memory
    if not row_count(events):
        return events
    inside = (events.block >= 0) & (events.block < len(owner))
    block = np.where(inside, events.block, 0)
    used_before = np.zeros(len(owner), dtype=bool)
    used_before[trace.tensors.storage[trace.operands.tensor[trace.operands.op < tail]]] = True
    lookup = at_rows(over, owner[block], 1)
    share = np.where(inside & ~used_before[block], lookup, 1)
    size = -(-np.abs(events.size_bytes) // np.maximum(share, 1)) * np.sign(events.size_bytes)
    gone = inside & ~used_before[block] & (lookup == 0)
    return take_rows(replace(events, size_bytes=size), np.flatnonzero(~gone))
