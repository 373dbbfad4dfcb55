"""What was asked of a recording about many GPUs, as the search and the predictions need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....formats.trace.tables import Trace
from ....specs.cluster import Cluster
from ....specs.fleet import Fleet
from ....specs.gpu import Gpu
from ...iteration.analyze import Asked
from ...iteration.decision.electricity import Electricity
from ...iteration.result import Analysis
from ...models.library import Library
from ...whatif.parallel.plan_file import PlanDocument
from .outcome import Predictor


class AskedPlans(Asked, total=False):
    """Name what may be asked of a recording about many GPUs."""

    gpu_counts: Sequence[int]
    plans: Sequence[str | PlanDocument]
    """Lines such as `fsdp=8,tp=2`, TOML files, or documents; default: the best ones are looked for.

    A line that leaves the data-parallel axis open (or says `fsdp=*`) takes each of `gpu_counts`.
    """
    search: bool
    """Whether the best plans are looked for beside given ones."""
    global_batch: int | None
    """Samples of an iteration; default: every GPU adds a recorded batch."""
    max_memory_bytes: float | None
    """That a GPU may use."""
    measured_step_ns: float | None
    """What one iteration took on `source`, where the recording has no times."""
    timeline: Path | None
    """Where the timeline of the fastest plan goes."""
    electricity: Electricity | None
    sort: str | None
    """What plans are listed by (`RANK_BY`)."""
    predictor: Predictor
    """In place of the one that derives ranks."""


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
