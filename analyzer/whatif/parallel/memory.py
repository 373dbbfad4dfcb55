"""How much memory each stage of a plan takes on one of its ranks, and what holds it."""

from collections.abc import Mapping, Sequence

import numpy as np

from ....arrays import Floats, Mask, Rows
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass
from ...memory.use import MemoryCategory
from .layers import tail_start
from .lives import Lives, find_lives, storage_bytes
from .parameters import Parameters
from .plan import ParallelPlan, PipelineSchedule
from .ranks import RankTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Hold the peak of a rank of one stage, without the CUDA context and what the allocator cannot hand out."""

    stage: int
    peak_bytes: int
    held: Mapping[MemoryCategory, int]
    """Bytes per category at the peak; they sum to it."""


def memory_per_rank(ranks: Sequence[RankTrace], plan: ParallelPlan) -> tuple[RankMemory, ...] | None:
    """Return the peak of each stage of the pipeline, in order; None where the recording does not tell lifetimes.

    What a rank holds throughout (its parts of parameters, optimizer and, between micro batches, gradients), and beside
    it the most that one micro batch's passes hold, with what the forward pass of each further one in flight saved, or
    that the optimizer's step holds. With several micro batches gradients are added up in the type that the recording
    makes them in.
    """
    accumulates = plan.micro_batches > 1 if plan.micro_batches is not None else plan.pp > 1
    accounts = [_account(rank, accumulates=accumulates) for rank in ranks]
    if any(account is None for account in accounts):
        return None
    of_piece = {piece: account for rank, account in zip(ranks, accounts, strict=True) for piece in rank.pieces}
    found = []
    for stage in range(plan.pp):
        mine = [account for piece in range(stage, plan.pp * plan.vp, plan.pp) if (account := of_piece.get(piece))]
        found.append(_stage_memory(stage, mine, plan))
    return tuple(found)


def in_flight(plan: ParallelPlan, stage: int) -> int:
    """Return how many micro batches' activations a stage holds at once, of all its pieces together.

    1F1B: pp - stage; interleaved: 2 (pp - stage - 1) + (vp - 1) pp + 1 pieces, as Megatron warms up; GPipe: all. No
    more than there are.

    >>> from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
    >>> [in_flight(ParallelPlan(pp=4), stage) for stage in range(4)]
    [4, 3, 2, 1]
    """
    if plan.pp == 1:
        return 1
    schedule = plan.schedule or (PipelineSchedule.INTERLEAVED if plan.vp > 1 else PipelineSchedule.ONE_F_ONE_B)
    most = plan.micro_batches * plan.vp if plan.micro_batches is not None else None
    if schedule is PipelineSchedule.GPIPE:
        return most or plan.pp * plan.vp
    if schedule is PipelineSchedule.INTERLEAVED:
        count = 2 * (plan.pp - stage - 1) + (plan.vp - 1) * plan.pp + 1
    else:
        count = plan.pp - stage
    return min(count, most) if most is not None else count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Account:
    """Hold the memory of one piece."""

    held: Mapping[MemoryCategory, float]
    """Throughout."""
    passes: Mapping[MemoryCategory, float]
    """At the peak of a micro batch's forward and backward, beside that."""
    step: Mapping[MemoryCategory, float]
    """At the peak of clipping and optimizer, beside that."""
    saved_bytes: float
    """What a forward pass leaves for its backward."""


def _account(rank: RankTrace, *, accumulates: bool) -> _Account | None:
    trace = rank.trace
    lives = find_lives(trace)
    if lives is None:
        return None
    rows = np.flatnonzero(trace.ops.phase == Phase.BACKWARD)
    first_backward, tail = (int(rows[0]) if len(rows) else row_count(trace.ops)), tail_start(trace)
    end = max(row_count(trace.ops) - 1, 0)
    made, dropped = lives.made, np.where(lives.dropped >= 0, lives.dropped, end)
    is_gradient = np.isin(lives.storage, rank.gradient_storages)
    held: dict[MemoryCategory, float] = dict(rank.held)
    if accumulates:
        # Added to what former micro batches left, and dropped: what is held is as large as all of them.
        left = is_gradient & (dropped >= tail)
        held[MemoryCategory.GRADIENTS] = held.get(MemoryCategory.GRADIENTS, 0) + int(lives.size_bytes[left].sum())
        dropped = np.where(left, np.maximum(made, 0), dropped)
    level: Floats = np.zeros(end + 2)
    inside = made >= 0
    np.add.at(level, made[inside], lives.size_bytes[inside])
    np.add.at(level, dropped[inside] + 1, -lives.size_bytes[inside].astype(float))
    level = np.cumsum(level)[: end + 1]
    # What ops without a counterpart in the recording make: gathered parameters and flat buffers.
    is_inserted = np.where(lives.made >= 0, rank.source_op[np.maximum(lives.made, 0)] < 0, False)

    def peak(begin: int, stop: int) -> dict[MemoryCategory, float]:
        if begin >= stop:
            return {}
        at = begin + int(level[begin:stop].argmax())
        return _by_category(trace, lives, inside & (made <= at) & (dropped >= at), is_gradient, is_inserted)

    saved = inside & (made < first_backward) & (dropped >= first_backward) & ~is_inserted
    return _Account(
        held=held, passes=peak(0, tail), step=peak(tail, end + 1), saved_bytes=float(lives.size_bytes[saved].sum())
    )


def _stage_memory(stage: int, accounts: Sequence[_Account], plan: ParallelPlan) -> RankMemory:
    held, passes, step = (dict.fromkeys(MemoryCategory, 0.0) for _ in range(3))
    for account in accounts:
        _add(held, account.held)
        _add(step, account.step)
    if accounts:
        _add(passes, max(accounts, key=lambda account: sum(account.passes.values())).passes)
        saved = sum(account.saved_bytes for account in accounts) / len(accounts)
        passes[MemoryCategory.ACTIVATIONS] += (in_flight(plan, stage) - 1) * saved
    _add(held, max(passes, step, key=lambda beside: sum(beside.values())))
    total = {category: round(size) for category, size in held.items() if size}
    return RankMemory(stage=stage, peak_bytes=sum(total.values()), held=total)


def _add(total: dict[MemoryCategory, float], more: Mapping[MemoryCategory, float]) -> None:
    for category, size in more.items():
        total[category] += size


def _by_category(
    trace: Trace, lives: Lives, alive: Mask, is_gradient: Mask, is_inserted: Mask
) -> dict[MemoryCategory, float]:
    """Return the bytes of living storages by what they are for."""
    is_forward = trace.ops.phase[np.maximum(lives.made, 0)] == Phase.FORWARD
    kinds = (
        (MemoryCategory.GRADIENTS, is_gradient),
        (MemoryCategory.PARAMETERS, is_inserted),
        (MemoryCategory.ACTIVATIONS, is_forward),
        (MemoryCategory.TEMPORARIES, np.ones(len(alive), dtype=bool)),
    )
    found: dict[MemoryCategory, float] = {}
    left = alive.copy()
    for category, mask in kinds:
        if size := int(lives.size_bytes[left & mask].sum()):
            found[category] = size
        left &= ~mask
    return found


def held_throughout(
    trace: Trace, parameters: Parameters, parameter_bytes: float, owner: Rows
) -> dict[MemoryCategory, int]:
    """Return what exists before the iteration: of parameters so many bytes, the optimizer's state, inputs and buffers.

    `owner` is the parameter of each storage that clipping and optimizer use, -1: none.
    """
    lives, sizes = find_lives(trace), storage_bytes(trace)
    used: Mask = np.zeros(len(sizes), dtype=bool)
    before = used.copy()
    storage = trace.tensors.storage[trace.operands.tensor]
    used[storage] = True
    before[storage[trace.operands.op < tail_start(trace)]] = True
    if lives is not None:
        used[lives.storage[(lives.made != MISSING) & (lives.storage < len(sizes))]] = False
    device: Rows = np.zeros(len(sizes), dtype=np.int64)
    device[trace.tensors.storage] = trace.tensors.device
    used[parameters.storage] = False
    used &= device >= 0
    owned: Mask = np.zeros(len(sizes), dtype=bool)
    owned[: len(owner)] = owner[: len(sizes)] >= 0
    found = {
        MemoryCategory.PARAMETERS: round(parameter_bytes),
        MemoryCategory.OPTIMIZER_STATE: round(float(sizes[used & ~before & owned].sum())),
        MemoryCategory.INPUTS: round(float(sizes[used & before].sum())),
    }
    return {category: size for category, size in found.items() if size}
