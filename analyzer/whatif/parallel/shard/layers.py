"""Names the dims of ops: of any by its rule, of layers' (products, attention, normalisation, tables, losses) here."""

from typing import Final

from .....formats.trace.signature import TensorSpec
from ...calls import ShapedCall, broadcasts
from ...op_rules import find_rule
from .letters import NONE, Letters, Naming, letters_of, name_elementwise


def name_product(call: ShapedCall, *, first: int = 0) -> Naming | None:
    """[..., m, k] @ [..., k, n], a bias in front where `first` is 1."""
    if len(call.inputs) < first + 2 or len(call.outputs) != 1:
        return None
    left, right, out = call.inputs[first], call.inputs[first + 1], call.outputs[0]
    if len(left.shape) != len(right.shape) or len(left.shape) < 2:
        return None
    rank = len(left.shape)
    outer, m, k, n = tuple(range(1, rank - 1)), rank, rank + 1, rank + 2
    named = (*outer, m, n)
    biases = tuple(
        tuple(named[rank - len(spec.shape) + dim] if size > 1 else NONE for dim, size in enumerate(spec.shape))
        for spec in call.inputs[:first]
    )
    return Naming((*biases, (*outer, m, k), (*outer, k, n)), ((named)[-len(out.shape) :],))


def name_scaled_product(call: ShapedCall) -> Naming | None:
    """[m, k] @ [k, n] of operands in fp8, then their scales and what may be added, a row or a whole result."""
    if len(call.inputs) < 2 or len(call.outputs) != 1:
        return None
    m, k, n = 1, 2, 3
    sizes = {m: call.inputs[0].shape[0], n: call.inputs[1].shape[1]}
    named = ((), (n,), (m, n))
    more = tuple(
        tuple(
            letter if size == sizes[letter] else NONE
            for letter, size in zip(named[len(spec.shape)], spec.shape, strict=True)
        )
        for spec in call.inputs[2:]
    )
    return Naming(((m, k), (k, n), *more), ((m, n),))


def name_linear(call: ShapedCall) -> Naming | None:
    """Name [..., k] @ [n, k]ᵀ, a bias of n after them."""
    if len(call.inputs) < 2:
        return None
    rank = len(call.inputs[0].shape)
    outer, k, n = tuple(range(1, rank)), rank, rank + 1
    return Naming(((*outer, k), (n, k), *((n,) for _ in call.inputs[2:])), ((*outer, n),))


def name_grouped_product(call: ShapedCall) -> Naming | None:
    """Products of groups of rows: [rows, k] @ [groups, k, n], and their gradients [m, rows] @ [rows, n]."""
    left, right = call.inputs[:2]
    rows, k, n, groups = 1, 2, 3, 4
    ranks = len(left.shape), len(right.shape)
    offsets = tuple((groups,) if spec.dtype == "int32" else (NONE,) * len(spec.shape) for spec in call.inputs[2:])
    if ranks == (2, 3):
        return Naming(((rows, k), (groups, k, n), *offsets), ((rows, n),))
    if ranks == (2, 2):
        return Naming(((k, rows), (rows, n), *offsets), ((groups, k, n),))
    if ranks == (3, 2):
        return Naming(((groups, k, n), (n, rows), *offsets), ((k, rows),))
    return Naming(((groups, rows, k), (groups, k, n), *offsets), ((groups, rows, n),))


def name_cache_write(call: ShapedCall) -> Naming | None:
    """Keys and values (batch, heads, tokens, dim) to their caches, by slots."""
    batch, heads, new, cached, depth = range(1, 6)
    if len(call.inputs) != 5 or len(call.inputs[0].shape) != 4:
        return None
    row, kept = (batch, heads, new, depth), (batch, heads, cached, depth)
    return Naming((row, row, kept, kept, (NONE,)), (kept,) * len(call.outputs))


def name_experts(call: ShapedCall) -> Naming:
    """Whole layers: [rows, k] by [experts, n, k] and [experts, m, n], where a gate makes the first n twice as long."""
    rows, k, n, experts, m = range(1, 6)
    others = ((rows, *(NONE for _ in spec.shape[1:])) for spec in call.inputs[3:])
    named = ((rows, k), (experts, n, k), (experts, m, n), *others)
    return Naming(named, ((rows, m),) * len(call.outputs), kept_whole=frozenset((k, m)))


def name_normalized(call: ShapedCall, *, shape_position: int, source: int) -> Naming | None:
    """Normalise over the last dims: their sizes are an argument. Parameters' gradients are sums over the others."""
    sizes = call.argument(shape_position)
    if len(call.inputs) <= source:
        return None
    spec = call.inputs[source]
    rank = len(spec.shape)
    count = len(sizes) if isinstance(sizes, tuple) else 1
    letters = letters_of(spec)

    def named(item: TensorSpec) -> Letters:
        if len(item.shape) == rank:
            return tuple(letters[dim] if size == spec.shape[dim] else NONE for dim, size in enumerate(item.shape))
        if len(item.shape) == count:
            return letters[rank - count :]
        return letters[: len(item.shape)] if item.shape == spec.shape[: len(item.shape)] else (NONE,) * len(item.shape)

    return Naming(
        tuple(map(named, call.inputs)), tuple(map(named, call.outputs)), kept_whole=frozenset(letters[rank - count :])
    )


def name_embedding(call: ShapedCall) -> Naming:
    """Name the rows of a table, which indices choose."""
    indices = call.inputs[1]
    letters = letters_of(indices, 3)
    return Naming(((1, 2), letters), ((*letters, 2),))


def name_embedding_backward(call: ShapedCall) -> Naming:
    """Name a table's gradient: the sum over all that looked a row up."""
    indices = call.inputs[1]
    letters = letters_of(indices, 3)
    return Naming(((*letters, 2), letters), ((1, 2),))


def name_loss(call: ShapedCall) -> Naming | None:
    """[rows, classes], [rows] → a mean: each rank has the value of the right class or not."""
    scores = call.inputs[0]
    letters, rank = letters_of(scores), len(scores.shape)
    classes = 1 if rank > 1 else 0
    rows = tuple(letter for dim, letter in enumerate(letters) if dim != classes)
    others = tuple(
        rows if item.shape == tuple(scores.shape[d] for d in range(rank) if d != classes) else (NONE,) * len(item.shape)
        for item in call.inputs[1:]
    )
    outputs = tuple(rows if len(spec.shape) == len(rows) > 0 else () for spec in call.outputs)
    return Naming((letters, *others), outputs, exchanged=letters[classes], exchanges=1)


def name_loss_backward(call: ShapedCall) -> Naming | None:
    """Name the scores of classes as the forward pass does: their gradient has the same shape."""
    scores = next((spec for spec in call.inputs if spec.shape == call.outputs[0].shape), None)
    if scores is None:
        return None
    letters, rank = letters_of(scores), len(scores.shape)
    classes = 1 if rank > 1 else 0
    rows = tuple(letter for dim, letter in enumerate(letters) if dim != classes)
    row_shape = tuple(size for dim, size in enumerate(scores.shape) if dim != classes)
    named = tuple(
        letters if spec.shape == scores.shape else rows if spec.shape == row_shape else (NONE,) * len(spec.shape)
        for spec in call.inputs
    )
    return Naming(named, (letters,))


_HEADS_LAST: Final = ("_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
                      "_efficient_attention_backward", "_flash_attn_forward", "_flash_attn_backward")  # fmt: skip


def name_attention(call: ShapedCall) -> Naming | None:
    """Name batch, heads, queries, keys and dims; heads of keys and values are shared as those of queries are."""
    first = 1 if "backward" in call.name else 0
    if len(call.inputs) < first + 3:
        return None
    query, key, value = call.inputs[first : first + 3]
    rank = len(query.shape)
    if not rank == len(key.shape) == len(value.shape) >= 3:
        return None
    batch, heads, queries, keys, depth, values = range(1, 7)
    outer = (batch,) if rank == 4 else ()
    last = call.name in _HEADS_LAST

    def row(tokens: int, width: int) -> Letters:
        middle = (tokens, heads) if last else (heads, tokens)
        return (*outer, *middle, width)[-rank:]

    q, k, v, out = row(queries, depth), row(keys, depth), row(keys, values), row(queries, values)
    out_shape = (*query.shape[:-1], value.shape[-1])
    token_dim, head_dim = (rank - 3, rank - 2) if last else (rank - 2, rank - 3)
    statistics = (*query.shape[: rank - 3], query.shape[head_dim], query.shape[token_dim])
    scores = (*statistics, key.shape[token_dim])

    def other(spec: TensorSpec) -> Letters:
        if spec.shape == out_shape:
            return out
        if spec.shape == statistics and spec.dtype == "float32":
            return (*outer, heads, queries)[-len(spec.shape) :]
        named = (*outer, heads, queries, keys)
        if len(spec.shape) == len(scores) and broadcasts(spec, scores):
            return tuple(named[dim] if size > 1 else NONE for dim, size in enumerate(spec.shape))
        return (NONE,) * len(spec.shape)

    inputs = tuple(
        (q, k, v)[place - first] if first <= place < first + 3 else other(spec)
        for place, spec in enumerate(call.inputs)
    )
    if first:
        gradients = (q, k, v)
        outputs = tuple(
            gradients[place] if place < 3 and len(spec.shape) == rank else (NONE,) * len(spec.shape)
            for place, spec in enumerate(call.outputs)
        )
    else:
        outputs = tuple(out if place == 0 else other(spec) for place, spec in enumerate(call.outputs))
    return Naming(inputs, outputs, kept_whole=frozenset([keys]))


def name_dims(call: ShapedCall) -> Naming | None:
    """Return the letters of a call's dims; None where nothing is known of the op."""
    rule = find_rule("letters", call.name)
    if rule is None and "attention" in call.name:
        rule = name_attention
    found: Naming | None = None if rule is None else rule(call)
    return found or name_elementwise(call)
