"""Follows the values of small index tensors on the host, so that steps on the meta device may look at them."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from ..description.signatures import tensors_in

_META: Final = torch.device("meta")
_CPU: Final = torch.device("cpu")
_MAX_ELEMENTS: Final = 1 << 22
"""Larger tensors are not followed: token ids, positions and masks of one iteration stay well under it."""
_DRAWN: Final = 0.5
"""What uniform random numbers are taken to be: above every usual rate of layer dropout, so no layer is left out."""
_GOLDEN_RATIO: Final = 0.618
"""Its multiples modulo 1 lie far from each other."""
_aten = torch.ops.aten


class HostValues(TorchDispatchMode):
    """Keep values of the tensors whose values follow from shapes and constants alone; enter it around a recording.

    Every op on followed tensors runs on the host as well. What reads a value (`item`, `nonzero`, a boolean index) is
    answered from there. What comes from weights or activations has no values, and is assumed to be finite; random
    numbers are 0.5, and a random order is the natural one, beginning elsewhere each time; a choice among activations
    (`topk`, `argmax`, `sort`: a router's choice of experts) is balanced, each candidate being chosen equally often;
    activations copied to the host (costs of a matching) are all 0.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values: Any = WeakIdKeyDictionary()
        self._order_count = 0

    def give(self, tensor: Tensor, values: Tensor) -> Tensor:
        """Let `values`, on the host, be those of a meta tensor, and return the meta tensor."""
        self._values[tensor] = values
        return tensor

    def forget(self, tensor: Tensor) -> None:
        """Let nobody know the values of a tensor any more."""
        self._values.pop(tensor, None)

    def find(self, tensor: Tensor) -> Tensor | None:
        """Return a tensor's values on the host, None where they are not known."""
        if tensor.device == _CPU:
            return tensor
        values: Tensor | None = self._values.get(tensor)
        return None if values is None or _is_emptied(values) else values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Order matters: a reader (`item`, `nonzero`, a copy to the host) must answer before the meta kernel runs, which
        # would refuse; and values must be followed after it ran, as only then the result tensors exist. Ops on tensors
        # that nobody follows cost one dictionary look-up.
        kwargs = dict(kwargs or {})
        if any(is_traceable_wrapper_subclass_type(item) for item in types):
            return NotImplemented
        reader = _READERS.get(func)
        if reader is not None:
            answer = reader(self, func, args, kwargs)
            if answer is not NotImplemented:
                return answer
        result = func(*args, **kwargs)
        leaves = result if isinstance(result, list | tuple) else (result,)
        if any(isinstance(item, Tensor) and item.device == _META for item in leaves):
            self._follow(func, args, kwargs, result)
        return result

    def _follow(self, func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Compute the result's values where all that the op reads is known."""
        inputs = tensors_in((*args, *kwargs.values()))
        if len(inputs) > 0 and not any(item in self._values or item.device == _CPU for item in inputs):
            self._choose(func, args, result)
            self._fill(func, args, result)
            return
        outputs = tensors_in(result)
        known = all(self.find(item) is not None for item in inputs) or func in _OVERWRITING
        if not known or sum(item.numel() for item in outputs) > _MAX_ELEMENTS or func in _WITHOUT_VALUES:
            self._forget(func, inputs)
            return
        values = self._compute(func, args, kwargs, inputs)
        if values is None:
            self._forget(func, inputs)
            return
        for output, value in zip(outputs, (v for v in tree_flatten(values)[0] if isinstance(v, Tensor)), strict=False):
            if output.device == _META:
                self._values[output] = value

    def _compute(self, func: Any, args: Any, kwargs: dict[str, Any], inputs: list[Tensor]) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._order_count += func is _aten.randperm.default
            return _draw(func, args, kwargs, self._order_count) if not inputs else None
        host_args, host_kwargs = tree_map_only(Tensor, self.find, (args, kwargs))
        if "device" in host_kwargs:
            host_kwargs["device"] = _CPU
        host_kwargs.pop("pin_memory", None)
        try:
            return func(*host_args, **host_kwargs)
        except (RuntimeError, NotImplementedError, IndexError, ValueError):
            return None  # not computed here: whoever reads the value is told that there is none

    def _forget(self, func: torch._ops.OpOverload, inputs: list[Tensor]) -> None:
        """Empty the storage of what an op has overwritten with unknown values, which its views share."""
        if not func._schema.is_mutable:
            return
        for item in inputs:
            values = self._values.get(item)
            if values is not None and values.layout is torch.strided:
                values.untyped_storage().resize_(0)
            elif values is not None:
                del self._values[item]

    def _choose(self, func: torch._ops.OpOverload, args: tuple[Any, ...], result: Any) -> None:
        """Take a choice among activations to be balanced: the i-th choice of all is candidate i modulo their number."""
        choice = _CHOICES.get(func)
        chosen: Tensor | None = result if isinstance(result, Tensor) else result[-1] if choice else None
        if choice is None or chosen is None or not 0 < chosen.numel() <= _MAX_ELEMENTS:
            return
        axis = args[choice] if len(args) > choice and args[choice] is not None else -1
        candidate_count = args[0].shape[axis] if args[0].dim() else 1
        order = torch.arange(chosen.numel(), device=_CPU).remainder_(candidate_count)
        self._values[chosen] = order.view(chosen.shape)

    def _fill(self, func: torch._ops.OpOverload, args: tuple[Any, ...], result: Any) -> None:
        """Follow masks and indices that begin as one number, whatever they are shaped like; floats become states."""
        number = _FILLED.get(func)
        if number is None or result.is_floating_point() or result.numel() > _MAX_ELEMENTS:
            return
        self._values[result] = torch.full(result.shape, number(args), dtype=result.dtype, device=_CPU)


class HostReads(TorchFunctionMode):
    """Answer `tolist`, `numpy`, `__array__` and `__format__` of followed tensors; enter it inside the step."""

    def __init__(self, values: HostValues) -> None:
        super().__init__()
        self._values = values

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_READERS and args[0].device == _META:
            values = self._values.find(args[0])
            if values is not None:
                return func(values, *args[1:], **(kwargs or {}))
        elif func in _INDEXERS and args[0].device == _META:
            args = args[0], self._follow_lists(args[1]), *args[2:]
        result = func(*args, **(kwargs or {}))
        if func in _FINITE and result.device == _META and self._values.find(result) is None:
            self._values.give(result, _FINITE[func].expand(result.shape))
        return self._keep_data(args, kwargs or {}, result) if func in _CONSTRUCTORS else result

    def _keep_data(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
        """Follow a tensor made of numbers: on meta torch forgets them before any op is dispatched."""
        data = kwargs.get("data", args[-1] if args else None)
        if result.device != _META or isinstance(data, Tensor):
            return result
        with torch._C.DisableTorchFunction():
            parts = tree_map_only(Tensor, self._values.find, data)
            if not any(item is None for item in tree_flatten(parts)[0]):
                self._values.give(result, torch.tensor(parts, dtype=result.dtype, device=_CPU))
        return result

    def _follow_lists(self, index: Any) -> Any:
        """Turn lists in an index into tensors whose values are known: torch makes them out of every mode's sight."""
        if isinstance(index, list):
            index = (index,)
        if not isinstance(index, tuple):
            return index
        return tuple(self._make_index(item) if isinstance(item, list) else item for item in index)

    def _make_index(self, numbers: list[Any]) -> Tensor:
        with torch._C.DisableTorchFunction():
            host = torch.tensor(numbers, device=_CPU)
            return self._values.give(torch.empty(host.shape, dtype=host.dtype, device=_META), host)


_YES, _NO = torch.ones((), dtype=torch.bool, device=_CPU), torch.zeros((), dtype=torch.bool, device=_CPU)
_FINITE: Final = {
    torch.isfinite: _YES, Tensor.isfinite: _YES, torch._is_all_true: _YES,
    torch.isinf: _NO, Tensor.isinf: _NO, torch.isnan: _NO, Tensor.isnan: _NO,
}  # fmt: skip
"""Tests for what no healthy step has: models clamp what is infinite, distributions check their parameters."""
_CONSTRUCTORS: Final = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor})
_INDEXERS: Final = frozenset({Tensor.__getitem__, Tensor.__setitem__})
_HOST_READERS: Final = frozenset({Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__format__})
_OVERWRITING: Final = frozenset({_aten.fill_.Scalar, _aten.zero_.default})
_WITHOUT_VALUES: Final = frozenset(
    {_aten.empty.memory_format, _aten.empty_like.default, _aten.empty_strided.default, _aten.new_empty.default}
)


def _is_emptied(values: Tensor) -> bool:
    """Say whether values were overwritten by unknown ones: see HostValues._forget."""
    is_strided = values.layout is torch.strided
    return is_strided and values.numel() > 0 and not values.untyped_storage().nbytes()


def _draw(func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any], order_count: int) -> Tensor | None:
    if func is _aten.randperm.default:
        # Samples of two kinds, drawn by an order each, rarely meet where each order begins far from the last one.
        begin = int(args[0] * (order_count * _GOLDEN_RATIO % 1))
        return torch.arange(args[0], dtype=kwargs.get("dtype") or torch.int64, device=_CPU).roll(-begin)
    if func._schema.name not in ("aten::rand", "aten::randn"):
        return None
    return torch.full(args[0], _DRAWN, dtype=kwargs.get("dtype") or torch.get_default_dtype(), device=_CPU)


_CHOICES: Final = {
    _aten.topk.default: 2,
    **dict.fromkeys((_aten.sort.default, _aten.argsort.default, _aten.argmax.default, _aten.max.dim), 1),
}
"""Ops that choose among candidates, and where their arguments name the axis; indices are their last result."""
_FILLED: Final[Mapping[Any, Callable[[tuple[Any, ...]], Any]]] = {
    **dict.fromkeys((_aten.zeros_like.default, _aten.new_zeros.default), lambda _: 0),
    **dict.fromkeys((_aten.ones_like.default, _aten.new_ones.default), lambda _: 1),
    _aten.full_like.default: lambda args: args[1],
    _aten.new_full.default: lambda args: args[2],
}
"""Ops that fill a tensor with a number, and which."""
Reader = Callable[[HostValues, Any, tuple[Any, ...], dict[str, Any]], Any]


def _read_scalar(values: HostValues, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    known = values.find(args[0])
    return NotImplemented if known is None or args[0].device == _CPU else known.item()


def _read_pair(values: HostValues, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    known = [values.find(item) for item in args[:2]]
    return NotImplemented if any(item is None for item in known) else func(*known)


def _copy_to_host(values: HostValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = kwargs.get("device")
    if device is None or torch.device(device) != _CPU or args[0].device == _CPU:
        return NotImplemented
    known = values.find(args[0])
    if known is None and args[0].is_floating_point() and args[0].numel() <= _MAX_ELEMENTS:
        known = torch.zeros(args[0].shape, dtype=args[0].dtype, device=_CPU)
    return NotImplemented if known is None else func(known, *args[1:], **kwargs).clone()


def _copy_between(values: HostValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy known values to a whole tensor on the host, or give a small one's to a tensor of its shape on meta."""
    target, source = args[:2]
    if target.device == source.device:
        return NotImplemented
    known = values.find(source)
    if known is None or known.numel() > _MAX_ELEMENTS:
        return NotImplemented
    if target.device == _CPU:
        return func(target, known, *args[2:], **kwargs)
    result = func(*args, **kwargs)
    if target.shape == known.shape and not target.is_floating_point():
        values.give(target, known.to(target.dtype, copy=True))
    return result


def _make_from_values(values: HostValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give an op whose result's shape depends on values that shape."""
    inputs = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor)]
    if all(item.device == _CPU for item in inputs) or any(values.find(item) is None for item in inputs):
        return NotImplemented
    host = func(*tree_map_only(Tensor, values.find, args), **tree_map_only(Tensor, values.find, kwargs))
    return tree_map_only(Tensor, lambda item: values.give(torch.empty_like(item, device=_META), item), host)


def _select_masked(values: HostValues, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    data, mask = args
    known = values.find(mask)
    if known is None or data.device == _CPU:
        return NotImplemented
    count = int(known.expand(torch.broadcast_shapes(data.shape, mask.shape)).sum())
    return data.new_empty(count)


def _index_masked(values: HostValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an index by booleans as the index by positions that it is."""
    data, indices, *rest = args
    if data.device == _CPU or not any(item is not None and item.dtype in _MASKS for item in indices):
        return NotImplemented
    positions: list[Tensor | None] = []
    for item in indices:
        if item is None or item.dtype not in _MASKS:
            positions.append(item)
            continue
        known = values.find(item)
        if known is None:
            return NotImplemented
        positions += [values.give(torch.empty_like(axis, device=_META), axis) for axis in known.nonzero(as_tuple=True)]
    result = func(data, positions, *rest, **kwargs)
    values._follow(func, (data, positions, *rest), kwargs, result)
    return result


def _group_products(_values: HostValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give grouped matrix products of fp32 and fp16 their shapes: CUDA has them, torch's own rule takes bf16 alone."""
    left, right = args[:2]
    if left.device != _META or left.dtype is torch.bfloat16 or left.dtype != right.dtype:
        return NotImplemented
    dtype = kwargs.get("out_dtype") or left.dtype
    halves = (item.to(torch.bfloat16) for item in (left, right))
    return func(*halves, *args[2:], **kwargs).to(dtype)


def _lose_alignments(values: HostValues, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """Give the CTC loss its shapes: one loss per sample, and its table of 2 L + 1 states for targets of length L.

    The schema is that of aten::_ctc_loss.Tensor; the table is CUDA's own, not cuDNN's.
    """
    scores, lengths = args[0], values.find(args[3])
    if scores.device != _META or lengths is None:
        return NotImplemented
    time_count, sample_count = scores.shape[:2]
    state_count = 2 * int(lengths.max()) + 1
    return scores.new_empty(sample_count), scores.new_empty(sample_count, time_count, state_count)


def _shape_like_scores(_values: HostValues, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return torch.empty_like(args[1]) if args[1].device == _META else NotImplemented


_MASKS: Final = (torch.bool, torch.uint8)
_READERS: Final[dict[Any, Reader]] = {
    **({_aten._grouped_mm.default: _group_products} if hasattr(_aten, "_grouped_mm") else {}),
    _aten._ctc_loss.Tensor: _lose_alignments,
    _aten._ctc_loss_backward.Tensor: _shape_like_scores,
    **dict.fromkeys((_aten._local_scalar_dense.default, _aten.item.default, _aten.is_nonzero.default), _read_scalar),
    _aten.equal.default: _read_pair,
    _aten._to_copy.default: _copy_to_host,
    _aten.copy_.default: _copy_between,
    **dict.fromkeys((
        _aten.nonzero.default, _aten.nonzero_numpy.default, _aten.repeat_interleave.Tensor, _aten._unique2.default,
        _aten.unique_dim.default, _aten.unique_consecutive.default, _aten.bincount.default,
    ), _make_from_values),
    _aten.masked_select.default: _select_masked,
    **dict.fromkeys((
        _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default,
    ), _index_masked),
}  # fmt: skip
