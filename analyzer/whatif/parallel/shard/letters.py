"""Which dimensions of an op's tensors are one and the same: a letter for each, as in Einstein's notation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from .....formats.signature import Signature, TensorSpec
from ...calls import SignatureLayout

NONE: Final = 0
"""A dim that is not shared: of size 1, or of numbers that every rank makes for itself."""
Letters = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Naming:
    """Hold the letters of an op's tensors, and which of them a rank must have whole."""

    inputs: tuple[Letters, ...]
    outputs: tuple[Letters, ...]
    is_sum: bool = True
    """Whether a letter that no result has is summed over; else each rank makes its own of it."""
    kept_whole: frozenset[int] = frozenset()
    exchanged: int = 0
    """A letter that is kept apart at the price of exchanging a number per row, as softmax over a shared vocabulary."""
    exchanges: int = 0
    """How often."""


@dataclass(frozen=True, slots=True)
class OpCall:
    """Hold one call: its short name, signature, and where the tensors stand in it."""

    name: str
    signature: Signature
    layout: SignatureLayout

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the tensors that it reads."""
        return self.layout.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Return its results."""
        return self.layout.outputs

    def argument(self, position: int) -> object:
        """Return an argument; None where the call stops before it."""
        arguments = self.signature.arguments
        return arguments[position] if position < len(arguments) else None


def name_dims(call: OpCall) -> Naming | None:
    """Return the letters of a call's dims; None where nothing is known of the op."""
    rule = _RULES.get(call.name)
    if rule is None and "attention" in call.name:
        rule = _attention
    found = rule(call) if rule is not None else _elementwise(call)
    return found if found is not None or rule is None else _elementwise(call)


def _count(spec: TensorSpec, first: int = 1) -> Letters:
    return tuple(range(first, first + len(spec.shape)))


def _elementwise(call: OpCall) -> Naming | None:
    """Align dims from the last one with those of the largest tensor, where all broadcast to it."""
    specs = (*call.inputs, *call.outputs)
    if not specs:
        return None
    largest = max(specs, key=lambda spec: (len(spec.shape), spec.element_count))
    shape = largest.shape
    if not all(_broadcasts(spec, shape) for spec in specs):
        return None
    if call.outputs and not any(spec.shape == shape for spec in call.outputs):
        return None
    return Naming(
        tuple(_aligned(spec, shape) for spec in call.inputs), tuple(_aligned(spec, shape) for spec in call.outputs)
    )


def _broadcasts(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    offset = len(shape) - len(spec.shape)
    return offset >= 0 and all(size in (1, shape[offset + dim]) for dim, size in enumerate(spec.shape))


def _aligned(spec: TensorSpec, shape: tuple[int, ...]) -> Letters:
    offset = len(shape) - len(spec.shape)
    steps = spec.strides or (1,) * len(spec.shape)
    return tuple(
        offset + dim + 1 if size == shape[offset + dim] and (size == 1 or steps[dim]) else NONE
        for dim, size in enumerate(spec.shape)
    )


def _product(call: OpCall, *, first: int = 0) -> Naming | None:
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


def _scaled_product(call: OpCall) -> Naming | None:
    """[m, k] @ [k, n] of operands in fp8, then their scales and what may be added, a row or a whole result."""
    if len(call.inputs) < 2 or len(call.outputs) != 1:
        return None
    m, k, n = 1, 2, 3
    sizes = {m: call.inputs[0].shape[0], n: call.inputs[1].shape[1]}
    named = ((), (n,), (m, n))
    more = tuple(
        tuple(letter if size == sizes[letter] else NONE for letter, size in zip(named[len(spec.shape)], spec.shape, strict=True))
        for spec in call.inputs[2:]
    )
    return Naming(((m, k), (k, n), *more), ((m, n),))


def _linear(call: OpCall) -> Naming | None:
    if len(call.inputs) < 2:
        return None
    rank = len(call.inputs[0].shape)
    outer, k, n = tuple(range(1, rank)), rank, rank + 1
    return Naming(((*outer, k), (n, k), *((n,) for _ in call.inputs[2:])), ((*outer, n),))


def _grouped_product(call: OpCall) -> Naming | None:
    """Products of groups of rows: [rows, k] @ [groups, k, n], and their gradients [m, rows] @ [rows, n]."""
    left, right = call.inputs[:2]
    rows, k, n, groups = 1, 2, 3, 4
    ranks = len(left.shape), len(right.shape)
    offsets = tuple((groups,) for _ in call.inputs[2:])
    if ranks == (2, 3):
        return Naming(((rows, k), (groups, k, n), *offsets), ((rows, n),))
    if ranks == (2, 2):
        return Naming(((k, rows), (rows, n), *offsets), ((groups, k, n),))
    if ranks == (3, 2):
        return Naming(((groups, k, n), (n, rows), *offsets), ((k, rows),))
    return Naming(((groups, rows, k), (groups, k, n)), ((groups, rows, n),))


def _dims_argument(call: OpCall, position: int, rank: int) -> set[int]:
    value = call.argument(position)
    items = value if isinstance(value, tuple) else (value,)
    found = {item % rank for item in items if isinstance(item, int) and not isinstance(item, bool) and rank}
    return found or set(range(rank))


def _reduction(call: OpCall, *, is_sum: bool = True) -> Naming | None:
    """Drop the dims of argument 1, all without one, or keep them with size 1."""
    if not call.inputs or not call.outputs:
        return None
    source = call.inputs[0]
    rank, letters = len(source.shape), _count(source)
    dims = _dims_argument(call, 1, rank)
    outputs = []
    for spec in call.outputs:
        if len(spec.shape) == rank:
            outputs.append(tuple(NONE if dim in dims else letters[dim] for dim in range(rank)))
        else:
            kept = tuple(letters[dim] for dim in range(rank) if dim not in dims)
            outputs.append(kept if len(kept) == len(spec.shape) else (NONE,) * len(spec.shape))
    return Naming((letters, *((NONE,) * len(spec.shape) for spec in call.inputs[1:])), tuple(outputs), is_sum=is_sum)


def _softmax(call: OpCall, *, position: int, exchanges: int) -> Naming | None:
    found = _elementwise(call)
    if found is None:
        return None
    rank = len(call.inputs[0].shape)
    place = call.argument(position)
    letter = place % rank + 1 if isinstance(place, int) and rank else NONE
    return Naming(found.inputs, found.outputs, exchanged=letter, exchanges=exchanges)


def _along(call: OpCall, *, position: int = 1) -> Naming | None:
    """Keep one dim whole (sorting, cumulative sums, the largest few); the others are as in the input."""
    source = call.inputs[0]
    rank, letters = len(source.shape), _count(source)
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


def _normalized(call: OpCall, *, shape_position: int, source: int) -> Naming | None:
    """Normalise over the last dims: their sizes are an argument. Parameters' gradients are sums over the others."""
    sizes = call.argument(shape_position)
    if len(call.inputs) <= source:
        return None
    spec = call.inputs[source]
    rank = len(spec.shape)
    count = len(sizes) if isinstance(sizes, tuple) else 1
    letters = _count(spec)

    def named(item: TensorSpec) -> Letters:
        if len(item.shape) == rank:
            return tuple(letters[dim] if size == spec.shape[dim] else NONE for dim, size in enumerate(item.shape))
        if len(item.shape) == count:
            return letters[rank - count :]
        return letters[: len(item.shape)] if item.shape == spec.shape[: len(item.shape)] else (NONE,) * len(item.shape)

    return Naming(
        tuple(map(named, call.inputs)), tuple(map(named, call.outputs)), kept_whole=frozenset(letters[rank - count :])
    )


def _embedding(call: OpCall) -> Naming:
    indices = call.inputs[1]
    letters = _count(indices, 3)
    return Naming(((1, 2), letters), ((*letters, 2),))


def _embedding_backward(call: OpCall) -> Naming:
    indices = call.inputs[1]
    letters = _count(indices, 3)
    return Naming(((*letters, 2), letters), ((1, 2),))


def _loss(call: OpCall) -> Naming | None:
    """[rows, classes], [rows] → a mean: each rank has the value of the right class or not."""
    scores = call.inputs[0]
    letters, rank = _count(scores), len(scores.shape)
    classes = 1 if rank > 1 else 0
    rows = tuple(letter for dim, letter in enumerate(letters) if dim != classes)
    others = tuple(
        rows if item.shape == tuple(scores.shape[d] for d in range(rank) if d != classes) else (NONE,) * len(item.shape)
        for item in call.inputs[1:]
    )
    outputs = tuple(rows if len(spec.shape) == len(rows) > 0 else () for spec in call.outputs)
    return Naming((letters, *others), outputs, exchanged=letters[classes], exchanges=1)


def _loss_backward(call: OpCall) -> Naming | None:
    scores = next((spec for spec in call.inputs if spec.shape == call.outputs[0].shape), None)
    if scores is None:
        return None
    letters, rank = _count(scores), len(scores.shape)
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


def _attention(call: OpCall) -> Naming | None:
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
        if len(spec.shape) == len(scores) and _broadcasts(spec, scores):
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
    return Naming(inputs, outputs, kept_whole=frozenset([keys]) if not first else frozenset([keys]))


def _concatenation(call: OpCall) -> Naming | None:
    rank = len(call.outputs[0].shape)
    specs = (*call.inputs, *call.outputs)
    letters = tuple(range(1, rank + 1))
    named = tuple(letters if len(spec.shape) == rank else (NONE,) * len(spec.shape) for spec in specs)
    return Naming(named[:-1], named[-1:], is_sum=False)


def _stack(call: OpCall) -> Naming | None:
    rank = len(call.outputs[0].shape)
    place = call.argument(1)
    dim = place % rank if isinstance(place, int) and rank else 0
    letters = tuple(range(1, rank))
    return Naming(tuple(letters for _ in call.inputs), ((*letters[:dim], NONE, *letters[dim:]),), is_sum=False)


def _index(call: OpCall) -> Naming | None:
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
            letters = _count(source)
            middle = (chosen[:1] + (NONE,) * (right - left - 1)) if rank else (NONE,) * (right - left)
            named = tuple(chosen[rank - len(item.shape) :] for item in indices)
            return Naming(
                ((*letters[:left], *middle, *letters[right:]), *named),
                ((*letters[:left], *chosen, *letters[right:]),),
                is_sum=False,
            )
    return None


def _index_put(call: OpCall) -> Naming | None:
    """Put rows at places: the rows of the source are named as those that are put."""
    if len(call.inputs) < 3 or any(item.dtype == "bool" for item in call.inputs[1:-1]):
        return None
    source, indices, values = call.inputs[0], call.inputs[1:-1], call.inputs[-1]
    rank = max(len(item.shape) for item in indices)
    chosen, letters, count = tuple(range(101, 101 + rank)), _count(source), len(indices)
    rest = letters[count:]
    rows = (chosen[:1] + (NONE,) * (count - 1)) if rank else (NONE,) * count
    put = (*chosen, *rest)
    return Naming(
        ((*rows, *rest), *(chosen[rank - len(item.shape) :] for item in indices), put[len(put) - len(values.shape) :]),
        tuple((*rows, *rest) for _ in call.outputs),
        is_sum=False,
    )


def _select_index(call: OpCall) -> Naming | None:
    """Choose along a dim by one list of indices (index_select, index_add: argument 1 says which dim)."""
    source = call.inputs[0]
    rank, place = len(source.shape), call.argument(1)
    dim = place % rank if isinstance(place, int) and rank else 0
    letters = _count(source)
    row = tuple(101 if at == dim else letters[at] for at in range(rank))

    def named(spec: TensorSpec) -> Letters:
        return row if len(spec.shape) == rank else (101,) if len(spec.shape) == 1 else (NONE,) * len(spec.shape)

    return Naming(tuple(map(named, call.inputs)), tuple(map(named, call.outputs)), is_sum=False)


def _own(call: OpCall) -> Naming:
    """Count on every rank what it has: nothing of it is shared."""
    return Naming(
        tuple(_count(spec) for spec in call.inputs),
        tuple((NONE,) * len(spec.shape) for spec in call.outputs),
        is_sum=False,
    )


def _padded(call: OpCall) -> Naming | None:
    if len(call.inputs[0].shape) != len(call.outputs[0].shape):
        return None
    return Naming((_count(call.inputs[0]),), (_count(call.outputs[0]),), is_sum=False)


def _part_backward(call: OpCall) -> Naming | None:
    """Put a gradient where a slice was taken, or in a new dim where one number of it was (argument 2 says which)."""
    spec, out = call.inputs[0], call.outputs[0]
    letters, rank = _count(out), len(out.shape)
    if len(spec.shape) == rank:
        return Naming((letters,), (letters,), is_sum=False)
    place = call.argument(2)
    if len(spec.shape) != rank - 1 or not isinstance(place, int):
        return None
    return Naming((tuple(letter for dim, letter in enumerate(letters) if dim != place % rank),), (letters,))


_Rule = Callable[[OpCall], Naming | None]
_RULES: Final[dict[str, _Rule]] = {
    **dict.fromkeys(["mm", "bmm", "matmul"], partial(_product, first=0)),
    **dict.fromkeys(["addmm", "_addmm_activation", "baddbmm"], partial(_product, first=1)),
    "linear": _linear,
    "_scaled_mm": _scaled_product,
    **dict.fromkeys(["_grouped_mm", "_scaled_grouped_mm"], _grouped_product),
    **dict.fromkeys("sum mean nansum norm linalg_vector_norm".split(), _reduction),
    **dict.fromkeys("amax amin prod logsumexp argmax argmin all any var std var_mean max min".split(), _reduction),
    "_softmax": partial(_softmax, position=1, exchanges=2),
    "_log_softmax": partial(_softmax, position=1, exchanges=2),
    "_softmax_backward_data": partial(_softmax, position=2, exchanges=1),
    "_log_softmax_backward_data": partial(_softmax, position=2, exchanges=0),
    **dict.fromkeys("sort cumsum cumprod gather scatter scatter_add argsort".split(), _along),
    **dict.fromkeys(["topk", "kthvalue"], partial(_along, position=2)),
    "native_layer_norm": partial(_normalized, shape_position=1, source=0),
    "_fused_rms_norm": partial(_normalized, shape_position=1, source=0),
    "rms_norm": partial(_normalized, shape_position=1, source=0),
    "layer_norm": partial(_normalized, shape_position=1, source=0),
    "native_layer_norm_backward": partial(_normalized, shape_position=2, source=1),
    "_fused_rms_norm_backward": partial(_normalized, shape_position=2, source=1),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "nll_loss_forward": _loss,
    "nll_loss_backward": _loss_backward,
    "cat": _concatenation,
    "stack": _stack,
    "index": _index,
    **dict.fromkeys(["index_put", "_index_put_impl"], _index_put),
    **dict.fromkeys(["index_select", "index_add", "index_copy"], _select_index),
    **dict.fromkeys(["histc", "bincount", "nonzero", "unique", "_unique2", "_local_scalar_dense"], _own),
    **dict.fromkeys(["constant_pad_nd", "pad"], _padded),
    **dict.fromkeys(["all_gather_into_tensor", "reduce_scatter_tensor"], _padded),
    **dict.fromkeys(["slice_backward", "select_backward"], _part_backward),
}

VIEWS: Final = frozenset(
    "view _unsafe_view reshape _reshape_alias t transpose permute expand slice select split split_with_sizes chunk "
    "unbind unsqueeze squeeze alias detach narrow as_strided movedim unflatten flatten view_as expand_as swapaxes mT "
    "numpy_T lift_fresh diagonal unfold".split()
)
"""Ops whose results lie where their first input lies, if they share its storage."""
MADE: Final = frozenset(
    "zeros ones full empty rand randn randint new_zeros new_ones new_empty new_full empty_strided new_empty_strided "
    "zeros_like ones_like full_like empty_like arange linspace scalar_tensor eye tril_indices triu_indices".split()
)
"""Ops that make tensors of sizes alone."""


def pairs(letters: Sequence[int]) -> list[tuple[int, int]]:
    """Return the dims that have letters, with them."""
    return [(dim, letter) for dim, letter in enumerate(letters) if letter]
