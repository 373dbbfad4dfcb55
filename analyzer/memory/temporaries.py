"""What ops take beside their tensors while they run, and what cuDNN keeps for the backward pass of recurrent layers."""

from math import prod
from typing import Final

import numpy as np

from ...arrays import Rows
from ...formats.trace.meta import Meta
from ...formats.trace.signature import DTYPE_BYTES, Signature, TensorSpec, flatten_tensors
from ...formats.trace.tables import Trace
from ...specs.gpu import Rate
from ..work import Family, family_of, work_of
from ..work.kernel_names import rate_of_work
from ..work.reduce_blocks import column_blocks
from ..work.work import AttentionDims, ConvolutionDims, Direction, RecurrentDims, Work

_MIB: Final = 1 << 20
_SUM_BYTES: Final = 4
"""Of a partial sum: 16-bit elements are added up in float32."""
RECURRENT_FORWARD: Final = "aten::_cudnn_rnn"
_RECURRENT: Final = frozenset({RECURRENT_FORWARD, "aten::_cudnn_rnn_backward"})
_DROPOUT, _TRAINS = 11, 12
"""Of the arguments of the forward op."""
_SUMS: Final = frozenset({"aten::sum"})


def temporary_bytes(trace: Trace, window_ops: Rows) -> Rows:
    """Return what each op of the window takes and gives back beside each result but its last, and beside that.

    [2, n ops]; the second is no less. Rules were read off the allocator's events of an H100 and an H200 under torch
    2.11 (benchmarks/check/own_memory.py prints what they give).
    """
    names, numbers = trace.ops.name[window_ops], trace.ops.signature[window_ops]
    calls, place = np.unique(np.stack([names, numbers]), axis=1, return_inverse=True)
    sizes = [
        _of_call(trace.strings[name], trace.signatures[number], trace.meta) if number >= 0 else (0, 0)
        for name, number in calls.T.tolist()
    ]
    return np.array(sizes, dtype=np.int64).reshape(-1, 2).T[:, place.ravel()]


def _of_call(name: str, signature: Signature, meta: Meta) -> tuple[int, int]:
    has_rule = family_of(name) in (Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT)
    work = work_of(name, signature) if has_rule else None
    found = _partial_sums(signature) if name in _SUMS else 0
    if work is not None and isinstance(work.dims, ConvolutionDims):
        return _layout_copies(work, work.dims, rate_of_work("", work, meta))
    if work is not None and isinstance(work.dims, AttentionDims):
        found = _query_gradient(work, work.dims)
    elif work is not None and isinstance(work.dims, RecurrentDims) and name in _RECURRENT:
        found = _recurrent_workspace(work, work.dims, signature)
    return found, found


_PARTS_BYTES, _MOST_PARTS = 8 * _MIB, 14


def _layout_copies(work: Work, dims: ConvolutionDims, rate: Rate | None) -> tuple[int, int]:
    """Return the copies of input, output and weight with channels innermost, which matrix units want.

    Products of 1 x 1 need none forward, nor do depthwise ones; lanes (fp32) need them backward alone. Channels of 16
    bits are filled up to eight. Of what lies with channels innermost an input that is filled up is the only copy.
    Weights' gradients have float32 partial sums besides, as many as 8 MiB hold. Products copy nothing for the input's
    and sum up the weight's from one per image where that is less.
    """
    element_bytes = DTYPE_BYTES.get(work.dtype, 4)
    is_forward = dims.direction is Direction.FORWARD
    is_plain = prod(dims.kernel_size) == 1 and max(dims.stride, default=1) == 1
    is_depthwise = 1 < dims.groups == dims.c_in
    if is_depthwise or (is_forward and (rate is Rate.MATRIX_FP32 or is_plain)):
        return 0, 0
    step = 8 if element_bytes == 2 else 1
    inputs, outputs = (-(-channels // step) * step for channels in (dims.c_in, dims.c_out))
    weight = inputs * outputs // max(dims.groups, 1) * prod(dims.kernel_size)
    copied_in, rest = (
        dims.batch * inputs * prod(dims.input_size),
        dims.batch * outputs * prod(dims.output_size) + weight,
    )
    if dims.is_channels_last:
        copied_in, rest = copied_in * (inputs > dims.c_in), 0
    copies = int((copied_in + rest) * element_bytes)
    if is_forward or dims.is_channels_last or rate is Rate.MATRIX_FP32:
        return copies, copies
    part = max(int(weight * _SUM_BYTES), 1)
    divided = copies + part * min(_PARTS_BYTES // part, _MOST_PARTS)
    return (0, min(divided, int(dims.batch * part))) if is_plain else (copies, divided)


def _query_gradient(work: Work, dims: AttentionDims) -> int:
    """Return the float32 gradient of the queries with a sum per row; gradients of keys and values per query head."""
    if dims.direction is Direction.FORWARD:
        return 0
    rows = dims.batch * dims.heads * dims.queries
    expanded = dims.batch * dims.heads * dims.keys * (dims.query_dim + dims.value_dim)
    is_grouped = dims.kv_heads < dims.heads
    return int(rows * (dims.query_dim + 1) * _SUM_BYTES + is_grouped * expanded * DTYPE_BYTES.get(work.dtype, 2))


_SM_COUNT, _THREADS_PER_SM = 132.0, 2048.0
"""Of an H100; others are given as many blocks as they have multiprocessors, which matters where sums are long."""


def _partial_sums(signature: Signature) -> int:
    """Return the buffer of a sum over leading dims that many blocks share, each of which writes a row of it."""
    x, dims = signature.arguments[0], signature.arguments[1] if len(signature.arguments) > 1 else ()
    if not isinstance(x, TensorSpec) or not isinstance(dims, tuple) or not dims:
        return 0
    if sorted(int(dim) % max(len(x.shape), 1) for dim in dims if isinstance(dim, int)) != list(range(len(dims))):
        return 0
    sizes = (float(prod(x.shape[len(dims) :])), float(prod(x.shape[: len(dims)])), _SM_COUNT, _THREADS_PER_SM)
    launch = column_blocks(*map(np.asarray, sizes))
    each = launch.across * launch.width
    return int(_SUM_BYTES * sizes[0] * launch.sharing * each) if launch.sharing > 1.0 else 0


_WORKSPACE_PER_DIRECTION: Final = 16 * _MIB
_FORWARD_ROWS, _ROWS_PER_DIRECTION = 4.3, 2.1


def _recurrent_workspace(work: Work, dims: RecurrentDims, signature: Signature) -> int:
    """Return cuDNN's workspace: the weights, 16 MiB per direction, and several results' worth of gates.

    Fitted to two LSTMs of two layers, one in both directions, at two batch sizes and in two dtypes.
    """
    found = signature.arguments[1] if len(signature.arguments) > 1 else ()
    weights = sum(tensor.element_count for tensor in flatten_tensors((found,)))
    width = dims.steps * dims.batch * dims.hidden_size * dims.directions
    trains = dims.direction is not Direction.FORWARD or _is_training(signature)
    results = _FORWARD_ROWS + (_ROWS_PER_DIRECTION + trains) * dims.directions
    return (
        int((weights + width * results) * DTYPE_BYTES.get(work.dtype, 4)) + dims.directions * _WORKSPACE_PER_DIRECTION
    )


def reserve_bytes(signature: Signature) -> int:
    """Return what cuDNN keeps of recurrent layers for their backward pass.

    Gates and cell of every step, the input of each later layer, and a bit per element that dropout keeps. Exact for
    the LSTMs that were recorded (to 256 bytes); that of GRUs follows the same count and was not measured.
    """
    work = work_of(RECURRENT_FORWARD, signature)
    if work is None or not isinstance(work.dims, RecurrentDims) or not _is_training(signature):
        return 0
    dims = work.dims
    width = dims.steps * dims.batch * dims.hidden_size * dims.directions
    values = width * (dims.layers * (dims.gates + 1) + dims.layers - 1)
    ratio = signature.arguments[_DROPOUT] if len(signature.arguments) > _DROPOUT else 0
    masks = width * dims.directions * (dims.layers - 1) // 8 if isinstance(ratio, float) and ratio > 0 else 0
    return int(values * DTYPE_BYTES.get(work.dtype, 4)) + masks


def _is_training(signature: Signature) -> bool:
    return bool(signature.arguments[_TRAINS]) if len(signature.arguments) > _TRAINS else False
