"""Optimizer steps: foreach ops over lists of tensors, and fused whole steps.

FLOPs per element of a fused step follow its update rule (weight decay, moments, bias-corrected quotient).
"""

from dataclasses import replace
from typing import Final

from ...formats.trace.signature import Signature, TensorSpec
from .access import Access
from .arguments import argument_at, optional_tensor_list_at, result_tensors, tensor_at, tensor_list_at, tensors_at
from .traffic import bytes_of, total_bytes
from .work import Family, RowDims, Work, build_work

# m: 3, v: 4, root and bias correction and ε: 3, quotient and update: 3, weight decay: 2.
_ADAM_FLOPS: Final = 15
_AMSGRAD_FLOPS: Final = 1
# Weight decay 2, momentum 3, update 2.
_SGD_FLOPS, _SGD_MOMENTUM_FLOPS = 4, 3
# Weight decay 2, squared sum 2, root and ε 2, quotient and update 3.
_ADAGRAD_FLOPS: Final = 9

ROOT_OPERATIONS: Final = 9.0
"""Instructions of a division or a square root beyond the one that is counted: an approximation and its refinement."""
CHUNK: Final = 65536
MOST_BLOCKS: Final = 320
MOST_TENSORS: Final = (110, 64, 48, 36, 30)
"""Elements of a block, blocks of a launch, and tensors of a launch by the number of lists: `kChunkSize`,
`depth_to_max_blocks` and `depth_to_max_tensors` of PyTorch's MultiTensorApply.cuh."""


def foreach(
    signature: Signature, *, positions: tuple[int, ...], flops: int, roots: int = 0, reads_first: bool = True
) -> Work:
    """An elementwise op on lists: the lists and tensors at these positions are read, as many results written.

    `addcmul` reads two: every optimizer of torch squares there, both factors are one list. `roots` are divisions and
    square roots among the FLOPs.
    """
    first = tensor_list_at(signature, positions[0])
    others = _lists(signature, positions[1:])
    outputs = result_tensors(signature) or first
    read = (*first, *others) if reads_first else others
    work = _work(flops * _element_count(outputs), read, total_bytes(outputs), first[0].dtype)
    lists = 1 + len(others) // max(len(first), 1) + bool(result_tensors(signature))
    return _with_roots(_launched(work, first, lists), roots)


def foreach_sum(signature: Signature) -> Work:
    """Add or subtract lists; a factor alpha other than 1 makes it a multiply-add."""
    alpha = argument_at(signature, 2)
    has_factor = isinstance(alpha, int | float) and alpha != 1
    return foreach(signature, positions=(0, 1), flops=1 + has_factor)


def foreach_reduce(signature: Signature, *, flops: int) -> Work:
    """Reduce every tensor of the list to one element; a last kernel joins what blocks found."""
    tensors = tensor_list_at(signature, 0)
    written = bytes_of(len(tensors), tensors[0].dtype)
    work = _work(flops * _element_count(tensors), tensors, written, tensors[0].dtype)
    return _launched(work, tensors, 1, more=1)


def foreach_pow(signature: Signature) -> Work:
    """Powers of lists; the base or the exponent may be a scalar."""
    exponents = optional_tensor_list_at(signature, 1)
    bases = optional_tensor_list_at(signature, 0)
    if exponents and not bases:
        return _work(_element_count(exponents), exponents, total_bytes(exponents), exponents[0].dtype)
    return foreach(signature, positions=(0, 1), flops=1)


def unscale(signature: Signature) -> Work:
    """Divide gradients by the loss scale in place and look for non-finite ones."""
    gradients = tensor_list_at(signature, 0)
    read = (*gradients, *tensors_at(signature, 1, 2))
    work = _work(2 * _element_count(gradients), read, total_bytes(gradients), gradients[0].dtype)
    return _launched(work, gradients, 1)


def fused_adam(signature: Signature) -> Work:
    """One Adam step: parameters, gradients, two moments, maximal second moments (AMSGrad), step counts."""
    extra = optional_tensor_list_at(signature, 4)
    flops = _ADAM_FLOPS + (_AMSGRAD_FLOPS if extra else 0)
    return _with_roots(_fused_step(signature, states=(2, 3, 4), flops=flops, step_counts=5, grad_scale=13), 2)


def fused_sgd(signature: Signature) -> Work:
    """One SGD step: parameters, gradients, momentum buffers."""
    has_momentum = bool(optional_tensor_list_at(signature, 2))
    flops = _SGD_FLOPS + has_momentum * _SGD_MOMENTUM_FLOPS
    return _fused_step(signature, states=(2,), flops=flops, step_counts=None, grad_scale=10)


def fused_adagrad(signature: Signature) -> Work:
    """One Adagrad step: parameters, gradients, squared sums, step counts."""
    return _with_roots(_fused_step(signature, states=(2,), flops=_ADAGRAD_FLOPS, step_counts=3, grad_scale=9), 2)


def _fused_step(
    signature: Signature, *, states: tuple[int, ...], flops: int, step_counts: int | None, grad_scale: int
) -> Work:
    """Return a step that reads parameters, gradients and states and writes all but the gradients.

    A gradient scale makes it write the unscaled gradients too.
    """
    parameters, gradients = tensor_list_at(signature, 0), tensor_list_at(signature, 1)
    state = _lists(signature, states)
    steps = () if step_counts is None else optional_tensor_list_at(signature, step_counts)
    has_scale = isinstance(argument_at(signature, grad_scale), TensorSpec)
    written = total_bytes((*parameters, *state)) + has_scale * total_bytes(gradients)
    read = (*parameters, *gradients, *state, *steps)
    work = _work(flops * _element_count(parameters), read, written, parameters[0].dtype)
    return _launched(work, parameters, 2 + len(state) // max(len(parameters), 1))


def _launched(work: Work, tensors: tuple[TensorSpec, ...], lists: int, more: int = 0) -> Work:
    """Return the work with how many kernels take so many lists of tensors like these, and `more`, in rows of a block.

    A launch ends when its arguments hold no more tensors, or at its most blocks, each of which takes one chunk.
    """
    most = MOST_TENSORS[min(lists, len(MOST_TENSORS)) - 1]
    launches, held, blocks = 0, 0, 0
    for tensor in tensors:
        held, blocks = held + 1, blocks + max(-(-tensor.element_count // CHUNK), 1)
        if blocks >= MOST_BLOCKS:
            launches, blocks = launches + blocks // MOST_BLOCKS, blocks % MOST_BLOCKS
            held = int(blocks > 0)
        if held == most:
            launches, held, blocks = launches + 1, 0, 0
    count = launches + (blocks > 0) + more
    elements, columns = _element_count(tensors), min(max(tensor.element_count for tensor in tensors), CHUNK)
    rows = max(round(elements / max(columns, 1)), 1)
    return replace(work, dims=RowDims(rows=rows, columns=max(columns, 1), launches=count))


def _with_roots(work: Work, roots: int) -> Work:
    return replace(work, access=Access(operations=ROOT_OPERATIONS * roots)) if roots else work


def _lists(signature: Signature, positions: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    found: list[TensorSpec] = []
    for position in positions:
        argument = argument_at(signature, position)
        found.extend((tensor_at(signature, position),) if isinstance(argument, TensorSpec) else ())
        found.extend(optional_tensor_list_at(signature, position))
    return tuple(found)


def _element_count(tensors: tuple[TensorSpec, ...]) -> int:
    return sum(tensor.element_count for tensor in tensors)


def _work(flops: float, inputs: tuple[TensorSpec, ...], written_bytes: float, dtype: str) -> Work:
    return build_work(Family.OPTIMIZER, flops, total_bytes(inputs), written_bytes, dtype)
