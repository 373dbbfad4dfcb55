"""What ranks that see other samples exchange: gradients, and parameters that they share.

Replicas (`dp`) add up gradients in buckets beside the backward pass, by torch's or by Megatron-Core's rule; with
ZeRO-1 and 2 each keeps a part of the sum, steps its part of the parameters and gathers the rest. Sharded parameters
(`fsdp`, ZeRO-3) are gathered per layer before its forward and again before its backward, gradients reduced and parted
after it, as torch's `fully_shard` does with a unit per layer and one for the rest, which stays gathered in between.
Gradients travel in the type that the recording makes them in.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ....arrays import Rows
from ....formats.trace.column import row_count
from ....formats.trace.signature import Argument, Signature, TensorSpec
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass, field
from .exchanges import exchange, wait
from .insert import Insertion, Insertions, Spot
from .layers import tail_start
from .mesh import axis_group
from .parameters import Parameters
from .plan import GradientBuckets, ParallelPlan

FIRST_BUCKET_BYTES: Final = 1 << 20
BUCKET_BYTES: Final = 25 << 20
"""torch's DistributedDataParallel: `bucket_cap_mb` of 25, and a first bucket of 1 MiB (`kDefaultFirstBucketBytes`)."""
MEGATRON_ELEMENTS: Final = 40_000_000
MEGATRON_RANK_ELEMENTS: Final = 1_000_000
"""Megatron-Core's DistributedDataParallelConfig: parameters of a bucket at least, and for each rank that reduces it."""
_NORMS: Final = ("aten::linalg_vector_norm", "aten::norm")
_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Replication:
    """Collect the collectives of one piece."""

    trace: Trace
    of_op: Rows
    parameters: Parameters
    plan: ParallelPlan
    rank: int
    layer_count: int
    """Of the whole network: what stands after its layers has this number in `of_op`."""
    expert_storages: Rows = field(default_factory=lambda: _NONE)
    insertions: Insertions = field(init=False)
    last_only: set[int] = field(default_factory=set)
    """Insertions that run only with the last micro batch."""
    tail: int = field(init=False)
    _parts: list[int] = field(default_factory=list)
    """Storages of reduced gradients."""

    def __post_init__(self) -> None:
        self.insertions = Insertions(self.trace)
        self.tail = tail_start(self.trace)

    def run(self) -> None:
        """Insert all."""
        plan = self.plan
        experts = np.isin(self.parameters.storage, self.expert_storages) & (plan.ep > 1)
        for chosen, shards, copies in ((~experts, ("cp", "fsdp"), ("dp",)), (experts, ("edp",), ())):
            rows = np.flatnonzero(chosen)
            if not len(rows):
                continue
            if plan.fsdp > 1:
                self._shard(rows, shards, copies)
            else:
                self._replicate(rows, (*shards[:1], *copies) if copies else shards)
        self._reduce_norms()

    def over(self) -> Rows:
        """Return into how many parts each parameter's state is cut."""
        plan, parameters = self.plan, self.parameters
        experts = np.isin(parameters.storage, self.expert_storages) & (plan.ep > 1)
        shares = plan.fsdp * plan.cp if plan.fsdp > 1 else plan.dp * plan.cp if plan.zero else 1
        whole = plan.expert_ranks // plan.ep
        return np.where(experts, max(whole, 1) if plan.fsdp > 1 or plan.zero else 1, shares)

    def kept_bytes(self) -> float:
        """Return the bytes of the parameters that a rank keeps: its parts of sharded ones, else all."""
        parameters = self.parameters
        over = self.over() if self.plan.fsdp > 1 else np.ones(len(parameters.storage), dtype=np.int64)
        rows = -(-parameters.row_count // over)
        return float((parameters.size_bytes * rows / parameters.row_count).sum())

    def gradient_storages(self) -> Rows:
        """Return the storages of the result that hold gradients until the optimizer runs."""
        trained = self.parameters.gradient[self.parameters.has_gradient]
        return np.union1d(self.trace.tensors.storage[trained], self._parts)

    def _shard(self, rows: Rows, axes: tuple[str, ...], copies: tuple[str, ...]) -> None:
        """Gather each unit's parameters before its passes, and part its gradients after backward."""
        group = self._group(axes)
        if group is None:
            return
        units = self._units(rows)
        for at, unit in enumerate(units):
            self._gather(unit, group, Phase.FORWARD, units[max(at - self.plan.prefetch, 0)].forward, unit.forward)
        backward = sorted(((unit.backward, unit) for unit in units if unit.backward), key=lambda item: item[0])
        again = [(span, unit) for span, unit in backward if not unit.is_root]
        for at, (span, unit) in enumerate(again):
            self._gather(unit, group, Phase.BACKWARD, again[max(at - self.plan.prefetch, 0)][0], span)
        for span, unit in backward:
            self._part(unit, span[1], group, copies)

    def _gather(self, unit: _Unit, group: int, phase: int, early: tuple[int, int], late: tuple[int, int]) -> None:
        """Insert the gathering of a unit's parameters before op `early`, and the wait before op `late`."""
        insertions, size = self.insertions, self._size(group)
        for dtype, rows in self._by_dtype(unit.parameters, self.parameters.tensor):
            count = self._shard_count(rows, size)
            shard = TensorSpec(dtype, (count,))
            whole = TensorSpec(dtype, (count * size,))
            flat = insertions.tensor(dtype, count)
            tensors = tuple(self.parameters.tensor[rows].tolist())
            issue = Spot(at=early[0], is_after=False, phase=phase, module=self._module(late[0]))
            parts = tuple(TensorSpec(dtype, (part,)) for part in self._shard_counts(rows, size).tolist())
            self._copy("aten::cat", (parts, 0), (shard,), (), (flat,), issue)
            gathered = exchange(insertions, "all_gather", shard, flat, group, issue)
            place = Spot(at=late[0], is_after=False, phase=phase, module=self._module(late[0]))
            view = wait(insertions, whole, gathered, place)
            held = insertions.tensor(dtype, int(self.parameters.element_count[rows].sum()))
            insertions.lasts[insertions.storage(held)] = unit.end(phase)
            full = tuple(TensorSpec(dtype, (n,)) for n in self.parameters.element_count[rows].tolist())
            sizes = tuple(spec.shape[0] for spec in full)
            self._copy("aten::split_with_sizes_copy", (whole, sizes, 0), full, (view,), (*tensors, held), place)

    def _part(self, unit: _Unit, at: int, group: int, copies: tuple[str, ...]) -> None:
        """Insert the reduction of a unit's gradients after op `at`, and the wait for a rank's part of them."""
        insertions, parameters, size = self.insertions, self.parameters, self._size(group)
        trained = unit.parameters[parameters.has_gradient[unit.parameters]]
        for dtype, rows in self._by_dtype(trained, parameters.gradient):
            place = Spot(at=at, is_after=True, phase=Phase.BACKWARD, module=self._module(at))
            gradients = tuple(parameters.gradient[rows].tolist())
            count = self._shard_count(rows, size)
            whole, shard = TensorSpec(dtype, (count * size,)), TensorSpec(dtype, (count,))
            flat = insertions.tensor(dtype, count * size)
            specs = tuple(TensorSpec(dtype, (n,)) for n in parameters.element_count[rows].tolist())
            number = self._copy("aten::_chunk_cat", (specs, 0, size), (whole,), gradients, (flat,), place)
            for gradient in gradients:
                insertions.lasts[insertions.storage(gradient)] = number
            part = exchange(insertions, "reduce_scatter", whole, flat, group, place)
            replicas = self._group(copies) if copies else None
            if replicas is not None:
                first = len(insertions.ops)
                part = exchange(insertions, "all_reduce", shard, wait(insertions, shard, part, place), replicas, place)
                self.last_only.add(first + 1)
            self._wait_for_gradients(shard, part, gradients)

    def _replicate(self, rows: Rows, axes: tuple[str, ...]) -> None:
        """Reduce gradients in buckets as they are ready; with ZeRO part them, and gather parameters after the step."""
        group = self._group(axes)
        trained = rows[self.parameters.has_gradient[rows]]
        if group is None or not len(trained):
            return
        insertions, parameters, size, is_parted = (
            self.insertions,
            self.parameters,
            self._size(group),
            self.plan.zero > 0,
        )
        for bucket in self._buckets(trained, size):
            at = int(parameters.ready_op[bucket].max()) if self.plan.overlap_gradients else self.tail - 1
            place = Spot(at=at, is_after=True, phase=Phase.BACKWARD, module=self._module(at))
            for dtype, same in self._by_dtype(bucket, parameters.gradient):
                gradients = tuple(parameters.gradient[same].tolist())
                count = int(parameters.element_count[same].sum())
                count = -(-count // size) * size if is_parted else count
                whole, part = TensorSpec(dtype, (count,)), TensorSpec(dtype, (count // size if is_parted else count,))
                flat = insertions.tensor(dtype, count)
                first = len(insertions.ops)
                specs = tuple(TensorSpec(dtype, (n,)) for n in parameters.element_count[same].tolist())
                self._copy("aten::cat", (specs, 0), (whole,), gradients, (flat,), place)
                kind = "reduce_scatter" if is_parted else "all_reduce"
                self._wait_for_gradients(part, exchange(insertions, kind, whole, flat, group, place), gradients)
                if self.plan.zero < 2:
                    self.last_only.update(range(first, len(insertions.ops)))
            if is_parted:
                self._gather_stepped(bucket, group, size)

    def _buckets(self, rows: Rows, ranks: int) -> list[Rows]:
        """Return the trained parameters in buckets, in the order in which their gradients become ready."""
        parameters, is_torch = self.parameters, self.plan.buckets is GradientBuckets.TORCH
        order = rows[np.argsort(parameters.ready_op[rows], kind="stable")]
        sizes = parameters.gradient_bytes if is_torch else parameters.element_count
        usual = BUCKET_BYTES if is_torch else megatron_bucket(ranks)
        buckets: list[list[int]] = [[]]
        held, limit = 0.0, FIRST_BUCKET_BYTES if is_torch else usual
        for row, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
            buckets[-1].append(row)
            held += size
            if held >= limit:
                buckets.append([])
                held, limit = 0.0, usual
        return [np.array(bucket, dtype=np.int64) for bucket in buckets if bucket]

    def _gather_stepped(self, bucket: Rows, group: int, size: int) -> None:
        """Gather parameters after the step; nothing waits where gradients overlap: the next forward pass hides it."""
        insertions, last = self.insertions, row_count(self.trace.ops) - 1
        place = Spot(at=last, is_after=True, phase=Phase.OPTIMIZER)
        for dtype, rows in self._by_dtype(bucket, self.parameters.tensor):
            count = -(-int(self.parameters.element_count[rows].sum()) // size)
            shard = TensorSpec(dtype, (count,))
            tensors = tuple(self.parameters.tensor[rows].tolist())
            gathered = exchange(insertions, "all_gather", shard, tensors[0], group, place)
            if not self.plan.overlap_gradients:
                wait(insertions, TensorSpec(dtype, (count * size,)), gathered, place, writes=tensors)

    def _reduce_norms(self) -> None:
        """Add up the norm of gradients over the ranks that hold other parts of them."""
        plan, ops, insertions = self.plan, self.trace.ops, self.insertions
        names = np.array([text in _NORMS for text in self.trace.strings], dtype=bool)
        is_norm = names[ops.name] & (np.arange(row_count(ops)) >= self.tail)
        parted = ("cp", "fsdp") if plan.fsdp > 1 else ("cp", "dp") if plan.zero else ()
        groups = [self._group(axes) for axes in (parted, ("tp",), ("pp",)) if axes]
        for op in np.flatnonzero(is_norm)[-1:].tolist():
            written = self.trace.operands.tensor[(self.trace.operands.op == op) & self.trace.operands.is_output]
            place = Spot(at=op, is_after=True, phase=int(ops.phase[op]))
            spec = TensorSpec("float32", ())
            for group in (item for item in groups if item is not None and len(written)):
                total = exchange(insertions, "all_reduce", spec, int(written[0]), group, place)
                wait(insertions, spec, total, place, writes=(int(written[0]),))

    def _wait_for_gradients(self, spec: TensorSpec, tensor: int, gradients: tuple[int, ...]) -> None:
        """Insert the wait before the first op that reads gradients: clipping, else the optimizer."""
        at, count = self.tail, row_count(self.trace.ops)
        phase = int(self.trace.ops.phase[at]) if at < count else int(Phase.OPTIMIZER)
        place = Spot(at=min(at, count - 1), is_after=at >= count, phase=phase)
        wait(self.insertions, spec, tensor, place, writes=gradients)
        self.insertions.lasts[self.insertions.storage(tensor)] = count - 1
        self._parts.append(self.insertions.storage(tensor))

    def _copy(
        self,
        name: str,
        arguments: tuple[Argument, ...],
        results: tuple[Argument, ...],
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        place: Spot,
    ) -> int:
        """Insert the copy between a flat buffer and its tensors."""
        call = Signature(arguments, results)
        return self.insertions.add(Insertion(place=place, name=name, signature=call, reads=reads, writes=writes))

    def _units(self, rows: Rows) -> list[_Unit]:
        """Return the units of these parameters in order of their forward: each layer, and all outside the layers."""
        of_op, phase = self.of_op, self.trace.ops.phase
        layer = of_op[self.parameters.first_op[rows]]
        is_root = (layer < 0) | (layer >= self.layer_count)
        units = []
        is_pass = np.arange(len(of_op)) < self.tail
        for number in (*np.unique(layer[~is_root]).tolist(), None):
            mine = rows[is_root] if number is None else rows[(layer == number) & ~is_root]
            if not len(mine):
                continue
            where = is_pass if number is None else is_pass & (of_op == number)
            backward = np.flatnonzero(where & (phase == Phase.BACKWARD))
            units.append(
                _Unit(
                    parameters=mine,
                    is_root=number is None,
                    forward=_span(np.flatnonzero(where & (phase != Phase.BACKWARD))),
                    backward=_span(backward) if len(backward) else None,
                )
            )
        return sorted(units, key=lambda unit: unit.forward)

    def _shard_counts(self, rows: Rows, size: int) -> Rows:
        """Return the elements of a rank's part of each parameter: parted in the first dimension, rounded up."""
        lengths = self.parameters.row_count[rows]
        return -(-lengths // size) * (self.parameters.element_count[rows] // lengths)

    def _shard_count(self, rows: Rows, size: int) -> int:
        return int(self._shard_counts(rows, size).sum())

    def _by_dtype(self, rows: Rows, tensors: Rows) -> list[tuple[str, Rows]]:
        dtypes = self.trace.tensors.dtype[tensors[rows]]
        return [(self.trace.strings[dtype], rows[dtypes == dtype]) for dtype in np.unique(dtypes).tolist()]

    def _group(self, axes: tuple[str, ...]) -> int | None:
        """Return the row of the group of ranks that differ along these axes; None where it is this rank alone."""
        group = axis_group(self.plan, axes, self.rank)
        return self.insertions.group(group.name, group.ranks) if group.size > 1 else None

    def _size(self, group: int) -> int:
        return self.insertions.group_size(group)

    def _module(self, op: int) -> int:
        return int(self.trace.ops.module[op])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Unit:
    """Hold parameters that are gathered together, with the first and last op of the passes that need them."""

    parameters: Rows
    is_root: bool
    """Whether it stays gathered between forward and backward."""
    forward: tuple[int, int]
    backward: tuple[int, int] | None

    def end(self, phase: int) -> int:
        """Return the op after which what was gathered for a pass is dropped."""
        if self.backward is not None and (phase == Phase.BACKWARD or self.is_root):
            return self.backward[1]
        return self.forward[1]


def megatron_bucket(ranks: int) -> int:
    """Return the parameters of a bucket of Megatron-Core's.

    >>> megatron_bucket(8), megatron_bucket(512)
    (40000000, 512000000)
    """
    return max(MEGATRON_ELEMENTS, MEGATRON_RANK_ELEMENTS * ranks)


def _span(rows: Rows) -> tuple[int, int]:
    return int(rows[0]), int(rows[-1])
