"""Which dimensions of an op's results hold the axis, given those of its inputs.

A rule, which `op_rules.csv` names, goes from the call, the position of a result, and its spec, to the result's carry.
"""

from ....formats.trace.signature import TensorSpec
from ....records import dataclass
from ..calls import ShapedCall
from ..op_rules import find_rule, known_ops
from .axis import Axis, Carry


@dataclass(frozen=True, slots=True)
class AxisCall(ShapedCall):
    """Hold one call with what is known of its inputs."""

    carries: tuple[Carry, ...]
    """Of the input tensors, in the layout's order."""
    axis: Axis
    forward: tuple[tuple[TensorSpec, Carry], ...] = ()
    """The inputs of the forward op that a backward op differentiates."""

    def at(self, position: int) -> Carry:
        """Return the carry of the first tensor in an argument; () where there is none."""
        pairs = zip(self.layout.input_positions, self.carries, strict=True)
        return next((carry for place, carry in pairs if place == position), ())


def result_carry(call: AxisCall, position: int, spec: TensorSpec) -> Carry:
    """Return which dimensions of a result hold the axis.

    By the op's own rule; else as the inputs that it is computed from element by element; else, for gradients, as the
    forward input of the same shape; else the leading dimensions that it has in common with the first input.
    """
    rule = find_rule("axis", call.name)
    if rule is not None:
        rank, carry = len(spec.shape), rule(call, position, spec)
        return tuple((*carry, *(0,) * rank)[:rank])
    for attempt in (_elementwise, _as_forward_input):
        found = attempt(call, spec)
        if found is not None:
            return found
    return _leading(call, spec)


def has_rule(name: str) -> bool:
    """Say whether an op does more than compute its results element by element, as far as is known here."""
    return name in known_ops("axis")


def _at(carry: Carry, dim: int) -> int:
    return carry[dim] if -len(carry) <= dim < len(carry) else 0


def _elementwise(call: AxisCall, spec: TensorSpec) -> Carry | None:
    """Join the carries of inputs that broadcast to the result, where one of them or all together have its shape."""
    rank, shape = len(spec.shape), spec.shape
    joined, sizes = [0] * rank, [1] * rank
    for item, carry in zip(call.inputs, call.carries, strict=True):
        offset = rank - len(item.shape)
        if offset < 0 or any(n not in (1, shape[offset + dim]) for dim, n in enumerate(item.shape)):
            continue
        for dim, size in enumerate(item.shape):
            sizes[offset + dim] = max(sizes[offset + dim], size)
            if size == shape[offset + dim]:
                joined[offset + dim] = max(joined[offset + dim], _at(carry, dim))
    return tuple(joined) if rank and tuple(sizes) == shape else None


def _as_forward_input(call: AxisCall, spec: TensorSpec) -> Carry | None:
    same = (carry for item, carry in call.forward if item.shape == spec.shape)
    return next(same, None)


def _leading(call: AxisCall, spec: TensorSpec) -> Carry:
    """Follow the input that has the most dims holding the axis, as far as leading sizes agree."""
    carry = [0] * len(spec.shape)
    pairs = list(zip(call.inputs, call.carries, strict=True))
    source = next((pair for pair in pairs if any(pair[1])), None)
    if source is None:
        return tuple(carry)
    for dim, (size, expected) in enumerate(zip(spec.shape, source[0].shape, strict=False)):
        if size != expected:
            break
        carry[dim] = source[1][dim]
    return tuple(carry)


def _named(call: AxisCall, position: int, spec: TensorSpec) -> Carry:
    """Follow the letters of dims by which ranks may share them: what bears one letter holds one axis."""
    rule = find_rule("letters", call.name)
    naming = None if rule is None else rule(call)
    if naming is None:
        return _leading(call, spec)
    held: dict[int, int] = {}
    for letters, carry in zip(naming.inputs, call.carries, strict=True):
        for letter, inner in zip(letters, carry, strict=False):
            held[letter] = max(held.get(letter, 0), inner) if letter else 0
    return tuple(held.get(letter, 0) for letter in naming.outputs[call.layout.output_positions.index(position)])


def _first_result(call: AxisCall, position: int, _spec: TensorSpec, *, like: int = 0, dims: int | None = None) -> Carry:
    """The first result is like an argument, or like its first `dims`; others are statistics or gradients of parameters.

    Dims that no input has hold no axis.
    """
    return () if position else call.at(like)[:dims]


def _by_leading_size(call: AxisCall, _position: int, spec: TensorSpec) -> Carry:
    """Take the first dim for the axis where some input has its size there and holds it."""
    pairs = zip(call.inputs, call.carries, strict=True)
    sizes = {item.shape[0]: carry[0] for item, carry in pairs if item.shape and carry and carry[0]}
    return (sizes.get(spec.shape[0], 0),) if spec.shape else ()


def _created(call: AxisCall, _position: int, spec: TensorSpec) -> Carry:
    """Judge by the sizes: nothing else tells what a new tensor is for."""
    known = _as_forward_input(call, spec)
    return known if known is not None else call.axis.dims_of(spec.shape)


def _turned(call: AxisCall, _position: int, spec: TensorSpec) -> Carry:
    """Turn the carry as the dims are, whatever sizes data and weights have in common."""
    rank, carry, asked = len(spec.shape), call.at(0), call.signature.arguments[1:]
    listed = asked[0] if asked and isinstance(asked[0], tuple) else asked
    places = [dim % rank for dim in listed if isinstance(dim, int) and rank]
    order = places if call.name == "permute" else list(range(rank))
    if call.name == "t":
        order.reverse()
    elif call.name == "transpose" and len(places) == 2:
        order[places[0]], order[places[1]] = places[1], places[0]
    elif call.name == "transpose":  # its dims were not recorded
        order = []
    return tuple(carry[dim] for dim in order) if sorted(order) == list(range(len(carry))) else _leading(call, spec)


def _arange(call: AxisCall, _position: int, spec: TensorSpec) -> Carry:
    """Count tokens where there are as many of them; samples are not counted."""
    return () if call.axis.is_batch else call.axis.dims_of(spec.shape)


def _concatenation(call: AxisCall, _position: int, spec: TensorSpec) -> Carry:
    """Join the carries of the parts; where they lie one after the other along the axis, the sum must hold it."""
    rank, dim = len(spec.shape), call.argument(1)
    place = dim % rank if isinstance(dim, int) and rank else 0
    parts = [item for item in call.carries if len(item) == rank]
    joined = [max((part[at] for part in parts), default=0) for at in range(rank)]
    if rank and joined[place] and not call.axis.holds(spec.shape[place], joined[place]):
        joined[place] = 0
    return tuple(joined)


def _padding(call: AxisCall, _position: int, spec: TensorSpec) -> Carry:
    """Keep the dims that hold the axis, as long as their new sizes can."""
    pairs = zip(call.at(0), spec.shape, strict=False)
    return tuple(inner if inner and call.axis.holds(size, inner) else 0 for inner, size in pairs)


def _index(call: AxisCall, _position: int, spec: TensorSpec) -> Carry:
    """Replace the indexed dims of the first argument, which shapes tell, by those of the indices, broadcast."""
    if not call.inputs or any(item.dtype == "bool" for item in call.inputs[1:]):
        return _leading(call, spec)
    source, count = call.inputs[0].shape, len(call.inputs) - 1
    rank = max((len(item.shape) for item in call.inputs[1:]), default=0)
    joined = tuple(max((_at(carry, dim - rank) for carry in call.carries[1:]), default=0) for dim in range(rank))
    for skipped in range(len(source) - count + 1):
        left, right = skipped, skipped + count
        if spec.shape[:left] == source[:left] and spec.shape[left + rank :] == source[right:]:
            return (*call.carries[0][:left], *joined, *call.carries[0][right:])
    return _leading(call, spec)


def _index_select(call: AxisCall, _position: int, _spec: TensorSpec) -> Carry:
    source, dim = call.at(0), call.argument(1)
    place = dim % len(source) if isinstance(dim, int) and source else 0
    return (*source[:place], *call.at(2)[:1], *source[place + 1 :])
