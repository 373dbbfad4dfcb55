"""Reduce real traces to what a shape-only recording would hold, with each op's host time beside it."""

import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from ...analyzer.host.recorded_speed import LONGEST_NS, classify_calls, sum_between, times_of_rows, topmost_rows
from ...analyzer.host.timeline import places_of
from ...arrays import Floats, Rows
from ...formats.files.open import load_trace
from ...formats.trace.column import build_table, row_count, take_rows
from ...formats.trace.tables import TABLES, Trace
from ...records import dataclass, replace
from .profiler_ratios import Mode

HOSTS: Final = {
    "h100_bert_small_inference": "h100-node",
    "h100_vit_small_inference": "h100-node",
    "b200_eager_inference": "b200-node",
    "mi300x_bert_small_inference": "mi300x-vm",
    "mi300x_vit_small_inference": "mi300x-vm",
    "mi300x_resnet_checkpointed_training": "mi300x-node",
    "a100_80gb_training": "a100-80gb-node",
    "rtx2080ti_resnet_training": "rtx2080ti-workstation",
    "v100_convnet_ddp_training": "v100-convnet-node",
    "v100_dlrm_training_rank0": "v100-dlrm-node",
    "v100_dlrm_training_rank1": "v100-dlrm-node",
    "v100_training_memory_events": "v100-memory-node",
}
"""Traces of a few ops, and compiled ones, are left out."""
_KEPT = ("ops", "tensors")
_WRAPPERS = re.compile(r"^(?!\w+::)|^(autograd|torch|nccl|c10d|record_param_comms|prim|profiler|detach)")
_GONE = {"aten::_batch_norm_impl_index", "aten::_convolution", "aten::to", "aten::_cat_impl"}
"""Composite ops of older releases that torch no longer knows as such."""
NOISE: Final = {"aten::detach", "aten::lift_fresh", "aten::detach_"}
"""Ops that a recording of shapes leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A trace reduced to what a shape-only recording would hold, n ops, with host times; waiting left out."""

    name: str
    host: str
    mode: Mode
    recorded: Trace
    """As it was read."""
    trace: Trace
    place: Rows
    lead_ns: Floats
    """NaN before the first op of an iteration and where the gap is no op's cost."""
    own_ns: Floats
    launch_count: Rows
    calls: dict[str, Floats]
    """Durations of runtime calls by kind."""
    iteration: Rows
    before_launch_ratio: Floats

    def op_times_ns(self) -> Floats:
        """Return each op's recorded host time without waiting: its lead, its own time, its launches at their usual."""
        launch = float(np.median(self.calls["launch"])) if len(self.calls["launch"]) else 0.0
        return np.nan_to_num(self.lead_ns) + self.own_ns + np.where(self.own_ns > 0, launch * self.launch_count, 0.0)


def load_sample(path: Path, host: str) -> Sample:
    """Read a trace and reduce it."""
    trace = load_trace(path)
    rows = recorded_rows(trace)
    ops = take_rows(trace.ops, rows)
    start, end = ops.start_ns.astype(np.float64), (ops.start_ns + ops.duration_ns).astype(np.float64)
    iteration = np.searchsorted(np.sort(trace.iterations.cpu_start_ns), ops.start_ns, side="right")
    kinds, waits = classify_calls(trace)
    call_start, call_ns = trace.calls.start_ns, trace.calls.duration_ns.astype(np.float64)
    is_launch = np.isin(kinds, ["launch", "copy"])
    before_end = np.maximum.accumulate(np.concatenate([[-np.inf], end[:-1]]))
    lead = start - before_end - sum_between(call_start, waits, before_end, start)
    lead[np.diff(iteration, prepend=-1) != 0] = np.nan
    lead[lead > LONGEST_NS] = np.nan
    times = times_of_rows(trace, rows, kinds, waits)
    own = np.nan_to_num(times.own_ns)
    left_out: dict[str, Any] = {name: build_table(table, 0) for name, table in TABLES.items() if name not in _KEPT}
    shapes = replace(trace, ops=replace(ops, parent=np.full(len(rows), -1), forward=np.full(len(rows), -1)), **left_out)
    with_nodes = replace(shapes.ops, sequence=autograd_nodes(trace, rows))
    first = np.searchsorted(call_start[is_launch], start)
    launch_start = np.append(call_start[is_launch], np.iinfo(np.int64).max)[first].astype(np.float64)
    has_launch = (launch_start < end) & (own > 0)
    return Sample(
        name=path.name.removesuffix(".json.gz"),
        host=host,
        mode=Mode.STACKS if trace.meta.has_stacks else Mode.SHAPES if trace.meta.has_shapes else Mode.PLAIN,
        recorded=trace,
        trace=replace(shapes, ops=with_nodes),
        place=places_of(with_nodes),
        lead_ns=np.maximum(lead, 0.0),
        own_ns=own,
        launch_count=times.launch_count,
        calls={kind: call_ns[kinds == kind] for kind in ("launch", "copy", "sync")},
        iteration=iteration,
        before_launch_ratio=((launch_start - start) / np.where(own > 0, own, 1.0))[has_launch],
    )


def recorded_rows(trace: Trace) -> Rows:
    """Return the outermost ops that a dispatch mode sees."""
    rows = topmost_rows(trace, [is_dispatched(name) for name in trace.strings])
    is_noise = np.array([name in NOISE for name in trace.strings], dtype=bool)
    kept: Rows = rows[~is_noise[trace.ops.name[rows]]]
    return kept


def is_dispatched(name: str) -> bool:
    """Say whether an op reaches a dispatch mode: not a range of the profiler's, nor an op that decomposes before."""
    if _WRAPPERS.match(name) or name in _GONE:
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    # An `out` overload is a kernel of its own even where the op itself decomposes.
    overloads = [item for item in torch._C._jit_get_schemas_for_operator(name) if "out" not in item.overload_name]
    for schema in overloads:
        full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if torch._C._dispatch_has_kernel(full) and not has(full, "CompositeImplicitAutograd"):
            return True
    return not overloads


def autograd_nodes(trace: Trace, rows: Rows) -> Rows:
    """Return per op the autograd node that runs it, as the row of the engine's range; -1 outside."""
    is_node = np.array([name.startswith("autograd::engine::evaluate_function") for name in trace.strings])
    node = [-1] * row_count(trace.ops)
    for row, (name, parent) in enumerate(zip(trace.ops.name.tolist(), trace.ops.parent.tolist(), strict=True)):
        node[row] = row if is_node[name] else node[parent] if parent >= 0 else -1
    return np.array(node, dtype=np.int64)[rows]
