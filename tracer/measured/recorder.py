"""Captures some iterations of code that runs by itself, times others without the profiler, and writes one file."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

import numpy as np
import torch
from torch.profiler import profile

from ...errors import CaptureError, InputError, parameter
from ...formats.files.open import save_trace
from ...formats.trace.tables import Trace, Workload
from ...records import dataclass, field, replace
from ..description.device import check_workload
from ..hooks.batches import LoadedBatches, with_samples
from ..hooks.boundaries import IterationWatch, check_ends
from ..hooks.compilation import Compilations
from ..hooks.modules import ModuleSpans, hooks_unwarned
from ..hooks.patches import interrupts_deferred, only_recording
from ..host_times.measure import add_host_times
from .files import check_output, import_profiler, keep_iterations, rank_path
from .lookups import add_lookups, count_lookups
from .profiled import make_profiler, prepend_unprofiled

DEFAULT_ITERATIONS: Final = (10, 15)
"""Of code that ends before, an earlier one."""
WARMUP_COUNT: Final = 3
"""Iterations at the start that are not timed: memory pools, autotuning, optimizer state."""
TIMED_COUNT: Final = 10
"""Iterations timed without the profiler, before and after the captured ones, where the run is long enough."""
_FIRST_POSSIBLE: Final = 2
"""Iteration 0 has no beginning that could be seen, and the one before the first captured one warms the profiler up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Say what to record: iterations `first` to before `end`, numbered from 0, and what the workload is."""

    first: int = DEFAULT_ITERATIONS[0]
    end: int = DEFAULT_ITERATIONS[1]
    ends: str | None = None
    """What iterations end with: `backward`, or where this is None an optimizer's step, or a forward pass."""
    workload: Workload = field(default_factory=Workload)
    host_times: bool = True
    """Whether the host is timed, once, when everything else is recorded."""

    def __post_init__(self) -> None:
        if not _FIRST_POSSIBLE <= self.first < self.end:
            raise InputError(
                f"iterations: expected FIRST:END with {_FIRST_POSSIBLE} <= FIRST < END, got {self.first}:{self.end}"
            )
        check_workload(self.workload)
        check_ends(self.ends, self.workload.mode)


class Recorder:
    """Own a recording of the code that runs while it is entered: hooks, profiler, clock, file.

    The file is written when the last iteration was captured, and again with more unprofiled iterations when there
    are enough of them, or the code ends. Whatever fails here is kept in `error` and ends the recording, not the code.
    """

    def __init__(self, path: str | Path, plan: Plan, when_complete: Callable[[], None] | None = None) -> None:
        self.plan = plan
        self.error: Exception | None = None
        self.trace: Trace | None = None
        """What was recorded, once the file is written."""
        self.path: Path | None = None
        """Where the file is, once it is written."""
        self.iteration_count = 0
        self.ended_early = False
        """Whether the code ended before an iteration was captured."""
        self._target = check_output(path)
        self._when_complete = when_complete
        self._watch = IterationWatch(self._end_iteration, self._fail, plan.workload.mode, plan.ends)
        self._clock = Stopwatch()
        self._capture: Capture | None = None
        self._loaded = LoadedBatches()
        self._batches: Sequence[int] = ()
        """What was loaded for the last iteration."""
        self._early: Capture | None = None
        """Of an iteration of the warm-up, for code that ends before those that are asked for."""
        self._captured: Trace | None = None
        self._is_last_saved = self._is_early = False
        self._said: str | None = None
        self._lifetime = ExitStack()
        self._process = os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        """Say whether this is a copy in a forked process, which records nothing."""
        return os.getpid() != self._process

    def summarise(self) -> str:
        """Return what was recorded, on one line; empty where nothing was."""
        if self.trace is None:
            return ""
        few = f"the code ended after {self.iteration_count} iterations: one of its first was captured"
        said = (summarise(self.trace), self._said, few if self._is_early else None, self._watch.explain_backwards())
        return "; ".join(filter(None, said))

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(only_recording())
            entered.enter_context(hooks_unwarned())
            entered.enter_context(self._watch)
            entered.enter_context(self._loaded.watched())
            self._lifetime = entered.pop_all()
        return self

    def __exit__(self, *_raised: object) -> None:
        with self._lifetime:
            self._watch.stop()
            if self.is_elsewhere or self.error is not None:
                return
            try:
                with interrupts_deferred():
                    self._finish()
            except Exception as failure:  # noqa: BLE001 - the code's own exception, or none, is what goes on
                self._fail(failure)

    def _end_iteration(self, count: int) -> None:
        """Do what is due after iteration `count - 1`."""
        if count != self.iteration_count + 1:  # training began after a forward pass, or another optimizer sets the pace
            self._drop_capture()
            self._drop_early()
            self._captured = None
            self._clock.clear()
        self.iteration_count = count
        self._batches = self._loaded.take()
        if count < self.plan.first:
            self._advance_early(count)
            self._time(count > WARMUP_COUNT)
            if count == self.plan.first - 1:
                self._watch.settle()
                with interrupts_deferred():
                    self._capture = Capture(self.plan.end - self.plan.first)
        elif self._capture is not None:
            self._advance_capture(self._capture)
        elif self._captured is not None:
            # The GPU idled while the file was written: the first iteration afterwards is not like the others.
            self._time(count > self.plan.end + 1)
        if self._captured is not None and self._clock.lap_count >= TIMED_COUNT:
            self._watch.stop()
            with interrupts_deferred():
                self._save(is_last=True)
            if self._when_complete is not None:
                self._when_complete()

    def _time(self, is_steady: bool) -> None:
        if is_steady:
            self._clock.lap()
        else:
            self._clock.begin()

    def _advance_early(self, count: int) -> None:
        """Capture the last iteration of the warm-up where nobody said which ones are wanted."""
        if (self.plan.first, self.plan.end) != DEFAULT_ITERATIONS or count > WARMUP_COUNT:
            return
        with interrupts_deferred(), suppress(CaptureError):  # another profiler runs, which may have ended by then
            if count == WARMUP_COUNT - _FIRST_POSSIBLE:
                self._early = Capture(_FIRST_POSSIBLE, is_early=True)
                self._watch.is_profiling = True
            elif self._early is not None:
                self._early.end_iteration()
                self._watch.is_profiling = not self._early.is_done

    def _drop_early(self) -> None:
        early, self._early = self._early, None
        if early is not None and not early.is_done:
            self._watch.is_profiling = False
            early.stop()

    def _drop_capture(self) -> None:
        capture, self._capture = self._capture, None
        self._watch.is_profiling = False
        if capture is not None:
            capture.stop()

    def _advance_capture(self, capture: Capture) -> None:
        with interrupts_deferred():
            self._watch.is_profiling = True
            capture.end_iteration()
            if capture.is_done:
                self._capture, self._watch.is_profiling = None, False
                self._captured, self._early = capture.read(self._tell_samples()), None
                if self._clock.lap_count < TIMED_COUNT:  # else it is complete, and saved at once
                    self._save()
                self._clock.begin()

    def _finish(self) -> None:
        """Write what there is when the code ends early."""
        if self._capture is not None:
            capture = self._capture
            self._drop_capture()
            if capture.captured_count:
                self._captured = capture.read(self._tell_samples())
        early = self._early
        self._drop_early()
        if self._captured is None and early is not None and early.captured_count:
            self._captured, self._is_early = early.read(self._tell_samples()), True
        if self._captured is None:
            self.ended_early = True
            raise CaptureError(self._explain_nothing())
        if not self._is_last_saved:
            self._save(is_last=True)

    def _tell_samples(self) -> Workload:
        """Return the workload with the samples of an iteration, as its loader tells them."""
        workload, self._said = with_samples(self.plan.workload, self._batches)
        return workload

    def _save(self, *, is_last: bool = False) -> None:
        """Write what there is; with the host's times once nothing is timed any more, nor hooked."""
        if self._captured is None:
            return
        iterations = prepend_unprofiled(self._captured.iterations, self._clock.durations_ns())
        trace = replace(self._captured, iterations=iterations)
        if is_last and self.plan.host_times:
            trace = add_host_times(trace)
        path = rank_path(self._target)
        save_trace(trace, path)
        self.trace, self.path, self._is_last_saved = trace, path, is_last

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._watch.stop()
        try:
            self._drop_capture()
            self._drop_early()
        except Exception as another:  # noqa: BLE001 - the first one says what went wrong
            error.add_note(str(another))

    def _explain_nothing(self) -> str:
        count, first = self.iteration_count, self.plan.first
        if count:
            return (
                f"nothing was recorded: the code ended after {count} iteration{'s' * (count != 1)}, before iteration "
                f"{first} (counted from 0) had ended; let it run longer or capture earlier ones "
                f"({_FIRST_POSSIBLE}:{_FIRST_POSSIBLE + 1} at the earliest)"
            )
        training = self._watch.explain_training()
        if training is not None:
            return f"nothing was recorded: {training}"
        return (
            "nothing was recorded: no torch optimizer stepped and no torch.nn.Module ran on the main thread of this "
            "process; processes that the code starts are not followed (start them with torchrun)"
        )


def summarise(trace: Trace) -> str:
    """Return what a recording holds and what the profiler cost, on one line."""
    lengths_ns = trace.iterations.end_ns - trace.iterations.start_ns
    captured_ns, timed_ns = lengths_ns[trace.iterations.profiled], lengths_ns[~trace.iterations.profiled]
    lengths = (captured_ns, timed_ns)
    captured, timed = (f"{float(f'{np.median(x) / 1e6:.3g}'):,g} ms each" if len(x) else "" for x in lengths)
    noun = "1 iteration" if len(captured_ns) == 1 else f"{len(captured_ns)} iterations"
    text = f"{noun} captured, {captured} under the profiler"
    if len(timed_ns):
        text += f"; {len(timed_ns)} timed without it, {timed}"
        text += f" ({np.median(captured_ns) / np.median(timed_ns):.2f} times)"
    text += f"; {len(trace.ops.name)} ops, {len(trace.kernels.name)} kernels"
    if len(trace.lookups.op):
        text += f"; lookups of {len(np.unique(trace.lookups.op))} embedding ops counted"
    if torch.cuda.is_initialized() and not trace.is_measured:
        text += " (the profiler may not use CUPTI here, or nothing ran on the GPU)"
    return text


_NS_PER_MS: Final = 1e6
_MOST_LAPS: Final = 100
"""Only the last ones are kept: a long run needs no more to know its median."""

Instant = tuple[int, torch.cuda.Event | None]


class Stopwatch:
    """Own the instants at which iterations began and ended; nothing waits for the GPU before the times are read."""

    def __init__(self) -> None:
        self._begin: Instant | None = None
        self._laps: deque[tuple[Instant, Instant]] = deque(maxlen=_MOST_LAPS)

    @property
    def lap_count(self) -> int:
        """Return how many iterations were timed."""
        return len(self._laps)

    def begin(self) -> None:
        """Start timing an iteration here, and drop the one that runs."""
        self._begin = _look()

    def lap(self) -> None:
        """End the iteration that runs, and start the next one at the same instant."""
        now = _look()
        if self._begin is not None:
            self._laps.append((self._begin, now))
        self._begin = now

    def clear(self) -> None:
        """Forget all laps."""
        self._laps.clear()
        self._begin = None

    def durations_ns(self) -> list[int]:
        """Return how long each iteration took; waits for the GPU."""
        return [_between_ns(begin, end) for begin, end in self._laps]


def _look() -> Instant:
    event = None
    if torch.cuda.is_initialized():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
    return time.perf_counter_ns(), event


def _between_ns(begin: Instant, end: Instant) -> int:
    (begin_ns, begin_event), (end_ns, end_event) = begin, end
    if begin_event is None or end_event is None or begin_event.device != end_event.device:
        return end_ns - begin_ns
    end_event.synchronize()
    elapsed_ms: float = begin_event.elapsed_time(end_event)
    return round(elapsed_ms * _NS_PER_MS)


class Capture:
    """Own the profiler: created before an iteration that warms it up, then told of each iteration that ends.

    An early one captures that iteration too, in case it is the last, and keeps only the last one.
    """

    def __init__(self, iteration_count: int, *, is_early: bool = False) -> None:
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            raise CaptureError(
                "another profiler is running: use wavecast.tracer.trace_handler as its on_trace_ready, or turn it off"
            )
        device_type = "cuda" if torch.cuda.is_initialized() else "cpu"
        self._wanted_count = iteration_count
        self._is_early = is_early
        self._ended_count = 0
        self._compiled_counts: list[int] = []
        self._warming_up, self._hooks = ExitStack(), ExitStack()
        self._profiler: profile = make_profiler(device_type, iteration_count, None)
        self._profiler.start()
        # torch.compile compiles again where hooks came or went: the iteration before the first has all of them.
        self._compilations = self._hooks.enter_context(Compilations())
        self._spans = self._hooks.enter_context(ModuleSpans(device_type))
        self._counted = self._warming_up.enter_context(count_lookups())
        if is_early:
            self.end_iteration()

    @property
    def captured_count(self) -> int:
        """Return how many iterations were captured from their start to their end."""
        return max(0, self._ended_count - 1)

    @property
    def is_done(self) -> bool:
        """Say whether all iterations that were asked for were captured."""
        return self.captured_count >= self._wanted_count

    def end_iteration(self) -> None:
        """Note that an iteration has ended; after the last one the profiler stops."""
        self._ended_count += 1
        self._warming_up.close()
        self._compiled_counts.append(self._compilations.count)
        if self.is_done:
            self.stop()
        else:
            self._profiler.step()

    def stop(self) -> None:
        """Remove the hooks and stop the profiler, whether done or not."""
        self._warming_up.close()
        self._hooks.close()
        self._profiler.stop()

    def read(self, workload: Workload) -> Trace:
        """Return what was captured, without iterations in which torch compiled; raises CaptureError where none is."""
        if not self.captured_count:
            raise CaptureError("the code ended before the first iteration to be captured did")
        has_compiled = np.diff(self._compiled_counts[: self.captured_count + 1]) > 0
        if has_compiled.all():
            raise CaptureError(
                f"torch.compile compiled in each of the {self.captured_count} captured iterations: capture later ones "
                f"({parameter('iterations')}), or keep shapes the same (TORCH_LOGS=recompiles names what changes)"
            )
        kept = ~has_compiled
        if self._is_early:
            kept &= np.arange(len(kept)) == np.flatnonzero(kept)[-1]
        trace = import_profiler(self._profiler, workload, self._spans.autocast_dtype)
        return add_lookups(keep_iterations(trace, kept), self._counted)
