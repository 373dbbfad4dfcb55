"""Names the dims of ops that reduce, choose, sort and join."""

from .....formats.trace.signature import TensorSpec
from ...calls import ShapedCall
from .letters import NONE, Letters, Naming, letters_of, name_elementwise


def name_reduction(call: ShapedCall, *, is_sum: bool = True, exchanges: int = 0) -> Naming | None:
    """Drop the dims of argument 1, all without one, or keep them with size 1; a dim kept apart takes exchanges."""
    if not call.inputs or not call.outputs:
        return None
    source = call.inputs[0]
    rank, letters = len(source.shape), letters_of(source)
    value = call.argument(1)
    items = value if isinstance(value, tuple) else (value,)
    found = {item % rank for item in items if isinstance(item, int) and not isinstance(item, bool) and rank}
    dims = found or set(range(rank))
    outputs = []
    for spec in call.outputs:
        if len(spec.shape) == rank:
            outputs.append(tuple(NONE if dim in dims else letters[dim] for dim in range(rank)))
        else:
            kept = tuple(letters[dim] for dim in range(rank) if dim not in dims)
            outputs.append(kept if len(kept) == len(spec.shape) else (NONE,) * len(spec.shape))
    inputs = (letters, *((NONE,) * len(spec.shape) for spec in call.inputs[1:]))
    exchanged = letters[min(dims)] if exchanges and len(dims) == 1 else NONE
    return Naming(inputs, tuple(outputs), is_sum=is_sum, exchanged=exchanged, exchanges=exchanges if exchanged else 0)


def name_softmax(call: ShapedCall, *, position: int, exchanges: int) -> Naming | None:
    """Keep apart, at the price of exchanges, the dim that is normalised (argument `position`)."""
    found = name_elementwise(call)
    if found is None:
        return None
    rank = len(call.inputs[0].shape)
    place = call.argument(position)
    letter = place % rank + 1 if isinstance(place, int) and rank else NONE
    return Naming(found.inputs, found.outputs, exchanged=letter, exchanges=exchanges)


def name_along(call: ShapedCall, *, position: int = 1) -> Naming | None:
    """Keep one dim whole (sorting, cumulative sums, the largest few); the others are as in the input."""
    source = call.inputs[0]
    rank, letters = len(source.shape), letters_of(source)
    place = call.argument(position)
    dim = place % rank if isinstance(place, int) and not isinstance(place, bool) and rank else rank - 1
    named = tuple(
        tuple(letters[at] if size == source.shape[at] else NONE for at, size in enumerate(spec.shape))
        if len(spec.shape) == rank
        else (NONE,) * len(spec.shape)
        for spec in (*call.inputs, *call.outputs)
    )
    count = len(call.inputs)
    return Naming(
        named[:count], named[count:], is_sum=False, kept_whole=frozenset([letters[dim]]) if rank > 1 else frozenset()
    )


def name_concatenation(call: ShapedCall) -> Naming | None:
    """Name dims by their place, also that along which tensors are joined."""
    rank = len(call.outputs[0].shape)
    specs = (*call.inputs, *call.outputs)
    letters = tuple(range(1, rank + 1))
    named = tuple(letters if len(spec.shape) == rank else (NONE,) * len(spec.shape) for spec in specs)
    return Naming(named[:-1], named[-1:], is_sum=False)


def name_stack(call: ShapedCall) -> Naming | None:
    """Name dims by their place; the new one is of no letter."""
    rank = len(call.outputs[0].shape)
    place = call.argument(1)
    dim = place % rank if isinstance(place, int) and rank else 0
    letters = tuple(range(1, rank))
    return Naming(tuple(letters for _ in call.inputs), ((*letters[:dim], NONE, *letters[dim:]),), is_sum=False)


def name_index(call: ShapedCall) -> Naming | None:
    """Name what the indices choose from as they are named: rows of tokens are chosen among a rank's own."""
    source, indices, out = call.inputs[0], call.inputs[1:], call.outputs[0]
    if not indices or any(item.dtype == "bool" for item in indices):
        return None
    rank = max(len(item.shape) for item in indices)
    chosen = tuple(range(101, 101 + rank))
    for skipped in range(len(source.shape) - len(indices) + 1):
        left, right = skipped, skipped + len(indices)
        if (
            out.shape[:left] == source.shape[:left]
            and out.shape[left + rank :] == source.shape[right:]
            and len(out.shape) == len(source.shape) - len(indices) + rank
        ):
            letters = letters_of(source)
            middle = (chosen[:1] + (NONE,) * (right - left - 1)) if rank else (NONE,) * (right - left)
            named = tuple(chosen[rank - len(item.shape) :] for item in indices)
            return Naming(
                ((*letters[:left], *middle, *letters[right:]), *named),
                ((*letters[:left], *chosen, *letters[right:]),),
                is_sum=False,
            )
    return None


def name_index_put(call: ShapedCall) -> Naming | None:
    """Put rows at places: the rows of the source are named as those that are put."""
    if len(call.inputs) < 3 or any(item.dtype == "bool" for item in call.inputs[1:-1]):
        return None
    source, indices, values = call.inputs[0], call.inputs[1:-1], call.inputs[-1]
    rank = max(len(item.shape) for item in indices)
    chosen, letters, count = tuple(range(101, 101 + rank)), letters_of(source), len(indices)
    rest = letters[count:]
    rows = (chosen[:1] + (NONE,) * (count - 1)) if rank else (NONE,) * count
    put = (*chosen, *rest)
    return Naming(
        ((*rows, *rest), *(chosen[rank - len(item.shape) :] for item in indices), put[len(put) - len(values.shape) :]),
        tuple((*rows, *rest) for _ in call.outputs),
        is_sum=False,
    )


def name_select_index(call: ShapedCall) -> Naming | None:
    """Choose along a dim by one list of indices (index_select, index_add: argument 1 says which dim)."""
    source = call.inputs[0]
    rank, place = len(source.shape), call.argument(1)
    dim = place % rank if isinstance(place, int) and rank else 0
    letters = letters_of(source)
    row = tuple(101 if at == dim else letters[at] for at in range(rank))

    def named(spec: TensorSpec) -> Letters:
        return row if len(spec.shape) == rank else (101,) if len(spec.shape) == 1 else (NONE,) * len(spec.shape)

    return Naming(tuple(map(named, call.inputs)), tuple(map(named, call.outputs)), is_sum=False)


def name_counts(call: ShapedCall) -> Naming:
    """Count on every rank what it has: nothing of it is shared."""
    return Naming(
        tuple(letters_of(spec) for spec in call.inputs),
        tuple((NONE,) * len(spec.shape) for spec in call.outputs),
        is_sum=False,
    )


def name_padded(call: ShapedCall) -> Naming | None:
    """Name dims by their place, whatever sizes they get."""
    if len(call.inputs[0].shape) != len(call.outputs[0].shape):
        return None
    return Naming((letters_of(call.inputs[0]),), (letters_of(call.outputs[0]),), is_sum=False)


def name_part_gradient(call: ShapedCall) -> Naming | None:
    """Put a gradient where a slice was taken, or in a new dim where one number of it was (argument 2 says which)."""
    spec, out = call.inputs[0], call.outputs[0]
    letters, rank = letters_of(out), len(out.shape)
    if len(spec.shape) == rank:
        return Naming((letters,), (letters,), is_sum=False)
    place = call.argument(2)
    if len(spec.shape) != rank - 1 or not isinstance(place, int):
        return None
    return Naming((tuple(letter for dim, letter in enumerate(letters) if dim != place % rank),), (letters,))
