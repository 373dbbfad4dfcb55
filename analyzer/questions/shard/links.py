"""What ranks send each other as a function of its size alone: the model of collectives, asked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Floats
from ....specs.fleet import build_fleet
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from ...models.collective.problems import problems_of_dims
from ...models.frame.problems import as_columns
from ...models.library import Library
from ...work.communication import CollectiveDims, CollectiveKind

_SIZES: Final = np.logspace(2, 13, 89)
"""Bytes, eight sizes to a factor of ten: between two of them times are straight lines on logarithmic scales."""
_MODEL: Final = "collective"
KINDS: Final = (
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_REDUCE,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTimes:
    """Hold how long collectives of all ranks take, by their size."""

    log_ns: dict[CollectiveKind, Floats]
    """Natural log of ns at each of the sizes, never falling with size."""
    log_width: float
    """Half-width of the 90 % interval, natural log: the widest of messages from 1 MB."""

    def time_ns(self, kind: CollectiveKind, message_bytes: Floats) -> Floats:
        """Return how long collectives of these sizes take; 0 where nothing is sent."""
        sent = np.asarray(message_bytes, dtype=np.float64)
        log = np.interp(np.log(np.maximum(sent, 1.0)), np.log(_SIZES), self.log_ns[kind])
        return np.where(sent > 0, np.exp(log), 0.0)


def time_links(gpu: Gpu, node: Node, ranks: int, library: Library) -> LinkTimes:
    """Return the times of collectives among `ranks` GPUs that fill one machine after the other."""
    dims = [
        CollectiveDims(kind=kind, message_bytes=float(size), ranks=ranks, run=ranks, element_bytes=4.0)
        for kind in KINDS
        for size in _SIZES
    ]
    predicted = library.predict(_MODEL, as_columns(problems_of_dims(dims)), build_fleet([gpu], [node]))
    times = predicted.time_ns[:, 0].reshape(len(KINDS), len(_SIZES))
    widths = np.broadcast_to(predicted.half_width, predicted.time_ns.shape)[:, 0].reshape(times.shape)
    logs = np.log(np.maximum.accumulate(times, axis=1))
    return LinkTimes(log_ns=dict(zip(KINDS, logs, strict=True)), log_width=float(widths[:, _SIZES >= 1e6].max()))
