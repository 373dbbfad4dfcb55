"""Finds the best plans on a number of GPUs: all are listed and estimated, the most promising predicted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil
from typing import Any, Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....errors import InputError
from ....formats.trace.tables import Trace
from ....progress import tell
from ....records import dataclass, replace
from ....specs.fabric import Fabric
from ...memory.fit import usable_bytes
from ...memory.use import MemoryCategory
from ...whatif.parallel.grammar import FRAMEWORKS, format_plan
from ...whatif.parallel.plan import GradientBuckets, ParallelPlan, RecomputeMode, check_plan
from ...whatif.parallel.plan_file import PlanDocument
from .parts import LINKS, PlanPart
from .predictor import Batches, PlanOutcome, Predictor, Question, part_batch
from .report import SearchSummary

FITTING_RATIO: Final = 0.6
"""Of an estimate of memory: what needs more than there is by even that is left out. Estimates err by up to 40 %."""
SURELY_FITTING_RATIO: Final = 1.5
"""Of an estimate: what fits even so needs no recomputation."""
ROUND_COUNT: Final = 3
PER_ROUND: Final = 4
"""Plans that are predicted before the estimates of the others are corrected by what was found."""
BEST_COUNT: Final = 2
"""Of each GPU type in turn."""
MOST_FAILURES: Final = 8
"""Plans that cannot be predicted, before a search ends with what it has."""
_AXIS: Final = re.compile(r"^(\w+=[\w.]+[, ]*)+: ")
_MODES: Final = tuple(RecomputeMode)
_UNFIT: Final = 1e-3
"""What the rate of a plan counts on a GPU that it seems not to fit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Candidate:
    plan: ParallelPlan
    batches: Batches
    estimate: PlanEstimate


def search_plans(question: Question, predict: Predictor, gpu_count: int) -> tuple[list[PlanOutcome], SearchSummary]:
    """Return the predictions of the plans that look best on any of the GPU types, and what the search went through."""
    failed: Counter[str] = Counter()
    room = np.array([usable_bytes(gpu).typical for gpu in question.gpus])
    if question.max_memory_bytes is not None:
        room = np.minimum(room, question.max_memory_bytes)
    candidates = _candidates(question, predict, gpu_count, failed)
    fitting = [item for item in candidates if item.estimate.memory_bytes * FITTING_RATIO <= room.max()]
    fitting, pointless = _without_pointless(fitting, float(room.min()))
    outcomes, tried = _predict_best(fitting, predict, room, failed)
    return outcomes, SearchSummary(
        gpu_count=gpu_count,
        considered=len(candidates) + sum(failed.values()) - tried,
        too_large=len(candidates) - len(fitting) - pointless,
        outpaced=len(fitting) + pointless - len(outcomes) - tried,
        predicted=len(outcomes),
        failed=dict(failed),
    )


def _candidates(question: Question, predict: Predictor, gpu_count: int, failed: Counter[str]) -> list[_Candidate]:
    """Return all plans with their estimates; why others are none is counted."""
    fabric = question.fleet.fabric
    plans = list_plans(
        gpu_count,
        domain=int(fabric.domain_gpu_count.max()),
        layers=count_layers(question.shapes),
        recorded_batch=question.recorded_batch,
        is_training=question.is_training,
        machines=np.unique(fabric.node_gpu_count).astype(int).tolist(),
    )
    bases: dict[tuple[int, int], PlanOutcome | str] = {}
    found = []
    seen = set()
    for listed in plans:
        plan = replace(listed, buckets=GradientBuckets(FRAMEWORKS[question.framework]))
        try:
            batches = part_batch(plan, question.recorded_batch, question.global_batch, is_training=question.is_training)
        except InputError:
            failed["the global batch is no multiple of their micro batches"] += 1
            continue
        same = replace(plan, micro_batch=None), batches
        if same in seen:
            continue
        seen.add(same)
        tell("plans that are possible:", len(seen))
        if plan.vp > 1 and batches.micro_batches % plan.pp:
            failed["interleaved stages take multiples of pp micro batches"] += 1
            continue
        base = _base(bases, plan, batches, predict)
        if isinstance(base, str):
            failed[base] += 1
            continue
        found.append(_Candidate(plan=plan, batches=batches, estimate=_estimate_plan(plan, batches, base, fabric)))
    return found


def _base(
    bases: dict[tuple[int, int], PlanOutcome | str], plan: ParallelPlan, batches: Batches, predict: Predictor
) -> PlanOutcome | str:
    """Return two micro batches under a plan's tensor sharding alone, or why there are none."""
    key = (plan.tp, batches.micro_batch)
    if key not in bases:
        # Of two micro batches: gradients are held throughout then, and the peak is where activations are.
        alone = ParallelPlan(dp=2, tp=plan.tp, micro_batch=batches.micro_batch)
        one = Batches(global_batch=4 * batches.micro_batch, micro_batch=batches.micro_batch, micro_batches=2)
        try:
            bases[key] = predict(PlanDocument(plan=alone), one)
        except InputError as error:
            bases[key] = _reason(error)
    return bases[key]


def _reason(error: InputError) -> str:
    """Return why a plan cannot be predicted, without its name and without advice: many share it."""
    text = str(error).partition(": ")[2] or str(error)
    return _AXIS.sub("", text).partition(": ")[0].partition(" (")[0]


def _without_pointless(candidates: list[_Candidate], room: float) -> tuple[list[_Candidate], int]:
    """Leave out what recomputes though the same plan surely fits every GPU without; return how many those are."""
    plain = {
        (item.plan, item.batches)
        for item in candidates
        if item.plan.recompute is RecomputeMode.NONE and item.estimate.memory_bytes * SURELY_FITTING_RATIO <= room
    }
    kept = [
        item
        for item in candidates
        if item.plan.recompute is RecomputeMode.NONE
        or (replace(item.plan, recompute=RecomputeMode.NONE), item.batches) not in plain
    ]
    return kept, len(candidates) - len(kept)


def _predict_best(
    candidates: Sequence[_Candidate], predict: Predictor, room: Floats, failed: Counter[str]
) -> tuple[list[PlanOutcome], int]:
    """Return predictions of the most promising plans, and how many of them could not be made.

    After each round the estimates of the others are corrected by what those of their kind of recomputation turned out
    to be.
    """
    outcomes: dict[int, PlanOutcome] = {}
    left = np.ones(len(candidates), dtype=bool)
    tried = 0
    for _ in range(ROUND_COUNT):
        for at in _most_promising(candidates, outcomes, left, room):
            left[at] = False
            tell(f"plan {format_plan(candidates[at].plan)}, number", len(outcomes) + tried + 1)
            try:
                outcomes[at] = predict(PlanDocument(plan=candidates[at].plan), candidates[at].batches)
            except InputError as error:
                failed[_reason(error)] += 1
                tried += 1
        if tried >= MOST_FAILURES or not left.any():
            break
    return list(outcomes.values()), tried


def _most_promising(
    candidates: Sequence[_Candidate], outcomes: dict[int, PlanOutcome], left: Mask, room: Floats
) -> list[int]:
    """Return the candidates that are predicted next: in turns the best of each GPU type that seem to fit there."""
    if not left.any():
        return []
    step = np.stack([item.estimate.step_ns for item in candidates])
    memory = np.array([max(item.estimate.memory_bytes, 1.0) for item in candidates])
    modes = np.array([_MODES.index(item.plan.recompute) for item in candidates])
    for mode in range(len(_MODES)):
        same = [at for at in outcomes if modes[at] == mode] or list(outcomes)
        needs = [(at, outcomes[at].fits[0].needed_bytes) for at in same]
        if ratios := [need / memory[at] for at, need in needs if need is not None]:
            memory = np.where(modes == mode, memory * float(np.median(ratios)), memory)
        if same:
            off = np.median([outcomes[at].step_ns / step[at] for at in same], axis=0)
            step = np.where((modes == mode)[:, None], step * off, step)
    size = np.array([item.batches.global_batch for item in candidates])[:, None]
    rates = size / step * np.where(memory[:, None] <= room, 1.0, _UNFIT * (room / memory[:, None]))
    rates[~left] = -1.0
    by_type = np.argsort(-rates, axis=0, kind="stable")
    seeds = [] if outcomes else _first_of_each(rates, modes, room)
    order = [at for at in dict.fromkeys(by_type[:BEST_COUNT].ravel().tolist()) if left[at]]
    more = [at for at in dict.fromkeys(by_type[: PER_ROUND * 2].ravel().tolist()) if left[at]]
    return list(dict.fromkeys([*seeds, *order, *more]))[: max(PER_ROUND, len(seeds))]


def _first_of_each(rates: Floats, modes: Codes, room: Floats) -> list[int]:
    """Return the best candidates of each kind of recomputation, on the GPU with most memory and with least.

    What these turn out to be tells how far off the estimates of their kind are.
    """
    found = []
    for mode in range(len(_MODES)):
        rows = np.flatnonzero(modes == mode)
        if len(rows):
            found += [int(rows[np.argmax(rates[rows, column])]) for column in (room.argmax(), room.argmin())]
    return list(dict.fromkeys(found))


RECOMPUTED_RATIO: Final = dict(zip(RecomputeMode, (0.0, 0.04, 0.2, 1 / 4, 1 / 3), strict=True))
"""Of forward and backward that is computed again: the forward pass is a third of them; attention's share of it is
small where sequences are short. For the choice of candidates alone."""
KEPT_RATIO: Final = dict(zip(RecomputeMode, (1.0, 0.8, 0.4, 0.15, 0.15), strict=True))
"""Of the activations that stay for the backward pass; likewise."""
LINK_SHARE: Final = 0.75
"""Of a link's nominal rate that large collectives reach; likewise."""
_OF_MICRO_BATCH: Final = (PlanPart.COMPUTE, PlanPart.HOST, *(part for part in LINKS if part is not PlanPart.DATA))
BACKWARD_SHARE: Final = 2 / 3
"""Of a micro batch that gradients can hide behind."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanEstimate:
    """Hold what a plan may take on m GPU types."""

    step_ns: Floats
    memory_bytes: float
    """Of a rank."""


def _estimate_plan(plan: ParallelPlan, batches: Batches, one: PlanOutcome, fabric: Fabric) -> PlanEstimate:
    """Return a plan's step and memory by rule of thumb.

    `one` is the outcome of a few micro batches under the plan's tensor sharding alone. Per stage of p and for n micro
    batches in v pieces, with t a micro batch's time over p:
      t (n + (p - 1) / v) + max(gradients - 2/3 t, 0) + optimizer / (p shards)
    """
    held = one.held or {}
    parameters = held.get(MemoryCategory.PARAMETERS, 0) / plan.pp
    body = sum(one.parts_ns[part] for part in _OF_MICRO_BATCH) / one.batches.micro_batches / plan.pp
    body = body * (1 + RECOMPUTED_RATIO[plan.recompute])
    count = batches.micro_batches
    if plan.fsdp > 1:  # gathered forward and backward, gradients scattered
        body = np.maximum(3 * _ring_ns(plan.fsdp, plan, parameters, fabric), body)
    gradients = 2 * _ring_ns(plan.dp, plan, parameters / plan.fsdp, fabric)
    hidden = BACKWARD_SHARE * body if plan.overlap_gradients else 0.0
    shards = plan.fsdp * (plan.dp if plan.zero else 1)
    step = (
        body * (count + (plan.pp - 1) / plan.vp)
        + np.maximum(gradients - hidden, 0.0)
        + one.parts_ns[PlanPart.OPTIMIZER] / plan.pp / shards
    )
    return PlanEstimate(step_ns=np.asarray(step), memory_bytes=_memory(plan, batches, held))


def _ring_ns(ranks: int, plan: ParallelPlan, size_bytes: float, fabric: Fabric) -> Floats:
    """Return how long it takes to gather `size_bytes`, or to scatter them, among data-parallel ranks, [m]."""
    if ranks == 1:
        return np.zeros(len(fabric.link_bytes_per_s))
    inner = plan.tp * plan.cp * (plan.fsdp if ranks == plan.dp and plan.fsdp > 1 else 1)
    domain = np.maximum(fabric.domain_gpu_count, 1.0)
    beside = np.maximum(domain / inner, 1.0)
    link = np.where(fabric.link_bytes_per_s > 0, fabric.link_bytes_per_s, fabric.host_bytes_per_s)
    between = np.where(fabric.nic_bytes_per_s > 0, fabric.nic_bytes_per_s, fabric.host_bytes_per_s) * beside
    rate = np.where(ranks * inner <= domain, link, np.minimum(link, between)) * LINK_SHARE
    return np.asarray(size_bytes * (ranks - 1) / ranks / rate * 1e9)


def _memory(plan: ParallelPlan, batches: Batches, held: Mapping[MemoryCategory, int]) -> float:
    """Return what a rank of the first stage holds: its share of the model, activations of micro batches in flight.

    `held` is what one GPU holds under the plan's tensor sharding alone.
    """
    share = plan.pp * plan.fsdp
    parameters = held.get(MemoryCategory.PARAMETERS, 0)
    optimizer = held.get(MemoryCategory.OPTIMIZER_STATE, 0) / (plan.dp if plan.zero else 1)
    gradients = parameters / (plan.dp if plan.zero > 1 else 1)
    passing = sum(held.get(kind, 0) for kind in (MemoryCategory.ACTIVATIONS, MemoryCategory.TEMPORARIES))
    in_flight = min(plan.pp * (1.5 if plan.vp > 1 else 1.0), batches.micro_batches)
    return (parameters + gradients + optimizer) / share + passing / plan.pp * in_flight * KEPT_RATIO[plan.recompute]


MOST_STAGES: Final = 64
WIDEST: Final = 16
"""Tensor-parallel ranks that are tried: beyond, products are too thin, even where links reach 72 GPUs."""
EVEN_RATIO: Final = 1.15
"""Of the layers that the largest piece would make, times the pieces, to those that there are: more is not tried."""
_NUMBERED: Final = re.compile(r"^(.*?\.)(\d+)(?:\.|$)")


def count_layers(trace: Trace) -> int:
    """Return how many equal layers the model has: the longest list of modules that paths number; 1: none.

    >>> count_layers(trace)
    12
    """
    longest = Counter[str]()
    for row in np.unique(trace.ops.module[trace.ops.module >= 0]).tolist():
        found = _NUMBERED.match(trace.strings[row])
        if found:
            longest[found[1]] = max(longest[found[1]], int(found[2]) + 1)
    return max(longest.values(), default=1)


def list_plans(
    gpu_count: int, *, domain: int, layers: int, recorded_batch: int, is_training: bool, machines: Sequence[int]
) -> Iterator[ParallelPlan]:
    """Yield the plans for a number of GPUs.

    Tensor parallel up to a `domain` of fast links, stages that hold about as many `layers` each, what is left for data:
    replicas, with the optimizer sharded or not, all sharded, or sharded within one of the `machines`, by the number of
    their GPUs, or within the domain. Micro batches are the recorded ones, halved down to single samples.

    >>> [plan.tp for plan in list_plans(2, domain=8, layers=1, recorded_batch=1, is_training=False, machines=[8])]
    [1, 2]
    """
    micro_sizes = [recorded_batch >> shift for shift in range(recorded_batch.bit_length())]
    stages = [size for size in _divisors(gpu_count) if size <= MOST_STAGES and _is_even(layers, size)]
    widths = [size for size in _divisors(gpu_count) if size <= min(domain, WIDEST) and size & (size - 1) == 0]
    within = sorted({*machines, domain})
    for tp, pp in product(widths, stages):
        if gpu_count % (tp * pp):
            continue
        rest = gpu_count // (tp * pp)
        pieces = [1] if pp == 1 else [vp for vp in (1, 2, 4) if _is_even(layers, pp * vp)]
        modes = (
            (RecomputeMode.NONE, RecomputeMode.SELECTIVE, RecomputeMode.FULL) if is_training else (RecomputeMode.NONE,)
        )
        for shared, vp, micro, recompute in product(_data(rest, within, is_training), pieces, micro_sizes, modes):
            plan = ParallelPlan(
                **shared,
                tp=tp,
                pp=pp,
                vp=vp,
                micro_batch=None if micro == recorded_batch else micro,
                recompute=recompute,
            )
            try:
                check_plan(plan)
            except InputError:
                continue
            yield plan


def _data(rest: int, machines: Sequence[int], is_training: bool) -> Iterator[dict[str, Any]]:
    """Yield how the ranks that see other samples share parameters, gradients and the optimizer's state."""
    yield {"dp": rest}
    if rest == 1 or not is_training:
        return
    yield {"dp": rest, "zero": 1}
    yield {"fsdp": rest}
    for size in machines:
        if rest > size > 1 and rest % size == 0:
            yield {"dp": rest // size, "fsdp": size}


def _is_even(layers: int, pieces: int) -> bool:
    """Say whether pieces of whole layers are about equally large."""
    return pieces <= layers and ceil(layers / pieces) * pieces <= EVEN_RATIO * layers


def _divisors(value: int) -> list[int]:
    return [size for size in range(1, min(value, 4096) + 1) if value % size == 0]
