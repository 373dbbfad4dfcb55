"""What differs between two calls of one op: sizes, types, layout, other arguments."""

from __future__ import annotations

from dataclasses import dataclass

from ....formats.trace.signature import Argument, Signature, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """Say that one dimension of a tensor has another length."""

    dim: int
    dim_count: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDifference:
    """Say what differs; empty where nothing that was recorded does."""

    sizes: tuple[SizeChange, ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()
    other_shape: bool = False
    """Tensors of other dimensions, or another number of them."""
    list_before: int = 0
    """Tensors in lists."""
    list_after: int = 0
    layout: bool = False
    channels_last: int = 0
    """1: tensors whose channels now lie last; -1: no longer."""
    arguments: bool = False

    @property
    def changes_shape(self) -> bool:
        """Say whether any tensor has another shape."""
        return bool(self.sizes) or self.other_shape or self.list_before != self.list_after


def compare_signatures(old: Signature | None, new: Signature | None) -> CallDifference:
    """Return what differs between two calls; nothing where one of them was not recorded.

    >>> half, wide = TensorSpec("float16", (8, 64)), TensorSpec("float32", (8, 64))
    >>> compare_signatures(Signature((half,)), Signature((wide,))).dtypes
    (('float16', 'float32'),)
    """
    if old is None or new is None or old == new:
        return CallDifference()
    lists = [sum(_list_length(item) for item in call.arguments) for call in (old, new)]
    pairs = list(_tensor_pairs(old.arguments, new.arguments))
    same_rank = [(one, other) for one, other in pairs if len(one.shape) == len(other.shape)]
    known = len(pairs) == len(old.tensors()) == len(new.tensors())
    sizes = {
        SizeChange(dim=dim, dim_count=len(one.shape), before=before, after=after)
        for one, other in same_rank
        for dim, (before, after) in enumerate(zip(one.shape, other.shape, strict=True))
        if before != after
    }
    turned = [_turned(one, other) for one, other in same_rank if one.shape == other.shape]
    plain = [tuple(item for item in call.arguments if not _holds_tensors(item)) for call in (old, new)]
    return CallDifference(
        sizes=tuple(sorted(sizes, key=lambda item: (item.dim, item.before))),
        dtypes=tuple(dict.fromkeys((one.dtype, other.dtype) for one, other in pairs if one.dtype != other.dtype)),
        other_shape=lists[0] == lists[1] and (len(same_rank) != len(pairs) or not known),
        list_before=lists[0],
        list_after=lists[1],
        layout=any(_strides_differ(one, other) for one, other in same_rank if one.shape == other.shape),
        channels_last=next((item for item in turned if item), 0),
        arguments=plain[0] != plain[1],
    )


def _is_list(argument: Argument) -> bool:
    return isinstance(argument, tuple) and bool(argument) and isinstance(argument[0], TensorSpec)


def _list_length(argument: Argument) -> int:
    return len(argument) if isinstance(argument, tuple) and _is_list(argument) else 0


def _holds_tensors(argument: Argument) -> bool:
    return isinstance(argument, TensorSpec) or _is_list(argument)


def _tensor_pairs(old: tuple[Argument, ...], new: tuple[Argument, ...]) -> list[tuple[TensorSpec, TensorSpec]]:
    found = list[tuple[TensorSpec, TensorSpec]]()
    for one, other in zip(old, new, strict=False):
        if isinstance(one, TensorSpec) and isinstance(other, TensorSpec):
            found.append((one, other))
        elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            both = zip(one, other, strict=True)
            found += [(a, b) for a, b in both if isinstance(a, TensorSpec) and isinstance(b, TensorSpec)]
    return found


def _strides_differ(one: TensorSpec, other: TensorSpec) -> bool:
    """Say whether elements lie in another order; strides of dimensions of length 1 mean nothing."""
    if one.strides is None or other.strides is None or len(one.strides) != len(other.strides):
        return False
    if len(one.strides) != len(one.shape):
        return False
    return any(a != b for size, a, b in zip(one.shape, one.strides, other.strides, strict=True) if size != 1)


def _turned(one: TensorSpec, other: TensorSpec) -> int:
    if not _strides_differ(one, other):
        return 0
    return _is_channels_last(other) - _is_channels_last(one)


def _is_channels_last(spec: TensorSpec) -> bool:
    return spec.strides is not None and len(spec.shape) in (4, 5) and spec.shape[1] > 1 and spec.strides[1] == 1
