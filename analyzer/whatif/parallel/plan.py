"""A parallel plan: how many ranks share what, and in which order micro batches run."""

from enum import StrEnum
from math import log, sqrt
from typing import Final

from ....errors import InputError
from ....records import dataclass


class MeshAxis(StrEnum):
    """Name what ranks share, innermost first: neighbours in rank share tensors first, as Megatron places them."""

    TENSOR = "tp"
    CONTEXT = "cp"
    DATA = "dp"
    """All that see other samples, sharded or not."""
    PIPELINE = "pp"
    EXPERT = "ep"
    """Within the data, context and tensor ranks, if these split tokens: `ep` neighbours share the experts."""


class PipelineSchedule(StrEnum):
    """Name the order of a stage's forward and backward passes."""

    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    GPIPE = "gpipe"


class ExpertDispatch(StrEnum):
    """Name by what tokens go to their experts and back."""

    ALL_TO_ALL = "alltoall"
    """A copy for each expert, by all-to-all."""
    ONCE = "deepep"
    """A copy for each rank that has any of a token's experts, by kernels of DeepEP."""
    HYBRID = "hybridep"
    """The same by HybridEP's."""


class GradientBuckets(StrEnum):
    """Name by whose rule replicas' gradients are put together before they are sent."""

    TORCH = "torch"
    """25 MiB, whatever the ranks (DistributedDataParallel)."""
    MEGATRON = "megatron"
    """The more parameters the more ranks reduce them, so that the hops of a ring hide (Megatron-Core)."""


class RecomputeMode(StrEnum):
    """Name what the backward pass computes again."""

    NONE = "none"
    SELECTIVE = "selective"
    """Attention."""
    OPS = "ops"
    """All but attention and every second product of a layer (torchtitan's selective checkpoints by op)."""
    EARLY = "early"
    """Every layer from its input to the last result that its backward reads (torch without re-entrance, from 2.1)."""
    FULL = "full"
    """Every layer from its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Hold a plan. `dp` counts replicas of the parameters, `fsdp` ranks that shard them (ZeRO-3); both see own samples.

    `ranks` GPUs in all: dp x fsdp x tp x cp x pp.
    """

    dp: int = 1
    fsdp: int = 1
    zero: int = 0
    """Of the `dp` ranks: 1 shards the optimizer, 2 the gradients as well. 3 is `fsdp`."""
    tp: int = 1
    sp: bool | None = None
    """Whether what lies between tensor-parallel layers is split by tokens; None: where tp > 1."""
    cp: int = 1
    pp: int = 1
    vp: int = 1
    """Pieces of the model that each stage of the pipeline holds."""
    ep: int = 1
    micro_batch: int | None = None
    """Samples of a micro batch; None: as recorded."""
    micro_batches: int | None = None
    """Of each replica and iteration; None: by the global batch."""
    schedule: PipelineSchedule | None = None
    """None: interleaved where vp > 1, else 1F1B."""
    recompute: RecomputeMode = RecomputeMode.NONE
    overlap_gradients: bool = True
    """Whether gradients travel beside the backward pass."""
    buckets: GradientBuckets = GradientBuckets.TORCH
    overlap_experts: bool = False
    """Whether tokens travel to and from experts beside the passes of another micro batch."""
    dispatch: ExpertDispatch = ExpertDispatch.ALL_TO_ALL
    overlap_tensor: bool = False
    """Whether a tensor-parallel collective runs beside its neighbouring product, in pieces."""
    overlap_context: bool = False
    """Whether keys and values travel round a ring beside attention, else gathered before it."""
    prefetch: int = 1
    """Layers whose parameters FSDP gathers ahead."""

    @property
    def ranks(self) -> int:
        """Return how many GPUs it takes."""
        return self.dp * self.fsdp * self.tp * self.cp * self.pp

    @property
    def replicas(self) -> int:
        """Return how many ranks, or groups of ranks, see samples of their own."""
        return self.dp * self.fsdp

    @property
    def expert_ranks(self) -> int:
        """Return among how many ranks experts are shared: all of a stage that have tokens of their own."""
        return self.dp * self.fsdp * self.cp * (self.tp if self.splits_tokens else 1)

    @property
    def splits_tokens(self) -> bool:
        """Say whether tensor-parallel ranks split tokens between their layers."""
        return self.tp > 1 if self.sp is None else self.sp


MOST_RANKS: Final = 1_000_000
"""Of any axis and of a plan: ten times the largest machine of today."""


def check_plan(plan: ParallelPlan, where: str = "plan") -> None:
    """Raise InputError for a plan whose numbers contradict each other; `where` says what it was read from.

    >>> check_plan(ParallelPlan(dp=8, tp=2))  # nothing contradicts: no error
    """
    for name in ("dp", "fsdp", "tp", "cp", "pp", "vp", "ep"):
        if getattr(plan, name) < 1:
            raise InputError(f"{where}: {name}: expected 1 or more, got {getattr(plan, name)}")
    if plan.ranks > MOST_RANKS:
        raise InputError(f"{where}: it takes {plan.ranks:,} GPUs; expected at most {MOST_RANKS:,}")
    if plan.prefetch < 0:
        raise InputError(f"{where}: prefetch: expected 0 or more layers, got {plan.prefetch}")
    _check_sharing(plan, where)
    _check_schedule(plan, where)


def _check_sharing(plan: ParallelPlan, where: str) -> None:
    if plan.zero not in range(3):
        raise InputError(f"{where}: zero: expected 0, 1 or 2 (3 is fsdp), got {plan.zero}")
    if plan.zero and plan.fsdp > 1:
        raise InputError(
            f"{where}: zero={plan.zero} beside fsdp={plan.fsdp}, which shards all that zero does; expected one"
        )
    shared = plan.expert_ranks
    if shared % plan.ep:
        axes = "dp x fsdp x cp x tp" if plan.tp > 1 and plan.splits_tokens else "dp x fsdp x cp"
        raise InputError(
            f"{where}: ep={plan.ep} shares experts among {axes} = {shared:,} ranks; expected a divisor of that"
        )
    if plan.sp and plan.tp == 1:
        raise InputError(f"{where}: sp=on splits tokens among tensor-parallel ranks; expected tp=2 or more beside it")


def _check_schedule(plan: ParallelPlan, where: str) -> None:
    if plan.vp > 1 and plan.pp == 1:
        raise InputError(f"{where}: vp={plan.vp} parts the stages of a pipeline; expected pp=2 or more beside it")
    if plan.schedule is PipelineSchedule.INTERLEAVED and plan.vp == 1:
        raise InputError(f"{where}: schedule=interleaved needs several pieces per stage; expected vp=2 or more")
    if plan.schedule in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE) and plan.vp > 1:
        raise InputError(f"{where}: schedule={plan.schedule} has one piece per stage; expected vp=1")
    if plan.vp > 1 and plan.micro_batches is not None and plan.micro_batches % plan.pp:
        raise InputError(
            f"{where}: {plan.micro_batches} micro batches: an interleaved pipeline takes multiples of its {plan.pp} "
            "stages"
        )


STRAGGLING: Final = 0.03
"""Standard deviation of a rank's time, as a share: what is left of perfect weak scaling to 11,616 GPUs (the study of
many GPUs)."""


def slowest_share(ranks: int) -> float:
    """Return by which part of its time the slowest of N ranks that wait for each other is late: s * sqrt(2 ln N).

    >>> round(slowest_share(8), 3)
    0.061
    """
    return STRAGGLING * sqrt(2.0 * log(ranks))
