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

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..hooks.modules import ModulePaths
from ..hooks.optimizers import OptimizerSteps
from ..hooks.patches import patched
from ..host_times.plain_python import PlainLayer

_ROUNDS: Final = 30
_TELLING: Final = 3
"""An op on tensors of the host counts where it takes so often what the recorder adds to it."""
_EVERY: Final = 8
"""The known piece of Python runs after every so many functions in which ops ran: the recorder is between them."""

_QUARTER: Final = 25


@dataclass(frozen=True, slots=True)
class Stretch:
    """Hold one stretch of time outside torch, as the clock has it: with what recording adds."""

    time_ns: float
    is_after_op: bool
    """It followed a function in which ops ran: the recorder has pushed the script out of the caches."""
    is_loading: bool = False
    opens_module: bool = False
    """A module was called at its end."""


@dataclass(slots=True)
class ScriptTime:
    """Hold what passed outside torch before one op."""

    stretches: list[Stretch] = field(default_factory=list)
    host_ns: float = 0.0
    """In functions on tensors of the host alone, beside it; and"""
    host_loading_ns: float = 0.0
    """of these while data was loaded."""


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """Say what recording adds to the script's own Python: some time per stretch, and colder caches.

    Between eager ops the same piece of Python takes about three times what it takes in a loop of its own, for torch's
    code takes its place in the caches. The recorder's takes more of it: a known piece takes `cold_ns` after it instead
    of `usual_ns`. Code runs slower the first time, and no slower from then on.
    """

    after_call_ns: float = 0.0
    after_op_ns: float = 0.0
    module_ns: float = 0.0
    """Per call of a module: torch takes a longer way where hooks are set. At most."""
    usual_ns: float = 0.0
    cold_ns: float = 0.0

    def own_ns(self, stretches: Sequence[Stretch]) -> tuple[float, float]:
        """Return what the script's Python takes before an op where nothing is recorded, and what of it loads data.

        >>> cost = RecordingCost(after_op_ns=1.0, usual_ns=10.0, cold_ns=20.0)
        >>> cost.own_ns([Stretch(11.0, True)]), cost.own_ns([Stretch(31.0, True), Stretch(80.0, False, True)])
        ((5.0, 0.0), (100.0, 72.72727272727273))
        """
        own = loading = 0.0
        for group in _after_ops(stretches):
            left = [(item.time_ns - self.reached_ns(item), item.is_loading) for item in group]
            whole = sum(time_ns for time_ns, _ in left)
            if whole > 0:
                warm = self._warm_ns(whole)
                own += warm
                loading += warm * float(np.clip(sum(time_ns for time_ns, loads in left if loads) / whole, 0.0, 1.0))
        return own, loading

    def reached_ns(self, stretch: Stretch) -> float:
        """Return what passes of a stretch before the script goes on and after it asked for something."""
        reached_ns = self.after_op_ns if stretch.is_after_op else self.after_call_ns
        return reached_ns + stretch.opens_module * self.module_ns

    def _warm_ns(self, time_ns: float) -> float:
        """Return what so much time amid recording takes amid eager ops: longer by a part, at most by the piece's."""
        if not 0 < self.usual_ns < self.cold_ns:
            return time_ns
        return max(time_ns * self.usual_ns / self.cold_ns, time_ns - (self.cold_ns - self.usual_ns))


@dataclass(slots=True)
class ScriptTimes:
    """Collect an iteration's times, op by op."""

    before_op: list[ScriptTime] = field(default_factory=list)
    cold_ns: list[float] = field(default_factory=list)
    """What the known piece of Python took amid recording."""

    def usual_module_ns(self, cost: RecordingCost) -> float:
        """Return what the call of a module takes here, the recorder's way included, at most what `cost` says of it.

        Three of four take longer. What a script's usual modules take is in the usual lead.
        """
        found = []
        for group in (group for item in self.before_op for group in _after_ops(item.stretches)):
            count = sum(item.opens_module for item in group)
            if count:
                plain = replace(cost, module_ns=0.0)
                found.append(sum(item.time_ns - plain.reached_ns(item) for item in group) / count)
        return float(np.clip(np.percentile(found, _QUARTER), 0.0, cost.module_ns)) if found else 0.0

    def settled(self, cost: RecordingCost) -> list[tuple[int, int]]:
        """Return the script's own time before each op, and what of it loaded data, ns."""
        found = []
        for item in self.before_op:
            own_ns, loading_ns = cost.own_ns(item.stretches)
            found.append((round(own_ns + item.host_ns), round(loading_ns + item.host_loading_ns)))
        return found


def _after_ops(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Part stretches where the recorder was between them."""
    groups: list[list[Stretch]] = []
    for item in stretches:
        if item.is_after_op or not groups:
            groups.append([])
        groups[-1].append(item)
    return groups


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
        self._is_of_gpu = self._has_run_op = False
        self._host_op_ns = self._host_ns = 0.0
        self._last_host_op_ns = 0
        self._known = PlainLayer(8)
        self._cost = RecordingCost()
        self._op_stretch_count = 0
        self.is_probing = False
        """Whether the known piece of Python is run now and then, which takes time of the script's caches."""

    def now_ns(self) -> int:
        """Return the time of this thread without what the garbage collector took of it, of which recording makes more.

        While it runs, the clock stands.
        """
        return (
            time.thread_time_ns() if self._collecting_since_ns is None else self._collecting_since_ns
        ) - self._garbage_ns

    def enter(self) -> None:
        """Stop: torch, or the recorder, is asked for something."""
        self._depth += 1
        if self._depth > 1:
            return
        now = self.now_ns()
        if self._resumed_ns is not None:
            self._note_stretch(now - self._resumed_ns)
        self._host_op_count = 0
        self._host_ns, self._is_of_gpu = 0.0, False

    def leave(self) -> None:
        """Go on: the script has its answer."""
        self._depth -= 1
        if self._depth:
            return
        now = self.now_ns()
        if self._host_ns and not self._is_of_gpu:
            self._note_host(self._host_ns)
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

    def settle(self) -> list[tuple[int, int]]:
        """Return an iteration's times before each op, without what recording adds, and collect another's."""
        times = self.start_anew()
        if times.cold_ns:
            self._cost = replace(self._cost, cold_ns=median(times.cold_ns))
        return times.settled(replace(self._cost, module_ns=times.usual_module_ns(self._cost)))

    def _note_stretch(self, time_ns: float) -> None:
        if not self._optimizers.is_running:  # its loop is torch's own
            self._before.stretches.append(
                Stretch(time_ns=time_ns, is_after_op=self._has_run_op, is_loading=self._is_loading)
            )

    def note_module(self) -> None:
        """Note that the stretch that has just ended did so because a module was called."""
        if self._before.stretches and not self._optimizers.is_running:
            self._before.stretches[-1] = replace(self._before.stretches[-1], opens_module=True)

    def _note_host(self, time_ns: float) -> None:
        if not self._optimizers.is_running:
            self._before.host_ns += time_ns
            self._before.host_loading_ns += self._is_loading * time_ns

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
            if phase == "start":
                self._collecting_since_ns = now
            elif self._collecting_since_ns is not None:
                self._garbage_ns += now - self._collecting_since_ns
                self._collecting_since_ns = None

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

    def calibrate_usual(self) -> None:
        """Find what the known piece of Python takes between eager ops; to be called before anything is patched."""
        x, weight = torch.ones(2, 4, 8, device="cpu"), torch.ones(8, 8, device="cpu", requires_grad=True)
        found = []
        for number in range(_ROUNDS):
            with torch.enable_grad():
                _small_ops(x, weight).backward()  # type: ignore[no-untyped-call]
            start_ns = time.thread_time_ns()
            self._known.call(number)
            found.append(time.thread_time_ns() - start_ns)
        self._cost = replace(self._cost, usual_ns=median(found))

    def calibrate(self) -> None:
        """Find what the recorder adds, with its modes entered, to stretches and to an op on the host's tensors."""
        x, weight, module = torch.ones(2, 4, 8, device="cpu"), torch.ones(8, 8, device="cpu"), torch.nn.Identity()
        rows = []
        for _ in range(_ROUNDS):
            _small_ops(x, weight)
            self.start_anew()
            x.neg_()
            host_op_ns = self._last_host_op_ns
            x.dim()
            x.dim()
            module(1)
            x.dim()
            _, after_op, after_call, *around = (item.time_ns for item in self._before.stretches)
            rows.append((host_op_ns, after_op, after_call, sum(around) - len(around) * after_call))
        host_op, after_op, after_call, in_module = (median(column) for column in zip(*rows, strict=True))
        self._host_op_ns = host_op
        self._cost = replace(self._cost, after_call_ns=after_call, after_op_ns=after_op, module_ns=max(in_module, 0.0))
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


def is_of_gpu(tensors: Sequence[torch.Tensor]) -> bool:
    """Say whether an op has to do with a tensor that is on the GPU, as the script has it."""
    return any(item.is_meta for item in tensors)


def lesser_leads(before: Sequence[tuple[int, int]], now: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return of two iterations' times the lesser before each op, where they ran as many; else those of the later one.

    What else the machine does only ever adds.
    """
    return [min(pair) for pair in zip(before, now, strict=True)] if len(before) == len(now) else list(now)
