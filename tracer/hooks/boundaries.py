"""Finds where iterations end in code that says nothing about them: at optimizer steps, forwards or backwards."""

import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, Self

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...errors import InputError, parameter
from .patches import patched

_SETTLED_COUNT: Final = 8
"""Turns after which the choice stands: adversarial training takes up to 5 critic steps per generator step."""
BY_BACKWARD: Final = "backward"
"""What ends iterations where no torch optimizer steps, if it is asked for."""
_OPTIMIZER_SPAN: Final = "Optimizer.step#wavecast"


def check_ends(ends: str | None, mode: str | None) -> None:
    """Raise InputError where iterations cannot end so."""
    if ends not in (None, BY_BACKWARD):
        raise InputError(f"iteration_ends: expected {BY_BACKWARD!r} or None, got {ends!r}")
    if ends and mode == "inference":
        raise InputError(f"iteration_ends: {ends!r} is training, and the mode says inference")


class Turns:
    """Choose, among objects that take turns (two optimizers), the one whose turn ends an iteration.

    It is the one with the fewest turns, of equal ones the last in the iteration.
    """

    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._chosen: weakref.ref[Any] | None = None
        self.is_settled = False

    def take(self, item: Any) -> int | None:
        """Count a turn; return how many iterations have ended by now, None where this turn ends none.

        A number that does not follow the last one means that another object was chosen, and iterations start anew.
        """
        count = self._counts[item] = self._counts.get(item, 0) + 1
        chosen = self._chosen() if self._chosen else None
        if chosen is None:
            self.is_settled = False
        if chosen is not item:
            if self.is_settled or (chosen is not None and count > self._counts[chosen]):
                return None
            self._chosen = weakref.ref(item)
        self.is_settled = self.is_settled or count >= _SETTLED_COUNT
        return count


class IterationWatch:
    """Own the global hooks that see iterations end; `on_end(count)` is told after each how many there were.

    In training an iteration ends with an optimizer's step. Until one is seen, one ends with the forward of an
    outermost module that is in evaluation mode or runs without gradients: inference. `mode` fixes which.
    With `ends` of `backward` an iteration ends with each backward pass: training that steps no torch optimizer.
    Only the thread that enters counts, and none of what `on_end` raises reaches the user's code but a
    BaseException: `on_failure` gets the others.
    """

    def __init__(
        self,
        on_end: Callable[[int], None],
        on_failure: Callable[[Exception], None],
        mode: str | None,
        ends: str | None = None,
    ) -> None:
        self._on_end, self._on_failure = on_end, on_failure
        self._by_backward = ends == BY_BACKWARD
        self._is_given = self._by_backward or mode == "inference"
        self._mode = "training" if self._by_backward else mode
        self._turns = Turns()
        self._backwards = ExitStack()
        self._owner = (os.getpid(), threading.get_ident())
        self._optimizer_hooks: list[Any] = []
        self._forward_hooks: list[Any] = []
        self._spans: list[AbstractContextManager[Any]] = []
        self._training_forward_count = 0
        self._backward_count = 0
        self._has_stepped = False
        self.is_profiling = False

    @property
    def mode(self) -> str | None:
        """Return what iterations are; None while forward passes end them because nothing else has."""
        return self._mode

    def settle(self) -> None:
        """Let no other optimizer or module end iterations from now on."""
        self._turns.is_settled = True

    def stop(self) -> None:
        """Look at nothing any more.

        The optimizers' hooks stay until exit, idle: torch walks their live dictionary while it calls us.
        """
        self._owner = (0, 0)
        self._unhook_forwards()

    def __enter__(self) -> Self:
        self._backwards.enter_context(backwards_told(self._end_backward))
        if self._by_backward:
            return self
        if self._mode != "inference":
            self._optimizer_hooks = [
                register_optimizer_step_pre_hook(_not_compiled(self._begin_step)),
                register_optimizer_step_post_hook(_not_compiled(self._end_step)),
            ]
        if self._mode != "training":
            self._await_forward()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()
        self._backwards.close()
        for handle in self._optimizer_hooks:
            handle.remove()
        while self._spans:
            self._spans.pop().__exit__(None, None, None)

    def _is_ours(self) -> bool:
        return self._owner == (os.getpid(), threading.get_ident())

    def explain_training(self) -> str | None:
        """Return what is to be done where there was training that stepped no torch optimizer, None elsewhere."""
        if self._has_stepped or self._backward_count or not self._training_forward_count:
            return self.explain_backwards()
        return (
            f"{self._training_forward_count} forward passes in training mode but no step of a torch optimizer were "
            f"seen; for inference call model.eval(), or choose {parameter('mode', 'inference')}"
        )

    def explain_backwards(self) -> str | None:
        """Return how to record the backward passes that were seen where no optimizer stepped, None elsewhere."""
        if self._has_stepped or self._is_given or not self._backward_count:
            return None
        return (
            f"{self._backward_count} backward passes but no step of a torch optimizer were seen: where the code "
            "updates its weights itself, let iterations end with the backward pass "
            f"({parameter('iteration_ends', 'backward')})"
        )

    def _unhook_forwards(self) -> None:
        for handle in self._forward_hooks:
            handle.remove()
        self._forward_hooks = []

    def _begin_step(self, *_call: Any) -> None:
        # The optimizer's own span is still open when we end the iteration, so ours marks the step's ops.
        if self.is_profiling and self._is_ours():
            span: AbstractContextManager[Any] = record_function(_OPTIMIZER_SPAN)
            span.__enter__()
            self._spans.append(span)

    def _end_step(self, optimizer: Any, *_call: Any) -> None:
        if not self._is_ours() or _is_building_cuda_graph():
            return
        if self._spans:
            self._spans.pop().__exit__(None, None, None)
        if not self._has_stepped:
            self._has_stepped = True
            self._backwards.close()
        if self._mode is None:
            self._unhook_forwards()
            self._mode, self._turns = "training", Turns()
        self._take(optimizer)

    def _end_backward(self) -> None:
        if not self._is_ours() or _is_building_cuda_graph():
            return
        self._backward_count += 1
        if self._by_backward:
            self._take(self)

    def _await_forward(self) -> None:
        self._unhook_forwards()
        self._forward_hooks = [register_module_forward_pre_hook(self._begin_forward)]

    def _begin_forward(self, module: nn.Module, _inputs: Any) -> None:
        """Look at this module alone until it returns: a global hook costs every module inside 5 µs."""
        if torch.compiler.is_compiling() or not self._is_ours():
            return
        self._unhook_forwards()
        try:
            # TorchScript's modules take no hook of their own, and call no other's from within.
            is_script = isinstance(module, torch.jit.ScriptModule)
            register = register_module_forward_hook if is_script else module.register_forward_hook
            self._forward_hooks = [register(self._end_forward, always_call=True)]
        except Exception as error:  # noqa: BLE001 - modules may be anything
            self._on_failure(error)

    def _end_forward(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_ours():
            return
        if output is None and sys.exc_info()[0] is not None:
            # The forward failed, and torch walks the module's hooks: this one is removed by the next forward.
            self._forward_hooks.append(register_module_forward_pre_hook(self._begin_forward))
            return
        self._await_forward()
        if self._mode is None and module.training and torch.is_grad_enabled():
            self._training_forward_count += 1
        elif not _is_building_cuda_graph():
            self._take(module)

    def _take(self, item: Any) -> None:
        count = self._turns.take(item)
        if count is None:
            return
        try:
            self._on_end(count)
        except Exception as error:  # noqa: BLE001 - whatever fails here, the user's step goes on
            self._on_failure(error)


def _not_compiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Keep torch.compile out of a hook where the optimizer's step is compiled: it would compile all that we do there.

    `torch.compiler.disable` would do too, but imports the compiler at once, which inference scripts never need.
    """

    def call(*arguments: Any) -> None:
        hook(*arguments)

    wrapped: Callable[..., None] = torch._disable_dynamo(call)  # type: ignore[attr-defined]
    return wrapped


def _is_building_cuda_graph() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


RUN: Final = "_engine_run_backward"
"""What `Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` look up in `torch.autograd` and call."""


def backwards_told(on_end: Callable[[], None]) -> AbstractContextManager[None]:
    """Return the patch under which `on_end` is called after each outermost backward pass that succeeds.

    A backward pass within another one (recomputed activations) is part of it.
    """
    run: Any = getattr(torch.autograd, RUN)

    def run_and_tell(*arguments: Any, **options: Any) -> Any:
        is_outermost = torch._C._current_autograd_node() is None
        result = run(*arguments, **options)
        if is_outermost:
            on_end()
        return result

    # torch.compile would compile what is done at the end of an iteration.
    return patched(torch.autograd, RUN, torch._disable_dynamo(run_and_tell))  # type: ignore[attr-defined]
