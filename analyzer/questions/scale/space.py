"""Which plans are worth a look on a number of GPUs: factorisations of it that suit the model and the machines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Any, Final

import numpy as np

from ....errors import InputError
from ....formats.trace.tables import Trace
from ...whatif.parallel.check import check_plan
from ...whatif.parallel.plan import ParallelPlan, RecomputeMode

MOST_STAGES: Final = 64
WIDEST: Final = 16
"""Tensor-parallel ranks that are tried: beyond, products are too thin, even where links reach 72 GPUs."""
EVEN_RATIO: Final = 1.15
"""Of the layers that the largest piece would make, times the pieces, to those that there are: more is not tried."""
_NUMBERED: Final = re.compile(r"^(.*?\.)(\d+)(?:\.|$)")


def count_layers(trace: Trace) -> int:
    """Return how many equal layers the model has: the longest list of modules that paths number; 1: none.

    >>> count_layers(trace)
    12
    """
    longest = Counter[str]()
    for row in np.unique(trace.ops.module[trace.ops.module >= 0]).tolist():
        found = _NUMBERED.match(trace.strings[row])
        if found:
            longest[found[1]] = max(longest[found[1]], int(found[2]) + 1)
    return max(longest.values(), default=1)


def list_plans(
    gpu_count: int, *, domain: int, layers: int, recorded_batch: int, is_training: bool, node: int = 8
) -> Iterator[ParallelPlan]:
    """Yield the plans for a number of GPUs.

    Tensor parallel up to a `domain` of fast links, stages that hold about as many `layers` each, what is left for data:
    replicas, with the optimizer sharded or not, all sharded, or sharded within a `node`. Micro batches are the recorded
    ones, halved down to single samples.

    >>> [plan.tp for plan in list_plans(2, domain=8, layers=1, recorded_batch=1, is_training=False)]
    [1, 2]
    """
    micro_sizes = [recorded_batch >> shift for shift in range(recorded_batch.bit_length())]
    stages = [size for size in _divisors(gpu_count) if size <= MOST_STAGES and _is_even(layers, size)]
    widths = [size for size in _divisors(gpu_count) if size <= min(domain, WIDEST) and size & (size - 1) == 0]
    for tp, pp in product(widths, stages):
        if gpu_count % (tp * pp):
            continue
        rest = gpu_count // (tp * pp)
        pieces = [1] if pp == 1 else [vp for vp in (1, 2, 4) if _is_even(layers, pp * vp)]
        modes = (
            (RecomputeMode.NONE, RecomputeMode.SELECTIVE, RecomputeMode.FULL) if is_training else (RecomputeMode.NONE,)
        )
        for shared, vp, micro, recompute in product(_data(rest, node, is_training), pieces, micro_sizes, modes):
            plan = ParallelPlan(
                **shared,
                tp=tp,
                pp=pp,
                vp=vp,
                micro_batch=None if micro == recorded_batch else micro,
                recompute=recompute,
            )
            try:
                check_plan(plan)
            except InputError:
                continue
            yield plan


def _data(rest: int, node: int, is_training: bool) -> Iterator[dict[str, Any]]:
    """Yield how the ranks that see other samples share parameters, gradients and the optimizer's state."""
    yield {"dp": rest}
    if rest == 1 or not is_training:
        return
    yield {"dp": rest, "zero": 1}
    yield {"fsdp": rest}
    if rest > node and rest % node == 0:
        yield {"dp": rest // node, "fsdp": node}


def _is_even(layers: int, pieces: int) -> bool:
    """Say whether pieces of whole layers are about equally large."""
    return pieces <= layers and ceil(layers / pieces) * pieces <= EVEN_RATIO * layers


def _divisors(value: int) -> list[int]:
    return [size for size in range(1, min(value, 4096) + 1) if value % size == 0]
