"""Convolutions. FLOPs are those of the direct algorithm, bias not counted, as in torch's flop counter.

Forward: 2 · batch · ∏ spatial · ∏ kernel · weight[0] · weight[1], spatial being the output's, or the input's
where transposed. weight[1] is already divided by the groups. Each of the two gradients costs the same.
"""

from math import prod

from ...formats.trace.signature import Signature, TensorSpec
from ...records import dataclass, replace
from .arguments import (
    LackingArgumentError,
    argument_at,
    flag_at,
    flags_at,
    optional_tensor_at,
    result_at,
    size_at,
    sizes_at,
    tensor_at,
)
from .traffic import bytes_of, tensor_bytes
from .work import ConvolutionDims, Direction, Family, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Say where a forward convolution's schema has its arguments; None where it has none."""

    bias: int | None = None
    addend: int | None = None
    stride: int
    padding: int
    dilation: int | None = None
    output_padding: int | None = None
    groups: int | None = None
    transposed: int | bool = False
    """The position of the flag, or the fixed answer."""


_VENDOR = _Layout(bias=2, padding=3, stride=4, dilation=5, groups=6)

_CUDNN = _Layout(padding=2, stride=3, dilation=4, groups=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardLayout:
    """Say where a backward convolution's schema has its arguments."""

    grad: int = 0
    input: int = 1
    weight: int = 2
    stride: int
    dilation: int
    groups: int
    mask: int
    transposed: int | bool = False


_DIRECTIONS: dict[tuple[bool, ...], Direction] = {
    (True, True): Direction.BOTH_GRADIENTS,
    (True, False): Direction.INPUT_GRADIENT,
    (False, True): Direction.WEIGHT_GRADIENT,
}
"""By what the mask asks for; the bias gradient alone is a reduction."""


def forward_work(signature: Signature, layout: _Layout) -> Work:
    """Return the work of a forward convolution whose arguments lie as `layout` says."""
    weight = tensor_at(signature, 1)
    x = _batched(tensor_at(signature, 0), len(weight.shape))
    transposed = _transposed(signature, layout.transposed)
    out_spatial = _out_spatial(signature, layout, x, weight, transposed=transposed)
    out_channels = weight.shape[1] * _groups(signature, layout) if transposed else weight.shape[0]
    spatial = x.shape[2:] if transposed else out_spatial
    result = result_at(signature)
    extras = [
        optional_tensor_at(signature, position) for position in (layout.bias, layout.addend) if position is not None
    ]
    dims = _dims(signature, layout, (x, weight), (out_channels, *out_spatial), transposed=transposed)
    return Work(
        family=Family.CONVOLUTION,
        flops=2 * x.shape[0] * prod(spatial) * weight.element_count,
        read_bytes=_met(x, weight, out_spatial) + tensor_bytes(weight) + sum(map(tensor_bytes, extras)),
        written_bytes=bytes_of(x.shape[0] * out_channels * prod(out_spatial), (result or x).dtype),
        dtype=x.dtype,
        is_matrix=True,
        dims=replace(dims, added_tensors=int(layout.addend is not None)),
    )


def backward_work(signature: Signature, layout: BackwardLayout) -> Work:
    """Return the work of the gradients that the mask asks for: (input, weight, bias).

    torch's counter does not divide the weight gradient by the groups; it needs groups times fewer FLOPs.
    """
    grad, x = tensor_at(signature, layout.grad), tensor_at(signature, layout.input)
    weight = tensor_at(signature, layout.weight)
    if not len(grad.shape) == len(x.shape) == len(weight.shape) >= 3:
        raise LackingArgumentError("gradient, input and weight of different ranks")
    mask = flags_at(signature, layout.mask, 3)
    transposed = _transposed(signature, layout.transposed)
    spatial = x.shape[2:] if transposed else grad.shape[2:]
    direction = _DIRECTIONS.get(mask[:2])
    dims = _dims(signature, layout, (x, weight, grad), grad.shape[1:], transposed=transposed)
    product = 2 * x.shape[0] * prod(spatial) * weight.element_count
    written = mask[0] * x.size_bytes + mask[1] * weight.size_bytes + mask[2] * bytes_of(grad.shape[1], grad.dtype)
    return Work(
        family=Family.CONVOLUTION,
        flops=product * (mask[0] + mask[1]),
        read_bytes=tensor_bytes(grad) + mask[0] * tensor_bytes(weight) + mask[1] * _met(x, weight, grad.shape[2:]),
        written_bytes=written,
        dtype=grad.dtype,
        is_matrix=True,
        dims=replace(dims, direction=direction) if direction else None,
    )


def _met(x: TensorSpec, weight: TensorSpec, out: tuple[int, ...]) -> float:
    """Return the bytes of the pixels of x that some position of the filter meets: of strided ones no more need be."""
    sizes = zip(x.shape[2:], weight.shape[2:], out, strict=True)
    return tensor_bytes(x) * prod(min(count * taps / max(size, 1), 1.0) for size, taps, count in sizes)


def cudnn_convolution(signature: Signature) -> Work:
    """Return cuDNN's forward convolution; torch before 1.8 passed a bias third."""
    has_bias = not isinstance(argument_at(signature, 2), tuple) and isinstance(argument_at(signature, 3), tuple)
    return forward_work(signature, _VENDOR if has_bias else _CUDNN)


def _dims(
    signature: Signature,
    layout: _Layout | BackwardLayout,
    operands: tuple[TensorSpec, ...],
    result: tuple[int, ...],
    *,
    transposed: bool,
) -> ConvolutionDims:
    """Return the sizes by the operands, input and weight first, and the result's channels and spatial sizes."""
    x, weight = operands[:2]
    channels = result[0] if transposed else x.shape[1]
    return ConvolutionDims(
        batch=x.shape[0],
        c_in=x.shape[1],
        c_out=result[0],
        groups=max(channels // max(weight.shape[1], 1), 1),
        input_size=x.shape[2:],
        output_size=result[1:],
        kernel_size=weight.shape[2:],
        stride=_stride(signature, layout.stride, x.shape[2:], result[1:]),
        dilation=_dilation(signature, layout.dilation, len(weight.shape) - 2),
        is_transposed=transposed,
        is_channels_last=_is_channels_last(*operands),
        copied_elements=_copied_elements(*operands),
    )


def _batched(x: TensorSpec, rank: int) -> TensorSpec:
    """Return the input with its batch dimension, which conv1d, conv2d and conv3d may leave out."""
    if rank >= 3 and len(x.shape) == rank:
        return x
    if rank >= 3 and len(x.shape) == rank - 1:
        return TensorSpec(x.dtype, (1, *x.shape), None if x.strides is None else (0, *x.strides))
    raise LackingArgumentError("input and weight of different ranks")


def _transposed(signature: Signature, where: int | bool) -> bool:
    return where if isinstance(where, bool) else flag_at(signature, where)


def _groups(signature: Signature, layout: _Layout) -> int:
    if layout.groups is None or layout.groups >= len(signature.arguments):
        return 1
    return size_at(signature, layout.groups)


def _stride(
    signature: Signature, position: int, input_size: tuple[int, ...], output_size: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the stride: recorded, or the nearest whole ratio of the sizes."""
    try:
        return _per_dim(signature, position, len(input_size), 1)
    except LackingArgumentError:
        sizes = ((max(pair), max(min(pair), 1)) for pair in zip(input_size, output_size, strict=True))
        return tuple(max(round(large / small), 1) for large, small in sizes)


def _dilation(signature: Signature, position: int | None, rank: int) -> tuple[int, ...]:
    """Return the dilation; empty where it is 1 or not recorded."""
    try:
        dilation = _per_dim(signature, position, rank, 1)
    except LackingArgumentError:
        return ()
    return dilation if max(dilation, default=1) > 1 else ()


def _is_channels_last(*tensors: TensorSpec) -> bool:
    """Say whether channels are innermost in the operands' recorded strides.

    PyTorch computes in that layout where any operand has it (`cudnn_conv_suggest_memory_format`); tensors whose
    layouts are one and the same, as those of a single channel, tell nothing.
    """
    return any(_has_innermost_channels(tensor) for tensor in tensors)


def _copied_elements(*tensors: TensorSpec) -> int:
    """Return the elements of operands that are copied where another one has channels innermost."""
    if not _is_channels_last(*tensors):
        return 0
    others = (tensor for tensor in tensors if _has_layout(tensor) and not _has_innermost_channels(tensor))
    return sum(tensor.element_count for tensor in others)


def _has_innermost_channels(tensor: TensorSpec) -> bool:
    return _has_layout(tensor) and tensor.strides is not None and tensor.strides[1] == 1


def _has_layout(tensor: TensorSpec) -> bool:
    """Say whether strides were recorded, of a tensor whose layouts differ."""
    is_known = tensor.strides is not None and len(tensor.strides) == len(tensor.shape)
    return is_known and tensor.shape[1] > 1 and prod(tensor.shape[2:]) > 1


def _out_spatial(
    signature: Signature, layout: _Layout, x: TensorSpec, weight: TensorSpec, *, transposed: bool
) -> tuple[int, ...]:
    """Return the output's spatial sizes: recorded, or from the arguments by the usual arithmetic."""
    result = result_at(signature)
    rank = len(weight.shape) - 2
    if result is not None and len(result.shape) >= rank:
        return result.shape[-rank:]
    stride = _per_dim(signature, layout.stride, rank, 1)
    dilation = _per_dim(signature, layout.dilation, rank, 1)
    reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    padding = _padding(signature, layout.padding, rank, reach)
    sizes = zip(x.shape[2:], stride, reach, padding, strict=True)
    if transposed:
        extra = _per_dim(signature, layout.output_padding, rank, 0)
        spatial = [(n - 1) * s - p + r + e + 1 for (n, s, r, p), e in zip(sizes, extra, strict=True)]
    else:
        spatial = [(n + p - r - 1) // max(s, 1) + 1 for n, s, r, p in sizes]
    if min(spatial) < 0:
        raise LackingArgumentError("a kernel larger than the padded input")
    return tuple(spatial)


def _padding(signature: Signature, position: int, rank: int, reach: list[int]) -> tuple[int, ...]:
    """Return the padding of both sides together, per dimension."""
    mode = argument_at(signature, position)
    if mode == "same":
        return tuple(reach)
    if mode == "valid":
        return (0,) * rank
    return tuple(2 * side for side in _per_dim(signature, position, rank, 0))


def _per_dim(signature: Signature, position: int | None, rank: int, default: int) -> tuple[int, ...]:
    if position is None or position >= len(signature.arguments):
        return (default,) * rank
    sizes = sizes_at(signature, position)
    if len(sizes) == 1:
        return sizes * rank
    if len(sizes) != rank:
        raise LackingArgumentError(position)
    return sizes
