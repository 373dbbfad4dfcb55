"""Tensor-parallel collectives that run in pieces beside the product that makes, or takes, what they send."""

from __future__ import annotations

import numpy as np

from ....arrays import Floats, Rows, at_rows
from ....formats.trace.tables import Phase, Trace
from ...prediction.prediction import Prediction
from ...prediction.workload import GpuWorkload
from ...replay.overlap import WITHIN_SLOWING
from ...work import Family


def hide_beside_products(
    trace: Trace, workload: GpuWorkload, prediction: Prediction, collectives: Rows
) -> tuple[Rows, Floats]:
    """Return ops and by what their time is multiplied, [k, m], where some collectives run beside a product.

    Of p ranks, a gather ends with the first of p pieces to be multiplied and what sums up waits for the last one: all
    but 1/p is hidden, as far as the product lasts, which takes longer by what it meets (Transformer Engine does so; the
    share is the study's of many GPUs). `collectives` are rows of `trace.ops`.
    """
    products = np.flatnonzero(at_rows(workload.is_family(Family.MATMUL), workload.row_of, False))
    count = len(prediction.fleet.gpus)
    if not len(products) or not len(collectives):
        return np.zeros(0, dtype=np.int64), np.zeros((0, count))
    gathers = np.array(["gather" in name for name in trace.strings], dtype=bool)[trace.ops.name[collectives]]
    after = np.minimum(np.searchsorted(products, collectives), len(products) - 1)
    near = products[np.where(gathers, after, np.maximum(after - 1, 0))]
    ranks = np.ones(len(trace.ops.name))
    known = np.flatnonzero(trace.collectives.op >= 0)
    ranks[trace.collectives.op[known]] = np.maximum(trace.groups.size[trace.collectives.group[known]], 1)
    sent_ns = prediction.time_ns[workload.row_of[collectives]]
    product_ns = prediction.time_ns[workload.row_of[near]]
    hidden_ns = np.minimum(sent_ns * (1.0 - 1.0 / ranks[collectives])[:, None], product_ns)
    busy = np.unique(near)
    met_ns = np.zeros((len(busy), count))
    np.add.at(met_ns, np.searchsorted(busy, near), hidden_ns)
    own_ns = prediction.time_ns[workload.row_of[busy]]
    slower = 1.0 + (1.0 - 1.0 / WITHIN_SLOWING) * np.minimum(met_ns / np.maximum(own_ns, 1.0), 1.0)
    left = 1.0 - hidden_ns / np.maximum(sent_ns, 1.0)
    return np.concatenate((collectives, busy)), np.concatenate((left, slower))


def hide_beside_passes(
    trace: Trace, workload: GpuWorkload, prediction: Prediction, collectives: Rows
) -> tuple[Rows, Floats]:
    """Return ops and by what their time is multiplied, [k, m], where collectives run beside another micro batch.

    The forward pass of one and the backward pass of another run together, so that what one sends hides behind what the
    other computes, as long as that lasts (Megatron-Core's combined 1F1B, `overlap_moe_expert_parallel_comm`); it takes
    longer by what it meets. What the first and last micro batches send is taken to hide as well. `collectives` are
    rows of `trace.ops`.
    """
    count = len(prediction.fleet.gpus)
    passes = (trace.ops.phase == Phase.FORWARD) | (trace.ops.phase == Phase.BACKWARD)
    computing = np.flatnonzero(at_rows(~workload.is_family(Family.COLLECTIVE), workload.row_of, False) & passes)
    if not len(computing) or not len(collectives):
        return np.zeros(0, dtype=np.int64), np.zeros((0, count))
    sent_ns = prediction.time_ns[workload.row_of[collectives]].sum(axis=0)
    lasts_ns = prediction.time_ns[workload.row_of[computing]].sum(axis=0)
    hidden_ns = np.minimum(sent_ns, lasts_ns)
    left = 1.0 - hidden_ns / np.maximum(sent_ns, 1.0)
    slower = 1.0 + (1.0 - 1.0 / WITHIN_SLOWING) * hidden_ns / np.maximum(lasts_ns, 1.0)
    return (
        np.concatenate((collectives, computing)),
        np.concatenate((np.tile(left, (len(collectives), 1)), np.tile(slower, (len(computing), 1)))),
    )
