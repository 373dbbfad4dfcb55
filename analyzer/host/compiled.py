"""What compiled code costs the host: it is entered once per region, and launches kernels without torch around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays import Floats, Mask, Rows
from ...formats.trace.tables import Phase, Trace
from ..recorded.compiled import CompiledOps, find_compiled, region_per_op
from ..work import VARYING_FAMILIES, family_of
from .costs import HostCosts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpHostTimes:
    """Hold host times of n ops."""

    lead_ns: Floats
    """Before each."""
    own_ns: Floats
    """In each, without its launch calls and what runs inside."""


def with_compiled_costs(
    trace: Trace, costs: HostCosts, launches: Rows, eager: OpHostTimes, *, is_everywhere: bool = False
) -> OpHostTimes:
    """Return host times with those of compiled ops in place of their `eager` ones; other ops keep theirs.

    Generated kernels cost the same whatever they compute. Products, convolutions and attention are called as torch
    has them, by the compiler's code instead of modules and autograd; views are none of the host's business any more.
    Accumulated gradients that a region's row encloses are eager ops. Everywhere: each phase but the optimizer's is one
    region more, of whose Python what stands before its first op is left.
    """
    compiled = find_compiled(trace)
    if not (is_everywhere or compiled.is_region.any()):
        return eager
    region = region_per_op(trace, compiled, is_everywhere=is_everywhere)
    inside = (region >= 0) & ~compiled.is_region
    is_varying = np.array([family_of(name) in VARYING_FAMILIES for name in trace.strings], dtype=bool)
    generated = inside & ~is_varying[trace.ops.name] if len(inside) else inside
    generated_ns = launches * max(costs.compiled_kernel_ns - costs.launch_ns, 0.0)
    call_ns = np.where(compiled.is_backward, costs.compiled_backward_ns, costs.compiled_call_ns)
    own = np.where(compiled.is_region, call_ns, np.where(generated, generated_ns, eager.own_ns))
    lead = eager.lead_ns.copy()
    around = np.flatnonzero(inside & (compiled.region < 0) & (trace.ops.parent < 0))
    entries = around[np.unique(region[around], return_index=True)[1]]
    entered = lead[entries] + np.where(
        trace.ops.phase[entries] == Phase.BACKWARD, costs.compiled_backward_ns, costs.compiled_call_ns
    )
    lead[around] = 0.0
    lead[entries] = entered
    for row in _accumulated(trace, compiled, inside):
        name = trace.strings[trace.ops.name[row]]
        lead[row] = costs.lead_cost_ns("", name, int(trace.ops.phase[row]), "any")
    return OpHostTimes(lead_ns=lead, own_ns=own.astype(np.float64))


def _accumulated(trace: Trace, compiled: CompiledOps, inside: Mask) -> list[int]:
    """Return the ops that a region's row encloses, but which are not compiled."""
    rows = np.flatnonzero(~inside & (trace.ops.parent >= 0) & ~compiled.is_region)
    return [int(row) for row in rows[compiled.is_region[trace.ops.parent[rows]]]]
