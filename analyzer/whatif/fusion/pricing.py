"""Gives nodes of a graph the time of the kernels that a compiler would generate in their place."""

import numpy as np

from ....arrays import Rows
from ....records import dataclass, replace
from ....specs.fleet import Fleet
from ...models.library import Library
from ...prediction.op_models import predict_works
from ...replay.engine import Timing
from ...work import Work


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GeneratedNodes:
    """Say which nodes stand for generated kernels: those of an op share the time of its kernels."""

    works: tuple[Work, ...]
    """Of each kernel, k."""
    ops: tuple[tuple[int, ...], ...]
    """Rows of the ops that each computes, in order; the last of its own region stands for it."""
    standing: Rows
    """The op that stands for each kernel, [k]."""
    carrier: Rows
    """Number of the op that stands for each kernel, [k]."""
    node: Rows
    """The nodes of these ops, [p]."""
    node_carrier: Rows
    """The number of each node's op, [p]."""


def with_generated(timing: Timing, generated: GeneratedNodes, fleet: Fleet, library: Library) -> Timing:
    """Return the timing with generated kernels' times in place of what their ops take by themselves.

    Ops that take no time where they stand (no formula) go on taking none.
    """
    if not len(generated.node):
        return timing
    time = predict_works(generated.works, fleet, library).time_ns
    count = int(generated.carrier.max(initial=-1)) + 1
    wanted, alone = np.zeros((count, time.shape[1])), np.zeros((count, time.shape[1]))
    np.add.at(wanted, generated.carrier, time)
    np.add.at(alone, generated.node_carrier, timing.node_ns(generated.node))
    ratio = np.divide(wanted, alone, out=np.ones_like(wanted), where=alone > 0)
    stretch = np.ones((len(timing.base_ns), time.shape[1]), dtype=np.float32)
    if timing.stretch is not None:
        stretch *= timing.stretch
    stretch[generated.node] *= ratio[generated.node_carrier]
    return replace(timing, stretch=stretch)
