"""What compiled code costs the host: it is entered once per region, and launches kernels without torch around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays import Floats, Rows
from ...formats.trace import Trace
from ..recorded.compiled import CompiledOps
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
    trace: Trace, costs: HostCosts, compiled: CompiledOps, launches: Rows, eager: OpHostTimes
) -> OpHostTimes:
    """Return host times with those of compiled ops in place of their `eager` ones; other ops keep theirs.

    Generated kernels cost the same whatever they compute. Products, convolutions and attention are called as torch
    has them, by the compiler's code instead of modules and autograd; views are none of the host's business any more.
    Accumulated gradients that a region's row encloses are eager ops.
    """
    inside = compiled.region >= 0
    is_varying = np.array([family_of(name) in VARYING_FAMILIES for name in trace.strings], dtype=bool)
    generated = inside & ~is_varying[trace.ops.name] if len(inside) else inside
    generated_ns = launches * max(costs.compiled_kernel_ns - costs.launch_ns, 0.0)
    call_ns = np.where(compiled.is_backward, costs.compiled_backward_ns, costs.compiled_call_ns)
    own = np.where(compiled.is_region, call_ns, np.where(generated, generated_ns, eager.own_ns))
    accumulated = np.flatnonzero(~inside & (trace.ops.parent >= 0) & ~compiled.is_region)
    accumulated = accumulated[compiled.is_region[trace.ops.parent[accumulated]]]
    lead = eager.lead_ns.copy()
    for row in accumulated.tolist():
        name = trace.strings[trace.ops.name[row]]
        lead[row] = costs.lead_cost_ns("", name, int(trace.ops.phase[row]), "any")
    return OpHostTimes(lead_ns=lead, own_ns=own.astype(np.float64))
