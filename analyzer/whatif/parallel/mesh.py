"""Which ranks share what: the groups that one rank of a plan belongs to."""

import numpy as np

from ....records import dataclass
from .plan import ParallelPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshGroup:
    """Hold a group of ranks; they stand in runs of `run` neighbours whose first ones are `stride` apart."""

    name: str
    ranks: tuple[int, ...]
    run: int
    stride: int

    @property
    def size(self) -> int:
        """Return how many ranks it has."""
        return len(self.ranks)


def axis_group(plan: ParallelPlan, axes: tuple[str, ...], rank: int = 0) -> MeshGroup:
    """Return the ranks that differ from `rank` along these axes alone, in order of rank.

    Axes are `tp`, `cp`, `fsdp`, `dp`, `pp` (innermost first); `ep`, the neighbours among cp, fsdp and dp that share
    the experts, and `edp`, those of them that hold the same experts. Where tensor-parallel ranks split tokens, each has
    tokens of its own for the experts: these are shared among tp as well (Megatron-Core's `etp` of 1, in all 15 recipes
    of the table with tp and ep that give one; 12 give none).

    >>> from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
    >>> axis_group(ParallelPlan(tp=2, fsdp=4), ("fsdp",)).ranks
    (0, 2, 4, 6)
    """
    sizes = np.array([plan.tp, plan.cp, plan.fsdp, plan.dp, plan.pp])
    strides = np.concatenate([[1], np.cumprod(sizes)[:-1]])
    place = rank // strides % sizes
    if axes in (("ep",), ("edp",)):
        step = 1 if plan.splits_tokens else plan.tp
        shared = plan.expert_ranks
        at = rank // step % shared
        first = at // plan.ep * plan.ep if axes == ("ep",) else at % plan.ep
        chosen = first + np.arange(plan.ep) if axes == ("ep",) else np.arange(first, shared, plan.ep)
        ranks = np.sort(rank + (chosen - at) * step)
    else:
        is_free = np.isin(("tp", "cp", "fsdp", "dp", "pp"), axes)
        base = int((np.where(is_free, 0, place) * strides).sum())
        ranks = np.array([base])
        for size, stride in zip(sizes[is_free], strides[is_free], strict=True):
            ranks = (ranks[:, None] + np.arange(size) * stride).ravel()
        ranks = np.sort(ranks)
    gaps = np.flatnonzero(np.diff(ranks) != 1)
    run = int(gaps[0]) + 1 if len(gaps) else len(ranks)
    stride = int(ranks[run] - ranks[0]) if run < len(ranks) else run
    return MeshGroup(name="_".join(axes), ranks=tuple(ranks.tolist()), run=run, stride=stride)
