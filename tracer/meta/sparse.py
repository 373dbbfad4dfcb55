"""Shapes of sparse tensors on the meta device, whose own kernels lose them: the sparse gradients of embedding tables.

How many of the stored rows are the same one depends on values: none is taken to be.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from ..description.signatures import tensors_in
from ..hooks.patches import patched

_aten = torch.ops.aten
Rule = Callable[..., Any]


def sparse_rule(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Rule | None:
    """Return what gives a call on sparse meta tensors its shapes; None where torch does, or nothing does."""
    layouts = {item.layout for item in tensors_in((*args, *kwargs.values())) if item.is_meta}
    if torch.sparse_coo in layouts:
        return _RULES.get(func)
    return _PRODUCTS.get(func) if layouts - {torch.strided} else None


def is_stolen(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> bool:
    """Say whether a call copies a sparse gradient only because a dispatch mode holds it as well.

    Where none does, torch keeps as the parameter's gradient the one that it is given, unless its rows have gaps.
    """
    if func is not _aten.clone.default or not _is_sparse(args[0]) or not args[0]._values().is_contiguous():
        return False
    node: Any = torch._C._current_autograd_node()
    return node is not None and "AccumulateGrad" in str(node.name())


@contextmanager
def sparse_on_meta() -> Iterator[None]:
    """Let `tensor.new(indices, values, size)` make sparse meta tensors, as SparseAdam asks of its gradients."""
    plain = torch.Tensor.new

    def make(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not _is_sparse(tensor) or len(args) != 3:
            return plain(tensor, *args, **kwargs)
        indices, values, size = args
        return torch.sparse_coo_tensor(indices, values, size, check_invariants=False)

    with patched(torch.Tensor, "new", make):
        yield


def _is_sparse(tensor: Tensor) -> bool:
    return tensor.layout is torch.sparse_coo and tensor.is_meta


def _make(model: Tensor, count: int, dtype: torch.dtype, is_coalesced: bool) -> Tensor:
    """Return a sparse tensor like `model` that stores `count` rows of its own."""
    indices, values = model._indices(), model._values()
    return torch.sparse_coo_tensor(
        indices.new_empty((indices.shape[0], count)),
        values.new_empty((count, *values.shape[1:]), dtype=dtype),
        model.shape,
        is_coalesced=is_coalesced,
        check_invariants=False,
    )


def _like(model: Tensor, *_args: Any, dtype: torch.dtype | None = None, **_kwargs: Any) -> Tensor:
    return _make(model, model._nnz(), dtype or model.dtype, model.is_coalesced())


def _coalesce(data: Tensor) -> Tensor:
    return _make(data, min(data._nnz(), prod(data.shape[: data.sparse_dim()])), data.dtype, True)


def _combine(one: Tensor, other: Any, **_kwargs: Any) -> Tensor:
    """Return the shape of a sum, or of a product with a number."""
    if not isinstance(other, Tensor) or not other.dim():
        return _like(one)
    if not (_is_sparse(one) and _is_sparse(other)):
        return torch.empty_like(other if _is_sparse(one) else one)
    return _make(one, one._nnz() + other._nnz(), torch.promote_types(one.dtype, other.dtype), False)


def _combine_in_place(target: Tensor, other: Any, **kwargs: Any) -> Tensor:
    if _is_sparse(target):
        target.data = _combine(target, other, **kwargs)
    return target


def _each_in_place(targets: list[Tensor], others: Any, **kwargs: Any) -> None:
    given = others if isinstance(others, list | tuple) else [others] * len(targets)
    for target, other in zip(targets, given, strict=True):
        _combine_in_place(target, other, **kwargs)


def _to_dense(data: Tensor, dtype: torch.dtype | None = None, **_kwargs: Any) -> Tensor:
    return torch.empty(data.shape, dtype=dtype or data.dtype, device=data.device)


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """Return the shape of a product of a sparse matrix, an adjacency of nodes, with a whole one: a whole one."""
    return torch.empty((left.shape[0], right.shape[1]), dtype=left.dtype, device=left.device)


_PRODUCTS: Final[dict[Any, Rule]] = {
    _aten.mm.default: _multiply,
    _aten.addmm.default: lambda _added, left, right, **_factors: _multiply(left, right),
}
_RULES: Final[dict[Any, Rule]] = {
    **_PRODUCTS,
    **dict.fromkeys(
        (_aten.clone.default, _aten.neg.default, _aten._to_copy.default, _aten.pow.Tensor_Scalar, _aten.sqrt.default),
        _like,
    ),
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor), _combine),
    **dict.fromkeys((_aten.add_.Tensor, _aten.sub_.Tensor, _aten.mul_.Tensor, _aten.div_.Tensor), _combine_in_place),
    **dict.fromkeys((_aten._foreach_add_.List, _aten._foreach_mul_.Scalar, _aten._foreach_div_.Scalar), _each_in_place),
    _aten._coalesce.default: _coalesce,
    _aten.sparse_mask.default: lambda data, mask: _make(mask, mask._nnz(), data.dtype, mask.is_coalesced()),
    _aten._to_dense.default: _to_dense,
}
