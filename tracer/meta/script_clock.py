"""Times the script's own Python between what it asks of torch, while the script runs on shapes.

What runs inside torch's functions is the recorder's own doing there, and a fake GPU's; it says nothing. What runs
between them is the script as it would run anyway: tokenizing, sampling, bookkeeping, logging, its modules' code. So the
clock runs while no function of torch does. Ops on tensors of the host alone are work of the host as well: they count
with what they take beyond what the recorder adds to each, where that can be told.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..hooks.modules import ModulePaths, OptimizerSteps
from ..hooks.patches import patched
from ..host_times.pieces import PlainLayer
from .script_times import TELLING_NS, RecordingCost, ScriptStretch, ScriptTime, ScriptTimes, ScriptWalk

_ROUNDS: Final = 30
_TELLING: Final = 3
"""An op on tensors of the host counts where it takes so often what the recorder adds to it."""
_TIMED_ROUNDS: Final = 256
"""Two milliseconds and more: short enough to be forgotten, too long to slip between what else the machine does."""
_MOST_TIMED: Final = 8
_EVERY: Final = 8
"""The known piece of Python runs after every so many functions in which ops ran: the recorder is between them."""


class ScriptClock:
    """Own the time that a script spends outside torch; `take` hands it over, op by op.

    Only the thread that makes it counts.
    """

    def __init__(self, optimizers: OptimizerSteps) -> None:
        self.times = ScriptTimes()
        self._optimizers = optimizers
        self._depth = 0
        self._resumed_ns: int | None = None
        self._before = ScriptTime()
        self._is_loading = False
        self._garbage_ns = 0
        self._collecting_since_ns: int | None = None
        self._host_op_count = 0
        self._is_of_gpu = self._asks_gpu = self._has_run_op = False
        self._host_op_ns = self._host_ns = 0.0
        self._last_host_op_ns = 0
        self._known = PlainLayer(8)
        self._cost = RecordingCost()
        self._op_stretch_count = 0
        self._round_ns: list[float] = []
        self.is_probing = False
        """Whether the known piece of Python is run now and then, which takes time of the script's caches."""

    def now_ns(self) -> int:
        """Return the time of this thread without what the garbage collector took of it, of which recording makes more.

        While it runs, the clock stands.
        """
        since_ns = self._collecting_since_ns
        return (time.thread_time_ns() if since_ns is None else since_ns) - self._garbage_ns

    def enter(self) -> None:
        """Stop: torch, or the recorder, is asked for something."""
        self._depth += 1
        if self._depth > 1:
            return
        now = self.now_ns()
        if self._resumed_ns is not None and not self._optimizers.is_running:  # its loop is torch's own
            time_ns = now - self._resumed_ns
            self._before.stretches.append(
                ScriptStretch(time_ns, is_after_op=self._has_run_op, is_loading=self._is_loading)
            )
            if time_ns >= TELLING_NS and len(self._round_ns) < _MOST_TIMED:
                self._time_rounds()
        self._host_op_count = 0
        self._host_ns, self._is_of_gpu, self._asks_gpu = 0.0, False, False

    def leave(self) -> None:
        """Go on: the script has its answer."""
        self._depth -= 1
        if self._depth:
            return
        now = self.now_ns()
        if self._host_ns and not (self._is_of_gpu or self._asks_gpu or self._optimizers.is_running):
            self._before.host_ns += self._host_ns
            self._before.host_loading_ns += self._is_loading * self._host_ns
        self._has_run_op = self._host_op_count > 0 or self._is_of_gpu
        if self._has_run_op and self.is_probing:
            now = self._probe(now)
        self._resumed_ns = now

    def _probe(self, now: int) -> int:
        """Run the known piece of Python now and then, and return when the script goes on."""
        self._op_stretch_count += 1
        if self._optimizers.is_running or self._op_stretch_count % _EVERY != 1:
            return now
        self._known.call(self._op_stretch_count)
        end = self.now_ns()
        self.times.cold_ns.append(end - now)
        return end

    def enter_untold(self) -> None:
        """Stop for an op; where no function of torch told of it, C++ issued it, and is what ran before it, too."""
        if not self._depth:
            self._resumed_ns = None
            self._before.is_untold = not self._before.stretches
        self.enter()

    def note_op(self, taken_ns: int, *, is_of_gpu: bool) -> None:
        """Note that an op has run; one on tensors of the host alone is work of the host, less what recording adds."""
        self._is_of_gpu |= is_of_gpu
        if not is_of_gpu:
            self._host_op_count += 1
            self._last_host_op_ns = taken_ns
            if taken_ns > _TELLING * self._host_op_ns:
                self._host_ns += taken_ns - self._host_op_ns

    def note_question(self) -> None:
        """Note that a tensor of the GPU is asked for something: what runs on the host for it does not count."""
        self._asks_gpu = True

    def take(self) -> None:
        """Put down what has passed since the last op, for the next one."""
        self.times.before_op.append(self._before)
        self._before = ScriptTime()

    def start_anew(self) -> ScriptTimes:
        """Return what was collected, and collect another iteration's times."""
        found, self.times, self._before = self.times, ScriptTimes(), ScriptTime()
        return found

    def _time_rounds(self) -> None:
        """Time the known piece beside a long stretch: both run as much slower as the machine just does."""
        start_ns = self.now_ns()
        for number in range(_TIMED_ROUNDS):
            self._known.call(number)
        self._round_ns.append((self.now_ns() - start_ns) / _TIMED_ROUNDS)

    def settle(self) -> ScriptWalk:
        """Return an iteration's times before each op, without what recording adds, and collect another's."""
        self._time_rounds()
        round_ns, self._round_ns = float(np.mean(self._round_ns)), []
        times = self.start_anew()
        if times.cold_ns:
            self._cost = replace(self._cost, cold_ns=median(times.cold_ns))
        leads = times.settled(replace(self._cost, module_ns=times.usual_module_ns(self._cost)))
        return ScriptWalk(leads=leads, round_ns=round_ns)

    def note_module(self) -> None:
        """Note that the stretch that has just ended did so because a module was called."""
        if self._before.stretches and not self._optimizers.is_running:
            self._before.stretches[-1] = replace(self._before.stretches[-1], opens_module=True)

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

        def load_apart(loader: Any) -> Any:
            outer, self._is_loading = self._is_loading, True
            try:
                return load(loader)
            finally:
                self.enter()  # what has run until now counts as what it is
                self.leave()
                self._is_loading = outer

        def note_garbage(phase: str, _details: Any) -> None:
            now = time.thread_time_ns()
            if phase == "start":
                self._collecting_since_ns = now
            elif self._collecting_since_ns is not None:
                self._garbage_ns += now - self._collecting_since_ns
                self._collecting_since_ns = None

        def aside(run: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                with self.stopped(keeps=True):
                    return run(*arguments, **options)

            return call

        gc.callbacks.append(note_garbage)
        try:
            with (
                patched(_BaseDataLoaderIter, "__next__", load_apart),
                patched(torch.optim.Optimizer, "zero_grad", aside(torch.optim.Optimizer.zero_grad)),
                patched(torch.autocast, "__exit__", aside(torch.autocast.__exit__)),  # drops copies that are watched
            ):
                yield
        finally:
            gc.callbacks.remove(note_garbage)

    def calibrate_usual(self) -> None:
        """Find what the known piece of Python takes between eager ops; to be called before anything is patched."""
        x, weight = torch.ones(2, 4, 8, device="cpu"), torch.ones(8, 8, device="cpu", requires_grad=True)
        found = []
        for number in range(_ROUNDS):
            with torch.enable_grad():
                _small_ops(x, weight).backward()
            start_ns = time.thread_time_ns()
            self._known.call(number)
            found.append(time.thread_time_ns() - start_ns)
        self._cost = replace(self._cost, usual_ns=median(found))

    def calibrate(self) -> None:
        """Find what the recorder adds, with its modes entered, to stretches and to an op on the host's tensors."""
        x, weight = torch.ones(2, 4, 8, device="cpu"), torch.ones(8, 8, device="cpu")
        rows = []
        for _ in range(_ROUNDS):
            _small_ops(x, weight)
            self.start_anew()
            x.neg_()
            host_op_ns = self._last_host_op_ns
            x.dim()
            x.dim()
            after_op, after_call = (item.time_ns for item in self._before.stretches[-2:])
            rows.append((host_op_ns, after_op, after_call))
        self._host_op_ns, after_op, after_call = (median(column) for column in zip(*rows, strict=True))
        self._cost = replace(self._cost, after_call_ns=after_call, after_op_ns=after_op)
        self.start_anew()


def _small_ops(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Run what small models run: enough code to take the caches."""
    functional = torch.nn.functional
    y = functional.relu(functional.linear(functional.layer_norm(x, (8,)), weight))
    y = torch.cat((y, x), -1).transpose(0, 1).softmax(-1)
    return (y[0] * 2 + y.sum(0)).square().mean()


class ClockedFunctions(TorchFunctionMode):
    """Stop the clock while a function of torch runs; to be entered after all other such modes, which run inside."""

    def __init__(self, clock: ScriptClock) -> None:
        super().__init__()
        self._clock = clock

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._clock.enter()
        try:
            if args and _is_on_gpu(args[0]):
                self._clock.note_question()  # what it makes on the host stands in for values that are not there
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
        self._clock.note_module()
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


def _is_on_gpu(argument: Any) -> bool:
    if not isinstance(argument, torch.Tensor):
        return False
    with torch._C.DisableTorchFunction():
        return argument.is_meta


def is_of_gpu(tensors: Sequence[torch.Tensor]) -> bool:
    """Say whether an op has to do with a tensor that is on the GPU, as the script has it."""
    return any(item.is_meta for item in tensors)
