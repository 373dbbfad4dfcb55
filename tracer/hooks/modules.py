"""Follows which nn.Module runs, for paths such as `Bert.encoder.layer.0.attention`, and whether an optimizer steps."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...formats.kineto import MODULE_SPAN_PREFIX

_WRAPPER, _WRAPPED = "OptimizedModule", "_orig_mod"
"""What torch.compile puts around a module, and the attribute under which that holds it."""


class _Running(threading.local):
    """Hold what runs on one thread: recomputed forwards and replicas run on threads of their own."""

    def __init__(self) -> None:
        self.modules: list[tuple[nn.Module, str]] = []
        self.spans: list[Any] = []


class ModulePaths:
    """Own the global forward hooks while recording; `current` is the path of the innermost running module.

    The outermost module is named by its class, the ones inside by their attribute names.
    A module that its outermost one does not hold is named by its class under the caller's path; one that runs
    by itself (recomputed in backward) has the path that it had inside the outermost module it belongs to.
    """

    def __init__(self) -> None:
        self._running = _Running()
        self._names: dict[nn.Module, dict[nn.Module, str]] = {}
        self._handles: list[Any] = []

    @property
    def current(self) -> str | None:
        """Return the path of the innermost module that runs on this thread, None outside all."""
        modules = self._running.modules
        return modules[-1][1] if modules else None

    def __enter__(self) -> Self:
        self._handles = [
            register_module_forward_pre_hook(self._push),
            register_module_forward_hook(self._pop, always_call=True),
        ]
        return self

    def __exit__(self, *_raised: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._running.modules.clear()
        self._names.clear()

    def _push(self, module: nn.Module, _inputs: Any) -> None:
        modules = self._running.modules
        if not modules or modules[-1][0] is module or _inside(modules[-1][0]) is not module:
            modules.append((module, self._path(module)))  # else its path is that of torch.compile's wrapper around it

    def _pop(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        # always_call fires for a module whose own pre-hook never ran, so only a running module is removed.
        modules = self._running.modules
        for depth in range(len(modules) - 1, -1, -1):
            if modules[depth][0] is module:
                del modules[depth:]
                return

    def _path(self, module: nn.Module) -> str:
        modules = self._running.modules
        if not modules:
            held = ((root, names.get(module)) for root, names in self._names.items())
            known = (f"{type(root).__name__}.{name}" for root, name in held if name)
            return next(known, type(_inside(module)).__name__)
        root, root_path = modules[0]
        names = self._names.get(root)
        if names is None:
            names = self._names[root] = {
                item: ".".join(part for part in name.split(".") if part != _WRAPPED)
                for name, item in root.named_modules()
            }
        name = names.get(module)
        return f"{root_path}.{name}" if name else f"{modules[-1][1]}.{type(_inside(module)).__name__}"


class ModuleSpans(ModulePaths):
    """Write every module's run into the profiler's recording, where the importer reads it as the path of its ops.

    A span costs 0.9 µs (`torch.profiler.record_function` 20 µs), and only while the profiler records.
    `autocast_dtype` is the dtype of autocast that was in force when the first module ran under it.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.autocast_dtype: str | None = None
        self._device_type = device_type

    def __exit__(self, *_raised: object) -> None:
        super().__exit__()
        self._close(0)

    def _push(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return  # a compiled region is one op stream: hooks inside would break its graph
        if self.autocast_dtype is None and torch.is_autocast_enabled(self._device_type):
            self.autocast_dtype = str(torch.get_autocast_dtype(self._device_type)).removeprefix("torch.")
        above, depth = self.current, len(self._running.modules)
        super()._push(module, inputs)
        if len(self._running.modules) == depth:
            return
        path = self.current or ""
        segment = path.removeprefix(f"{above}.") if above else path
        span = torch._C._profiler._RecordFunctionFast(MODULE_SPAN_PREFIX + segment)
        span.__enter__()
        self._running.spans.append(span)

    def _pop(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        super()._pop(module, inputs, output)
        self._close(len(self._running.modules))

    def _close(self, depth: int) -> None:
        spans = self._running.spans
        while len(spans) > depth:
            spans.pop().__exit__(None, None, None)


def _inside(module: nn.Module) -> nn.Module:
    """Return the module that torch.compile wrapped, any other as it is."""
    inside = getattr(module, _WRAPPED, module) if type(module).__name__ == _WRAPPER else module
    return inside if isinstance(inside, nn.Module) else module


@contextmanager
def hooks_unwarned() -> Iterator[None]:
    """Keep torch from warning of our hooks on compiled modules, as if they were the user's (an error under -W error).

    Not with `warnings.catch_warnings`, whose end would undo what the user's code changed meanwhile.
    """
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    added = warnings.filters[0]
    try:
        yield
    finally:
        if added in warnings.filters:
            warnings.filters.remove(added)  # type: ignore[attr-defined]


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

    def __exit__(self, *_raised: object) -> None:
        for handle in self._handles:
            handle.remove()
        self.is_running = False

    def _begin(self, *_call: Any) -> None:
        self.is_running = True
        self.began_in_backward = torch._C._current_autograd_node() is not None

    def _end(self, *_call: Any) -> None:
        self.is_running = False
