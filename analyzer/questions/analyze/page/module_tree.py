"""What the modules of a network take on one GPU, forward and backward: layers within layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from .....arrays import Floats
from .....formats.trace.tables import Phase
from .....records import dataclass, field
from ....iteration.result import Analysis
from ....page.names import short_name
from ....page.page import Branch, Tree
from ....page.quantity import TimeUnit, common_time_unit, format_share, format_time_in

LEAST_SHARE: Final = 0.001
"""Of the GPU time; modules that take less are not named."""
_SIDES: Final = (Phase.FORWARD, Phase.BACKWARD)


@dataclass(slots=True, eq=False)
class _Node:
    time_ns: Floats = field(default_factory=lambda: np.zeros(len(Phase)))
    """By phase, with all below."""
    inner: dict[str, _Node] = field(default_factory=dict)


def module_tree(analysis: Analysis, gpu: str) -> Tree | None:
    """Return the modules with their share of the GPU time, in order of first use; None where none is recorded.

    Gradients stand at the module whose forward pass they belong to.
    """
    trace, run = analysis.trace, analysis.run
    column = analysis.column(gpu)
    busy, kernels = run.prediction.busy_ns(column), analysis.window.kernel_rows
    ops = trace.kernels.op[kernels] if len(kernels) else analysis.window.op_rows
    rows = run.workload.row_of[kernels if len(kernels) else ops]
    is_known = (ops >= 0) & (rows >= 0)
    ops, rows = ops[is_known], rows[is_known]
    each_ns = busy[rows] / np.maximum(run.workload.count[rows], 1)  # a row's kernels are alike
    order, root = np.argsort(ops, kind="stable"), _Node()
    for module, phase, time_ns in zip(
        *(values[order].tolist() for values in (trace.ops.module[ops], trace.ops.phase[ops], each_ns)), strict=True
    ):
        if module >= 0 and time_ns > 0:
            path = [root]
            for name in trace.strings[module].split("."):
                path.append(path[-1].inner.setdefault(name, _Node()))
            for node in path:
                node.time_ns[phase] += time_ns
    if not root.inner:
        return None
    whole = float(busy.sum())
    has_backward = bool(root.time_ns[Phase.BACKWARD] > 0)
    unit = common_time_unit(float(node.time_ns.sum()) for node in root.inner.values())
    sides = ("forward", "backward") if has_backward else ()
    return Tree(
        title=f"Modules on {gpu}",
        description=(
            f"The GPU time of each module with all inside it, in the order in which they are first used; "
            f"{format_share(float(root.time_ns.sum()) / whole)} of it belongs to modules. Those under "
            f"{100 * LEAST_SHARE:g} % are left out."
        ),
        columns=(*sides, "in all", "share"),
        branches=tuple(_branches(root, unit, LEAST_SHARE * whole, whole, has_backward=has_backward)),
    )


def _branches(node: _Node, unit: TimeUnit, least_ns: float, whole_ns: float, *, has_backward: bool) -> Iterator[Branch]:
    for name, found in node.inner.items():
        path, inner, total = [name], found, float(found.time_ns.sum())
        while len(inner.inner) == 1 and float(next(iter(inner.inner.values())).time_ns.sum()) >= total:
            ((more, inner),) = inner.inner.items()  # what holds nothing else stands in one line with it
            path.append(more)
        if total >= least_ns:
            sides = [format_time_in(float(found.time_ns[side]), unit) for side in _SIDES] if has_backward else []
            yield Branch(
                name=short_name(".".join(path)),
                cells=(*sides, format_time_in(total, unit), format_share(total / whole_ns)),
                branches=tuple(_branches(inner, unit, least_ns, whole_ns, has_backward=has_backward)),
            )
