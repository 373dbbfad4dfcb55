"""Times the script's own Python between what it asks of torch, while the script runs on shapes.

What runs inside torch's functions is the recorder's own doing there, and a fake GPU's; it says nothing. What runs
between them is the script as it would run anyway: tokenizing, sampling, bookkeeping, logging, its modules' code. So the
clock runs while no function of torch does. Ops on tensors of the host alone are work of the host as well: they count
with what they take beyond what the recorder adds to each, where that can be told.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..hooks.modules import ModulePaths
from ..hooks.optimizers import OptimizerSteps
from ..hooks.patches import patched

_ROUNDS: Final = 30
_TELLING: Final = 3
"""An op on tensors of the host counts where it takes so often what the recorder adds to it."""
_CLEAR: Final = 4
"""Time before an op counts from so many times the usual stretch after another: less than that is the usual Python of
modules, run with cold caches, which says nothing."""


@dataclass(frozen=True, slots=True)
class ScriptTime:
    """Hold what passed outside torch before one op, as the clock has it: with what recording adds."""

    time_ns: float = 0.0
    loading_ns: float = 0.0
    """Of it while data was loaded."""
    call_count: int = 0
    """Stretches of it that followed a function of torch."""
    op_count: int = 0
    """Stretches that followed a function in which ops ran: the recorder has pushed the script out of the caches."""
    host_ns: float = 0.0
    """In functions on tensors of the host alone, beside it; and"""
    host_loading_ns: float = 0.0
    """of these while data was loaded."""


@dataclass(slots=True)
class ScriptTimes:
    """Collect an iteration's times, op by op, and how long all stretches were."""

    before_op: list[ScriptTime] = field(default_factory=list)
    after_calls_ns: list[float] = field(default_factory=list)
    after_ops_ns: list[float] = field(default_factory=list)

    def settled(self) -> list[tuple[int, int]]:
        """Return the script's own time before each op, and what of it loaded data, ns.

        Most stretches hold next to nothing of a script's: the median one is what recording adds, as the machine and its
        caches are at the moment. Time that is not clearly longer counts as none.
        """
        call_ns = median(self.after_calls_ns or [0.0])
        op_ns = max(call_ns, median(self.after_ops_ns or [0.0]))
        found = []
        for item in self.before_op:
            own_ns = item.time_ns - item.call_count * call_ns - item.op_count * op_ns
            own_ns = (own_ns if own_ns > _CLEAR * op_ns else 0.0) + item.host_ns
            loading_ns = min(own_ns, item.loading_ns + item.host_loading_ns)
            found.append((round(own_ns), round(loading_ns)))
        return found


class ScriptClock:
    """Own the time that a script spends outside torch; `take` hands it over, op by op.

    Only the thread that makes it counts.
    """

    def __init__(self, optimizers: OptimizerSteps) -> None:
        self.times = ScriptTimes()
        self._optimizers = optimizers
        self._depth = 0
        self._resumed_ns: int | None = None
        self._entered_ns = 0
        self._before = ScriptTime()
        self._is_loading = False
        self._garbage_ns = 0
        self._host_op_count = 0
        self._is_of_gpu = self._has_run_op = False
        self._host_op_ns = self._host_ns = 0.0
        self._last_host_op_ns = 0

    def enter(self) -> None:
        """Stop: torch, or the recorder, is asked for something."""
        self._depth += 1
        if self._depth > 1:
            return
        now = self._entered_ns = time.thread_time_ns()
        if self._resumed_ns is not None:
            self._note_stretch(now - self._resumed_ns - self._garbage_ns)
        self._garbage_ns = self._host_op_count = 0
        self._host_ns, self._is_of_gpu = 0.0, False

    def leave(self) -> None:
        """Go on: the script has its answer."""
        self._depth -= 1
        if self._depth:
            return
        now = time.thread_time_ns()
        if self._host_ns and not self._is_of_gpu:
            self._note_host(self._host_ns)
        self._has_run_op = self._host_op_count > 0 or self._is_of_gpu
        self._garbage_ns = 0
        self._resumed_ns = now

    def forget(self) -> None:
        """Do not count what has run since the script went on: something was asked that no function of torch told."""
        if not self._depth:
            self._resumed_ns = None

    def note_op(self, taken_ns: int, *, is_of_gpu: bool) -> None:
        """Note that an op has run; one on tensors of the host alone is work of the host, less what recording adds."""
        self._is_of_gpu |= is_of_gpu
        if not is_of_gpu:
            self._host_op_count += 1
            self._last_host_op_ns = taken_ns
            if taken_ns > _TELLING * self._host_op_ns:
                self._host_ns += taken_ns - self._host_op_ns

    def take(self) -> None:
        """Put down what has passed since the last op, for the next one."""
        self.times.before_op.append(self._before)
        self._before = ScriptTime()

    def start_anew(self) -> ScriptTimes:
        """Return what was collected, and collect another iteration's times."""
        found, self.times, self._before = self.times, ScriptTimes(), ScriptTime()
        return found

    def _note_stretch(self, time_ns: float) -> None:
        if self._optimizers.is_running:
            return  # its loop is torch's own
        before, is_after_op = self._before, self._has_run_op
        (self.times.after_ops_ns if is_after_op else self.times.after_calls_ns).append(time_ns)
        self._before = replace(
            before,
            time_ns=before.time_ns + time_ns,
            loading_ns=before.loading_ns + self._is_loading * time_ns,
            call_count=before.call_count + (not is_after_op),
            op_count=before.op_count + is_after_op,
        )

    def _note_host(self, time_ns: float) -> None:
        if self._optimizers.is_running:
            return
        before = self._before
        self._before = replace(
            before,
            host_ns=before.host_ns + time_ns,
            host_loading_ns=before.host_loading_ns + self._is_loading * time_ns,
        )

    @contextmanager
    def stopped(self, *, keeps: bool = False) -> Iterator[None]:
        """Let what is done here not count, nor what passed before unless it is kept."""
        self.enter()
        try:
            yield
        finally:
            if not keeps:
                self._before = ScriptTime()
            self._host_op_count, self._host_ns = 0, 0.0
            self.leave()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the garbage collector's time not count, nor be taken for the script's; tell loading of data apart."""
        load: Callable[[Any], Any] = _BaseDataLoaderIter.__next__
        zero_grad: Callable[..., Any] = torch.optim.Optimizer.zero_grad

        def load_apart(loader: Any) -> Any:
            outer, self._is_loading = self._is_loading, True
            try:
                return load(loader)
            finally:
                self._pass()
                self._is_loading = outer

        def note_garbage(phase: str, _details: Any) -> None:
            now = time.thread_time_ns()
            self._garbage_ns += now if phase == "stop" else -now

        def clear(*arguments: Any, **options: Any) -> Any:
            with self.stopped(keeps=True):
                return zero_grad(*arguments, **options)

        gc.callbacks.append(note_garbage)
        try:
            with (
                patched(_BaseDataLoaderIter, "__next__", load_apart),
                patched(torch.optim.Optimizer, "zero_grad", clear),
            ):
                yield
        finally:
            gc.callbacks.remove(note_garbage)

    def _pass(self) -> None:
        """Count what has run until now as what it is, before something else begins."""
        self.enter()
        self.leave()

    def calibrate(self) -> None:
        """Find what the recorder adds, with its modes entered, to an op on the host's tensors."""
        tensor = torch.ones(1, device="cpu")
        found = []
        for _ in range(_ROUNDS):
            tensor.add_(1)
            found.append(self._last_host_op_ns)
        self._host_op_ns = median(found)
        self.start_anew()


class ClockedFunctions(TorchFunctionMode):
    """Stop the clock while a function of torch runs; to be entered after all other such modes, which run inside."""

    def __init__(self, clock: ScriptClock) -> None:
        super().__init__()
        self._clock = clock

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._clock.enter()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._clock.leave()


class ClockedModulePaths(ModulePaths):
    """Stop the clock while the recorder's own hooks run."""

    def __init__(self, clock: ScriptClock) -> None:
        super().__init__()
        self._clock = clock

    def _push(self, module: torch.nn.Module, inputs: Any) -> None:
        self._clock.enter()
        try:
            super()._push(module, inputs)
        finally:
            self._clock.leave()

    def _pop(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self._clock.enter()
        try:
            super()._pop(module, inputs, output)
        finally:
            self._clock.leave()


def is_of_gpu(tensors: Sequence[torch.Tensor]) -> bool:
    """Say whether an op has to do with a tensor that is on the GPU, as the script has it."""
    return any(item.is_meta for item in tensors)


def lesser_leads(before: Sequence[tuple[int, int]], now: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return of two iterations' times the lesser before each op, where they ran as many; else those of the later one.

    What else the machine does only ever adds.
    """
    return [min(pair) for pair in zip(before, now, strict=True)] if len(before) == len(now) else list(now)
