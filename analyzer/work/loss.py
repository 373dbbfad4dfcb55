"""Losses and their gradients. Reduction 0 keeps one value per element, 1 and 2 (mean, sum) leave a single one.

Where the reduction was not recorded, one result counts as written: the least that it can be.
"""

from dataclasses import replace
from math import prod
from typing import Final

from ...formats.trace.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, result_at, result_tensors, tensor_at, tensors_at
from .row_kernels import RowKernel
from .traffic import broadcast_shape, bytes_of, tensor_bytes, total_bytes
from .work import Family, RowDims, Work, build_work

_SOFTMAX_FLOPS: Final = 5
PICK_THREADS, BLOCKS_PER_PART = 1024, 128
"""Threads of a block that picks the targets of an image, and those blocks' worth of pixels for which there is one."""


def loss(signature: Signature, *, flops: int, reduction: int) -> Work:
    """An elementwise loss: input, target, weights; its values are written, then reduced by a second kernel.

    `flops` are per element with the final sum, `reduction` is the position of its kind.
    """
    x, target = tensor_at(signature, 0), tensor_at(signature, 1)
    inputs = (x, target, *tensors_at(signature, *range(2, reduction)))
    count = prod(broadcast_shape(x.shape, target.shape))
    written, element = _reduced_bytes(signature, reduction, count, x.dtype), bytes_of(1, x.dtype)
    work = _work(flops * count, inputs, written, x.dtype)
    if written >= count * element:
        return _streamed(work, count, launches=1)
    streamed = total_bytes(inputs) + count * element
    dims = RowDims(
        rows=1,
        columns=count,
        kernel=RowKernel.REDUCE,
        walked_bytes=count * element,
        streamed_bytes=streamed,
        launches=2,
    )
    return replace(work, dims=dims)


def loss_backward(signature: Signature, *, flops: int) -> Work:
    """The input's gradient: grad, input, target, weights."""
    inputs = tensors_at(signature, 0, 1, 2, 3)
    x = tensor_at(signature, 1)
    return _streamed(_work(flops * x.element_count, inputs, x.size_bytes, x.dtype), x.element_count, launches=1)


def nll_loss(signature: Signature) -> Work:
    """Pick the target's log-probability of each row: input, target, class weights, reduction."""
    x, target = tensor_at(signature, 0), tensor_at(signature, 1)
    weights = tensors_at(signature, 2)
    count = target.element_count
    written = _reduced_bytes(signature, 3, count, x.dtype)
    picked = bytes_of(count, x.dtype)
    work = Work(
        family=Family.LOSS,
        flops=count * (2 + 2 * len(weights)),
        read_bytes=picked + total_bytes((target, *weights)),
        written_bytes=written,
        dtype=x.dtype,
    )
    if written >= picked:
        return replace(work, dims=RowDims(rows=count, columns=1, kernel=RowKernel.REDUCE))
    rows, threads = _picked(x, count)
    return replace(work, dims=RowDims(rows=rows, columns=threads, kernel=RowKernel.PICK))


def _picked(x: TensorSpec, count: int) -> tuple[int, int]:
    """Return the rows that a block picks from, and its threads where known.

    One block takes all rows of a matrix. Images take one each, larger ones more (`nll_loss2d_forward` in
    NLLLoss2d.cu: 1/128 of the blocks with a thread per pixel).
    """
    if len(x.shape) <= 2:
        return count, 1
    pixels = prod(x.shape[2:])
    return -(-pixels // max(-(-pixels // PICK_THREADS) // BLOCKS_PER_PART, 1)), PICK_THREADS


def nll_loss_backward(signature: Signature) -> Work:
    """Zeros of the input's shape with one gradient per row: grad, input, target, class weights."""
    grad, x, target = (tensor_at(signature, position) for position in range(3))
    weights = tensors_at(signature, 3)
    inputs = (grad, target, *weights, *tensors_at(signature, 6))
    count = target.element_count
    work = _work(count * (1 + len(weights)), inputs, x.size_bytes, x.dtype)
    if grad.element_count > 1:
        return _streamed(work, x.element_count, launches=2)
    rows, threads = _picked(x, count)
    picked = float(target.size_bytes + bytes_of(count, x.dtype))
    dims = RowDims(
        rows=rows, columns=threads, kernel=RowKernel.PICK, walked_bytes=picked, streamed_bytes=x.size_bytes, launches=2
    )
    return replace(work, dims=dims)


def cross_entropy_loss(signature: Signature) -> Work:
    """Log-softmax and the pick of the target's entry: input, target, class weights, reduction."""
    x, target = tensor_at(signature, 0), tensor_at(signature, 1)
    rows = target.element_count
    has_probabilities = x.shape == target.shape
    flops = (_SOFTMAX_FLOPS + 2 * has_probabilities) * x.element_count + 2 * rows * (not has_probabilities)
    inputs = (x, target, *tensors_at(signature, 2))
    return _work(flops, inputs, _reduced_bytes(signature, 3, rows, x.dtype), x.dtype)


def ctc_loss(signature: Signature) -> Work:
    """Forward recursion over [time, batch, 2·target + 1]: 7 FLOP per cell of the recorded table."""
    log_probabilities, targets = tensor_at(signature, 0), tensor_at(signature, 1)
    table = result_at(signature, 1)
    if table is None:
        raise LackingArgumentError("the recorded table of path probabilities")
    written, x = total_bytes(result_tensors(signature)), log_probabilities
    return _in_turn(_work(7 * table.element_count, (x, targets), written, x.dtype), x)


def ctc_loss_backward(signature: Signature) -> Work:
    """Backward recursion over the same table, and the gradient of the log-probabilities."""
    grad, x, targets = (tensor_at(signature, position) for position in range(3))
    likelihood, table = tensor_at(signature, 5), tensor_at(signature, 6)
    work = _work(12 * table.element_count, (grad, x, targets, likelihood, table), x.size_bytes, x.dtype)
    return _in_turn(work, x)


def margin_loss(signature: Signature) -> Work:
    """A hinge per class: input, target."""
    x, target = tensor_at(signature, 0), tensor_at(signature, 1)
    written = total_bytes(result_tensors(signature)) or bytes_of(1, x.dtype)
    return _work(4 * x.element_count, (x, target), written, x.dtype)


def _in_turn(work: Work, log_probabilities: TensorSpec) -> Work:
    """Return the work of a recursion over time: each step waits for memory and a barrier of its block.

    That is about as long as an empty kernel takes, as which each step counts; no measurement shows it.
    """
    return _streamed(work, log_probabilities.element_count, launches=max(log_probabilities.shape[0], 1))


def _reduced_bytes(signature: Signature, reduction: int, count: int, dtype: str) -> float:
    result = result_at(signature)
    if result is not None:
        return tensor_bytes(result)
    mode = argument_at(signature, reduction)
    is_kept = mode == 0 and isinstance(mode, int) and not isinstance(mode, bool)
    return bytes_of(count if is_kept else 1, dtype)


def _streamed(work: Work, count: int, launches: int) -> Work:
    """Return the work of elementwise kernels alone."""
    dims = RowDims(rows=1, columns=count, kernel=RowKernel.STREAM, streamed_bytes=work.moved_bytes, launches=launches)
    return replace(work, dims=dims)


def _work(flops: float, inputs: tuple[TensorSpec, ...], written_bytes: float, dtype: str) -> Work:
    return build_work(Family.LOSS, flops, total_bytes(inputs), written_bytes, dtype)
