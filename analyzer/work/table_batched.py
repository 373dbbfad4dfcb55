"""FBGEMM's lookups in many embedding tables at once, which TorchRec's modules call, and their fused optimizers.

What a call says of its tables is in `table_batched_call`. Tables in host memory (`uvm_weights`, with or without a
cache on the GPU) are refused: what they take is the link to the host, of which nothing is recorded.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import ceil, log, log2
from typing import Final

from ...formats.trace.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, optional_tensor_at, result_at, size_at, tensor_at
from .embedding_dims import BLOCK_THREADS, EmbeddingDims, EmbeddingStep
from .registry import names, register
from .table_batched_call import HOST_TABLES, UNSTATED_SHARE, Placed, TableCall, read_call, read_lookups
from .traffic import bytes_of, tensor_bytes, total_bytes
from .work import Family, Work

STATES: Final = {
    "none": (0.0, 0.0),
    "sgd": (0.0, 0.0),
    "approx_sgd": (0.0, 0.0),
    "adagrad": (1.0, 0.0),
    "rowwise_adagrad": (0.0, 4.0),
    "approx_rowwise_adagrad": (0.0, 4.0),
    "rowwise_adagrad_with_weight_decay": (0.0, 4.0),
    "approx_rowwise_adagrad_with_weight_decay": (0.0, 4.0),
    "rowwise_adagrad_with_counter": (0.0, 12.0),
    "approx_rowwise_adagrad_with_counter": (0.0, 12.0),
    "rowwise_weighted_adagrad": (0.0, 4.0),
    "rowwise_rmsprop_ar": (0.0, 8.0),
    "adam": (2.0, 0.0),
    "partial_rowwise_adam": (1.0, 4.0),
    "lamb": (2.0, 0.0),
    "partial_rowwise_lamb": (1.0, 4.0),
    "lars_sgd": (1.0, 0.0),
}
"""Optimizers by name: what each keeps per row, in rows of fp32 and in bytes beside (momentum, last iteration,
counter), as fbgemm_gpu 1.8 says."""
FP32_BYTES: Final = 4.0
SCALE_BYTES: Final = 4.0
"""Of the scale and the bias of a quantised row, in fp16 (fbgemm_gpu's DEFAULT_SCALE_BIAS_SIZE_IN_BYTES)."""
ROW_ALIGNMENT: Final = 16.0
"""Bytes that a quantised row is a multiple of on a GPU, where the call does not say it."""
_PACKED: Final = "uint8"
"""Of rows in bytes, with their scales."""
COLUMNS_PER_THREAD: Final = 4
LEAST_THREADS: Final = 8
WARP: Final = 32
_NBIT_TYPES: Final = ((2, SCALE_BYTES), (4, SCALE_BYTES), (8, SCALE_BYTES), (16, 0.0), (32, 0.0), (8, 0.0))
"""Bits of a number and bytes of a row's scale and bias: int2, int4, int8, fp16, fp32, and, an argument of its own
behind the lookups, fp8."""
_NBIT_D_OFFSETS: Final = 5
_SPARSE_TYPE_BYTES: Final = {0: 4.0, 1: 2.0, 2: 1.0, 5: 2.0}
"""FBGEMM's `SparseType` by its number: FP32, FP16, INT8, BF16."""
_FP16: Final = 1


def look_up(signature: Signature, *, placed: Placed, is_listed: bool = True, is_rowwise: bool = False) -> Work:
    """Add up rows by bag: flat weights, offsets of columns, their total, ..., indices, offsets."""
    call = read_call(signature, placed, is_listed=is_listed, is_rowwise=is_rowwise)
    return _look_up(call, call.row_bytes, bytes_of(1, call.result_dtype) * call.width)


def update(signature: Signature, *, optimizer: str, placed: Placed, is_listed: bool = True) -> Work:
    """Add up the gradients of each row and rewrite it: gradient of the results, flat weights, ..."""
    grad = tensor_at(signature, 0)
    call = read_call(
        signature, placed, is_listed=is_listed, gradient=grad, is_rowwise=_is_rowwise(optimizer), has_total=False
    )
    return _update(call, grad, optimizer)


def update_node(signature: Signature, *, optimizer: str) -> Work:
    """The same, of autograd's node: the gradient, then the arguments of the lookup that it differentiates."""
    grad = tensor_at(signature, 0)
    call = read_call(signature, Placed.SPLIT, gradient=grad, is_rowwise=_is_rowwise(optimizer))
    return _update(call, grad, optimizer)


def dense_gradient(signature: Signature, *, has_total: bool = False, is_listed: bool = True) -> Work:
    """Add up the gradients of each row into a gradient of all tables, most of it zeros."""
    grad = tensor_at(signature, 0)
    call = read_call(signature, Placed.FLAT, is_listed=is_listed, gradient=grad, has_total=has_total)
    read = tensor_bytes(grad) + total_bytes(call.beside)
    dims = _dims(EmbeddingStep.DENSE_GRADIENT, call, call.row_bytes, read)
    flops = call.indices.element_count * call.width
    return _work(call, flops, read, tensor_bytes(call.table), dims)


def weight_gradient(signature: Signature, *, placed: Placed) -> Work:
    """A dot product of the results' gradient and a row per lookup: the gradient of the lookups' weights."""
    grad = tensor_at(signature, 0)
    call = read_call(signature, placed, gradient=grad, has_total=False)
    streamed = tensor_bytes(grad) + total_bytes(call.beside)
    written = bytes_of(call.indices.element_count, grad.dtype)
    dims = _dims(EmbeddingStep.LOOKUP, call, call.row_bytes, streamed + written)
    flops = 2.0 * call.indices.element_count * call.width
    return _work(call, flops, streamed + _distinct_bytes(dims), written, dims)


def quantised_look_up(signature: Signature) -> Work:
    """Add up rows of int2, int4, int8, fp8, fp16 or fp32, each with a scale and a bias where it is of integers."""
    on_host = optional_tensor_at(signature, 1)
    if on_host is not None and on_host.element_count:
        raise LackingArgumentError(HOST_TABLES)
    table = tensor_at(signature, 0, rank=1)
    tables = tensor_at(signature, _NBIT_D_OFFSETS, rank=1).shape[0] - 1
    first = _NBIT_D_OFFSETS + 2
    found = read_lookups(signature, _NBIT_D_OFFSETS, tables)
    width = _nbit_width(signature, found.offsets, tables)
    places = (*range(first, first + len(_NBIT_TYPES) - 1), found.end + 6)
    row_bytes, unstated = _nbit_row(signature, places, found.end + 5, width)
    if tables < 1 or not width or table.element_count < tables * row_bytes:
        raise LackingArgumentError("rows and columns")
    call = TableCall(
        table=table,
        tables=tables,
        width=width,
        rows=table.element_count / (tables * row_bytes),
        unstated=unstated,
        indices=found.indices,
        offsets=found.offsets,
        weights=found.weights,
        is_pooled=argument_at(signature, found.end) != 2,
        result_dtype="float16",
    )
    output = argument_at(signature, found.end + 2)
    element_bytes = _SPARSE_TYPE_BYTES.get(output if isinstance(output, int) else _FP16, _SPARSE_TYPE_BYTES[_FP16])
    return _look_up(call, row_bytes, element_bytes * width)


def refuse_host_tables(_signature: Signature) -> Work:
    """Refuse what moves rows between the host's memory and a cache of them on the GPU."""
    raise LackingArgumentError(HOST_TABLES)


def _nbit_width(signature: Signature, offsets: TensorSpec, tables: int) -> float:
    result = result_at(signature)
    bags = max(offsets.element_count - 1, 0)
    if result is not None and bags:
        return result.element_count / bags
    return size_at(signature, _NBIT_D_OFFSETS + 1) / max(tables, 1)


def _nbit_row(signature: Signature, places: Sequence[int], alignment: int, width: float) -> tuple[float, float]:
    """Return the bytes of a row, and how far they may be off, natural log.

    The arguments at `places` are the columns of the widest table of each type: which types occur is all they say.
    """
    given = argument_at(signature, alignment)
    step = float(given) if isinstance(given, int) and given > 0 else ROW_ALIGNMENT
    sizes, most = list[float](), width
    for place, (bits, scale_bytes) in zip(places, _NBIT_TYPES, strict=True):
        widest = argument_at(signature, place)
        if not isinstance(widest, int | None):
            raise LackingArgumentError("the types of tables")
        if widest is not None and widest > 0:
            sizes.append(step * ceil((width * bits / 8.0 + scale_bytes) / step))
            most = max(most, float(widest))
    if not sizes:
        raise LackingArgumentError("the types of tables")
    return sum(sizes) / len(sizes), UNSTATED_SHARE * log(max(sizes) / min(sizes) * most / width)


def _look_up(call: TableCall, row_bytes: float, result_bytes: float) -> Work:
    """Return the work of a lookup; one of empty bags alone writes zeros."""
    written = call.results * result_bytes
    if not written:
        raise LackingArgumentError("lookups")
    read = total_bytes(call.beside)
    is_known = call.is_pooled and call.table.dtype != _PACKED
    blocks = call.results * _threads_per_result(call.width) / BLOCK_THREADS if is_known else 0.0
    dims = replace(_dims(EmbeddingStep.LOOKUP, call, row_bytes, read + written), blocks=blocks)
    flops = call.indices.element_count * call.width * (1 + (call.weights is not None))
    return _work(call, flops, read + _distinct_bytes(dims), written, dims)


def _threads_per_result(width: float) -> float:
    """Return the threads of a bag: four columns each, eight threads at least, a warp at most.

    Recorded blocks are [16, 32] for 64 columns and [8, 64] for 16.
    """
    return float(min(max(2 ** ceil(log2(max(width / COLUMNS_PER_THREAD, 1.0))), LEAST_THREADS), WARP))


def _update(call: TableCall, grad: TensorSpec, optimizer: str) -> Work:
    if not call.indices.element_count:
        raise LackingArgumentError("lookups")
    rows_of_state, plain = STATES[optimizer]
    read = tensor_bytes(grad) + total_bytes(call.beside)
    state = rows_of_state * call.width * FP32_BYTES + plain
    dims = _dims(EmbeddingStep.UPDATE, call, call.row_bytes, read, state_bytes=state)
    least = call.tables * (dims.row_bytes + state)
    return _work(call, 2.0 * call.indices.element_count * call.width, read + least, least, dims)


def _dims(
    step: EmbeddingStep, call: TableCall, row_bytes: float, streamed_bytes: float, *, state_bytes: float = 0.0
) -> EmbeddingDims:
    return EmbeddingDims(
        step=step,
        tables=call.tables,
        rows=call.rows,
        row_bytes=row_bytes,
        lookups=call.indices.element_count,
        streamed_bytes=streamed_bytes,
        state_bytes=state_bytes,
        unstated=call.unstated,
    )


def _distinct_bytes(dims: EmbeddingDims) -> float:
    """Return the bytes of as many rows as there are lookups, at most all."""
    return min(dims.lookups, dims.rows * dims.tables) * dims.row_bytes


def _work(call: TableCall, flops: float, read_bytes: float, written_bytes: float, dims: EmbeddingDims) -> Work:
    return Work(
        family=Family.EMBEDDING,
        flops=flops,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        dtype=call.table.dtype if call.table.dtype != _PACKED else call.result_dtype,
        dims=dims,
    )


def _is_rowwise(optimizer: str) -> bool:
    return "rowwise" in optimizer and not optimizer.startswith("partial")


HOST_TABLE_OPS: Final = names(
    "fbgemm::lru_cache_populate fbgemm::lru_cache_populate_byte fbgemm::lfu_cache_populate "
    "fbgemm::lfu_cache_populate_byte fbgemm::direct_mapped_lru_cache_populate_byte fbgemm::lxu_cache_lookup "
    "fbgemm::direct_mapped_lxu_cache_lookup fbgemm::lxu_cache_flush fbgemm::lxu_cache_locations_update "
    "fbgemm::lxu_cache_slot fbgemm::linearize_cache_indices fbgemm::linearize_cache_indices_from_row_idx "
    "fbgemm::ssd_embedding_codegen_lookup_rowwise_adagrad_function_pt2"
)
"""What keeps a cache on the GPU of rows that lie in the host's memory, or on a disk."""
_WEIGHTED: Final = ("unweighted", "weighted")
_BATCHES: Final = ("", "_vbe")
"""`_vbe`: as many bags of a table as it pleases."""


def _register_lookups(optimizer: str) -> None:
    rowwise = _is_rowwise(optimizer)
    of_gpu = partial(look_up, placed=Placed.SPLIT, is_rowwise=rowwise)
    stem = f"fbgemm::split_embedding_codegen_lookup_{optimizer}_function"
    register(stem, f"{stem}_pt2", family=Family.EMBEDDING)(of_gpu)
    register(f"{stem}_cpu", family=Family.EMBEDDING)(partial(look_up, placed=Placed.ON_CPU, is_rowwise=rowwise))


def _register_updates(optimizer: str) -> None:
    for bag in ("", "_nobag"):
        stem = f"fbgemm::split_embedding{bag}_backward_codegen_{optimizer}"
        calls = partial(update, optimizer=optimizer, is_listed=not bag)
        kinds = [f"{stem}_{kind}" for kind in _WEIGHTED]
        register(
            *(f"{kind}_exact{batch}_cuda" for kind, batch in product(kinds, _BATCHES)),
            *(f"{kind}{batch}_pt2_wrapper" for kind, batch in product(kinds, _BATCHES)),
            family=Family.EMBEDDING,
        )(partial(calls, placed=Placed.SPLIT))
        register(f"{stem}_cpu", family=Family.EMBEDDING)(partial(calls, placed=Placed.ON_CPU))
    register(*(f"torch::autograd::CppNode<{kind}>" for kind in autograd_nodes(optimizer)), family=Family.EMBEDDING)(
        partial(update_node, optimizer=optimizer)
    )


def autograd_nodes(optimizer: str) -> tuple[str, ...]:
    """Return the names of autograd's nodes of an optimizer's lookups.

    >>> autograd_nodes("sgd")[0]
    'SplitLookupFunction_sgd_Op'
    """
    kinds = product(("", "NoBag"), ("", "VBE"), ("", "_pt2"))
    return tuple(f"Split{bag}{batch}LookupFunction_{optimizer}_Op{version}" for bag, batch, version in kinds)


for _optimizer in STATES:
    _register_lookups(_optimizer)
    if _optimizer != "none":
        _register_updates(_optimizer)
for _bag, _batch in product(("", "_nobag"), _BATCHES):
    register(
        *(f"fbgemm::split_embedding{_bag}_codegen_forward_{kind}{_batch}_cuda" for kind in _WEIGHTED),
        *(f"fbgemm::split_embedding{_bag}_codegen_forward_{kind}{_batch}_pt2_wrapper" for kind in _WEIGHTED),
        family=Family.EMBEDDING,
    )(partial(look_up, placed=Placed.SPLIT, is_listed=not _bag))
    register(
        *(f"fbgemm::dense_embedding{_bag}_codegen_forward_{kind}{_batch}_cuda" for kind in _WEIGHTED),
        family=Family.EMBEDDING,
    )(partial(look_up, placed=Placed.FLAT, is_listed=not _bag))
    register(
        *(f"fbgemm::split_embedding{_bag}_backward_codegen_dense_{kind}_exact{_batch}_cuda" for kind in _WEIGHTED),
        family=Family.EMBEDDING,
    )(partial(dense_gradient, is_listed=not _bag))
for _bag in ("", "_nobag"):
    register(f"fbgemm::split_embedding{_bag}_codegen_forward_cpu", family=Family.EMBEDDING)(
        partial(look_up, placed=Placed.FLAT, is_listed=not _bag)
    )
register("fbgemm::dense_embedding_codegen_lookup_function", family=Family.EMBEDDING)(
    partial(look_up, placed=Placed.FLAT)
)
register("fbgemm::split_embedding_backward_codegen_dense_cpu", family=Family.EMBEDDING)(dense_gradient)
register(*(f"torch::autograd::CppNode<{kind}>" for kind in autograd_nodes("Dense")), family=Family.EMBEDDING)(
    partial(dense_gradient, has_total=True)
)
for _batch in _BATCHES:
    _stem = f"codegen_grad_indice_weights{_batch}"
    register(
        f"fbgemm::split_embedding_{_stem}_cuda", f"fbgemm::split_embedding_{_stem}_pt2_wrapper", family=Family.EMBEDDING
    )(partial(weight_gradient, placed=Placed.SPLIT))
    register(f"fbgemm::dense_embedding_{_stem}_cuda", family=Family.EMBEDDING)(
        partial(weight_gradient, placed=Placed.FLAT)
    )
register("fbgemm::int_nbit_split_embedding_codegen_lookup_function", family=Family.EMBEDDING)(quantised_look_up)
register("fbgemm::int_nbit_split_embedding_uvm_caching_codegen_lookup_function", family=Family.EMBEDDING)(
    quantised_look_up
)
register(*HOST_TABLE_OPS, family=Family.EMBEDDING)(refuse_host_tables)
