"""Collectives and their waits as ops to insert, named and called as torch's functional ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....formats.trace.column import MISSING
from ....formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec
from .insert import Exchange, Insertion, Insertions


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Say where an op is inserted, and as what part of the iteration."""

    at: int
    is_after: bool
    phase: int
    module: int = MISSING
    """Row of the trace's strings."""
    source_op: int = MISSING


def all_reduce(insertions: Insertions, spec: TensorSpec, tensor: int, group: int, place: Spot) -> int:
    """Insert a sum over a group: return the row of its result, a tensor of the same shape."""
    return _exchange(
        insertions, "_c10d_functional::all_reduce", "all_reduce", spec, tensor, group, place, ("sum", UNKNOWN)
    )


def all_gather(insertions: Insertions, spec: TensorSpec, tensor: int, group: int, place: Spot) -> int:
    """Insert a gathering of every rank's tensor: return the row of its result, longer in its first dimension."""
    size = insertions.group_size(group)
    name = "_c10d_functional::all_gather_into_tensor"
    return _exchange(insertions, name, "all_gather", spec, tensor, group, place, (size, UNKNOWN), times=size)


def reduce_scatter(insertions: Insertions, spec: TensorSpec, tensor: int, group: int, place: Spot) -> int:
    """Insert a sum of which each rank gets its part: return the row of its result, shorter in its first dimension."""
    size = insertions.group_size(group)
    name = "_c10d_functional::reduce_scatter_tensor"
    return _exchange(insertions, name, "reduce_scatter", spec, tensor, group, place, ("sum", size, UNKNOWN), over=size)


def all_to_all(insertions: Insertions, spec: TensorSpec, tensor: int, group: int, place: Spot) -> int:
    """Insert an exchange of equal parts among all: return the row of its result, of the same shape."""
    size = insertions.group_size(group)
    splits = (spec.shape[0] // size,) * size if spec.shape else ()
    name = "_c10d_functional::all_to_all_single"
    return _exchange(insertions, name, "all_to_all", spec, tensor, group, place, (splits, splits, UNKNOWN))


def wait(
    insertions: Insertions,
    spec: TensorSpec,
    tensor: int,
    place: Spot,
    *,
    writes: tuple[int, ...] = (),
    replaces: tuple[int, ...] = (),
) -> int:
    """Insert the wait for a result, from where on it may be read: return the row of the tensor to read, a view of it.

    `writes` names other tensors that hold the result from then on, such as the parameters of a flat buffer.
    `replaces` names tensors whose later readers read it instead, one per tensor of `writes`, or one for the view.
    """
    storage, dtype, count = insertions.tensors[tensor - insertions.first_tensor]
    view = insertions.tensor(dtype, count, storage=storage)
    insertions.add(
        Insertion(
            at=place.at,
            is_after=place.is_after,
            name="_c10d_functional::wait_tensor",
            signature=Signature((spec,), (spec,)),
            phase=place.phase,
            module=place.module,
            reads=(tensor,),
            writes=writes if writes else (view,),
            replaces=replaces,
            source_op=place.source_op,
        )
    )
    return view


def send(insertions: Insertions, spec: TensorSpec, tensor: int, group: int, peer: int, place: Spot) -> None:
    """Insert the sending of a tensor to a rank; nothing waits for it."""
    _transfer(insertions, "c10d::send", spec, tensor, group, peer, place)


def receive(insertions: Insertions, spec: TensorSpec, tensor: int, group: int, peer: int, place: Spot) -> None:
    """Insert the receiving of a tensor from a rank: what reads it waits for it."""
    _transfer(insertions, "c10d::recv_", spec, tensor, group, peer, place)


def resized(spec: TensorSpec, *, times: int = 1, over: int = 1) -> TensorSpec:
    """Return a contiguous tensor `times` as long in its first dimension, or an `over`-th, rounded up."""
    shape = spec.shape or (1,)
    return TensorSpec(spec.dtype, (-(-shape[0] * times // over), *shape[1:]))


def _exchange(  # noqa: PLR0913 - a collective in all that tells it
    insertions: Insertions,
    name: str,
    kind: str,
    spec: TensorSpec,
    tensor: int,
    group: int,
    place: Spot,
    arguments: tuple[Argument, ...],
    *,
    times: int = 1,
    over: int = 1,
) -> int:
    result = resized(spec, times=times, over=over)
    made = insertions.tensor(result.dtype, result.element_count)
    insertions.add(
        Insertion(
            at=place.at,
            is_after=place.is_after,
            name=name,
            signature=Signature((spec, *arguments), (result,)),
            phase=place.phase,
            module=place.module,
            reads=(tensor,),
            writes=(made,),
            exchange=Exchange(
                name=kind,
                group=group,
                dtype=spec.dtype,
                in_element_count=prod(spec.shape),
                out_element_count=result.element_count,
            ),
            source_op=place.source_op,
        )
    )
    return made


def _transfer(
    insertions: Insertions, name: str, spec: TensorSpec, tensor: int, group: int, peer: int, place: Spot
) -> None:
    is_sent = name == "c10d::send"
    insertions.add(
        Insertion(
            at=place.at,
            is_after=place.is_after,
            name=name,
            signature=Signature(((spec,), UNKNOWN, peer, 0)),
            phase=place.phase,
            module=place.module,
            reads=(tensor,) if is_sent else (),
            writes=() if is_sent else (tensor,),
            exchange=Exchange(
                name="send" if is_sent else "recv",
                group=group,
                dtype=spec.dtype,
                in_element_count=spec.element_count,
                out_element_count=spec.element_count,
                peer=peer,
            ),
            source_op=place.source_op,
        )
    )
