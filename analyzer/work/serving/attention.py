"""Attention of libraries: what of lengths the arguments say; caches whose filling only values tell have no work."""

from math import prod

from ....formats.trace.signature import Signature, TensorSpec
from ....records import dataclass
from ....specs.attention_kernels import AttentionKernel
from ..arguments import LackingArgumentError, argument_at, optional_tensor_at, size_at, tensor_at
from ..traffic import STATISTICS_DTYPE, bytes_of, total_bytes
from ..work import AttentionDims, Direction, Family, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashLayout:
    """Say where a flash attention's schema has what; queries, keys and values are (batch or tokens, heads, dim)."""

    query: int = 0
    offsets: int | None = None
    """Cumulative lengths of queries; without them the tensors have a dimension for the sequence."""
    longest: tuple[int, int] | None = None
    """Longest query, longest key."""
    pages: int | None = None
    """The table of pages: with it, the longest key has to be given."""
    grad: int | None = None
    causal: int | None = None
    window: int | None = None
    """The number of earlier keys that a query sees, negative or None for all."""
    kernel: AttentionKernel = AttentionKernel.FLASH2
    is_chosen: bool = False
    """Whether an engine chooses another by the GPU."""


def flash(signature: Signature, *, layout: FlashLayout) -> Work:
    """Return 2·h·q·k·(d + e) FLOPs forward, 2·h·q·k·(3d + 2e) backward; packed: as the longest; k: a window at most."""
    query, key, value = (tensor_at(signature, layout.query + place) for place in range(3))
    batch, queries, keys = _lengths(signature, layout, query, key)
    heads, dim = query.shape[-2:]
    value_dim, kv_heads = value.shape[-1], max(key.shape[-2], 1)
    earlier = None if layout.window is None else argument_at(signature, layout.window)
    window = earlier + 1 if isinstance(earlier, int) and earlier > 0 else 0
    is_backward = layout.grad is not None
    out_dtype = "bfloat16" if query.dtype.startswith("float8") and not is_backward else query.dtype
    out = bytes_of(prod(query.shape[:-1]) * value_dim, out_dtype)
    statistics = bytes_of(prod(query.shape[:-1]), STATISTICS_DTYPE)
    most_keys = batch * min(keys, window + queries if window else keys)
    used = [min(item.element_count, most_keys * prod(item.shape[-2:])) for item in (key, value)]
    sizes = (bytes_of(count, item.dtype) for count, item in zip(used, (key, value), strict=True))
    read = total_bytes((query,)) + sum(sizes)
    per_score = 3 * dim + 2 * value_dim if is_backward else dim + value_dim
    found = None if layout.causal is None else argument_at(signature, layout.causal)
    return Work(
        family=Family.ATTENTION,
        flops=2 * batch * heads * queries * min(keys, window or keys) * per_score,
        read_bytes=read + (2 * out + statistics if is_backward else 0.0),
        written_bytes=total_bytes((query, key, value)) if is_backward else out + statistics,
        dtype=query.dtype,
        is_matrix=True,
        dims=AttentionDims(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            queries=queries,
            keys=keys,
            query_dim=dim,
            value_dim=value_dim,
            is_causal=isinstance(found, bool | int) and bool(found),
            window=window,
            direction=Direction.BOTH_GRADIENTS if is_backward else Direction.FORWARD,
            kernel=layout.kernel,
            is_chosen_by_torch=False,
            is_chosen_by_engine=layout.is_chosen,
        ),
    )


def packed_flash(signature: Signature, *, causal: int) -> Work:
    """Queries, keys and values in one tensor: (batch, sequence, 3, heads, dim)."""
    packed = tensor_at(signature, 0, rank=5)
    part = TensorSpec(packed.dtype, (*packed.shape[:2], *packed.shape[3:]))
    arguments = (part, part, part, *signature.arguments[1:])
    return flash(Signature(arguments), layout=FlashLayout(causal=causal + 2))


def engine(signature: Signature) -> Work:
    """Queries, keys and values (batch, heads, tokens, dim), causal, keys that a query sees or 0: a paged cache is read.

    So a recording of shapes as an engine runs it writes them; engines themselves hand over no such sizes.
    """
    tensors = (tensor_at(signature, place, 4) for place in range(3))
    turned = (TensorSpec(item.dtype, tuple(item.shape[dim] for dim in (0, 2, 1, 3))) for item in tensors)
    arguments = (*turned, argument_at(signature, 3), size_at(signature, 4) - 1)
    layout = FlashLayout(causal=3, window=4, kernel=AttentionKernel.PAGED, is_chosen=True)
    return flash(Signature(arguments), layout=layout)


def paged_decode(signature: Signature, *, query: int, sizes: int) -> Work:
    """One query per sequence against a paged cache: every sequence counts as the longest.

    From `query` on: query, key cache, value cache, heads of keys; at `sizes` the longest sequence.
    """
    asked, cache = tensor_at(signature, query, rank=3), tensor_at(signature, query + 1)
    kv_heads, keys = size_at(signature, query + 3), size_at(signature, sizes)
    batch, heads, dim = asked.shape
    read = total_bytes((asked,)) + bytes_of(2 * batch * keys * kv_heads * dim, cache.dtype)
    return Work(
        family=Family.ATTENTION,
        flops=4 * batch * heads * keys * dim,
        read_bytes=read,
        written_bytes=total_bytes((asked,)),
        dtype=asked.dtype,
        is_matrix=True,
        dims=AttentionDims(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            queries=1,
            keys=keys,
            query_dim=dim,
            value_dim=dim,
            is_chosen_by_torch=False,
        ),
    )


def _lengths(signature: Signature, layout: FlashLayout, query: TensorSpec, key: TensorSpec) -> tuple[int, int, int]:
    """Return sequences, longest query and longest key."""
    offsets = None if layout.offsets is None else optional_tensor_at(signature, layout.offsets)
    longest_query, longest_key = layout.longest or (None, None)
    if len(query.shape) < (3 if offsets is not None else 4) or len(key.shape) < 3:
        raise LackingArgumentError("a dimension for the sequence")
    is_paged = layout.pages is not None and optional_tensor_at(signature, layout.pages) is not None
    keys = key.shape[-3]
    if longest_key is not None and (is_paged or offsets is not None):
        keys = size_at(signature, longest_key)
    elif is_paged:
        raise LackingArgumentError("the longest sequence in the cache")
    if offsets is None:
        return prod(query.shape[:-3]), query.shape[-3], keys
    if longest_query is None:
        raise LackingArgumentError("the longest query")
    return max(offsets.element_count - 1, 1), size_at(signature, longest_query), keys
