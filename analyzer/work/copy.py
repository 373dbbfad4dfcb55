"""Copies, fills and layout changes, random numbers and dropout: every element moved once.

Generating a number is not counted, but for dropout, whose kernel draws as it goes (Philox: some 17 operations each).
"""

from dataclasses import replace
from functools import partial
from math import prod
from typing import Final

from ...formats.trace.signature import Signature, TensorSpec
from .access import Access, access_of, joined_access
from .arguments import (
    LackingArgumentError,
    argument_at,
    optional_tensor_list_at,
    result_at,
    result_tensors,
    size_at,
    sizes_at,
    tensor_at,
    tensor_list_at,
    tensors_at,
)
from .traffic import INDEX_DTYPE, bytes_of, promote, tensor_bytes, total_bytes
from .work import Family, Work, build_work

ROLL_OPERATIONS: Final = 96.0
"""Integer operations of an element that is rolled: 64-bit divisions. Read off a Swin transformer's recording."""
ELEMENT_BYTES: Final = partial(bytes_of, 1)
"""Of a dtype. A cast counts as of the wider one, whose bytes say how many elements it moves."""
LINK_US: Final = 0.4
"""Of a few bytes to the host over a kernel of as many (1.4 and 1.5 us in networks recorded on H100 and H200)."""


def created_tensor(
    signature: Signature, *, like: bool, sizes: int, dtype: int, default_dtype: str | None = None
) -> TensorSpec:
    """Return the tensor that a factory makes: recorded, or from its sizes and dtype.

    `like` factories take shape and dtype from their first argument unless others are given.
    """
    result = result_at(signature)
    if result is not None:
        return result
    named = argument_at(signature, dtype) if dtype >= 0 else None
    given = named.removeprefix("torch.") if isinstance(named, str) else None
    if like:
        model = tensor_at(signature, 0)
        return TensorSpec(given or model.dtype, model.shape)
    if sizes < 0 or isinstance(argument_at(signature, sizes), TensorSpec):
        raise LackingArgumentError("result")
    return TensorSpec(given or default_dtype or "float32", sizes_at(signature, sizes))


def copy(signature: Signature) -> Work:
    """Overwrite a tensor with another, broadcast and cast."""
    target, source = result_at(signature) or tensor_at(signature, 0), tensor_at(signature, 1)
    wider = max(source.dtype, target.dtype, key=ELEMENT_BYTES)
    return _work(tensor_bytes(source), tensor_bytes(target), wider, access=access_of((source,), target))


def clone(signature: Signature, *, dtype: int | None = None) -> Work:
    """Copy a tensor, perhaps to another dtype, device or layout; an expanded source is written in full."""
    x = tensor_at(signature, 0)
    result = result_at(signature)
    named = None if dtype is None else argument_at(signature, dtype)
    out_dtype = named.removeprefix("torch.") if isinstance(named, str) else x.dtype
    written = bytes_of(x.element_count, out_dtype) if result is None else result.size_bytes
    wider = max(x.dtype, out_dtype if result is None else result.dtype, key=ELEMENT_BYTES)
    return _work(tensor_bytes(x), written, wider, access=access_of((x,), result))


def roll(signature: Signature) -> Work:
    """Shift elements along dims, a place at a time: `roll_cuda_kernel` divides for each."""
    work = clone(signature)
    return replace(work, access=Access(operations=ROLL_OPERATIONS))


def fill(signature: Signature) -> Work:
    """Overwrite a tensor with one value."""
    x = result_at(signature) or tensor_at(signature, 0)
    return _work(total_bytes(tensors_at(signature, 1)), tensor_bytes(x), x.dtype)


def create(
    signature: Signature,
    *,
    like: bool,
    sizes: int = 0,
    dtype: int,
    default_dtype: str | None = None,
    is_typed_like: bool = False,
    is_random: bool = False,
) -> Work:
    """Make a tensor of one value or of random numbers; of the first argument's dtype where none is given, if asked."""
    usual = tensor_at(signature, 0).dtype if is_typed_like else default_dtype
    made = created_tensor(signature, like=like, sizes=sizes, dtype=dtype, default_dtype=usual)
    if is_random:
        return _random_work(made.element_count, 0.0, made.size_bytes, made.dtype)
    return _work(0.0, made.size_bytes, made.dtype)


def make_range(signature: Signature) -> Work:
    """Number from start to end; the count comes from the recorded result, an `out` tensor, or integer arguments."""
    results = result_tensors(signature) or tensors_at(signature, 3)
    if results and results[0].element_count:
        return _work(0.0, results[0].size_bytes, results[0].dtype)
    numbers = [a for a in signature.arguments[:3] if isinstance(a, int) and not isinstance(a, bool)]
    if len(numbers) != 1 or len(signature.arguments) != 1 or numbers[0] < 0:
        raise LackingArgumentError("result")
    return _work(0.0, bytes_of(numbers[0], "int64"), "int64")


def join(signature: Signature) -> Work:
    """Concatenate or stack a list, in the dtype that its tensors promote to."""
    tensors = tensor_list_at(signature, 0)
    dtype, result = promote(tensors), result_at(signature)
    count = sum(tensor.element_count for tensor in tensors) if result is None else result.element_count
    given = argument_at(signature, 1)
    rank = max(len(tensor.shape) for tensor in tensors)
    dim = given % rank if isinstance(given, int) and not isinstance(given, bool) and rank else 0
    access = joined_access(tensors, dim, bytes_of(1, dtype))
    return _work(total_bytes(tensors), bytes_of(count, dtype), dtype, access=access)


def repeat(signature: Signature) -> Work:
    """Tile a tensor by repeats per dim (1 per element for dims that it adds)."""
    x, result = tensor_at(signature, 0), result_at(signature)
    written = x.size_bytes * prod(sizes_at(signature, 1)) if result is None else result.size_bytes
    return _work(tensor_bytes(x), written, x.dtype)


def repeat_interleave(signature: Signature) -> Work:
    """Repeat slices; a tensor of repeats needs the recorded result."""
    x, result, repeats = tensor_at(signature, 0), result_at(signature), argument_at(signature, 1)
    read = total_bytes(tensors_at(signature, 0, 1))
    if result is not None:
        return _work(read, result.size_bytes, x.dtype)
    if not isinstance(repeats, int) or repeats < 0:
        raise LackingArgumentError("result")
    return _work(read, x.size_bytes * repeats, x.dtype)


def pad(signature: Signature, *, is_filled: bool = False) -> Work:
    """Extend a tensor at its edges, innermost dim first; negative sizes crop."""
    x, result = tensor_at(signature, 0), result_at(signature)
    if result is not None:
        access = _filled_access(x, result) if is_filled else None
        return _work(tensor_bytes(x), result.size_bytes, x.dtype, access=access)
    sides = argument_at(signature, 1)
    if not isinstance(sides, tuple) or len(sides) % 2 or len(sides) > 2 * len(x.shape):
        raise LackingArgumentError("padding")
    sizes = list(x.shape)
    for position, side in enumerate(sides):
        if not isinstance(side, int):
            raise LackingArgumentError("padding")
        sizes[-1 - position // 2] += side
    if min(sizes, default=0) < 0:
        raise LackingArgumentError("padding")
    return _work(tensor_bytes(x), bytes_of(prod(sizes), x.dtype), x.dtype)


def pad_backward(signature: Signature) -> Work:
    """Fold the edges' gradients back: one addition per padded element."""
    grad, x = tensor_at(signature, 0), tensor_at(signature, 1)
    return _work(tensor_bytes(grad), x.size_bytes, grad.dtype, flops=max(grad.element_count - x.element_count, 0))


def scatter_into_zeros(signature: Signature) -> Work:
    """Place a gradient into zeros of the sizes at position 1."""
    grad = tensor_at(signature, 0)
    return _work(tensor_bytes(grad), bytes_of(prod(sizes_at(signature, 1)), grad.dtype), grad.dtype)


def to_host(signature: Signature) -> Work:
    """Copy one element to the host."""
    x = tensor_at(signature, 0)
    size = bytes_of(1, x.dtype)
    return _work(size, size, x.dtype, access=Access(link_us=LINK_US))


def pack(signature: Signature) -> Work:
    """Copy sequences between packed and padded forms; padding is not known without the recorded result."""
    tensors = tensors_at(signature, 0) or optional_tensor_list_at(signature, 0)
    result = result_at(signature)
    if not tensors or result is None:
        raise LackingArgumentError("result")
    return _work(min(total_bytes(tensors), result.size_bytes), result.size_bytes, tensors[0].dtype)


def _filled_access(x: TensorSpec, result: TensorSpec) -> Access | None:
    """Return how a tensor gets into a larger one: another kernel fills that before."""
    if result.element_count <= x.element_count:
        return access_of((x,), result)
    part = TensorSpec(result.dtype, x.shape, result.strides)
    found = access_of((x,), part) or Access()
    return replace(found, before_bytes=result.size_bytes)


def _work(read_bytes: float, written_bytes: float, dtype: str, flops: int = 0, access: Access | None = None) -> Work:
    return Work(
        family=Family.COPY, flops=flops, read_bytes=read_bytes, written_bytes=written_bytes, dtype=dtype, access=access
    )


_DROPOUT_FLOPS = 20
"""Compare, mask and scale."""


def dropout(signature: Signature, *, mask_dtype: str) -> Work:
    """Return the result and its mask."""
    x = tensor_at(signature, 0)
    written = x.size_bytes + bytes_of(x.element_count, mask_dtype)
    work = _random_work(_DROPOUT_FLOPS * x.element_count, tensor_bytes(x), written, x.dtype)
    return replace(work, access=Access(functions=2))


def fill_random(signature: Signature, *, flops: int) -> Work:
    """Overwrite a tensor with random numbers; parameters may be tensors, which are read.

    `flops` per element turn uniform bits into the distribution.
    """
    x = result_at(signature) or tensor_at(signature, 0)
    work = _random_work(flops * x.element_count, total_bytes(tensors_at(signature, 1)), x.size_bytes, x.dtype)
    return replace(work, access=Access(functions=1))


def randperm(signature: Signature) -> Work:
    """A random permutation of n indices."""
    count = size_at(signature, 0)
    return _random_work(count, 0.0, bytes_of(count, INDEX_DTYPE), INDEX_DTYPE)


def multinomial(signature: Signature) -> Work:
    """Draw indices from rows of weights: each weight is summed and compared."""
    weights = tensor_at(signature, 0)
    rows = weights.element_count // max(weights.shape[-1], 1) if weights.shape else 1
    written = bytes_of(rows * size_at(signature, 1), INDEX_DTYPE)
    return _random_work(2 * weights.element_count, tensor_bytes(weights), written, weights.dtype)


_random_work = partial(build_work, Family.RANDOM)
