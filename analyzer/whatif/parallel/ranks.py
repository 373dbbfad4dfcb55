"""What distinct ranks of a plan run, each a recording of shapes as a rank's own would be."""

from collections.abc import Mapping

import numpy as np

from ....arrays import Rows
from ....formats.trace.tables import Trace
from ....records import dataclass, field
from ...memory.use import MemoryCategory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrace:
    """Hold what one piece of a pipeline's stage runs on one rank: the same on all ranks of its stage.

    The trace holds one micro batch, forward and backward, then the collectives of gradients and the optimizer's step,
    told apart by the ops' phase and by `is_last`.
    """

    trace: Trace
    """Without times; collectives are ops with rows in `trace.collectives` and groups in `trace.groups`."""
    pieces: tuple[int, ...]
    """Which of the pp x vp pieces of the model it stands for, in order of the forward pass."""
    source_op: Rows
    """Row of the given recording whose op each op is, or was made from; -1: inserted."""
    is_last: Rows
    """1 for ops that run only beside or after the last micro batch (gradients' collectives of replicas, optimizer)."""
    sent_bytes: float
    """Of activations, that a rank sends to the next piece per micro batch; the same size of gradients comes back."""
    held: Mapping[MemoryCategory, int] = field(default_factory=dict)
    """Bytes that a rank holds throughout: its parts of parameters and optimizer, inputs."""
    gradient_storages: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Storages of the trace that hold gradients until the optimizer runs."""
