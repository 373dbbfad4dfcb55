"""Lets `torch.amp.GradScaler` run on the meta device, while recording: no gradient is taken to overflow.

A scaler reads two values: whether a gradient was infinite, before each optimizer step, and its own scale when asked
for it. These two have an answer; everything else that reads a tensor's value is refused as before.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.utils.weak import WeakIdKeyDictionary

from ..hooks.patches import patched

_NO_OVERFLOW: Final = 0.0
_OVERRIDING = "Warning only once for all operators"


class ScalerReads:
    """Hold the values that gradient scalers read."""

    def __init__(self) -> None:
        self.is_disabled_early = False
        """Whether the step used a scaler that had been made, and disabled, before the recording."""
        self._known: Any = WeakIdKeyDictionary()

    def give(self, tensor: Tensor, value: float) -> None:
        """Let a tensor of one element have this value."""
        self._known[tensor] = value

    def read(self, tensor: Tensor) -> float:
        """Return a tensor's value (the meta kernel of aten::_local_scalar_dense)."""
        value: float | None = self._known.get(tensor)
        if value is None:
            raise RuntimeError("Tensor.item() cannot be called on meta tensors")
        return value

    def unscale(self, _gradients: list[Tensor], found_infinite: Tensor, _inverse_scale: Tensor) -> None:
        """Check gradients (the meta kernel of aten::_amp_foreach_non_finite_check_and_unscale_)."""
        self.give(found_infinite, _NO_OVERFLOW)


@contextmanager
def grad_scaler_on_meta() -> Iterator[ScalerReads]:
    """Let gradient scalers read what they need of meta tensors; they find that nothing overflowed.

    Enter it inside `autocast_on_meta`, which keeps them from disabling themselves where there is no CUDA.
    """
    reads = ScalerReads()
    library = torch.library.Library("aten", "IMPL")
    with ExitStack() as stack:
        stack.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_OVERRIDING)
            library.impl("_local_scalar_dense", reads.read, "Meta")
            library.impl("_amp_foreach_non_finite_check_and_unscale_", reads.unscale, "Meta")
        for name, value in _patches(reads).items():
            stack.enter_context(patched(GradScaler, name, value))
        yield reads


def _patches(reads: ScalerReads) -> dict[str, Callable[..., Any]]:
    begin, scale, get_scale = GradScaler.__init__, GradScaler.scale, GradScaler.get_scale
    made: weakref.WeakSet[GradScaler] = weakref.WeakSet()

    def make(self: GradScaler, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        made.add(self)

    def watch(self: GradScaler, outputs: Any) -> Any:
        reads.is_disabled_early |= not self._enabled and self not in made
        return scale(self, outputs)

    def tell(self: GradScaler) -> float:
        if self._enabled and self._scale is not None and self._scale.is_meta:
            reads.give(self._scale, self._init_scale)
        return get_scale(self)

    return {"__init__": make, "scale": watch, "get_scale": tell}
