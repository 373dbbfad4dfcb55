"""What `wavecast shard` says: plans of embedding tables beside each other, and what each GPU has to do."""

from collections.abc import Mapping

from ....records import dataclass
from ...iteration.decision.electricity import Electricity, JobEnergy
from ...iteration.report import TraceSummary
from .problem import PlanPhase
from .tables import EmbeddingTable, TablePlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLoad:
    """Hold what one GPU has of a plan, per iteration."""

    rank: int
    tables: int
    """Of which it holds a piece or a copy."""
    lookups: int
    lookup_ns: float
    update_ns: float
    sent_bytes: int
    """Looked up vectors that it gives to the all-to-all."""
    index_bytes: int
    """That it gets."""
    memory_bytes: int
    """Parameters, gradients and optimizer state of its tables, and the dense part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """Hold a plan with its time."""

    name: str
    """`proposed`, `given`, `greedy`, or the one kind of all tables."""
    iteration_ns: float
    iteration_low_ns: float
    iteration_high_ns: float
    phases_ns: Mapping[PlanPhase, float]
    memory_bytes: int
    """Of the rank that holds most."""
    fits: bool
    placements: tuple[TablePlacement, ...]
    ranks: tuple[ShardLoad, ...]
    energy: JobEnergy
    """Of an iteration on all GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """Hold plans of a recording's tables on one type of GPU; the proposed one is first."""

    trace: TraceSummary
    gpu: str
    node: str
    gpu_count: int
    global_batch: int
    recorded_batch: int
    is_training: bool
    tables: tuple[EmbeddingTable, ...]
    """With the lookups of all ranks together."""
    limit_bytes: int
    """What a GPU may hold."""
    dense_bytes: int
    """What each GPU holds beside tables."""
    state_ratio: float
    """Optimizer state for each byte of a table."""
    is_fastest: bool
    """Whether all other plans were ruled out."""
    plans: tuple[PlanRow, ...]
    warnings: tuple[str, ...]
    electricity: Electricity | None = None
    """What electricity costs, and what is counted beside boards and links; None where nobody said."""
