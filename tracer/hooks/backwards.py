"""Tells when a backward pass has ended, for training that no torch optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

import torch

from .patches import patched

RUN: Final = "_engine_run_backward"
"""What `Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` look up in `torch.autograd` and call."""


class BackwardPasses:
    """Own the patch that sees backward passes; `on_end` is called after each outermost one that succeeds.

    A backward pass within another one (recomputed activations) is part of it.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._lifetime = ExitStack()

    def __enter__(self) -> Self:
        run: Any = getattr(torch.autograd, RUN)
        on_end = self._on_end

        def run_and_tell(*arguments: Any, **options: Any) -> Any:
            is_outermost = torch._C._current_autograd_node() is None
            result = run(*arguments, **options)
            if is_outermost:
                on_end()
            return result

        # torch.compile would compile what is done at the end of an iteration.
        watched = torch._disable_dynamo(run_and_tell)  # type: ignore[attr-defined]
        self._lifetime.enter_context(patched(torch.autograd, RUN, watched))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._lifetime.close()
