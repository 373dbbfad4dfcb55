"""Where a tensor holds an axis: from its storage's strides, and, of tensors that were given, from their sizes."""

from collections.abc import Sequence

from ....formats.trace.signature import TensorSpec
from ....records import dataclass
from ..op_rules import WEIGHTS
from .axis import Axis, Carry

Strides = tuple[int, ...]
"""Elements between neighbours on the axis, one for each time that a storage holds it; () where it does not."""
_INTEGERS = ("int", "uint", "bool")


@dataclass(frozen=True, slots=True)
class Given:
    """Hold a tensor that no op of the iteration made, at its first use."""

    name: str
    spec: TensorSpec
    position: int


def given_carry(given: Given, others: Sequence[tuple[TensorSpec, Carry]], axis: Axis) -> Carry:
    """Return the carry of a tensor that the iteration was given: data, or a parameter in inference.

    Data begins with the batch, or has it second (sequences); what broadcasts against data follows the data. Tokens are
    counted by any dimension of integers; of other data by the first after the batch that fits and is not the last,
    which holds features, of masks by the last two.
    """
    spec, rank = given.spec, len(given.spec.shape)
    if given.position in WEIGHTS.get(given.name, ()) or not rank:
        return (0,) * rank
    for other, carry in others:
        offset = len(other.shape) - rank
        if not any(carry) or offset < 0:
            continue
        if all(a in (1, b) for a, b in zip(spec.shape, other.shape[offset:], strict=True)):
            return tuple(inner if size > 1 else 0 for size, inner in zip(spec.shape, carry[offset:], strict=True))
    if axis.is_batch:
        return (*axis.dims_of(spec.shape[:2]), *(0,) * (rank - 2))
    carry = axis.dims_of(spec.shape)
    if spec.dtype.startswith(_INTEGERS) and not any(carry):
        # Tokens with their labels, a few more than are read: x[:, :-1] and x[:, 1:].
        longer = {axis.before + offset for offset in axis.offsets if offset > 0}
        return tuple(int(dim > 0 and size in longer) for dim, size in enumerate(spec.shape))
    if spec.dtype.startswith(_INTEGERS) or (rank == 4 and spec.shape[1] == 1) or (rank == 2 and all(carry)):
        return carry
    place = next((dim for dim, inner in enumerate(carry[:-1]) if inner), None)
    return tuple(int(dim == place) for dim in range(rank))


def strides_of(spec: TensorSpec, carry: Carry) -> Strides:
    """Return the elements between neighbours on the axis; () where no dim holds it, or only an expanded one."""
    strides = spec.strides or ()
    return tuple(stride * inner for stride, inner in zip(strides, carry, strict=False) if inner and stride)


def carry_from_strides(spec: TensorSpec, strides: Strides, axis: Axis) -> Carry:
    """Return which dims of a view hold the axis: those whose steps are at most its own, and reach beyond it."""
    carry = [0] * len(spec.shape)
    if spec.strides is None:
        return tuple(carry)
    for step in strides:
        for dim, (size, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
            if carry[dim] or not 0 < stride <= step or step % stride:
                continue
            inner = step // stride
            if size > inner and axis.holds(size, inner):
                carry[dim] = inner
                break
    return tuple(carry)


def new_carry(name: str, spec: TensorSpec, source: TensorSpec | None, axis: Axis) -> Carry:
    """Return which dims of a view hold the axis that its source does not hold: repeated, or cut from a table.

    Samples are repeated by the first dim of their number. Of tokens, `source` tells which dims it has already.
    """
    rank, steps = len(spec.shape), spec.strides or ()
    if name == "expand":
        fits = axis.dims_of([size if not step else 0 for size, step in zip(spec.shape, steps, strict=True)])
        if axis.is_batch or source is None:
            return fits
        had = (0,) * (rank - len(source.shape)) + source.shape
        return tuple(inner if size <= 1 else 0 for inner, size in zip(fits, had, strict=True))
    if name in ("slice", "narrow") and not axis.is_batch and source is not None and len(source.shape) == rank:
        return tuple(
            int(size != whole and size == axis.before) for size, whole in zip(spec.shape, source.shape, strict=True)
        )
    return (0,) * rank
