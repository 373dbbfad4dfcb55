"""What was asked of a recording about many GPUs, as the search and the predictions need it."""

from __future__ import annotations

from dataclasses import dataclass

from ....formats.trace.tables import Trace
from ....specs.cluster import Cluster
from ....specs.fleet import Fleet
from ....specs.gpu import Gpu
from ...iteration.result import Analysis
from ...models.library import Library


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """Hold a recording of one GPU with its analysis, and what is asked of it."""

    result: Analysis
    """Of one GPU."""
    shapes: Trace
    """The recording that plans are derived from, with what-ifs applied."""
    gpus: tuple[Gpu, ...]
    fleet: Fleet
    """The same GPUs, each in its machine."""
    library: Library
    recorded_batch: int
    global_batch: int | None
    """Samples of an iteration; None: a recorded batch for every GPU."""
    cluster: Cluster
    max_memory_bytes: float | None
    """That a rank may use; None: what its GPU has."""

    @property
    def is_training(self) -> bool:
        """Say whether the recording has a backward pass to share."""
        return self.result.trace.meta.workload.mode != "inference"
