"""Adds to a measured trace which tensors its ops read and returned, as torch's profiler saw them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
from torch.profiler import profile

from ...arrays import at_rows
from ...formats.files.importers import collection_paused
from ...formats.trace.column import MISSING, Column, Interner, build_table
from ...formats.trace.signature import Argument, Signature, TensorSpec
from ...formats.trace.tables import OperandTable, TensorTable, Trace
from ..description.device import device_number
from .events import Allocation, OpEvent, TensorKey, read_events
from .outputs import find_outputs


def add_tensor_ids(trace: Trace, external_ids: Column, finished: profile) -> Trace:
    """Return the trace with tables of tensors and operands, and with the results of ops that are certain.

    `external_ids` are the profiler's numbers of the trace's ops, [ops]. The trace itself where the profiler did not
    watch shapes and memory, where this version of torch keeps no tree of events, or where the two do not agree on
    every op.
    """
    with collection_paused():
        try:
            row_of = {number: row for row, number in enumerate(external_ids.tolist()) if number != MISSING}
            ops, allocations = read_events(_event_tree(finished), row_of)
        except AttributeError:
            return trace  # the tree is torch's own affair: another version may name its parts otherwise
        names, rows = trace.ops.name.tolist(), {op.row for op in ops}
        # Each event is to be found in the trace under its name, and each at most once.
        agree = len(rows) == len(ops) and all(trace.strings[names[op.row]] == op.name for op in ops)
        return _with_operands(trace, ops, allocations) if ops and agree else trace


def _event_tree(finished: profile) -> Sequence[Any]:
    """Return the roots of the profiler's events; empty where they name no tensors."""
    if not (finished.record_shapes and finished.profile_memory):
        return ()
    inner: Any = finished.profiler
    roots: Sequence[Any] = inner.kineto_results.experimental_event_tree()
    return roots


def _with_operands(trace: Trace, ops: Sequence[OpEvent], allocations: Sequence[Allocation]) -> Trace:
    numbers, known = trace.ops.signature.tolist(), [*trace.signatures, None]  # the last one is for MISSING
    outputs = find_outputs(ops, allocations, [known[numbers[op.row]] for op in ops])
    tensors: dict[TensorKey, int] = {}
    uses = [
        (op.row, tensors.setdefault(tensor, len(tensors)), is_output)
        for op, returned in zip(ops, outputs, strict=True)
        for is_output, given in ((0, op.tensors), (1, returned))
        for tensor in given
    ]
    strings = Interner[str]()
    strings.number(trace.strings)
    keys = tuple(tensors)
    storages = Interner[int]()
    dtypes = strings.number([str(key.dtype).removeprefix("torch.") for key in keys])
    columns = np.array(uses, dtype=np.int64).reshape(-1, 3)
    traced = replace(
        trace,
        strings=tuple(strings),
        tensors=build_table(
            TensorTable,
            len(keys),
            storage=storages.number([key.storage for key in keys]),
            dtype=dtypes,
            element_count=[key.element_count for key in keys],
            device=[device_number(key.device) for key in keys],
        ),
        operands=build_table(
            OperandTable, len(columns), op=columns[:, 0], tensor=columns[:, 1], is_output=columns[:, 2]
        ),
    )
    return complete_signatures(_with_collective_dtypes(traced), ops, outputs)


def _with_collective_dtypes(trace: Trace) -> Trace:
    """Return the trace with the dtypes of collectives on lists of tensors, which the profiler's file does not have."""
    table, operands = trace.collectives, trace.operands
    first = np.searchsorted(operands.op, table.op)
    has_tensor = at_rows(operands.op, first) == table.op
    of_first = at_rows(trace.tensors.dtype[operands.tensor], first)
    dtype = np.where((table.dtype == MISSING) & (table.op != MISSING) & has_tensor, of_first, table.dtype)
    return replace(trace, collectives=replace(table, dtype=dtype.astype(table.dtype.dtype)))


Call = tuple[int, int, tuple[str, ...]]
"""Name, signature, and the dtypes of the tensors in lists: the profiler's file does not have those."""


def complete_signatures(trace: Trace, ops: Sequence[OpEvent], outputs: Sequence[tuple[TensorKey, ...]]) -> Trace:
    """Return the trace with the dtypes of listed tensors, and the result of every call that returns one tensor.

    The same call returns a tensor of the same form each time; where two were seen, neither is kept.
    """
    names, numbers = trace.ops.name.tolist(), trace.ops.signature.tolist()
    calls: list[Call] = [(name, number, ()) for name, number in zip(names, numbers, strict=True)]
    seen: dict[Call, TensorKey | None] = {}
    for op, returned in zip(ops, outputs, strict=True):
        if numbers[op.row] == MISSING:
            continue
        call = calls[op.row] = (names[op.row], numbers[op.row], _listed_dtypes(op))
        if len(returned) == 1:
            form = returned[0]
            known = seen.setdefault(call, form)
            if known is not None and known is not form and _spec(known) != _spec(form):
                seen[call] = None
    signatures = Interner[Signature]()
    told = {}
    for call in dict.fromkeys(calls):
        if call[1] != MISSING:
            typed, result = _typed(trace.signatures[call[1]], call[2]), seen.get(call)
            told[call] = signatures[typed if result is None else replace(typed, results=(_spec(result),))]
    column = np.array([told.get(call, MISSING) for call in calls], dtype=trace.ops.signature.dtype)
    return replace(trace, signatures=tuple(signatures), ops=replace(trace.ops, signature=column))


def _listed_dtypes(op: OpEvent) -> tuple[str, ...]:
    """Return the dtypes of the tensors in lists; most ops have none."""
    listed = [tensor for at in op.lists for tensor in op.inputs[at]]
    return tuple([str(tensor.dtype).removeprefix("torch.") for tensor in listed])


def _typed(signature: Signature, dtypes: tuple[str, ...]) -> Signature:
    """Return the signature with the dtypes of its listed tensors, where there are as many."""
    listed = [value for value in signature.arguments if _is_list(value)]
    if not dtypes or sum(map(len, listed)) != len(dtypes):
        return signature
    rest = iter(dtypes)
    return replace(
        signature,
        arguments=tuple(
            tuple(replace(item, dtype=next(rest)) for item in value) if _is_list(value) else value
            for value in signature.arguments
        ),
    )


def _spec(tensor: TensorKey) -> TensorSpec:
    return TensorSpec(str(tensor.dtype).removeprefix("torch."), tensor.sizes, tensor.strides)


def _is_list(value: Argument) -> TypeGuard[tuple[TensorSpec, ...]]:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, TensorSpec) for item in value)
