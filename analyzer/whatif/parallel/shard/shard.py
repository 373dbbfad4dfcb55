"""What one rank runs under tensor, sequence, context and expert parallelism, from a recording of one GPU.

How the optimizer's tensors are shared: as the parameters that stand at the same place of its lists.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from .....arrays import Rows
from .....errors import InputError
from .....formats.trace.column import row_count
from .....formats.trace.signature import Argument, Signature, TensorSpec
from .....formats.trace.tables import Phase, Trace
from .....records import dataclass, field, replace
from ....work.registry import family_of, work_of
from ....work.work import Family
from ...axis.infer import find_sequence_length
from ..insert import Insertions, insert_ops
from ..mesh import axis_group
from ..plan import ExpertDispatch, MeshAxis, ParallelPlan
from ..plan_file import ShardKind
from .exchange import Exchanges
from .outcome import Rules
from .placement import WHOLE, Share, State, local_spec, place_of, state_at
from .roles import (
    WEIGHT_AT,
    ReadTrace,
    expert_rows,
    expert_states,
    find_origins,
    find_roles,
    forward_ops,
    read_subject,
    weight_states,
)
from .walk import ShareWalk


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sharded:
    """Hold what one rank of those that share tensors, tokens and experts runs, and what becomes of parameters.

    Under `cp` the gradients of all parameters are sums over the rank's tokens: they are added up over the ranks of `cp`
    with those over the replicas. Those of experts are shared by the replicas that hold the same experts.
    """

    trace: Trace
    source_op: Rows
    """Row of the given recording that each op was; -1: inserted."""
    expert_storages: Rows
    """Storages of which the ranks of `ep` hold different experts."""
    warnings: tuple[str, ...] = field(default=())


def shard_tensors(trace: Trace, plan: ParallelPlan, overrides: Mapping[str, ShardKind] | None = None) -> Sharded:
    """Return what one rank runs of a recording of shapes under the plan's `tp`, `sp`, `cp` and `ep`.

    `overrides` says by patterns of module paths how weights are shared.
    Raises InputError where a degree does not divide what it is to divide, and where nothing can be shared.

    >>> from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
    >>> len(shard_tensors(trace, ParallelPlan(tp=2)).trace.collectives.op)  # two of each per layer and phase, and one
    50
    """
    found = Sharded(trace=trace, source_op=np.arange(row_count(trace.ops)), expert_storages=np.zeros(0, dtype=np.int64))
    warnings: list[str] = []
    tokens = find_sequence_length(trace) or 0
    if plan.ep > 1:
        found = _share_experts(found, plan, tokens * _batch(trace))
    if plan.cp > 1:
        found = _share_tokens(found, plan, tokens)
        tokens = tokens // plan.cp
    if plan.tp > 1:
        found = _share_features(found, plan, tokens, overrides or {}, warnings)
    return replace(found, warnings=tuple(warnings))


def _batch(trace: Trace) -> int:
    return trace.meta.workload.batch_size or 0


def _share_features(
    found: Sharded, plan: ParallelPlan, tokens: int, overrides: Mapping[str, ShardKind], warnings: list[str]
) -> Sharded:
    subject = read_subject(found.trace)
    origins = find_origins(subject)
    own = frozenset(found.expert_storages.tolist()) if splits_for_experts(plan) else frozenset()
    roles = find_roles(subject, overrides, origins, own)
    weights = weight_states(subject, roles, origins, plan.tp)
    if ShardKind.ROW not in roles.of_op.values():
        raise InputError(
            f"tp={plan.tp}: no product on a parameter is followed by another that takes up its features, as the layers "
            "of a transformer are: ranks cannot share this model's tensors"
        )
    part = _shared_part(subject, roles.of_op)
    if part < LEAST_SHARED_PART:
        raise InputError(
            f"tp={plan.tp}: only {100 * part:.0f} % of the model's products could be shared: it is no model for tensor "
            "parallelism"
        )
    splits = plan.splits_tokens
    if splits and (not tokens or tokens % plan.tp):
        if plan.sp or splits_for_experts(plan):
            raise InputError(f"sp: {tokens or 'an unknown number of'} tokens cannot be shared by {plan.tp} ranks")
        splits = False
        warnings.append(f"tokens are not split between layers: {tokens or 'an unknown number'} by {plan.tp} ranks")
    rules = Rules(degree=plan.tp, splits_tokens=splits, tokens=tokens, batch=_batch(found.trace))
    return _run(found, plan, subject, rules, MeshAxis.TENSOR, weights)


def splits_for_experts(plan: ParallelPlan) -> bool:
    """Say whether tensor-parallel ranks send tokens of their own to experts, rather than share each expert."""
    return plan.ep > 1 and plan.tp > 1 and plan.splits_tokens


def _shared_part(subject: ReadTrace, roles: Mapping[int, ShardKind]) -> float:
    """Return which part of the FLOPs of products on parameters is of those that ranks share."""
    shared = whole = 0.0
    known: dict[int, float] = {}
    ops = subject.trace.ops
    for op, call in forward_ops(subject):
        if call.name not in WEIGHT_AT and call.name != "convolution":
            continue
        number = int(ops.signature[op])
        if number not in known:
            work = work_of(subject.trace.strings[int(ops.name[op])], call.signature)
            known[number] = 0.0 if work is None else work.flops
        whole += known[number]
        shared += known[number] * (op in roles)
    return shared / whole if whole else 0.0


def _share_tokens(found: Sharded, plan: ParallelPlan, tokens: int) -> Sharded:
    degree = plan.cp
    if not tokens:
        raise InputError(f"cp={degree}: the shapes do not tell how many tokens a sample has")
    if tokens % (2 * degree):
        raise InputError(f"cp={degree}: {tokens} tokens cannot be shared by {degree} ranks, two pieces each")
    ops = found.trace.ops
    for name in sorted(found.trace.strings[row] for row in np.unique(ops.name).tolist()):
        if family_of(name) in _STATEFUL:
            raise InputError(f"cp={degree}: {name} carries a state from token to token: ranks cannot share its tokens")
    subject = read_subject(found.trace)
    rules = Rules(degree=degree, splits_tokens=True, tokens=tokens, batch=_batch(found.trace))
    return _run(found, plan, subject, rules, MeshAxis.CONTEXT, _given_tokens(subject, rules))


LEAST_SHARED_PART: Final = 0.1
"""Of products' FLOPs: where ranks share less, as of a convolutional network's few linear layers, a plan is refused."""
_STATEFUL: Final = frozenset([Family.STATE_SPACE, Family.RECURRENT])


def _given_tokens(subject: ReadTrace, rules: Rules) -> dict[int, State]:
    """Return the data that the iteration is given by samples and tokens."""
    found: dict[int, State] = {}
    tensors = subject.trace.tensors
    seen: set[int] = set()
    for op, read in enumerate(subject.inputs):
        number = int(subject.trace.ops.signature[op])
        if number < 0 or not read:
            continue
        for tensor, spec in zip(read, subject.trace.signatures[number].tensors(), strict=False):
            storage = int(tensors.storage[tensor])
            if storage in seen:
                continue
            seen.add(storage)
            if storage in subject.made or storage in subject.parameters:
                continue
            is_data = spec.dtype.startswith("int") or len(spec.shape) >= 3
            place = rules.token_place(spec) if is_data and rules.tokens in spec.shape[:2] else None
            if place is not None and spec.shape[place.dim] == rules.tokens:
                found[storage] = state_at(spec, place)
    return found


def _share_experts(found: Sharded, plan: ParallelPlan, tokens: int) -> Sharded:
    degree = plan.ep
    subject = read_subject(found.trace)
    weights = expert_states(subject, find_origins(subject), degree)
    rules = Rules(degree=degree, splits_tokens=False)
    ratio = None
    if plan.dispatch is not ExpertDispatch.ALL_TO_ALL:
        ratio = sent_ratio(expert_rows(subject) / max(tokens, 1) if tokens else 1.0, degree)
    return _run(found, plan, subject, rules, MeshAxis.EXPERT, weights, ratio)


def sent_ratio(copies: float, ranks: int) -> float:
    """Return which part of a token's copies, one per expert, is sent where a rank gets one for all of its experts.

    Of n ranks that a router chooses k experts on at random, n (1 - (1 - 1 / n)^k) have any.

    >>> round(sent_ratio(8, 16), 2), sent_ratio(1, 16)
    (0.81, 1.0)
    """
    if copies <= 1:
        return 1.0
    return float(ranks * (1.0 - (1.0 - 1.0 / ranks) ** copies) / copies)


def _run(
    found: Sharded,
    plan: ParallelPlan,
    subject: ReadTrace,
    rules: Rules,
    axis: MeshAxis,
    given: dict[int, State],
    ratio: float | None = None,
) -> Sharded:
    """Follow one kind of sharing through the trace, and insert its collectives."""
    insertions = Insertions(found.trace)
    shared = axis_group(plan, (str(axis),))
    group = insertions.group(shared.name, shared.ranks if shared.size == rules.degree else range(rules.degree))
    gathers = axis is MeshAxis.CONTEXT
    library = "hybrid_ep" if plan.dispatch is ExpertDispatch.HYBRID else "deep_ep"
    exchanges = Exchanges(subject, insertions, group, str(axis), rules.degree, gathers, ratio, library)
    count = int(found.trace.tensors.storage.max(initial=-1)) + 1
    walk = ShareWalk(subject, rules, exchanges, [0] * count)
    for storage, state in given.items():
        walk.states[storage] = walk.state_row(state)
    walk.run()
    own = found.expert_storages.tolist() if splits_for_experts(plan) else []
    share_optimizer(subject, walk, frozenset(own))
    trace, _ = walk.result()
    inserted = insert_ops(_patched(trace, exchanges.patches), insertions)
    source = np.where(inserted.source_op >= 0, found.source_op[np.maximum(inserted.source_op, 0)], inserted.source_op)
    experts = found.expert_storages
    if axis is MeshAxis.EXPERT:
        shares = np.array([state.share is Share.EXPERTS for state in walk.known])
        experts = np.flatnonzero(shares[np.array(walk.states, dtype=np.int64)])
    return replace(found, trace=inserted.trace, source_op=source, expert_storages=experts)


def _patched(trace: Trace, patches: dict[tuple[int, int], int]) -> Trace:
    """Return the trace whose ops read other tensors at some places."""
    if not patches:
        return trace
    rows = np.flatnonzero(~trace.operands.is_output.astype(bool))
    first = np.searchsorted(trace.operands.op[rows], [op for op, _ in patches])
    tensor = trace.operands.tensor.copy()
    tensor[rows[first + np.array([at for _, at in patches])]] = list(patches.values())
    return replace(trace, operands=replace(trace.operands, tensor=tensor))


Aligned = list[list[int]]
"""Storages that stand at one place of an op's lists, per place."""


def share_optimizer(subject: ReadTrace, walk: ShareWalk, own: frozenset[int] = frozenset()) -> None:
    """Give the optimizer's tensors their parameters' states, sum up gradients, and rewrite its signatures.

    `own`: storages that each rank has for itself, so that no gradient of theirs is summed up.
    """
    ops = subject.trace.ops
    rows = [int(row) for row in np.flatnonzero((ops.phase == Phase.OPTIMIZER) & (ops.signature >= 0))]
    if not rows:
        return
    groups = {op: _aligned(subject, op) for op in rows}
    for item in own:
        if walk.known[walk.states[item]].share is Share.GRADIENT:
            walk.states[item] = walk.state_row(WHOLE)
    _sum_gradients(subject, walk, rows[0], groups)
    states = walk.states
    is_given = subject.parameters - subject.made
    for _ in range(len(rows)):
        changed = False
        for aligned in groups.values():
            for storages in aligned:
                found = {states[item] for item in storages if states[item] and walk.known[states[item]].is_part}
                if not found:
                    continue
                row = next(
                    (states[item] for item in storages if item in is_given and states[item] in found), min(found)
                )
                for item in storages:
                    if states[item] != row:
                        states[item], changed = row, True
        if not changed:
            break
    memory: dict[tuple[TensorSpec, int], TensorSpec] = {}
    for op in rows:
        walk.column[op] = walk.signatures.setdefault(_local(subject, walk, op, memory), len(walk.signatures))


def _lists(arguments: tuple[Argument, ...]) -> Iterator[list[TensorSpec]]:
    for item in arguments:
        if isinstance(item, TensorSpec):
            yield [item]
        elif isinstance(item, tuple) and item and isinstance(item[0], TensorSpec):
            yield [part for part in item if isinstance(part, TensorSpec)]


def _aligned(subject: ReadTrace, op: int) -> Aligned:
    """Return the storages that an op reads, and returns, at the same place of its lists, if of the same shape."""
    number = int(subject.trace.ops.signature[op])
    signature = subject.trace.signatures[number]
    inputs, outputs = subject.inputs[op], subject.outputs[op]
    lists = list(_lists(signature.arguments))
    length = max(map(len, lists), default=0)
    results = [part for item in _lists(signature.results) for part in item]
    if sum(map(len, lists)) != len(inputs) or not length:
        return []
    found: Aligned = [[] for _ in range(length)]
    shapes: list[tuple[int, ...] | None] = [None] * length
    begin = 0
    for specs in lists:
        if len(specs) == length:
            for place, spec in enumerate(specs):
                if shapes[place] is None:
                    shapes[place] = spec.shape
                if spec.shape == shapes[place] and spec.shape:
                    found[place].append(subject.storages[inputs[begin + place]])
        begin += len(specs)
    if len(results) == len(outputs) == length:
        for place, tensor in enumerate(outputs):
            if results[place].shape == shapes[place]:
                found[place].append(subject.storages[tensor])
    return found


def _sum_gradients(subject: ReadTrace, walk: ShareWalk, first: int, groups: dict[int, Aligned]) -> None:
    """Sum up over ranks, before the optimizer, the gradients of parameters that all of them hold whole."""
    used = {storage for aligned in groups.values() for places in aligned for storage in places}
    partial = [item for item in sorted(used) if walk.known[walk.states[item]].share is Share.GRADIENT]
    if not partial or not walk.rules.splits_tokens or walk.exchanges.gathers_again:
        return
    tensor_of: dict[int, tuple[int, TensorSpec]] = {}
    for op in groups:
        call = subject.trace.signatures[int(subject.trace.ops.signature[op])].tensors()
        for tensor, spec in zip(subject.inputs[op], call, strict=False):
            tensor_of.setdefault(subject.storages[tensor], (tensor, TensorSpec(spec.dtype, spec.shape)))
    by_dtype: dict[str, list[int]] = {}
    for item in partial:
        by_dtype.setdefault(tensor_of[item][1].dtype, []).append(item)
        walk.states[item] = walk.state_row(WHOLE)
    for items in by_dtype.values():
        walk.exchanges.add_gradients(
            first, [tensor_of[item][0] for item in items], [tensor_of[item][1] for item in items]
        )


def _local(subject: ReadTrace, walk: ShareWalk, op: int, memory: dict[tuple[TensorSpec, int], TensorSpec]) -> Signature:
    signature = subject.trace.signatures[int(subject.trace.ops.signature[op])]
    known, states, storages = walk.known, walk.states, subject.storages
    reads, writes = iter(subject.inputs[op]), iter(subject.outputs[op])

    def swap(item: Argument, tensors: Iterator[int]) -> Argument:
        if isinstance(item, TensorSpec):
            return _held(item, next(tensors, -1))
        if isinstance(item, tuple) and item and isinstance(item[0], TensorSpec):
            return tuple(_held(part, next(tensors, -1)) for part in item if isinstance(part, TensorSpec))
        return item

    def _held(spec: TensorSpec, tensor: int) -> TensorSpec:
        row = states[storages[tensor]] if tensor >= 0 else 0
        if not row:
            return spec
        found = memory.get((spec, row))
        if found is None:
            found = memory[spec, row] = local_spec(spec, place_of(spec, known[row]))
        return found

    return Signature(
        tuple(swap(item, reads) for item in signature.arguments),
        tuple(swap(item, writes) for item in signature.results),
    )
