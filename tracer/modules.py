"""Follows which nn.Module runs, so that ops carry a path such as `Bert.encoder.layer.0.attention`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModulePaths:
    """Own the global forward hooks while recording; `current` is the path of the innermost running module.

    The outermost module is named by its class, the ones inside by their attribute names.
    A module that its outermost one does not hold is named by its class under the caller's path.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[nn.Module, str]] = []
        self._names: dict[nn.Module, dict[nn.Module, str]] = {}
        self._handles: list[Any] = []

    @property
    def current(self) -> str | None:
        """Return the path of the innermost running module, None outside all."""
        return self._stack[-1][1] if self._stack else None

    def __enter__(self) -> Self:
        self._handles = [
            register_module_forward_pre_hook(self._push),
            register_module_forward_hook(self._pop, always_call=True),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._stack.clear()

    def _push(self, module: nn.Module, _inputs: Any) -> None:
        self._stack.append((module, self._path(module)))

    def _pop(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        # always_call fires for a module whose own pre-hook never ran, so only a running module is removed.
        for depth in range(len(self._stack) - 1, -1, -1):
            if self._stack[depth][0] is module:
                del self._stack[depth:]
                return

    def _path(self, module: nn.Module) -> str:
        if not self._stack:
            return type(module).__name__
        root, root_path = self._stack[0]
        names = self._names.get(root)
        if names is None:
            names = self._names[root] = {item: name for name, item in root.named_modules()}
        name = names.get(module)
        return f"{root_path}.{name}" if name else f"{self._stack[-1][1]}.{type(module).__name__}"
