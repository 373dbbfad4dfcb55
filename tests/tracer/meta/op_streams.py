"""Pairs the ops of two recordings of one model and says which part of the time they have in common.

A profiler records ops inside ops, a recording of shapes only what reaches torch's dispatcher; so both are first brought
to that level, then paired by what they compute, as `wavecast validate` pairs them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.predict import predict_shapes
from wavecast.analyzer.prediction.workload import measured_workload, shape_workload
from wavecast.analyzer.questions.validate.calls import MatchRule, OpCalls, align, list_calls
from wavecast.analyzer.recorded.recording import choose_recording, untimed
from wavecast.arrays import Floats, Rows, at_rows
from wavecast.formats.trace.column import MISSING, Interner, Table, columns, row_count, take_rows
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec, format_shapes
from wavecast.formats.trace.tables import TABLES, Phase, Trace
from wavecast.specs.gpu import Gpu

Mask = npt.NDArray[np.bool_]
LONGEST_LIST: Final = 30
"""Tensors up to which torch's profiler writes the shapes of a list; of longer ones (multi-tensor ops) it has none."""
INDEXED: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
"""Ops whose lists of indices the profiler leaves out."""
CPU_OPERANDS: Final = {"aten::_embedding_bag_backward": 3}
"""Tensors after which a CPU passes others of its own: what it kept of the forward pass, in place of CUDA's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """Hold one recording's n calls and what each weighs, ns."""

    trace: Trace
    """At the level of the dispatcher."""
    calls: OpCalls
    call_ns: Floats
    """0 for collectives: a recording of shapes is of one process."""
    collective_ns: float
    is_shaped: npt.NDArray[np.bool_]
    """Whether any tensor's shape takes part in the comparison, [n]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Say how much of one recording's time is in ops that the other has as well."""

    share: float
    """By name, types and shapes."""
    alike_share: float
    """Those, and ops that do equal work under another name or in other parts."""
    unshaped_share: float
    """Part of `share` where no shape could be compared."""
    collective_share: float
    """Of all its time, what is left out here because the process exchanges data with others."""
    call_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lone:
    """Sum up the calls of one op that only one recording has."""

    is_second: bool
    op: str
    shapes: str
    count: int
    share: float
    """Of its recording's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Compare two recordings of one model."""

    sides: tuple[Side, Side]
    lone: tuple[Lone, ...]
    """Not matched by name, types and shapes; the largest share first."""

    @property
    def least_share(self) -> float:
        """Return the smaller share."""
        return min(side.share for side in self.sides)


def match_streams(first: Trace, second: Trace, gpu: Gpu) -> Match:
    """Pair the ops of two recordings; those without GPU times are weighed by their predicted times on `gpu`."""
    keys = Interner[Hashable]()
    has_shapes = all(trace.meta.has_shapes for trace in (first, second))
    streams = tuple(read_stream(trace, keys, gpu, has_shapes=has_shapes) for trace in (first, second))
    alignment = align(*(stream.calls for stream in streams))
    by_name = np.flatnonzero(alignment.rule <= MatchRule.CALL)
    found = [(np.isin(pair, by_name), pair >= 0) for pair in (alignment.first, alignment.second)]
    one, other = (_side(stream, *masks) for stream, masks in zip(streams, found, strict=True))
    lone = [
        item
        for at, (stream, (named, _)) in enumerate(zip(streams, found, strict=True))
        for item in _list_lone(stream, np.flatnonzero(~named), is_second=bool(at))
    ]
    return Match(sides=(one, other), lone=tuple(sorted(lone, key=lambda item: -item.share)))


def _side(stream: Stream, named: Mask, paired: Mask) -> Side:
    whole_ns = max(float(stream.call_ns.sum()), 1.0)
    share, alike, unshaped = (
        float(stream.call_ns[mask].sum()) / whole_ns for mask in (named, paired, named & ~stream.is_shaped)
    )
    return Side(
        share=share,
        alike_share=alike,
        unshaped_share=unshaped,
        collective_share=stream.collective_ns / (whole_ns + stream.collective_ns),
        call_count=len(named),
    )


def dispatched(trace: Trace) -> Trace:
    """Return the trace without the ops inside those that reach the dispatcher; kernels go to the ops that are left.

    A recorded op inside `aten::relu_` is its implementation (`aten::clamp_min_` on CUDA), one inside `aten::linear`,
    which torch resolves before it dispatches, is what a recording of shapes holds.
    """
    names = [name in _dispatched_ops() for name in trace.strings]
    reaches = [names[name] for name in trace.ops.name.tolist()]
    parents, whole = trace.ops.parent.tolist(), list[int]()
    for row, parent in enumerate(parents):
        above = whole[parent] if 0 <= parent < row else MISSING
        whole.append(above if above != MISSING else row if reaches[row] else MISSING)
    rows = np.arange(row_count(trace.ops))
    of = np.where(np.array(whole, dtype=np.int64) == MISSING, rows, whole)
    kept = np.flatnonzero(of == rows)
    number = np.append(np.searchsorted(kept, of), MISSING)
    trace = replace(trace, ops=take_rows(trace.ops, kept))
    tables: dict[str, Any] = {name: _renumber(getattr(trace, name), number) for name in TABLES}
    return replace(trace, **tables)


def _renumber(table: Table, number: Rows) -> Table:
    owners = [spec.name for spec in columns(table) if spec.refers_to == "ops"]
    return replace(table, **{name: number[getattr(table, name)] for name in owners})


@cache
def _dispatched_ops() -> frozenset[str]:
    """Return the ops, without overloads, that torch knows and does not resolve into others before it dispatches."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    found = (name.partition(".") for name in torch._C._dispatch_get_all_op_names())
    return frozenset(
        name
        for name, dot, overload in found
        if not overload.endswith("out") and not has_kernel(name + dot + overload, "CompositeImplicitAutograd")
    )


def read_stream(trace: Trace, keys: Interner[Hashable], gpu: Gpu, *, has_shapes: bool = True) -> Stream:
    """Return the calls of one iteration with their time: measured, or predicted where nothing was.

    Calls are the same by name alone where the shapes of either recording are missing (`has_shapes` is false).
    """
    recorded = choose_recording(dispatched(trace))
    is_measured = len(recorded.window.kernel_rows) > 0
    if not is_measured:
        recorded = untimed(recorded)
    trace, window = recorded.trace, recorded.window
    workload = measured_workload(trace, window) if is_measured else shape_workload(trace, window)
    compared = as_profiled(trace) if has_shapes else _without_signatures(trace)
    calls = list_calls(compared, workload, window.kernel_rows, keys)
    part_ns = (
        trace.kernels.duration_ns[calls.part_item].astype(np.float64)
        if is_measured
        else predict_shapes(workload, [gpu], load_library()).time_ns[calls.part_row, 0]
    )
    call_ns = np.bincount(calls.part_call, weights=part_ns, minlength=len(calls.op)).astype(np.float64)
    if trace.meta.capture == "cpu":
        call_ns[_counts_steps(trace, calls)] = 0.0
    exchanged_ns = call_ns * _exchanges(trace, calls)
    shaped = [bool(signature.tensors()) for signature in compared.signatures]
    return Stream(
        trace=trace,
        calls=calls,
        call_ns=call_ns - exchanged_ns,
        collective_ns=float(exchanged_ns.sum()),
        is_shaped=_of_calls(compared, calls, shaped),
    )


def as_profiled(trace: Trace) -> Trace:
    """Return the trace with no more in its signatures than torch's profiler writes, whoever recorded it."""
    pairs = np.stack([trace.ops.name, trace.ops.signature], axis=1)
    distinct, number = np.unique(pairs, axis=0, return_inverse=True)
    signatures = tuple(
        _profiled_signature(trace.strings[name], trace.signatures[signature]) if signature >= 0 else Signature(())
        for name, signature in distinct.tolist()
    )
    rows = np.where(trace.ops.signature >= 0, number.ravel(), MISSING).astype(np.int32)
    return replace(trace, signatures=signatures, ops=replace(trace.ops, signature=rows))


def _without_signatures(trace: Trace) -> Trace:
    none = np.full(row_count(trace.ops), MISSING, dtype=np.int32)
    return replace(trace, signatures=(), ops=replace(trace.ops, signature=none))


def _profiled_signature(name: str, signature: Signature) -> Signature:
    arguments = [_profiled_argument(item, name in INDEXED) for item in signature.arguments]
    tensors = [at for at, item in enumerate(arguments) if isinstance(item, TensorSpec)]
    for at in tensors[CPU_OPERANDS.get(name, len(tensors)) :]:
        arguments[at] = UNKNOWN
    return Signature(tuple(arguments))


def _profiled_argument(value: Argument, is_indices: bool) -> Argument:
    """Return an argument; a list of tensors without what the profiler does not say: types, and all of a long one."""
    if not isinstance(value, tuple) or not any(isinstance(item, TensorSpec) for item in value):
        return value
    if is_indices or len(value) > LONGEST_LIST:
        return UNKNOWN
    return tuple(TensorSpec("any", item.shape) for item in value if isinstance(item, TensorSpec))


def _counts_steps(trace: Trace, calls: OpCalls) -> Mask:
    """Say which calls of an optimizer touch single numbers alone: CUDA's optimizers keep their counters on the host."""
    single = [all(item.element_count == 1 for item in signature.tensors()) for signature in trace.signatures]
    is_optimizer: Mask = calls.phase == Phase.OPTIMIZER
    return is_optimizer & _of_calls(trace, calls, single)


def _exchanges(trace: Trace, calls: OpCalls) -> Mask:
    collective = [name.startswith("c10d::") for name in trace.strings]
    return _look_up(collective, at_rows(trace.ops.name, calls.op))


def _of_calls(trace: Trace, calls: OpCalls, by_signature: list[bool]) -> Mask:
    """Return what is said of each call's signature; False for a call without one."""
    return _look_up(by_signature, at_rows(trace.ops.signature, calls.op))


def _look_up(values: list[bool], rows: Rows) -> Mask:
    """Return the values of some rows; False for row -1."""
    found: Mask = np.array([*values, False], dtype=bool)[rows]
    return found


def _list_lone(stream: Stream, rows: Rows, *, is_second: bool) -> Iterator[Lone]:
    whole_ns = max(float(stream.call_ns.sum()), 1.0)
    calls, trace = stream.calls, stream.trace
    _, first, group = np.unique(calls.key[rows], return_index=True, return_inverse=True)
    for number, call in enumerate(rows[first].tolist()):
        members = rows[group == number]
        op = int(calls.op[call])
        signature = int(trace.ops.signature[op]) if op >= 0 else -1
        yield Lone(
            is_second=is_second,
            op=trace.strings[int(trace.ops.name[op] if op >= 0 else trace.kernels.name[calls.kernel[call]])],
            shapes=format_shapes(trace.signatures[signature]) if signature >= 0 else "",
            count=len(members),
            share=float(stream.call_ns[members].sum()) / whole_ns,
        )
