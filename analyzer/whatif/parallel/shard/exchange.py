"""The collectives that convert what ranks have of a tensor into what an op needs."""

from typing import Final

from .....formats.trace.signature import Signature, TensorSpec
from .....formats.trace.tables import Phase
from .....records import dataclass, field, replace
from ..exchanges import WAIT, insert_collective
from ..insert import Exchange, Insertion, Insertions, Spot
from .placement import Cut, Share, State, local_spec, outer_count, place_of, strides_of
from .roles import ReadTrace

_SENT_DTYPE: Final = "bfloat16"
"""Of rows that go to experts whose products are in 8 bits: taken to be cast where they arrive. None of the 286 recipes
with parallel experts asks for a dispatch in fp8; no trace was at hand to check it."""


@dataclass(slots=True)
class Exchanges:
    """Collect the collectives of one group of ranks."""

    subject: ReadTrace
    insertions: Insertions
    group: int
    name: str
    degree: int
    gathers_again: bool = False
    """Whether the backward pass gathers anew what the forward pass gathered, rather than keeping it."""
    sent_ratio: float | None = None
    """Of rows that go to experts, how many are sent where one copy serves all of a rank's; None: all of them."""
    library: str = ""
    """Of the kernels that send them so."""
    patches: dict[tuple[int, int], int] = field(default_factory=dict)
    """Which tensor an op reads instead of its input: by op and place among its inputs."""
    _storages: dict[tuple[int, Share, bool], int] = field(default_factory=dict)
    _tensors: dict[tuple[int, Share, bool], int] = field(default_factory=dict)

    def forget(self, storage: int) -> None:
        """Drop what was converted of a storage, since an op wrote to it."""
        for key in [key for key in self._storages if key[0] == storage]:
            del self._storages[key]
        for known in [known for known in self._tensors if self.subject.storages[known[0]] == storage]:
            del self._tensors[known]

    def convert(self, op: int, at: int, spec: TensorSpec, state: State, wanted: State) -> None:
        """Let an op read its input as wanted, converted before it unless that was done before."""
        tensor = self.subject.inputs[op][at]
        backward = self.gathers_again and int(self.subject.trace.ops.phase[op]) == Phase.BACKWARD
        key = tensor, wanted.share, backward
        storage = self.subject.storages[tensor]
        if key not in self._tensors:
            held = self._storages.get((storage, wanted.share, backward))
            if held is None:
                made = self._tensors[key] = self._exchange(op, tensor, spec, state, wanted)
                if made != tensor:
                    added = self.insertions.tensors[made - self.insertions.first_tensor]
                    self._storages[storage, wanted.share, backward] = added[0]
            else:
                final = local_spec(spec, place_of(spec, wanted))
                self._tensors[key] = self.insertions.tensor(spec.dtype, final.element_count, storage=held)
        self.patches[op, at] = self._tensors[key]

    def _exchange(self, op: int, tensor: int, view: TensorSpec, state: State, wanted: State) -> int:
        spec = _as_stored(view)
        whole = TensorSpec(spec.dtype, spec.shape)
        if Share.DISPATCHED in (state.share, wanted.share):
            way = "dispatch" if state.share is Share.WHOLE else "combine"
            kind = "all_to_all" if self.sent_ratio is None else f"{self.library}::{way}"
            return self._collective(op, kind, tensor, _as_sent(spec), _as_sent(whole))
        if state.share is Share.PARTIAL:
            place = place_of(spec, wanted)
            return (
                self._collective(op, "all_reduce", tensor, spec, whole)
                if place is None
                else self._reduce_scatter(op, tensor, spec, place)
            )
        place = place_of(spec, state)
        return tensor if place is None else self._all_gather(op, tensor, spec, place)

    def _reduce_scatter(self, op: int, tensor: int, spec: TensorSpec, place: Cut) -> int:
        part = TensorSpec(spec.dtype, local_spec(TensorSpec(spec.dtype, spec.shape), place).shape)
        if outer_count(spec.shape, place) == 1:
            return self._collective(op, "reduce_scatter", tensor, spec, part)
        stacked = self._stacked(part)
        copied = self._copy(op, tensor, TensorSpec(spec.dtype, part.shape, spec.strides), 0, stacked)
        return self._collective(op, "reduce_scatter", copied, stacked, part)

    def _all_gather(self, op: int, tensor: int, spec: TensorSpec, place: Cut) -> int:
        part = local_spec(spec, place)
        plain = TensorSpec(spec.dtype, part.shape)
        gathered = self._collective(op, "all_gather", tensor, part, self._stacked(plain))
        if outer_count(spec.shape, place) == 1:
            return gathered
        return self._copy(op, gathered, plain, place.dim, TensorSpec(spec.dtype, spec.shape))

    def _stacked(self, part: TensorSpec) -> TensorSpec:
        """Return what all ranks' parts are, one after the other."""
        return TensorSpec(part.dtype, (part.shape[0] * self.degree, *part.shape[1:]))

    def _collective(
        self, op: int, kind: str, tensor: int, read: TensorSpec, made: TensorSpec, waiting: int | None = None
    ) -> int:
        """Insert a collective before an op and the wait, after which `waiting` may be read; return its tensor."""
        arguments: dict[str, tuple[str | float | None, ...]] = {
            "all_reduce": ("sum", self.name),
            "all_gather": (self.degree, self.name),
            "reduce_scatter": ("sum", self.degree, self.name),
            "all_to_all": (None, None, self.name),
        }
        call = Signature((read, *arguments.get(kind, (self.sent_ratio, self.name))), (made,))
        result = insert_collective(self.insertions, kind, call, tensor, self.group, self._spot(op))
        self._insert(op, WAIT, Signature((made,), (made,)), (result,), (result if waiting is None else waiting,))
        return result

    def _copy(self, op: int, tensor: int, piece: TensorSpec, dim: int, made: TensorSpec) -> int:
        """Insert the copy that puts ranks' pieces in order, where these do not lie one after the other."""
        result = self.insertions.tensor(made.dtype, made.element_count)
        signature = Signature(((piece,) * self.degree, dim), (made,))
        self._insert(op, "aten::cat", signature, (tensor,) * self.degree, (result,))
        return result

    def sum_rows(self, op: int, count: int, dtype: str) -> None:
        """Sum up a number per row before an op: the scores of the right classes, of which one rank has each."""
        rows = TensorSpec(dtype, (count,))
        tensor = self.subject.inputs[op][0]
        self._collective(op, "all_reduce", tensor, rows, rows, waiting=tensor)

    def normalize_rows(self, op: int, spec: TensorSpec, place: Cut) -> None:
        """Compute, before an op, the largest score and the sum of exponentials of rows that ranks share.

        As torch's loss_parallel and Megatron-LM's cross entropy do; the op itself stands for the last subtraction.
        """
        local = local_spec(TensorSpec("float32", spec.shape), place)
        rows = TensorSpec("float32", tuple(1 if dim == place.dim else size for dim, size in enumerate(local.shape)))
        scores = self.subject.inputs[op][0]
        read = local_spec(spec, place)
        largest, total = (self.insertions.tensor("float32", rows.element_count) for _ in range(2))
        centred, powers = (self.insertions.tensor("float32", local.element_count) for _ in range(2))
        self._insert(op, "aten::amax", Signature((read, (place.dim,), True), (rows,)), (scores,), (largest,))
        largest = self._collective(op, "all_reduce", largest, rows, rows)
        self._insert(op, "aten::sub", Signature((read, rows, 1), (local,)), (scores, largest), (centred,))
        self._insert(op, "aten::exp", Signature((local,), (local,)), (centred,), (powers,))
        self._insert(op, "aten::sum", Signature((local, (place.dim,), True), (rows,)), (powers,), (total,))
        self._collective(op, "all_reduce", total, rows, rows, waiting=centred)
        self.patches[op, 0] = centred

    def mask_rows(self, op: int, spec: TensorSpec) -> None:
        """Clear, after a look-up in a part of a table, the rows that other ranks have."""
        tensor = self.subject.outputs[op][0]
        mask = TensorSpec("bool", (*spec.shape[:-1], 1))
        signature = Signature((spec, mask, 0.0), (spec,))
        self._insert(op, "aten::masked_fill_", signature, (tensor,), (tensor,), is_after=True)

    def add_gradients(self, op: int, tensors: list[int], specs: list[TensorSpec]) -> None:
        """Insert before an op the sum of parameters' gradients that ranks have summands of, all in one."""
        count = sum(spec.element_count for spec in specs)
        exchange = Exchange(
            name="all_reduce", group=self.group, dtype=specs[0].dtype, in_element_count=count, out_element_count=count
        )
        self.insertions.add(
            Insertion(
                place=Spot(at=op, is_after=False, phase=Phase.BACKWARD),
                name="c10d::allreduce_coalesced_",
                signature=Signature((tuple(specs),), (tuple(specs),)),
                reads=tuple(tensors),
                writes=tuple(tensors),
                exchange=exchange,
            )
        )

    def _insert(
        self,
        op: int,
        name: str,
        signature: Signature,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        *,
        is_after: bool = False,
    ) -> None:
        place = self._spot(op, is_after=is_after)
        self.insertions.add(Insertion(place=place, name=name, signature=signature, reads=reads, writes=writes))

    def _spot(self, op: int, *, is_after: bool = False) -> Spot:
        ops = self.subject.trace.ops
        return Spot(at=op, is_after=is_after, phase=int(ops.phase[op]), module=int(ops.module[op]))


def _as_sent(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype=_SENT_DTYPE) if spec.dtype.startswith(("float8", "float4")) else spec


def _as_stored(spec: TensorSpec) -> TensorSpec:
    """Return a view with its dims in the order in which they lie in memory, which all views of a storage agree on."""
    steps = strides_of(spec)
    if any(not step and size > 1 for step, size in zip(steps, spec.shape, strict=True)):
        return TensorSpec(spec.dtype, spec.shape)
    order = sorted(range(len(steps)), key=lambda dim: (-steps[dim], -spec.shape[dim]))
    return TensorSpec(spec.dtype, tuple(spec.shape[dim] for dim in order), tuple(steps[dim] for dim in order))
