"""Puts the tables of a trace together from the rows of a recording, and adds ops to a whole trace."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

import numpy as np

from ...arrays import Rows
from ..trace.column import MISSING, Column, build_table, renumber, row_count, take_rows as take_table_rows
from ..trace.signature import Signature
from ..trace.tables import TABLES, Meta, OpTable, Phase, Quality, Trace, Workload
from .builder import build_groups
from .gpu import (
    build_calls,
    build_collectives,
    build_kernels,
    build_memory,
    build_syncs,
    count_launches_without_kernel,
    keep_unrun_kernels,
)
from .ops import build_ops
from .settle import Recording
from .steps import add_spans, find_iterations

_WHOLE_MICROSECONDS_NS: Final = 1000


def assemble(
    recording: Recording,
    *,
    signatures: Sequence[Signature] = (),
    signature_of: Rows | None = None,
    group_ranks: Mapping[str, tuple[int, ...]] | None = None,
) -> Trace:
    """Return the trace of a recording, with what its rows tell of `meta` and `quality`.

    `signature_of` gives the row of `signatures` for each number in `OpRows.signature`, -1 where nothing is known; none:
    no op's inputs are. `group_ranks` has the ranks of process groups that a file tells elsewhere, by name. Importers
    `replace` the rest: producer, source format, platform, versions, devices.
    """
    if signature_of is None:
        signature_of = np.full(int(recording.ops.signature.max(initial=0)) + 1, MISSING, dtype=np.int64)
    ops = build_ops(recording, signature_of)
    calls = build_calls(recording, ops)
    kernels = build_kernels(recording, calls)
    calls = keep_unrun_kernels(calls, recording, kernels)
    memory = build_memory(recording, ops)
    collectives = build_collectives(recording, kernels)
    groups, members = build_groups(recording.groups, group_ranks or {}, recording.names)
    found = find_iterations(recording.marks, ops.table, ops.nesting, calls, kernels)
    return Trace(
        meta=replace(_meta(recording, ops.table), iterations_by=found.by, repetitions=found.repeated),
        strings=tuple(recording.names.texts),
        signatures=tuple(signatures),
        iterations=add_spans(found.table, recording.marks),
        ops=ops.table,
        calls=calls,
        kernels=kernels,
        syncs=build_syncs(recording),
        collectives=collectives,
        groups=groups,
        members=members,
        memory=memory,
        quality=Quality(
            kernels_without_call=int(np.sum(kernels.call == MISSING)),
            kernels_without_op=int(np.sum((kernels.call != MISSING) & (kernels.op == MISSING))),
            launches_without_kernel=count_launches_without_kernel(recording),
            ops_without_shapes=int(np.sum(ops.table.signature == MISSING)),
            ops_with_crossed_nesting=ops.nesting.crossed_count,
            events_dropped=recording.events_dropped + recording.far_count,
            durations_cut=recording.durations_cut,
        ),
    )


def _meta(recording: Recording, ops: OpTable) -> Meta:
    is_training = bool(np.any(ops.phase == Phase.BACKWARD))
    return Meta(
        capture="measured" if len(recording.kernels.start_ns) else "cpu",
        clock_resolution_ns=_WHOLE_MICROSECONDS_NS if recording.is_whole_microseconds else 1,
        has_shapes=bool(np.any(ops.signature != MISSING)),
        has_stacks=recording.has_stacks,
        has_memory=recording.has_memory,
        workload=Workload(mode="training" if is_training else None),
    )


def add_ops(trace: Trace, added: Sequence[OpTable], op: Column) -> Trace:
    """Return the trace with ops added in order of start, and all that refers to ops renumbered.

    `added`: tables whose rows follow each other, numbered from the trace's number of ops on, also where they name each
    other. `op`: of every kernel, in the same numbers, -1 for none. Strings and signatures are the caller's matter.
    """
    tables = [trace.ops, *added]
    count = sum(row_count(table) for table in tables)
    columns = {item.name: np.concatenate([getattr(table, item.name) for table in tables]) for item in fields(OpTable)}
    ops = build_table(OpTable, count, **columns)
    order = np.argsort(ops.start_ns, kind="stable")
    number: Rows = np.empty(count, dtype=np.int64)
    number[order] = np.arange(count)
    kernels = replace(trace.kernels, op=np.asarray(op).astype(trace.kernels.op.dtype))
    whole = replace(trace, ops=take_table_rows(ops, order), kernels=kernels)
    moved = replace(whole, **{name: renumber(getattr(whole, name), "ops", number) for name in TABLES})
    without_op = (moved.kernels.call != MISSING) & (moved.kernels.op == MISSING)
    quality = replace(
        trace.quality,
        kernels_without_op=int(without_op.sum()),
        ops_without_shapes=int((moved.ops.signature == MISSING).sum()),
    )
    meta = replace(trace.meta, has_shapes=bool((moved.ops.signature != MISSING).any()))
    return replace(moved, meta=meta, quality=quality)
