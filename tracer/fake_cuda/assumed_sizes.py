"""Gives sizes to results whose size depends on values that nobody knows: whatever is selected from is kept whole."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch._library import fake_impl

from ...records import dataclass
from ..hooks.patches import patched
from ..meta.host_values import HostValues

_MAX_ELEMENTS: Final = 1 << 22
"""Positions in larger tensors have no values: those of one iteration's boxes, tokens and masks stay well under it."""
_MASKS: Final = (torch.bool, torch.uint8)
Sizes = Callable[[HostValues, Any, tuple[Any, ...], dict[str, Any]], Any]


def result_with_assumed_size(
    values: HostValues, func: Any, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:  # what the op returns, or NotImplemented
    """Return what an op on meta tensors returns if it keeps everything; NotImplemented where its shapes say the size.

    `torch.unique` finds all values different, `torchvision.ops.nms` all boxes apart, `repeat_interleave` repeats
    once, `bincount` counts equally many of each. Positions that follow have values, so that what they select has.
    """
    rule = _RULES.get(func.name())
    return NotImplemented if rule is None else rule(values, func, args, dict(options))


def _keep_positions(values: HostValues, func: Any, args: tuple[Any, ...], _options: dict[str, Any]) -> Any:
    """Take all elements for nonzero; torch's own rule does so while `meta_nonzero_assume_all_nonzero` is set."""
    found = func(args[0])
    if args[0].numel() > _MAX_ELEMENTS:
        return found
    return values.give(found, torch.ones(args[0].shape, dtype=torch.bool, device="cpu").nonzero())


def _keep_selected(_values: HostValues, _func: Any, args: tuple[Any, ...], _options: dict[str, Any]) -> Any:
    data, mask = args[:2]
    return data.new_empty(prod(torch.broadcast_shapes(data.shape, mask.shape)))


def _select_indexed(values: HostValues, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Run an index by a mask as the op that it is, which keeps all; an index by positions alone has its shape."""
    unknown = [item for item in args[1] if item is not None and item.dtype in _MASKS and values.find(item) is None]
    return func(*args, **options) if unknown else NotImplemented


def _keep_different(_values: HostValues, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Give unique values: as many as there are, or as the tensor has along an axis."""
    given = {item.name: value for item, value in zip(func._schema.arguments, args, strict=False)} | options
    data, axis = given["self"], given.get("dim")
    count = data.numel() if axis is None else data.shape[axis]
    kept = data.new_empty(count) if axis is None else torch.empty_like(data)
    wants_all = func._schema.name in ("aten::unique_dim", "aten::unique_dim_consecutive")
    sizes = data.shape if axis is None else (count,)
    inverse = data.new_empty(sizes if wants_all or given.get("return_inverse") else 0, dtype=torch.int64)
    counts = data.new_empty(count if wants_all or given.get("return_counts") else 0, dtype=torch.int64)
    return (kept, inverse, counts)[: len(func._schema.returns)]


def _count_equally(values: HostValues, _func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Count as many of each: of `minlength` where it is given, else of as many as there are elements."""
    weights = options.get("weights", args[1] if len(args) > 1 else None)
    least = options.get("minlength", args[2] if len(args) > 2 else 0)
    element_count = args[0].numel()
    bin_count = least or max(element_count, 1)
    if weights is not None:
        return args[0].new_empty(bin_count, dtype=weights.dtype if weights.is_floating_point() else torch.float64)
    counts = torch.full((bin_count,), element_count // bin_count, device="cpu")
    counts[: element_count % bin_count] += 1
    return values.give(torch.empty_like(counts, device="meta"), counts)


def _keep_rows(values: HostValues, _func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Give the positions of all rows, in their order: boxes that do not overlap, rows that are repeated once."""
    count = options.get("output_size") or args[0].shape[0]
    return values.give(torch.empty(count, dtype=torch.int64, device="meta"), torch.arange(count, device="cpu"))


_RULES: Final[Mapping[str, Sizes]] = {
    "aten::nonzero": _keep_positions,
    "aten::masked_select": _keep_selected,
    "aten::index.Tensor": _select_indexed,
    **{f"aten::{name}": _keep_different for name in ("_unique", "_unique2", "unique_dim")},
    **{f"aten::{name}": _keep_different for name in ("unique_consecutive", "unique_dim_consecutive")},
    "aten::bincount": _count_equally,
    "aten::repeat_interleave.Tensor": _keep_rows,
    "torchvision::nms": _keep_rows,
}


@dataclass(slots=True)
class DynamicSizes:
    """Answer custom ops whose shape rule asks for a size that depends on values, through `torch.library.get_ctx()`."""

    arguments: tuple[Any, ...] = ()
    """What the op that runs is called with: it keeps all rows of its first tensor."""
    asked_count: int = 0
    """How often any op asked."""

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        """Return the op's own number of rows, within what it says is possible."""
        self.asked_count += 1
        lengths = (item.shape[0] for item in self.arguments if isinstance(item, Tensor) and item.dim())
        kept = sorted((min, int(next(lengths, 1))))[1]
        return kept if max is None or kept < max else max

    create_unbacked_symint = new_dynamic_size


@contextmanager
def dynamic_sizes() -> Iterator[DynamicSizes]:
    """Let the shape rules of custom ops ask for sizes on the meta device too, where torch refuses that."""
    sizes = DynamicSizes()
    original = fake_impl.set_ctx_getter

    def set_getter(getter: Callable[[], Any]) -> Any:
        refuses = getter.__name__ == "error_on_ctx"  # else it is torch's own tracing, which has symbols for them
        return original(lambda: sizes) if refuses else original(getter)

    with patched(fake_impl, "set_ctx_getter", set_getter):
        yield sizes
