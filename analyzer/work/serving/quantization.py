"""Conversions to and from narrow formats, beside products that take them."""

from math import inf

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import LackingArgumentError, argument_at, result_at, sizes_at, tensor_at, tensors_at
from ..traffic import bytes_of
from ..work import Family, Work
from .library_op import pass_over

# Scale, round and clamp.
QUANTISE_FLOPS = 3
# The same, and a comparison per element for the largest of each block.
DYNAMIC_FLOPS = QUANTISE_FLOPS + 1
# Scale and, where there is one, shift.
DEQUANTISE_FLOPS = 2
PACKED_PER_INT32 = 8
"""Numbers of 4 bits in an int32, as AWQ packs weights."""
FP8_BLOCK = 128
FP4_BLOCK = 16
SCALE_BYTES = 4

_QUANTISING = Family.ELEMENTWISE


def quantise_to_new(signature: Signature, *, element_bytes: float, block: float = inf) -> Work:
    """Return new tensors: the narrow numbers, and a scale of 4 bytes per block (nvfp4: of one byte), if any."""
    x = tensor_at(signature, 0)
    narrow = x.element_count * element_bytes
    scales = x.element_count / block * (SCALE_BYTES if element_bytes >= 1 else 1)
    written = TensorSpec("uint8", (int(narrow + scales),))
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * x.element_count, (x,), (written,))


def quantise_as_recorded(signature: Signature) -> Work:
    """Return a tensor that was recorded; a lookup in a table of codes where there is one."""
    x, out = tensor_at(signature, 0), result_at(signature)
    if out is None:
        raise LackingArgumentError("the result's dtype")
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * x.element_count, (x,), (out,))


def quantise_rows(signature: Signature) -> Work:
    """bitsandbytes: int8 with a scale per row."""
    x = tensor_at(signature, 0)
    rows = x.element_count // max(x.shape[-1], 1) if x.shape else 1
    written = TensorSpec("int8", x.shape), TensorSpec("float32", (rows,))
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * x.element_count, (x,), written)


def widen_4_bits(signature: Signature) -> Work:
    """bitsandbytes: packed codes, scales, block, kind of code, shape of the result."""
    packed, scales = tensor_at(signature, 0), tensor_at(signature, 1)
    shape = argument_at(signature, 4)
    count = TensorSpec("uint8", sizes_at(signature, 4)).element_count if shape else packed.element_count * 2
    return _widening(signature, (packed, scales), count)


def widen_blocks(signature: Signature) -> Work:
    """bitsandbytes: a code per byte, scales, table."""
    codes, scales = tensor_at(signature, 0), tensor_at(signature, 1)
    return _widening(signature, (codes, scales), codes.element_count)


def widen_product(signature: Signature) -> Work:
    """bitsandbytes: an int32 product, and the scales of its rows and columns."""
    product = tensor_at(signature, 0)
    return _widening(signature, (product, *tensors_at(signature, 1, 2, 4)), product.element_count, "float16")


def widen_packed(signature: Signature) -> Work:
    """AWQ: eight weights per int32, then scales and zeros."""
    packed, scales = tensor_at(signature, 0), tensor_at(signature, 1)
    count = packed.element_count * PACKED_PER_INT32
    return _widening(signature, (packed, *tensors_at(signature, 1, 2)), count, scales.dtype)


def _widening(signature: Signature, read: tuple[TensorSpec, ...], count: int, dtype: str = "bfloat16") -> Work:
    """Return a conversion's work; of a result that was not recorded two bytes per element are written."""
    out = result_at(signature)
    written = bytes_of(count, dtype if out is None else out.dtype)
    return pass_over(_QUANTISING, DEQUANTISE_FLOPS * count, read, (TensorSpec("uint8", (int(written),)),))
