"""Layers of experts, and what routes tokens to them."""

from typing import Final

from ....formats.trace.signature import Signature, TensorSpec
from ....specs.experts_kernels import ExpertsKernel
from ..arguments import LackingArgumentError, tensor_at, tensors_at
from ..traffic import bytes_of, total_bytes
from ..work import ExpertsDims, ExpertsFormat, Family, RowDims, Work
from .library_op import integers, pass_over, tensors_of_rank

# Softmax of each token's scores and a comparison for each expert that is chosen.
ROUTING_FLOPS = 6
_PER_BLOCK: Final = 3
"""Dimensions of scales that are given per block of the weights."""


def chosen_experts(signature: Signature, *, choice: int, kernel: ExpertsKernel | None = None) -> Work:
    """Layers that are told which experts were chosen: (tokens, … weights …, choices [tokens, top k] at `choice`)."""
    x, chosen = tensor_at(signature, 0, 2), tensor_at(signature, choice, 2)
    first, second = _weights(signature)
    asked = [count for count in integers(signature) if count >= first.shape[0]]
    return _layer(signature, x, first, second, chosen.shape[1], asked[0] if asked else first.shape[0], kernel)


def ranked_experts(signature: Signature, *, choice: int, begin: int, kernel: ExpertsKernel | None = None) -> Work:
    """Do the same where ranks are told: from `begin` on tensor-parallel size and rank, then expert-parallel ones."""
    x, chosen = tensor_at(signature, 0, 2), tensor_at(signature, choice, 2)
    first, second = _weights(signature)
    counts = integers(signature, begin)
    ranks = counts[2] if len(counts) > 2 else 1
    return _layer(signature, x, first, second, chosen.shape[1], first.shape[0] * max(ranks, 1), kernel)


def routed_experts(signature: Signature, *, x: int = 2, kernel: ExpertsKernel | None = None) -> Work:
    """Layers that route themselves: (scores, bias, tokens, …); the first two integers are experts and top k."""
    first, second = _weights(signature)
    counts = [count for count in integers(signature) if count > 0]
    if len(counts) < 2:
        raise LackingArgumentError("experts and how many a token takes")
    return _layer(signature, tensor_at(signature, x, 2), first, second, counts[1], counts[0], kernel)


def choose_experts(signature: Signature, *, scores: int) -> Work:
    """Read each token's scores, write its choices; what is written comes before the scores, or is as small."""
    given = tensor_at(signature, scores, 2)
    rows, columns = given.shape
    written = tensors_at(signature, *range(scores))
    dims = RowDims(rows=rows, columns=columns)
    return pass_over(Family.SOFTMAX, ROUTING_FLOPS * given.element_count, (given,), written, dims=dims)


def sort_choices(signature: Signature, *, written: tuple[int, ...] = (3, 4, 5)) -> Work:
    """Choices, experts, rows of a block: each choice's place in the order of experts."""
    chosen = tensor_at(signature, 0)
    return pass_over(Family.SORT, 2 * chosen.element_count, (chosen,), tensors_at(signature, *written))


def add_up(signature: Signature) -> Work:
    """Add the results of each token's experts: ([tokens, top k, hidden], [tokens, hidden])."""
    x, out = tensor_at(signature, 0, 3), tensor_at(signature, 1)
    return pass_over(Family.REDUCTION, x.element_count, (x,), (out,))


def move_rows(signature: Signature) -> Work:
    """Copy rows to the places that a list says: (input, places, result)."""
    x, places, out = (tensor_at(signature, position) for position in range(3))
    read = TensorSpec(x.dtype, out.shape) if out.element_count < x.element_count else x
    return pass_over(Family.INDEXING, 0, (read, places), (out,))


def _weights(signature: Signature) -> tuple[TensorSpec, TensorSpec]:
    """Return both products' weights: the two largest tensors of three dimensions, in order."""
    found = tensors_of_rank(signature, 3)
    if len(found) < 2:
        raise LackingArgumentError("weights of two products")
    largest = sorted(range(len(found)), key=lambda place: (-found[place].size_bytes, place))[:2]
    first, second = (found[place] for place in sorted(largest))
    if first.shape[0] != second.shape[0]:
        raise LackingArgumentError("weights of as many experts")
    return first, second


def _layer(
    signature: Signature,
    x: TensorSpec,
    first: TensorSpec,
    second: TensorSpec,
    top_k: int,
    experts: int,
    kernel: ExpertsKernel | None,
) -> Work:
    """Return the work of a layer: products 2·rows·(columns·hidden + hidden·intermediate), weights of busy experts.

    Tokens are taken as spread evenly, as far as the weights' bytes go; the model knows how uneven they may be.
    """
    tokens, local = x.shape[0], first.shape[0]
    packed = 2 if x.dtype in ("uint8", "float4_e2m1fn_x2") else 1
    hidden = x.shape[1] * packed
    per_element = max(hidden // max(first.shape[2], 1), 1)
    columns, intermediate = first.shape[1], second.shape[2] * per_element
    if (
        first.shape[2] * per_element != hidden
        or second.shape[1] != hidden
        or columns not in (intermediate, 2 * intermediate)
    ):
        raise LackingArgumentError("weights [experts, columns, hidden] and [experts, hidden, columns]")
    form = _format(signature, x, first, per_element)
    rows = tokens * top_k * local / max(experts, local)
    busy = local * (1.0 - (1.0 - min(top_k / max(experts, 1), 1.0)) ** tokens)
    both = columns * hidden + hidden * intermediate
    weight_bytes = total_bytes((first, second)) / max(local, 1) * busy
    is_quantized = form in (ExpertsFormat.FP8, ExpertsFormat.FP8_BLOCK, ExpertsFormat.FP4, ExpertsFormat.W4A8)
    return Work(
        family=Family.EXPERTS,
        flops=2 * rows * both,
        read_bytes=total_bytes((x,)) + weight_bytes,
        written_bytes=bytes_of(tokens * hidden, "bfloat16"),
        dtype=_arithmetic(x, form),
        is_matrix=True,
        dims=ExpertsDims(
            tokens=tokens,
            hidden=hidden,
            intermediate=intermediate,
            experts=max(experts, local),
            local_experts=local,
            top_k=top_k,
            is_gated=columns == 2 * intermediate,
            weights=form,
            is_quantized=is_quantized and x.dtype in ("bfloat16", "float16"),
            kernel=kernel,
        ),
    )


def _format(signature: Signature, x: TensorSpec, weights: TensorSpec, per_element: int) -> ExpertsFormat:
    """Return how weights and tokens are held: by their dtypes, and by how many numbers an element holds."""
    is_half = x.dtype in ("bfloat16", "float16", "float32")
    if per_element > 1:
        if is_half:
            return ExpertsFormat.W4A16
        return ExpertsFormat.W4A8 if x.dtype.startswith("float8") else ExpertsFormat.FP4
    if weights.dtype.startswith("float8"):
        scales = [item for item in tensors_of_rank(signature, _PER_BLOCK) if item.dtype == "float32"]
        return ExpertsFormat.FP8_BLOCK if any(item.shape[2] > 1 for item in scales) else ExpertsFormat.FP8
    if weights.dtype in ("int8", "uint8"):
        return ExpertsFormat.W8A16
    return ExpertsFormat.PLAIN


def _arithmetic(x: TensorSpec, form: ExpertsFormat) -> str:
    match form:
        case ExpertsFormat.FP8 | ExpertsFormat.FP8_BLOCK | ExpertsFormat.W4A8:
            return "float8_e4m3fn"
        case ExpertsFormat.FP4:
            return "float4_e2m1fn_x2"
        case _:
            return x.dtype
