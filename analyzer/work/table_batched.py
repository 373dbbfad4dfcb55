"""FBGEMM's lookups in many embedding tables at once, which TorchRec's modules call, and their fused optimizers.

All tables lie in one flat tensor. How many rows each has and how wide they are is in tensors whose values no recording
holds: the tables of a call count as equal ones. Tables in host memory (`uvm_weights`) are refused: what they take is
the link to the host, of which nothing is recorded.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from ...formats.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, size_at, tensor_at
from .embedding_dims import EmbeddingDims, EmbeddingStep
from .registry import register
from .traffic import bytes_of, tensor_bytes, total_bytes
from .work import Family, Work

STATES: Final = {
    "sgd": (0.0, 0.0),
    "approx_sgd": (0.0, 0.0),
    "adagrad": (1.0, 0.0),
    "approx_rowwise_adagrad": (0.0, 4.0),
    "rowwise_adagrad": (0.0, 4.0),
    "adam": (2.0, 0.0),
    "partial_rowwise_adam": (1.0, 4.0),
    "lamb": (2.0, 0.0),
    "partial_rowwise_lamb": (1.0, 4.0),
    "lars_sgd": (1.0, 0.0),
}
"""Optimizers by name: what each keeps per row, in rows of fp32 and in bytes beside."""
FP32_BYTES: Final = 4.0
_WEIGHTS: Final = 1
_D_OFFSETS: Final = 6
_DENSE_D_OFFSETS: Final = 2
_FORWARD_D_OFFSETS: Final = 5


def look_up(signature: Signature, *, weights: int, d_offsets: int, host_weights: int | None) -> Work:
    """Add up rows by bag: flat weights, offsets of columns, their total, ..., indices, offsets."""
    _refuse_host_tables(signature, host_weights)
    table, tables = tensor_at(signature, weights, rank=1), _table_count(signature, d_offsets)
    width = size_at(signature, d_offsets + 1) / tables
    indices, offsets, beside = _lookups(signature, d_offsets)
    bags = max(offsets.element_count - 1, 0)
    written = bytes_of(1, table.dtype) * width * bags
    read = total_bytes((indices, offsets, *beside))
    dims = _dims(EmbeddingStep.LOOKUP, table, tables, width, indices, read + written)
    rows = min(dims.lookups, dims.rows * tables) * dims.row_bytes
    flops = indices.element_count * width * (1 + len(beside))
    return Work(
        family=Family.EMBEDDING,
        flops=flops,
        read_bytes=read + rows,
        written_bytes=written,
        dtype=table.dtype,
        dims=dims,
    )


def update(signature: Signature, *, optimizer: str) -> Work:
    """Add up the gradients of each row and rewrite it: gradient [bags of a table, total width], flat weights, ..."""
    _refuse_host_tables(signature, _WEIGHTS + 1)
    grad, table = tensor_at(signature, 0, rank=2), tensor_at(signature, _WEIGHTS, rank=1)
    tables = _table_count(signature, _D_OFFSETS)
    width = grad.shape[1] / tables
    indices, offsets, beside = _lookups(signature, _D_OFFSETS)
    per_row, plain = STATES[optimizer]
    read = tensor_bytes(grad) + total_bytes((indices, offsets, *beside))
    dims = _dims(
        EmbeddingStep.UPDATE, table, tables, width, indices, read, state_bytes=per_row * width * FP32_BYTES + plain
    )
    least = tables * (dims.row_bytes + dims.state_bytes)
    return Work(
        family=Family.EMBEDDING,
        flops=2.0 * indices.element_count * width,
        read_bytes=read + least,
        written_bytes=least,
        dtype=table.dtype,
        dims=dims,
    )


def _dims(
    step: EmbeddingStep,
    table: TensorSpec,
    tables: int,
    width: float,
    indices: TensorSpec,
    streamed_bytes: float,
    *,
    state_bytes: float = 0.0,
) -> EmbeddingDims:
    rows = table.element_count / max(tables * width, 1.0)
    if rows < 1 or width <= 0 or not indices.element_count:
        raise LackingArgumentError("rows, columns and lookups")
    return EmbeddingDims(
        step=step,
        tables=tables,
        rows=rows,
        row_bytes=bytes_of(1, table.dtype) * width,
        lookups=indices.element_count,
        streamed_bytes=streamed_bytes,
        state_bytes=state_bytes,
    )


def _refuse_host_tables(signature: Signature, position: int | None) -> None:
    found = None if position is None else argument_at(signature, position)
    if isinstance(found, TensorSpec) and found.element_count:
        raise LackingArgumentError("tables in GPU memory: uvm_weights holds rows in the host's")


def _table_count(signature: Signature, d_offsets: int) -> int:
    count = tensor_at(signature, d_offsets, rank=1).shape[0] - 1
    if count < 1:
        raise LackingArgumentError("a table")
    return count


def _lookups(signature: Signature, d_offsets: int) -> tuple[TensorSpec, TensorSpec, tuple[TensorSpec, ...]]:
    """Return indices, offsets, and the weights of lookups where there are any.

    Their positions differ from version to version. After the columns' offsets come tensors of integers alone: rows up
    to each table, where they are given, as many as the columns' offsets; then indices and offsets.
    """
    tables = tensor_at(signature, d_offsets)
    after = [item for item in signature.arguments[d_offsets + 1 :] if isinstance(item, TensorSpec)]
    if len(after) > 2 and after[0].shape == tables.shape:
        after = after[1:]
    if len(after) < 2 or len(after[0].shape) != 1 or len(after[1].shape) != 1:
        raise LackingArgumentError("indices and offsets")
    indices, offsets = after[0], after[1]
    weights = after[2:3] if len(after) > 2 and after[2].shape == indices.shape and _is_floating(after[2]) else []
    return indices, offsets, tuple(weights)


def _is_floating(tensor: TensorSpec) -> bool:
    return re.match(r"float|bfloat|half|double", tensor.dtype) is not None


for _optimizer in STATES:
    register(f"fbgemm::split_embedding_codegen_lookup_{_optimizer}_function", family=Family.EMBEDDING)(
        partial(look_up, weights=_WEIGHTS, d_offsets=_D_OFFSETS, host_weights=_WEIGHTS + 1)
    )
    register(
        *(
            f"fbgemm::split_embedding_backward_codegen_{_optimizer}_{kind}_exact_cuda"
            for kind in ("unweighted", "weighted")
        ),
        family=Family.EMBEDDING,
    )(partial(update, optimizer=_optimizer))
register("fbgemm::dense_embedding_codegen_lookup_function", family=Family.EMBEDDING)(
    partial(look_up, weights=0, d_offsets=_DENSE_D_OFFSETS, host_weights=None)
)
register(
    "fbgemm::split_embedding_codegen_forward_unweighted_cuda",
    "fbgemm::split_embedding_codegen_forward_weighted_cuda",
    family=Family.EMBEDDING,
)(partial(look_up, weights=0, d_offsets=_FORWARD_D_OFFSETS, host_weights=1))
