"""Pooling and resampling: every result reads its window; the input is moved once."""

from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import Final

from ...formats.trace.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, flags_at, result_at, sizes_at, tensor_at, tensors_at
from .row_kernels import RowKernel
from .traffic import INDEX_DTYPE, bytes_of, tensor_bytes, total_bytes
from .walks import by_element, run_of
from .work import Family, RowDims, Work, build_work

DOUBLED: Final = 4.0
CONTENTION, NEIGHBOURS = 0.55, 2.0
"""Of images twice as wide and high, of which gradients were measured, and how the time of an element grows beyond: read
off images 8 times as wide: 4.4 times as long, by these 4.6. Along a dim of one pixel both neighbours are that one: one
pixel spread over 64 x 64 takes 183 times as long, by these 181."""
LAST_POOL, LAST_MAX, LAST_NEAREST = 1.2, 0.76, 1.8
"""Instructions of maxima, their gradients and copies' gradients with channels last, over those of whole images (H100's
own calls)."""
HALVES_APART, HALVES_TOGETHER = 2.25, 1.35
"""Of adding 16 bits where neighbours are added by other threads, and two channels at once, over adding 32."""


def pool(signature: Signature, *, rank: int, has_dilation: bool, has_indices: bool) -> Work:
    """Maximum or average over windows: input, kernel, stride, padding, [dilation,] ceil mode."""
    x = tensor_at(signature, 0)
    window = prod(_per_dim(signature, 1, rank, None))
    result = result_at(signature)
    count = _pooled_count(signature, x, rank, has_dilation=has_dilation) if result is None else result.element_count
    written = bytes_of(count, x.dtype) + (bytes_of(count, INDEX_DTYPE) if has_indices else 0.0)
    work = _work(count * window, tensor_bytes(x), written, x.dtype)
    if run_of(x) == 1 and not has_dilation:
        return replace(work, dims=RowDims(rows=count, columns=window, kernel=RowKernel.AVERAGE_LAST))
    return _by_window(work, round(count * (LAST_POOL if run_of(x) == 1 else 1.0)), window)


def pool_backward(signature: Signature, *, rank: int, indices: int | None) -> Work:
    """The gradient, of the input's shape: maximum adds one element per result, average a window."""
    grad, x = tensor_at(signature, 0), tensor_at(signature, 1)
    window = prod(_per_dim(signature, 2, rank, None)) if indices is None else 1
    saved = () if indices is None else tensors_at(signature, indices)
    work = _work(grad.element_count * window, total_bytes((grad, *saved)), x.size_bytes, grad.dtype)
    if indices is None:
        return by_element(work, x.element_count, RowKernel.AVERAGE_GRADIENT)
    count = round(x.element_count * (LAST_MAX if run_of(x) == 1 else 1.0))
    return by_element(work, count, RowKernel.MAX_GRADIENT, zeroed_bytes=x.size_bytes)


def adaptive_pool(signature: Signature, *, rank: int, has_indices: bool) -> Work:
    """Pool to a given size, an image by 8 warps, each a row at a time: each input element is in one window (or two)."""
    x, result = tensor_at(signature, 0), result_at(signature)
    if len(x.shape) < rank:
        raise LackingArgumentError("fewer dims than pooled ones")
    count = result.element_count if result else prod(x.shape[:-rank]) * prod(_per_dim(signature, 1, rank, None))
    written = bytes_of(count, x.dtype) + (bytes_of(count, INDEX_DTYPE) if has_indices else 0.0)
    work, window = _work(x.element_count, tensor_bytes(x), written, x.dtype), x.element_count // max(count, 1)
    if count == prod(x.shape[:-rank]) and not has_indices:
        return replace(work, dims=RowDims(rows=count, columns=window, kernel=RowKernel.REDUCE))
    if rank == 2 and result is not None and not has_indices and run_of(x) > 1:
        count = prod(x.shape[:-2]) * 32 * max(result.shape[-2], 8) * ceil(result.shape[-1] / 32)
    return _by_window(work, count, window)


def adaptive_pool_backward(signature: Signature, *, has_indices: bool) -> Work:
    """Spread the gradient over the input's shape."""
    grad, x = tensor_at(signature, 0), tensor_at(signature, 1)
    saved = tensors_at(signature, 2) if has_indices else ()
    count = grad.element_count if has_indices else x.element_count
    work = _work(count, total_bytes((grad, *saved)), x.size_bytes, grad.dtype)
    return by_element(work, x.element_count, RowKernel.POOL_BACKWARD)


def upsample(signature: Signature, *, flops: int, is_last_aware: bool = False) -> Work:
    """Interpolate to an output size (or by scale factors, which need the recorded result).

    `flops` per result element: weights times neighbours, summed; nearest copies. Copies, and with `is_last_aware` what
    lies with channels last (`upsample_bilinear2d_nhwc_out_frame`), run a thread per element.
    """
    x = tensor_at(signature, 0)
    result = result_at(signature)
    if result is not None:
        count = result.element_count
    elif argument_at(signature, 1) is None or len(x.shape) < 3:
        count = _scaled_count(signature, x)
    else:
        count = prod(x.shape[:2]) * prod(_per_dim(signature, 1, len(x.shape) - 2, None))
    work = _work(flops * count, tensor_bytes(x), bytes_of(count, x.dtype), x.dtype)
    images, is_last = prod(x.shape[:2]), run_of(result or x) == 1
    if images == 0:
        return work
    if flops == 0:
        kernel = RowKernel.NEAREST_LAST if is_last else RowKernel.NEAREST
        return replace(work, dims=RowDims(rows=count, columns=1, kernel=kernel))
    if is_last_aware and is_last:
        return replace(work, dims=RowDims(rows=count, columns=1, kernel=RowKernel.BILINEAR_LAST))
    dims = RowDims(rows=count // images, columns=images, kernel=RowKernel.INTERPOLATE)
    return replace(work, dims=dims)


def upsample_backward(signature: Signature, *, flops: int) -> Work:
    """The input's gradient: every result's gradient goes back to its neighbours, added where others may add too.

    Copies of the nearest are gathered instead: a thread per element of the input's gradient.
    """
    grad = tensor_at(signature, 0)
    written = bytes_of(prod(sizes_at(signature, 2)), grad.dtype)
    work = _work(max(flops, 1) * grad.element_count, tensor_bytes(grad), written, grad.dtype)
    is_last = run_of(grad) == 1
    if flops == 0:
        count = round(grad.element_count * (LAST_NEAREST if is_last else 1.0))
        return by_element(work, count, RowKernel.NEAREST_GRADIENT)
    # More results of one element are more additions in one place, one after another.
    enlarged = grad.size_bytes / max(written, 1.0)
    waiting = max(enlarged / DOUBLED, 1.0) ** CONTENTION * NEIGHBOURS ** sizes_at(signature, 2)[2:].count(1)
    if bytes_of(1, grad.dtype) == 2:
        waiting *= HALVES_TOGETHER if is_last else HALVES_APART
    return by_element(work, round(grad.element_count * waiting), RowKernel.BILINEAR_GRADIENT, zeroed_bytes=written)


def grid_sample(signature: Signature, *, flops: int) -> Work:
    """Sample the input at a grid [n, ..., dims]."""
    x, grid = tensor_at(signature, 0), tensor_at(signature, 1)
    if len(x.shape) < 3 or not grid.shape:
        raise LackingArgumentError("an input without channels")
    count = x.shape[1] * (grid.element_count // max(grid.shape[-1], 1))
    return _work(flops * count, total_bytes((x, grid)), bytes_of(count, x.dtype), x.dtype)


def grid_sample_backward(signature: Signature, *, flops: int) -> Work:
    """Gradients of input and grid as the mask asks."""
    grad, x, grid = (tensor_at(signature, position) for position in range(3))
    wanted = flags_at(signature, 6, 2)
    written = wanted[0] * x.size_bytes + wanted[1] * grid.size_bytes
    return _work(flops * grad.element_count * sum(wanted), total_bytes((grad, x, grid)), written, x.dtype)


def _pooled_count(signature: Signature, x: TensorSpec, rank: int, *, has_dilation: bool) -> int:
    if len(x.shape) < rank:
        raise LackingArgumentError("fewer dims than pooled ones")
    kernel = _per_dim(signature, 1, rank, None)
    stride = _per_dim(signature, 2, rank, kernel)
    padding = _per_dim(signature, 3, rank, (0,) * rank)
    dilation = _per_dim(signature, 4, rank, (1,) * rank) if has_dilation else (1,) * rank
    is_ceil = argument_at(signature, 5 if has_dilation else 4) is True
    count = prod(x.shape[:-rank])
    for n, k, s, p, d in zip(x.shape[-rank:], kernel, stride, padding, dilation, strict=True):
        count *= _pooled_size(n, d * (k - 1) + 1, max(s, 1), p, is_ceil=is_ceil)
    return count


def _pooled_size(n: int, reach: int, stride: int, padding: int, *, is_ceil: bool) -> int:
    """Return how many windows fit; in ceil mode the last one must start inside the input or its left padding."""
    steps = (n + 2 * padding - reach) / stride
    size = (ceil(steps) if is_ceil else int(steps // 1)) + 1
    if is_ceil and (size - 1) * stride >= n + padding:
        size -= 1
    return max(size, 0)


def _scaled_count(signature: Signature, x: TensorSpec) -> int:
    """Return the result's elements from the scale factors, the last argument of the `vec` overloads."""
    factors = signature.arguments[-1]
    if not isinstance(factors, tuple) or len(factors) != len(x.shape) - 2:
        raise LackingArgumentError("output size or scale factors")
    count = prod(x.shape[:2])
    for size, factor in zip(x.shape[2:], factors, strict=True):
        if not isinstance(factor, int | float) or not 0 <= factor < 1e6:
            raise LackingArgumentError("scale factors")
        count *= int(size * factor)
    return count


def _per_dim(signature: Signature, position: int, rank: int, default: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return sizes per dim; an empty or missing list means the default, where there is one."""
    if default is not None and argument_at(signature, position) in (None, ()):
        return default
    sizes = sizes_at(signature, position)
    if len(sizes) == 1:
        return sizes * rank
    if len(sizes) != rank:
        raise LackingArgumentError(position)
    return sizes


def _by_window(work: Work, count: int, window: int) -> Work:
    """Return the work with a thread per result."""
    return replace(work, dims=RowDims(rows=count, columns=window, kernel=RowKernel.POOL))


_work = partial(build_work, Family.POOLING)
