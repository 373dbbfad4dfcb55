"""Normalisations and softmax: row or channel statistics, then one pass over the data.

FLOPs per element, forward: sum 1, squared deviation 3, normalise 2, scale 1, shift 1. Backward of a normalisation:
normalised input 2, scaled gradient 1, two sums 3, input gradient 4, scale gradient 2, shift gradient 1.
Softmax: maximum, difference, exponential, sum, quotient.
"""

from dataclasses import replace
from functools import partial
from math import prod
from typing import Final

from ...formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec
from . import walks
from .access import Access, contiguous_copy
from .arguments import (
    LackingArgumentError,
    argument_at,
    dims_at,
    flag_at,
    flags_at,
    optional_tensor_at,
    result_at,
    size_at,
    tensor_at,
    tensors_at,
)
from .row_kernels import RowKernel
from .traffic import STATISTICS_DTYPE, bytes_of, tensor_bytes, total_bytes
from .work import Family, RowDims, Work, build_work

_STATISTICS_FLOPS, _NORMALISE_FLOPS = 4, 2
_RMS_STATISTICS_FLOPS, _RMS_NORMALISE_FLOPS = 2, 1
_BACKWARD_INPUT_FLOPS, _BACKWARD_SCALE_FLOPS, _BACKWARD_SHIFT_FLOPS = 10, 2, 1
_BACKWARD_FIXED_STATISTICS_FLOPS = 2
_SOFTMAX_FLOPS, _SOFTMAX_BACKWARD_FLOPS = 5, 4
WARP_COLUMNS: Final = 1024
"""Up to which a warp holds a row of softmax (PersistentSoftmax.cuh)."""
DIVIDED: Final = Access(operations=7.0)
"""Each element is divided by its row's sum, where log-softmax subtracts: 13 to 16 instructions more, as many as so many
integer operations (H100's own rows by blocks, of the shapes that train in both)."""


def layer_norm(signature: Signature, *, has_statistics: bool) -> Work:
    """Layer norm: input, normalised shape, weight, bias; the native op also returns mean and 1/σ per row."""
    x = tensor_at(signature, 0)
    scale, shift = optional_tensor_at(signature, 2), optional_tensor_at(signature, 3)
    rows = _row_count(x, argument_at(signature, 1), scale)
    flops = _STATISTICS_FLOPS + _NORMALISE_FLOPS + _count(scale, shift)
    work = _forward(signature, x, flops, (scale, shift), statistics_count=2 * rows * has_statistics)
    return walks.by_row(replace(work, access=contiguous_copy(x)), x, rows, walks.row_kernel(x, rows))


def rms_norm(signature: Signature, *, has_statistics: bool) -> Work:
    """RMS norm: input, normalised shape, weight; the fused op also returns 1/rms per row."""
    x, scale = tensor_at(signature, 0), optional_tensor_at(signature, 2)
    rows = _row_count(x, argument_at(signature, 1), scale)
    flops = _RMS_STATISTICS_FLOPS + _RMS_NORMALISE_FLOPS + _count(scale)
    work = _forward(signature, x, flops, (scale,), statistics_count=rows * has_statistics)
    return walks.by_row(work, x, rows, RowKernel.ROOT_NORM)


def group_norm(signature: Signature, *, weight: int, groups: int, has_statistics: bool) -> Work:
    """Group norm: input, weight, bias; statistics per sample and group, then an elementwise kernel."""
    x = tensor_at(signature, 0)
    scale, shift = optional_tensor_at(signature, weight), optional_tensor_at(signature, weight + 1)
    if not x.shape:
        raise LackingArgumentError("a zero-dimensional input")
    rows = x.shape[0] * size_at(signature, groups)
    flops = _STATISTICS_FLOPS + _NORMALISE_FLOPS + _count(scale, shift)
    work = _forward(signature, x, flops, (scale, shift), statistics_count=2 * rows * has_statistics)
    is_last = walks.run_of(x) == 1
    moves = walks.Moves(
        walked_bytes=tensor_bytes(x),
        streamed_bytes=(2.0 + 2.0 * is_last) * x.size_bytes,
        streaming=RowKernel.LAYOUT if is_last else RowKernel.BROADCAST,
        launches=3 + is_last,
    )
    return walks.by_row(work, x, rows, RowKernel.MOMENTS, moves)


def batch_norm(signature: Signature, *, training: int | bool) -> Work:
    """Batch norm: input, weight, bias, running mean, running variance; `training` is the flag's position or value.

    Training reads the batch's own statistics, saves two per channel and updates the running ones; its kernels are those
    that PyTorch chooses by default (`walks.batch_norm`).
    """
    x = tensor_at(signature, 0)
    is_training = training if isinstance(training, bool) else flag_at(signature, training)
    scale, shift = optional_tensor_at(signature, 1), optional_tensor_at(signature, 2)
    running = tensors_at(signature, 3, 4)
    flops = (_STATISTICS_FLOPS if is_training else 0) + _NORMALISE_FLOPS + _count(scale, shift)
    saved = 2 * walks.channel_count(x) if is_training else 0
    work = _forward(signature, x, flops, (scale, shift, *running), statistics_count=saved)
    if not is_training:
        return walks.fixed_batch_norm(work, x, is_own=_is_own(x, scale))
    work = _work(work.flops, work.read_bytes, work.written_bytes + total_bytes(running), work.dtype)
    return walks.batch_norm(work, x, is_own=_is_own(x, scale))


def _is_own(x: TensorSpec, scale: TensorSpec | None) -> bool:
    """Say where PyTorch's own kernels run: cuDNN's need a scale, know no bfloat16, and no scale in fp16.

    As `use_cudnn` in PyTorch's Normalization.cpp has it. Instance norms have no scale unless asked for.
    """
    return scale is None or x.dtype == "bfloat16" or scale.dtype == x.dtype == "float16"


def native_batch_norm_legit(signature: Signature) -> Work:
    """Batch norm with running statistics, or without (instance norm), where the flag comes third."""
    has_running = isinstance(argument_at(signature, 3), TensorSpec)
    return batch_norm(signature, training=5 if has_running else 3)


def layer_norm_backward(signature: Signature) -> Work:
    """Gradients of (input, weight, bias) as the mask asks: grad, input, shape, mean, 1/σ, weight, bias, mask."""
    flags, x = flags_at(signature, 7, 3), tensor_at(signature, 1)
    work = _backward(signature, tensor_at(signature, 0), x, (3, 4), 5, flags)
    mean = optional_tensor_at(signature, 3)
    return work if mean is None else walks.by_row_backward(work, x, mean.element_count, any(flags[1:]))


def group_norm_backward(signature: Signature) -> Work:
    """Gradients of (input, weight, bias): sums per sample and channel, then an elementwise kernel, and small ones."""
    flags, x = flags_at(signature, 9, 3), tensor_at(signature, 1)
    work = _backward(signature, tensor_at(signature, 0), x, (2, 3), 4, flags)
    rows = x.shape[0] * walks.channel_count(x)
    streamed = 3.0 * x.size_bytes * flags[0]
    streaming = RowKernel.BROADCAST if flags[0] else None
    moves = walks.Moves(walked_bytes=2.0 * x.size_bytes, streamed_bytes=streamed, streaming=streaming, launches=5)
    return walks.by_row(work, x, rows, RowKernel.CHANNEL_SUMS, moves)


def rms_norm_backward(signature: Signature) -> Work:
    """Gradients of (input, weight): grad, input, shape, 1/rms, weight, mask."""
    flags, deviation = (*flags_at(signature, 5, 2), False), optional_tensor_at(signature, 3)
    work = _backward(signature, tensor_at(signature, 0), tensor_at(signature, 1), (3,), 4, flags)
    return (
        work
        if deviation is None
        else walks.by_row_backward(work, tensor_at(signature, 1), deviation.element_count, flags[1])
    )


def batch_norm_backward(
    signature: Signature, *, grad: int, x: int, scale: int, saved: tuple[int, ...], training: int | bool, mask: int
) -> Work:
    """Gradients of a batch norm; with fixed statistics (evaluation) the input's gradient is only scaled."""
    is_training = training if isinstance(training, bool) else flag_at(signature, training)
    flags = (True, True, True) if mask < 0 else flags_at(signature, mask, 3)
    work = _backward(signature, tensor_at(signature, grad), tensor_at(signature, x), saved, scale, flags)
    if is_training:
        source = tensor_at(signature, x)
        return walks.batch_norm_gradients(work, source, is_own=_is_own(source, optional_tensor_at(signature, scale)))
    excess = flags[0] * (_BACKWARD_INPUT_FLOPS - _BACKWARD_FIXED_STATISTICS_FLOPS)
    return replace(work, flops=work.flops - excess * tensor_at(signature, x).element_count)


def batch_norm_stats(signature: Signature) -> Work:
    """Mean and 1/σ per channel."""
    x = tensor_at(signature, 0)
    channels = walks.channel_count(x)
    written = bytes_of(2 * channels, STATISTICS_DTYPE)
    work = _work(x.element_count * _STATISTICS_FLOPS, tensor_bytes(x), written, x.dtype)
    return walks.by_channel(work, x, RowKernel.MOMENTS, RowKernel.COLUMN_MOMENTS)


def batch_norm_elemt(signature: Signature) -> Work:
    """Normalise with given statistics: input, weight, bias, mean, 1/σ."""
    x = tensor_at(signature, 0)
    scale, shift = optional_tensor_at(signature, 1), optional_tensor_at(signature, 2)
    work = _forward(signature, x, _NORMALISE_FLOPS + _count(scale, shift), (scale, shift, *tensors_at(signature, 3, 4)))
    return walks.by_channel(work, x, RowKernel.CHANNEL_ELEMENTS, RowKernel.COLUMN_ELEMENTS)


def batch_norm_gather_stats(signature: Signature) -> Work:
    """Combine the statistics of several processes [ranks, channels] and update the running ones."""
    mean, deviation = tensor_at(signature, 1), tensor_at(signature, 2)
    running = tensors_at(signature, 3, 4)
    channels = mean.shape[-1] if mean.shape else 1
    written = bytes_of(2 * channels, mean.dtype) + total_bytes(running)
    flops = 6 * mean.element_count
    return _work(flops, total_bytes((mean, deviation, *running, *tensors_at(signature, 7))), written, mean.dtype)


def batch_norm_backward_reduce(signature: Signature) -> Work:
    """Two sums per channel, and the gradients of scale and shift."""
    grad, x = tensor_at(signature, 0), tensor_at(signature, 1)
    read = total_bytes((grad, x, *tensors_at(signature, 2, 3, 4)))
    work = _work(5 * x.element_count, read, bytes_of(4 * walks.channel_count(x), STATISTICS_DTYPE), x.dtype)
    return walks.by_channel(work, x, RowKernel.CHANNEL_SUMS, RowKernel.COLUMN_SUMS)


def batch_norm_backward_elemt(signature: Signature) -> Work:
    """The input's gradient from the combined sums."""
    grad, x = tensor_at(signature, 0), tensor_at(signature, 1)
    read = total_bytes((grad, x, *tensors_at(signature, 2, 3, 4, 5, 6, 7)))
    work = _work(7 * x.element_count, read, x.size_bytes, x.dtype)
    return walks.by_channel(work, x, RowKernel.CHANNEL_ELEMENTS, RowKernel.COLUMN_ELEMENTS)


def weight_norm(signature: Signature) -> Work:
    """Direction v and length g to a weight, and the norms of v."""
    v, g = tensor_at(signature, 0), tensor_at(signature, 1)
    written = v.size_bytes + bytes_of(g.element_count, STATISTICS_DTYPE)
    return _work(4 * v.element_count, total_bytes((v, g)), written, v.dtype)


def softmax(
    signature: Signature, *, extra: tuple[int, ...] = (), dim: int = 1, access: Access | None = DIVIDED
) -> Work:
    """Softmax or log-softmax of the input along `dim`; `extra` are further tensors read (a mask)."""
    x = tensor_at(signature, 0)
    work = _softmax_work(signature, _SOFTMAX_FLOPS, x, (x, *tensors_at(signature, *extra)), dim)
    return replace(work, access=access)


def softmax_backward(
    signature: Signature, *, extra: tuple[int, ...] = (), dim: int = 2, is_multiplied: bool = True
) -> Work:
    """The input's gradient from grad and output."""
    grad, output = tensor_at(signature, 0), tensor_at(signature, 1)
    inputs = (grad, output, *tensors_at(signature, *extra))
    work = _softmax_work(signature, _SOFTMAX_BACKWARD_FLOPS, output, inputs, dim)
    rows = work.dims
    # Softmax's own gradient is multiplied by the output before, log-softmax's is not.
    product = total_bytes((grad, output)) + grad.size_bytes if is_multiplied else 0.0
    if not isinstance(rows, RowDims) or rows.columns <= WARP_COLUMNS:
        return replace(work, access=Access(before_bytes=product)) if is_multiplied else work
    moves = replace(
        rows,
        kernel=RowKernel.SOFTMAX_GRADIENT,
        walked_bytes=work.moved_bytes,
        streamed_bytes=product,
        launches=1 + is_multiplied,
    )
    return replace(work, dims=moves)


def _forward(
    signature: Signature,
    x: TensorSpec,
    flops_per_element: int,
    parameters: tuple[TensorSpec | None, ...],
    statistics_count: int = 0,
) -> Work:
    result = result_at(signature)
    written = bytes_of(x.element_count, (result or x).dtype) + bytes_of(statistics_count, STATISTICS_DTYPE)
    read = tensor_bytes(x) + sum(map(tensor_bytes, parameters))
    return _work(x.element_count * flops_per_element, read, written, x.dtype)


def _backward(
    signature: Signature, grad: TensorSpec, x: TensorSpec, saved: tuple[int, ...], scale: int, flags: tuple[bool, ...]
) -> Work:
    weight = optional_tensor_at(signature, scale)
    per_element = flags[0] * _BACKWARD_INPUT_FLOPS + flags[1] * _BACKWARD_SCALE_FLOPS + flags[2] * _BACKWARD_SHIFT_FLOPS
    parameter_bytes = 0.0 if weight is None else weight.size_bytes
    written = flags[0] * x.size_bytes + (flags[1] + flags[2]) * parameter_bytes
    read = total_bytes((grad, x, *tensors_at(signature, *saved))) + tensor_bytes(weight)
    return _work(x.element_count * per_element, read, written, x.dtype)


def _softmax_work(signature: Signature, flops: int, x: TensorSpec, inputs: tuple[TensorSpec, ...], dim: int) -> Work:
    result = result_at(signature)
    dims = dims_at(signature, dim, len(x.shape)) if x.shape else None
    columns = 1 if not x.shape else x.shape[dims[0] if dims else -1]
    return Work(
        family=Family.SOFTMAX,
        flops=flops * x.element_count,
        read_bytes=total_bytes(inputs),
        written_bytes=bytes_of(x.element_count, (result or x).dtype),
        dtype=x.dtype,
        dims=RowDims(rows=x.element_count // max(columns, 1), columns=columns),
    )


def _row_count(x: TensorSpec, normalised_shape: Argument, scale: TensorSpec | None) -> int:
    """Return how many rows the normalised trailing dims form; where their sizes are not known, the weight has them."""
    if isinstance(normalised_shape, tuple) and normalised_shape:
        count = len(normalised_shape)
    elif normalised_shape is UNKNOWN and scale is not None and scale.shape == x.shape[-len(scale.shape) :]:
        count = len(scale.shape)
    else:
        raise LackingArgumentError("normalised shape")
    return prod(x.shape[:-count])


def _count(*parameters: TensorSpec | None) -> int:
    return sum(parameter is not None for parameter in parameters)


_work = partial(build_work, Family.NORMALIZATION)
