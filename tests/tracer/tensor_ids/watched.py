"""Checks which tensors a measured recording says its ops read and returned, against what a dispatch mode saw.

A step runs once on the CPU under torch's profiler and under a mode that notes the real tensors of every op, both at
once; a marker around each op says which of the profiler's ops it is. Compared are the edges from the op that made (or
last wrote) a tensor to the ops that read it, and the forms of single results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from wavecast.analyzer.graph.export.ops import data_links
from wavecast.arrays import Rows
from wavecast.formats.trace.column import take_rows
from wavecast.formats.trace.signature import Signature
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.tracer.description.signatures import describe_arguments, describe_value, tensors_in
from wavecast.tracer.measured.profiled import read_profiler
from wavecast.tracer.meta.oplog import OpLog, OpRow

MARKER = "tensor ids check "


class Watch(TorchDispatchMode):
    """Note the tensors of every op, and mark it in the profiler's recording."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = OpLog()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or "profiler" in func.namespace:
            return func(*args, **kwargs)
        ordered = describe_arguments(func, args, kwargs)
        with torch._C._profiler._RecordFunctionFast(f"{MARKER}{len(self.log.rows)}"):
            result = func(*args, **kwargs)
        outputs = tensors_in(result)
        results = tuple(describe_value(item, keep_text=False) for item in outputs)
        row = OpRow(name=func._schema.name, signature=Signature((), results), phase=Phase.OTHER)
        self.log.add(row, tensors_in(ordered), outputs)
        return result


def record(step: Callable[[], object]) -> tuple[Trace, Trace]:
    """Return what the profiler recorded of a step, and what the mode did."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler:
        watch = Watch()
        with watch:
            step()
    log = watch.log
    truth = Trace(ops=log.op_table(), tensors=log.tensor_table(), operands=log.operand_table(),
                  strings=tuple(log.strings), signatures=tuple(log.signatures))  # fmt: skip
    return read_profiler(profiler), truth


def marked_ops(measured: Trace) -> Rows:
    """Return the op right inside each marker, in order of number; the marker's own row where there is none."""
    numbers = [int(text.removeprefix(MARKER)) if text.startswith(MARKER) else -1 for text in measured.strings]
    own = np.append(np.array(numbers)[measured.ops.name], -1)
    found = np.empty(own.max() + 1, dtype=np.int64)
    for number in (own[:-1], own[measured.ops.parent]):
        rows = np.flatnonzero(number >= 0)[::-1]  # the first one inside wins
        found[number[rows]] = rows
    return found


def keep_marked(measured: Trace) -> Trace:
    """Return the trace with the marked ops alone, numbered as the mode numbered them."""
    rows = marked_ops(measured)
    number = np.full(len(measured.ops.name), -1)
    number[rows] = np.arange(len(rows))
    table = take_rows(measured.operands, np.flatnonzero(number[measured.operands.op] >= 0))
    ops = replace(take_rows(measured.ops, rows), parent=np.full(len(rows), -1))
    return replace(measured, ops=ops, operands=replace(table, op=number[table.op]))


def edges(trace: Trace) -> set[tuple[int, int]]:
    """Return the edges of data between ops."""
    links = data_links(trace)
    return set(zip(links.source.tolist(), links.target.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Count edges, those found, those that are right, and the results whose form was recorded."""

    true_count: int
    found_count: int
    right_count: int
    form_count: int
    right_form_count: int


def compare(measured: Trace, truth: Trace) -> Agreement:
    """Compare a recording with what the mode saw."""
    marked = keep_marked(measured)
    true, seen = edges(truth), edges(marked)
    pairs = zip(marked.ops.signature.tolist(), truth.ops.signature.tolist(), strict=True)
    both = [(marked.signatures[ours].results, truth.signatures[theirs].results) for ours, theirs in pairs if ours >= 0]
    told = [(found, expected) for found, expected in both if found]
    return Agreement(
        true_count=len(true),
        found_count=len(seen),
        right_count=len(true & seen),
        form_count=len(told),
        right_form_count=sum(found == expected for found, expected in told),
    )
