"""Conversions to and from narrow formats, beside products that take them."""

from math import inf, prod

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import argument_at, result_at, sizes_at, tensor_at, tensors_at
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


def quantise_rows(signature: Signature) -> Work:
    """bitsandbytes: int8 with a scale per row."""
    x = tensor_at(signature, 0)
    rows = x.element_count // max(x.shape[-1], 1) if x.shape else 1
    written = TensorSpec("int8", x.shape), TensorSpec("float32", (rows,))
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * x.element_count, (x,), written)


def widen(
    signature: Signature,
    *,
    read: tuple[int, ...] = (0, 1),
    beside: tuple[int, ...] = (),
    numbers: int = 1,
    shape: int | None = None,
    like: int | None = None,
    dtype: str = "bfloat16",
) -> Work:
    """Widen codes, so many `numbers` each where no shape is given; `beside` (scales, zeros) is read where it is given.

    Of a result that was not recorded, the dtype is `dtype`, or that of the argument `like`.
    """
    given = tuple(tensor_at(signature, position) for position in read)
    is_shaped = shape is not None and argument_at(signature, shape)
    count = prod(sizes_at(signature, shape or 0)) if is_shaped else given[0].element_count * numbers
    out, usual = result_at(signature), dtype if like is None else tensor_at(signature, like).dtype
    written = TensorSpec("uint8", (int(bytes_of(count, usual if out is None else out.dtype)),))
    return pass_over(_QUANTISING, DEQUANTISE_FLOPS * count, (*given, *tensors_at(signature, *beside)), (written,))
