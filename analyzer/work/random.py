"""Random numbers and dropout. Generating a number is not counted; what is done with it is."""

from __future__ import annotations

from functools import partial

from ...formats.trace.signature import Signature
from .arguments import result_at, size_at, tensor_at, tensors_at
from .copy import created_tensor
from .registry import register
from .traffic import INDEX_DTYPE, bytes_of, tensor_bytes, total_bytes
from .work import Family, Work

_DROPOUT_FLOPS, _DROPOUT_BACKWARD_FLOPS = 3, 2
"""Compare, mask and scale; mask and scale."""


def dropout(signature: Signature, *, mask_dtype: str) -> Work:
    """Return the result and its mask."""
    x = tensor_at(signature, 0)
    written = x.size_bytes + bytes_of(x.element_count, mask_dtype)
    return _work(_DROPOUT_FLOPS * x.element_count, tensor_bytes(x), written, x.dtype)


@register("aten::native_dropout_backward", "aten::_masked_scale", family=Family.RANDOM)
def dropout_backward(signature: Signature) -> Work:
    """Mask and scale the gradient."""
    grad, mask = tensor_at(signature, 0), tensor_at(signature, 1)
    flops = _DROPOUT_BACKWARD_FLOPS * grad.element_count
    return _work(flops, total_bytes((grad, mask)), grad.size_bytes, grad.dtype)


def fill_random(signature: Signature, *, flops: int) -> Work:
    """Overwrite a tensor with random numbers; parameters may be tensors, which are read."""
    x = result_at(signature) or tensor_at(signature, 0)
    return _work(flops * x.element_count, total_bytes(tensors_at(signature, 1)), x.size_bytes, x.dtype)


def sample(signature: Signature, *, flops: int) -> Work:
    """Draw one number per element of the parameters, which are read."""
    x = tensor_at(signature, 0)
    return _work(flops * x.element_count, total_bytes(tensors_at(signature, 0, 1)), x.size_bytes, x.dtype)


def create_random(signature: Signature, *, like: bool, sizes: int = 0, dtype: int, default_dtype: str) -> Work:
    """Return a new tensor of random numbers, by sizes or like another tensor."""
    made = created_tensor(signature, like=like, sizes=sizes, dtype=dtype, default_dtype=default_dtype)
    return _work(made.element_count, 0.0, made.size_bytes, made.dtype)


@register("aten::randperm", family=Family.RANDOM)
def randperm(signature: Signature) -> Work:
    """A random permutation of n indices."""
    count = size_at(signature, 0)
    return _work(count, 0.0, bytes_of(count, INDEX_DTYPE), INDEX_DTYPE)


@register("aten::multinomial", family=Family.RANDOM)
def multinomial(signature: Signature) -> Work:
    """Draw indices from rows of weights: each weight is summed and compared."""
    weights = tensor_at(signature, 0)
    rows = weights.element_count // max(weights.shape[-1], 1) if weights.shape else 1
    written = bytes_of(rows * size_at(signature, 1), INDEX_DTYPE)
    return _work(2 * weights.element_count, tensor_bytes(weights), written, weights.dtype)


def _work(flops: float, read_bytes: float, written_bytes: float, dtype: str) -> Work:
    return Work(family=Family.RANDOM, flops=flops, read_bytes=read_bytes, written_bytes=written_bytes, dtype=dtype)


_DRAWS = {"uniform": 2, "normal": 2, "exponential": 2, "cauchy": 3, "log_normal": 3, "geometric": 3, "random": 1}
"""FLOPs per element that turn uniform bits into the distribution."""

register("aten::native_dropout", family=Family.RANDOM)(partial(dropout, mask_dtype="bool"))
register("aten::_fused_dropout", family=Family.RANDOM)(partial(dropout, mask_dtype="uint8"))
for _name, _flops in _DRAWS.items():
    register(f"aten::{_name}", family=Family.RANDOM)(partial(fill_random, flops=_flops))
register("aten::bernoulli", "aten::poisson", "aten::binomial", "aten::_standard_gamma", family=Family.RANDOM)(
    partial(sample, flops=1)
)
register("aten::bernoulli_", family=Family.RANDOM)(partial(fill_random, flops=1))
register("aten::rand", "aten::randn", family=Family.RANDOM)(
    partial(create_random, like=False, dtype=1, default_dtype="float32")
)
register("aten::rand_like", "aten::randn_like", family=Family.RANDOM)(
    partial(create_random, like=True, dtype=1, default_dtype="float32")
)
register("aten::randint_like", family=Family.RANDOM)(
    partial(create_random, like=True, dtype=2, default_dtype=INDEX_DTYPE)
)
register("aten::randint", family=Family.RANDOM)(
    partial(create_random, like=False, sizes=-1, dtype=-1, default_dtype=INDEX_DTYPE)
)
