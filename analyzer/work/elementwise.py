"""Elementwise ops: operand positions and FLOPs per element are in `formulas.csv`.

FLOPs per element count the defining formula: each arithmetic operation, comparison or special function is 1
(so a sigmoid 1/(1 + e^−x) is 4). Operands broadcast; an expanded one is read once per distinct element.

Kernels that inductor generated are ops of their own in profiles, named by what they do: `poi` computes element by
element, `red` and `per` reduce rows. Which of the call's tensors are read and which written, it does not say.
"""

from dataclasses import replace
from functools import partial
from typing import Final

from ...formats.trace.signature import Signature, TensorSpec
from .access import Access, access_of
from .arguments import LackingArgumentError, argument_at, result_at, result_tensors, tensor_at, tensors_at
from .traffic import broadcast_shape, bytes_of, float_dtype, promote, tensor_bytes, total_bytes
from .work import Family, Work, build_work

_GELU_FLOPS: Final = {"none": 9, "tanh": 9}
_GELU_BACKWARD_FLOPS: Final = {"none": 11, "tanh": 18}


def pointwise(
    signature: Signature,
    *,
    positions: tuple[int, ...],
    flops: int,
    out_dtype: str | None = None,
    is_float: bool = False,
    functions: int = 0,
) -> Work:
    """Return the work of an op whose result is the broadcast of the tensors at these positions.

    Scalars may follow. `is_float`: integer inputs become float32. `functions`: as in `Access`; numbers divide by none.
    """
    inputs = tensors_at(signature, *positions)
    if not inputs:
        raise LackingArgumentError(positions)
    dtype = promote(inputs)
    if is_float:
        dtype = float_dtype(dtype)
    result = result_at(signature)
    if result is None:
        result = TensorSpec(out_dtype or dtype, broadcast_shape(*[tensor.shape for tensor in inputs]))
    work = _work(flops * result.element_count, total_bytes(inputs), tensor_bytes(result), dtype)
    access = access_of(inputs, result_at(signature))
    if functions and len(inputs) == len(positions) and all(item.shape for item in inputs):
        access = replace(access or Access(), functions=functions)
    return replace(work, access=access)


def sum_of_two(signature: Signature) -> Work:
    """Add or subtract; a factor alpha other than 1 makes it a multiply-add."""
    alpha = argument_at(signature, 2)
    has_factor = isinstance(alpha, int | float) and alpha != 1
    return pointwise(signature, positions=(0, 1), flops=1 + has_factor)


def multiply_add(signature: Signature) -> Work:
    """Return the work of x + value · a · b; two factors alike are one tensor, as where optimizers square a gradient."""
    is_square = argument_at(signature, 1) == argument_at(signature, 2)
    return pointwise(signature, positions=(0, 1) if is_square else (0, 1, 2), flops=3)


def gelu(signature: Signature, *, positions: tuple[int, ...], flops: dict[str, int], functions: int) -> Work:
    """GELU or its backward; the approximation's name follows the tensors."""
    approximation = argument_at(signature, len(positions))
    name = approximation if isinstance(approximation, str) else "none"
    return pointwise(signature, positions=positions, flops=flops.get(name, flops["none"]), functions=functions)


def where(signature: Signature) -> Work:
    """Choose between two operands; the condition does not set the dtype."""
    condition, chosen = tensor_at(signature, 0), tensors_at(signature, 1, 2)
    if len(signature.arguments) < 3:
        raise LackingArgumentError("where with the condition alone is nonzero")
    dtype = promote(chosen) if chosen else "float32"
    shape = broadcast_shape(condition.shape, *[tensor.shape for tensor in chosen])
    result = result_at(signature) or TensorSpec(dtype, shape)
    work = _work(result.element_count, total_bytes((condition, *chosen)), tensor_bytes(result), dtype)
    return replace(work, access=access_of((condition, *chosen), result_at(signature)))


def glu(signature: Signature) -> Work:
    """One half times the sigmoid of the other."""
    x = tensor_at(signature, 0)
    count = x.element_count // 2
    return _work(5 * count, tensor_bytes(x), bytes_of(count, x.dtype), x.dtype)


def isin(signature: Signature) -> Work:
    """Membership of each element; a search through the n test elements costs log₂ n comparisons at least."""
    elements, tested = tensors_at(signature, 0), tensors_at(signature, 1)
    if not elements:
        raise LackingArgumentError(0)
    count = elements[0].element_count
    depth = max(1, tested[0].element_count.bit_length() - 1) if tested else 1
    return _work(count * depth, total_bytes((*elements, *tested)), bytes_of(count, "bool"), elements[0].dtype)


_work = partial(build_work, Family.ELEMENTWISE)


def moves_all(signature: Signature, *, family: Family) -> Work:
    """A generated kernel moves each tensor of its call once and computes little."""
    tensors: tuple[TensorSpec, ...] = signature.tensors()
    if not tensors:
        raise LackingArgumentError("the tensors of a generated kernel")
    *read, written = tensors
    return Work(
        family=family,
        flops=float(max(tensor.element_count for tensor in tensors)),
        read_bytes=sum(map(tensor_bytes, read)),
        written_bytes=tensor_bytes(written),
        dtype=max(tensors, key=tensor_bytes).dtype,
    )


def once(
    signature: Signature,
    *,
    family: Family,
    read: tuple[int, ...],
    written: tuple[int, ...],
    beside: tuple[int, ...] = (),
    has_results: bool = False,
    counted: int = 0,
    flops: int = 0,
) -> Work:
    """Read and write tensors once, with `flops` per element of the one at `counted`, in the first one's dtype.

    Those `beside` are read where they are given. `has_results`: what was recorded of results is written, too.
    """
    inputs = tuple(tensor_at(signature, position) for position in read)
    size = sum((tensor_at(signature, position).size_bytes for position in written), 0.0)
    size += total_bytes(result_tensors(signature)) if has_results else 0.0
    count = tensor_at(signature, counted).element_count
    return build_work(
        family, flops * count, total_bytes((*inputs, *tensors_at(signature, *beside))), size, inputs[0].dtype
    )


def as_recorded(signature: Signature, *, family: Family, flops: int = 0) -> Work:
    """Read the first tensor once and write the result, whose size is known where it was recorded alone."""
    x, result = tensor_at(signature, 0), result_at(signature)
    if result is None:
        raise LackingArgumentError("result")
    return build_work(family, flops * x.element_count, tensor_bytes(x), result.size_bytes, x.dtype)
