"""Collectives and their waits as ops to insert, named and called as torch's functional ones."""

from typing import Final

from ....formats.trace.signature import UNKNOWN, Signature, TensorSpec, flatten_tensors
from .insert import Exchange, Insertion, Insertions, Spot

WAIT: Final = "_c10d_functional::wait_tensor"
_FUNCTIONAL: Final = {
    "all_reduce": "all_reduce", "all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
}  # fmt: skip


def exchange(insertions: Insertions, kind: str, spec: TensorSpec, tensor: int, group: int, place: Spot) -> int:
    """Insert a collective over a group: return the row of its result.

    `all_reduce`: a sum of the same shape; `all_gather`: every rank's tensor, longer in its first dimension;
    `reduce_scatter`: of a sum each rank's part, shorter there, rounded up.
    """
    size, shape = insertions.group_size(group), spec.shape or (1,)
    length = {"all_gather": shape[0] * size, "reduce_scatter": -(-shape[0] // size)}.get(kind, shape[0])
    words = (*(() if kind == "all_gather" else ("sum",)), *(() if kind == "all_reduce" else (size,)), UNKNOWN)
    call = Signature((spec, *words), (TensorSpec(spec.dtype, (length, *shape[1:])),))
    return insert_collective(insertions, kind, call, tensor, group, place)


def insert_collective(insertions: Insertions, kind: str, call: Signature, tensor: int, group: int, place: Spot) -> int:
    """Insert a collective of one tensor, called so: return the row of its result."""
    (given,), (made,) = call.tensors(), flatten_tensors(call.results)
    result = insertions.tensor(made.dtype, made.element_count)
    sent = {"in_element_count": given.element_count, "out_element_count": made.element_count}
    exchange = Exchange(name=kind.rpartition("::")[2], group=group, dtype=given.dtype, **sent)
    name = f"_c10d_functional::{_FUNCTIONAL[kind]}" if kind in _FUNCTIONAL else kind
    name = "vllm::all_reduce" if kind == "all_reduce" and insertions.sums_as_engine else name
    insertions.add(
        Insertion(place=place, name=name, signature=call, reads=(tensor,), writes=(result,), exchange=exchange)
    )
    return result


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
    call, writes = Signature((spec,), (spec,)), writes or (view,)
    insertions.add(Insertion(place=place, name=WAIT, signature=call, reads=(tensor,), writes=writes, replaces=replaces))
    return view
