"""What the made-up tensors of an op must hold: indices in range, probabilities, positive numbers, else noise."""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import prod
from typing import Any, Final, NamedTuple

from ...formats.trace.signature import TensorSpec
from .schema import Bound

Values = Mapping[str, Any]


class Content(Enum):
    """Name what a tensor is filled with."""

    NOISE = "noise"
    """Standard normal numbers; zeros for integers, which are in range wherever they index; random truth values."""
    POSITIVE = "positive"
    """Uniform in [0.5, 1.5); ones for integers."""
    UNIT = "unit"
    """Uniform in [0, 1)."""
    INDEX = "index"
    """Uniform integers in [0, high)."""
    STEPS = "steps"
    """Rising integers from 0 to high, evenly spaced."""
    CONSTANT = "constant"
    """`high` everywhere."""


class Fill(NamedTuple):
    """Say what a tensor is filled with."""

    content: Content
    high: int = 0


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NOISE: Final = Fill(Content.NOISE)
_POSITIVE: Final = Fill(Content.POSITIVE)
_UNIT: Final = Fill(Content.UNIT)

_POSITIVE_OPS: Final = re.compile(
    r"(_foreach_)?(log(2|10|1p)?|sqrt|rsqrt|reciprocal|pow|lgamma|digamma|polygamma|xlogy|div|floor_divide|remainder"
    r"|fmod|addcdiv|logit|acosh|multinomial|poisson)"
)
"""Ops that make NaN of negative numbers, or raise where integers are divided by zero."""
_UNIT_OPS: Final = _words(
    "bernoulli binary_cross_entropy binary_cross_entropy_backward erfinv logit_backward asin acos atanh"
)
_POSITIVE_PARAMETERS: Final = _words(
    "running_var save_invstd save_var invstd rstd var exp_avg_sqs max_exp_avg_sqs state_steps exp_avg_sq _scale "
    "inv_scale growth_tracker current_scale"
)


def fill_of(bound: Bound, parameter: str) -> Fill:
    """Return what the tensors of a parameter hold; of a list of indices each has its own (`index_fills`)."""
    rule = _INDEX_RULES.get((bound.name, parameter))
    if rule is not None:
        return rule(bound.values)
    if parameter in _SEQUENCE_STARTS:
        tokens = bound.values.get("query")
        return Fill(Content.STEPS, tokens.shape[0] if isinstance(tokens, TensorSpec) and tokens.shape else 0)
    if bound.name in _UNIT_OPS:
        return _UNIT
    if parameter in _POSITIVE_PARAMETERS or _POSITIVE_OPS.fullmatch(bound.name):
        return _POSITIVE
    return NOISE


def indexed_dimensions(bound: Bound) -> int | None:
    """Return the first dimension that a list of index tensors applies to; None for ops that take no such list.

    Traces keep the tensors of the list, not the gaps before them: the shape of what is read or written tells where
    they stood.
    """
    if bound.name not in _LISTED_INDEX_OPS:
        return None
    values = bound.values
    source, indices = values["self"], values["indices"]
    result = values.get("values", next(iter(bound.results), None))
    if not isinstance(result, TensorSpec):
        return 0
    picked = _broadcast([item.shape for item in indices])
    for first in range(len(source.shape) - len(indices) + 1):
        shape = (*source.shape[:first], *picked, *source.shape[first + len(indices) :])
        if shape == result.shape:
            return first
    return 0


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _size_along(values: Values) -> int:
    """Return the size that indices along `dim` must stay under."""
    shape, dim = values["self"].shape, values.get("dim")
    if not shape:
        return 1
    return prod(shape) if dim is None else int(shape[dim])


def _classes(values: Values) -> int:
    shape = values["self"].shape
    return int(shape[1] if len(shape) > 1 else shape[0])


def _below(bound: Callable[[Values], int]) -> Callable[[Values], Fill]:
    """Return a rule for indices under a bound. An empty table can only be indexed by no index at all."""
    return lambda values: Fill(Content.INDEX, max(bound(values), 1))


def _index_rules() -> dict[tuple[str, str], Callable[[Values], Fill]]:
    rules: dict[tuple[str, str], Callable[[Values], Fill]] = {}

    def add(names: str, parameter: str, rule: Callable[[Values], Fill]) -> None:
        rules.update({(name, parameter): rule for name in names.split()})

    bags = "embedding_bag _embedding_bag _embedding_bag_forward_only"
    bags_back = "_embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_sparse_backward"
    add(f"embedding {bags}", "indices", _below(lambda it: it["weight"].shape[0]))
    add(f"embedding_backward embedding_dense_backward {bags_back}", "indices", _below(lambda it: it["num_weights"]))
    add(f"{bags} {bags_back}", "offsets", lambda values: Fill(Content.STEPS, max(prod(values["indices"].shape) - 1, 0)))
    add(bags_back, "offset2bag", lambda values: Fill(Content.STEPS, max(prod(values["offsets"].shape) - 1, 0)))
    along = "index_select gather scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce"
    add(along, "index", _below(_size_along))
    add("take put", "index", _below(lambda values: prod(values["self"].shape)))
    add("take_along_dim", "indices", _below(_size_along))
    add("gather_backward", "index", _below(_size_along))
    add("index_select_backward", "index", _below(lambda values: values["self_sizes"][values["dim"]]))
    add("value_selecting_reduction_backward", "indices", _below(lambda values: values["sizes"][values["dim"]]))
    losses = "nll_loss nll_loss_nd nll_loss_forward nll_loss_backward cross_entropy_loss"
    add(f"{losses} nll_loss2d nll_loss2d_forward nll_loss2d_backward", "target", _below(_classes))
    add("one_hot", "self", _below(lambda values: max(values.get("num_classes") or 1, 1)))
    for rank in (2, 3):
        pools = f"max_pool{rank}d_with_indices_backward adaptive_max_pool{rank}d_backward"
        # Indices stay under the number of elements of the last dimensions.
        add(pools, "indices", _below(lambda values, rank=rank: prod(values["self"].shape[-rank:])))  # type: ignore[misc]
        add(f"max_unpool{rank}d", "indices", _below(lambda values: prod(values["output_size"])))
    add("_grouped_mm _scaled_grouped_mm", "offs", lambda values: Fill(Content.STEPS, values["self"].shape[0]))
    ctc = "ctc_loss _ctc_loss _cudnn_ctc_loss"
    add(ctc, "targets", _below(lambda values: values["log_probs"].shape[-1]))
    add(ctc, "input_lengths", lambda values: Fill(Content.CONSTANT, values["log_probs"].shape[0]))
    add(ctc, "target_lengths", lambda values: Fill(Content.CONSTANT, _target_length(values)))
    return rules


def _target_length(values: Values) -> int:
    shape = values["targets"].shape
    return int(shape[-1]) if len(shape) > 1 else 1


_INDEX_RULES: Final = _index_rules()
"""(op, parameter) → what its integers must be; an index out of range would stop a GPU for good."""
_LISTED_INDEX_OPS: Final = _words("index index_put _index_put_impl _unsafe_index _unsafe_index_put")
_SEQUENCE_STARTS: Final = _words(
    "cum_seq_q cum_seq_k cu_seqlens_q cu_seqlens_k cumulative_sequence_length_q cumulative_sequence_length_k"
)
"""Where each sequence of a packed batch begins."""
