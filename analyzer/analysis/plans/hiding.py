"""Tensor-parallel collectives that run in pieces beside the product that makes, or takes, what they send."""

from __future__ import annotations

import numpy as np

from ....arrays import Floats, Rows
from ....formats.trace import Trace
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
    family = np.array([item is Family.MATMUL for item in workload.family] + [False], dtype=bool)
    products = np.flatnonzero(family[workload.row_of])
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
