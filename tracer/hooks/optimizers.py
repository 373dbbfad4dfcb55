"""Tells when an optimizer steps, through torch's global optimizer hooks."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class OptimizerSteps:
    """Own the global optimizer hooks while recording; `is_running` says whether an optimizer is inside `step`."""

    def __init__(self) -> None:
        self.is_running = False
        self.began_in_backward = False
        """Whether the step was called from inside backward (a gradient hook), so backward ops are the optimizer's."""
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self._handles = [register_optimizer_step_pre_hook(self._begin), register_optimizer_step_post_hook(self._end)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self.is_running = False

    def _begin(self, *_call: Any) -> None:
        self.is_running = True
        self.began_in_backward = torch._C._current_autograd_node() is not None

    def _end(self, *_call: Any) -> None:
        self.is_running = False
