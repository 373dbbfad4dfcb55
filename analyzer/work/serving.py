"""Fused ops of LLM serving (vLLM's `_C` libraries): elementwise and row work written into given tensors."""

from __future__ import annotations

from ...formats.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, tensor_at, tensors_at
from .registry import register
from .traffic import bytes_of, tensor_bytes, total_bytes
from .work import Family, Work

# Square and sum 2, scale by 1/rms 1, by the weight 1.
_RMS_NORM_FLOPS = 4
# Scale and clamp.
_QUANTISE_FLOPS = 3
# Two products and a sum per rotated element.
_ROTATION_FLOPS = 3
# x·sigmoid(x) 5, times the other half 1.
_SILU_AND_MUL_FLOPS = 6


@register("_C::rms_norm", family=Family.NORMALIZATION)
def rms_norm(signature: Signature) -> Work:
    """Result, input, weight."""
    out, x, weight = (tensor_at(signature, position) for position in range(3))
    return _work(Family.NORMALIZATION, _RMS_NORM_FLOPS * x.element_count, (x, weight), (out,))


@register("_C::fused_add_rms_norm", family=Family.NORMALIZATION)
def fused_add_rms_norm(signature: Signature) -> Work:
    """Input, residual, weight: the residual takes the sum, the input its norm, both in place."""
    x, residual, weight = (tensor_at(signature, position) for position in range(3))
    flops = (_RMS_NORM_FLOPS + 1) * x.element_count
    return _work(Family.NORMALIZATION, flops, (x, residual, weight), (x, residual))


@register("_C::silu_and_mul", "_C::gelu_and_mul", "_C::gelu_tanh_and_mul", family=Family.ELEMENTWISE)
def silu_and_mul(signature: Signature) -> Work:
    """Result, input of twice its size."""
    out, x = tensor_at(signature, 0), tensor_at(signature, 1)
    return _work(Family.ELEMENTWISE, _SILU_AND_MUL_FLOPS * out.element_count, (x,), (out,))


@register("_C::static_scaled_fp8_quant", family=Family.ELEMENTWISE)
def static_quantise(signature: Signature) -> Work:
    """Result, input, scale."""
    out, x = tensor_at(signature, 0), tensor_at(signature, 1)
    return _work(Family.ELEMENTWISE, _QUANTISE_FLOPS * x.element_count, (x, *tensors_at(signature, 2)), (out,))


@register("_C::dynamic_scaled_fp8_quant", "_C::dynamic_per_token_scaled_fp8_quant", family=Family.ELEMENTWISE)
def dynamic_quantise(signature: Signature) -> Work:
    """Result, input, scale: the scale is computed first, with one comparison per element."""
    out, x, scale = (tensor_at(signature, position) for position in range(3))
    return _work(Family.ELEMENTWISE, (_QUANTISE_FLOPS + 1) * x.element_count, (x,), (out, scale))


@register("_C::rotary_embedding", family=Family.ELEMENTWISE)
def rotary_embedding(signature: Signature) -> Work:
    """Positions, query, key, head size, table of cosines and sines: query and key are rotated in place."""
    positions, query, table = (tensor_at(signature, position) for position in (0, 1, 4))
    if len(table.shape) != 2:
        raise LackingArgumentError("a table of rows")
    rotated = (query, *tensors_at(signature, 2))
    rows = bytes_of(min(positions.element_count, table.shape[0]) * table.shape[1], table.dtype)
    flops = _ROTATION_FLOPS * sum(tensor.element_count for tensor in rotated)
    return _work(Family.ELEMENTWISE, flops, (query, positions, *rotated[1:]), rotated, more_read_bytes=rows)


@register("_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::reshape_and_cache", family=Family.INDEXING)
def write_cache(signature: Signature) -> Work:
    """Key, value, key cache, value cache, slots: new keys and values go to their slots, perhaps in a narrower dtype."""
    key, value, cache, slots = (tensor_at(signature, position) for position in (0, 1, 2, 4))
    placed = TensorSpec(cache.dtype, (key.element_count + value.element_count,))
    return _work(Family.INDEXING, 0, (key, value, slots), (placed,))


def _work(
    family: Family,
    flops: int,
    read: tuple[TensorSpec, ...],
    written: tuple[TensorSpec, ...],
    more_read_bytes: float = 0.0,
) -> Work:
    return Work(
        family=family,
        flops=flops,
        read_bytes=total_bytes(read) + more_read_bytes,
        written_bytes=sum(map(tensor_bytes, written), 0.0),
        dtype=read[0].dtype,
    )
