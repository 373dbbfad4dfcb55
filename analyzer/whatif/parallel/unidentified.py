"""Parameters of recordings that do not tell tensors apart, as PyTorch's profiler's: what their gradients say of them.

Autograd adds each parameter's gradient to `.grad` in an op of its own (`AccumulateGrad`), called with the gradient: its
bytes, and where in the backward pass it is ready. Where that is missing, the optimizer's lists say which there are.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from ....arrays import Rows, at_rows
from ....errors import InputError
from ....formats.trace.column import MISSING, build_table, row_count, table_of_rows
from ....formats.trace.signature import TensorSpec
from ....formats.trace.tables import OperandTable, Phase, TensorTable, Trace
from ....records import dataclass, replace
from .layers import find_layers, tail_start
from .plan import ParallelPlan

_ACCUMULATES: Final = "AccumulateGrad"
_WRAPPER: Final = "autograd::engine::"
_LIST_OPS: Final = ("aten::_foreach_", "aten::_fused_")
_RECORD: Final = "'wavecast record' keeps tensor identities, PyTorch's profiler does not"


@dataclass(frozen=True, slots=True)
class _Gradient:
    spec: TensorSpec
    ready_op: int
    forward_op: int


def check_unidentified(trace: Trace, plan: ParallelPlan) -> None:
    """Raise InputError for what a plan asks of a recording that only identified tensors tell."""
    asked = [name for name in ("tp", "cp", "ep", "pp") if getattr(plan, name) > 1]
    if asked:
        words = " and ".join(asked)
        raise InputError(f"the recording does not say which tensors ops read, for {words}: {_RECORD}; or ask for dp")
    if plan.fsdp > 1 and not find_layers(trace).is_named:
        raise InputError(
            f"the recording names no numbered modules for its ops, for fsdp: {_RECORD}; or give the profiler "
            "with_modules=True and with_stack=True, or ask for dp and zero=1"
        )


def is_unidentified(trace: Trace) -> bool:
    """Say whether the recording does not tell which tensors its ops use.

    >>> is_unidentified(trace)
    False
    """
    return not row_count(trace.operands)


def identify_gradients(trace: Trace) -> Trace:
    """Return the trace with its parameters and their gradients as tensors, and the ops that use them.

    A parameter is read by the forward op whose derivative came just before its gradient, and by as many of the
    optimizer's tensors as have its shape. Raises InputError where the recording does not tell gradients' shapes.
    """
    found = _accumulated(trace) or _listed(trace)
    if not found:
        raise InputError(
            "the recording does not say how large gradients are: record with record_shapes=True, or with "
            "'wavecast record', which keeps tensor identities"
        )
    first = row_count(trace.tensors)
    storage = int(trace.tensors.storage.max(initial=-1)) + 1
    count = len(found)
    uses = [(item.forward_op, first + row, False) for row, item in enumerate(found)]
    uses += [(item.ready_op, first + count + row, True) for row, item in enumerate(found)]
    uses += _in_optimizer(trace, found, first)
    uses.sort(key=lambda use: use[0])
    strings = list(dict.fromkeys([*trace.strings, *(item.spec.dtype for item in found)]))
    if len(strings) < len(trace.strings):  # the same text twice: rows must stay
        strings = [*trace.strings, *(item.spec.dtype for item in found)]
    dtypes = [strings.index(item.spec.dtype) for item in found]
    sizes = [item.spec.element_count for item in found]
    forward = trace.ops.forward.copy()
    forward[[item.ready_op for item in found]] = [item.forward_op for item in found]
    return replace(
        trace,
        strings=tuple(strings),
        ops=replace(trace.ops, forward=forward),
        tensors=build_table(
            TensorTable,
            2 * count,
            storage=np.arange(storage, storage + 2 * count),
            dtype=dtypes * 2,
            element_count=sizes * 2,
        ),
        operands=table_of_rows(OperandTable, ("op", "tensor", "is_output"), uses),
    )


def _accumulated(trace: Trace) -> list[_Gradient]:
    """Return what autograd adds to parameters' gradients, the last time where it does so several times."""
    ops = trace.ops
    is_name = np.array([text.endswith(_ACCUMULATES) and not text.startswith(_WRAPPER) for text in trace.strings])
    rows = np.flatnonzero(is_name[ops.name] & (ops.signature >= 0)) if len(is_name) else np.zeros(0, dtype=np.int64)
    specs = [trace.signatures[number].tensors() for number in ops.signature[rows].tolist()]
    kept = [at for at, spec in enumerate(specs) if len(spec) == 1 and spec[0].element_count]
    if not kept:
        return []
    passes = _last_pass(trace, rows[kept], [specs[at][0] for at in kept])
    forward = _forward_before(trace, np.array([row for row, _ in passes]))
    return [_Gradient(spec, row, op) for (row, spec), op in zip(passes, forward.tolist(), strict=True)]


def _last_pass(trace: Trace, rows: Rows, specs: Sequence[TensorSpec]) -> list[tuple[int, TensorSpec]]:
    """Return the ops of the last of several backward passes, where they all have the same gradients."""
    ops = trace.ops
    is_forward = (ops.phase == Phase.FORWARD) & (ops.sequence >= 0)
    before = np.cumsum(is_forward)[rows]
    starts = [0, *(np.flatnonzero(np.diff(before)) + 1).tolist(), len(rows)]
    found = list(zip(rows.tolist(), specs, strict=True))
    parts = [found[begin:end] for begin, end in pairwise(starts)]
    shapes = {tuple(spec.shape for _, spec in part) for part in parts}
    return parts[-1] if len(shapes) == 1 else found


def _forward_before(trace: Trace, rows: Rows) -> Rows:
    """Return for each op the forward op of the last derivative before it; the last forward op where none is linked."""
    ops = trace.ops
    is_forward = ops.phase != Phase.BACKWARD
    is_forward &= np.arange(row_count(ops)) < tail_start(trace)
    linked = (ops.forward >= 0) & (ops.phase == Phase.BACKWARD) & at_rows(is_forward, ops.forward, False)
    at = np.maximum.accumulate(np.where(linked, np.arange(len(linked)), MISSING))[rows]
    backward = np.flatnonzero(ops.phase == Phase.BACKWARD)
    turn = np.flatnonzero(is_forward[: int(backward[0])]) if len(backward) else np.zeros(0, dtype=np.int64)
    return np.where(at >= 0, at_rows(ops.forward, at), turn[-1] if len(turn) else 0).astype(np.int64)


def _listed(trace: Trace) -> list[_Gradient]:
    """Return the parameters that the optimizer's lists hold, the last ones' gradients ready first, by their bytes.

    A list that several ops take counts once: the longest ones of an op name, which takes all parameters by turns.
    """
    ops, tail = trace.ops, tail_start(trace)
    by_name: dict[str, list[TensorSpec]] = defaultdict(list)
    for op in range(tail, row_count(ops)):
        name, number = trace.strings[ops.name[op]], int(ops.signature[op])
        if number < 0 or not name.startswith(_LIST_OPS):
            continue
        lists = [item for item in trace.signatures[number].arguments if isinstance(item, tuple)]
        if lists:
            by_name[name] += [item for item in lists[0] if isinstance(item, TensorSpec) and item.shape]
    backward = np.flatnonzero(ops.phase == Phase.BACKWARD)
    if not by_name or not len(backward):
        return []
    # An op that runs twice in a step (two moments) lists all twice: the op with fewest, of those that list any.
    specs = min((found for found in by_name.values() if found), key=len, default=[])[::-1]
    done = np.cumsum([spec.size_bytes for spec in specs])
    places = np.minimum((done / max(done[-1:].sum(), 1.0) * len(backward)).astype(np.int64), len(backward) - 1)
    ready = backward[places]
    forward = _forward_before(trace, ready)
    pairs = zip(specs, ready.tolist(), forward.tolist(), strict=True)
    return [_Gradient(spec, op, source) for spec, op, source in pairs]


def _in_optimizer(trace: Trace, found: Sequence[_Gradient], first: int) -> list[tuple[int, int, bool]]:
    """Return which parameter each tensor of clipping and optimizer belongs to, by shape; none where some have none."""
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, item in enumerate(found):
        by_shape[item.spec.shape].append(first + row)
    turns: dict[tuple[int, int, tuple[int, ...]], int] = defaultdict(int)
    uses = []
    for op in range(tail_start(trace), row_count(trace.ops)):
        number = int(trace.ops.signature[op])
        arguments = trace.signatures[number].arguments if number >= 0 else ()
        specs = [
            (place, spec)
            for place, item in enumerate(arguments)
            for spec in (item if isinstance(item, tuple) else (item,))
            if isinstance(spec, TensorSpec)
        ]
        if not specs or any(spec.shape not in by_shape for _, spec in specs):
            continue
        for place, spec in specs:
            same, turn = by_shape[spec.shape], (int(trace.ops.name[op]), place, spec.shape)
            uses.append((op, same[turns[turn] % len(same)], False))
            turns[turn] += 1
    return uses if len({tensor for _, tensor, _ in uses}) == len(found) else []
