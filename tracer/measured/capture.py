"""Runs torch's profiler over some iterations of code that goes on by itself."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch.profiler import profile

from ...errors import CaptureError
from ...formats.trace.tables import Trace, Workload
from ..hooks.modules import ModuleSpans
from .files import import_profiler, keep_iterations
from .lookup_table import add_lookups
from .lookups import count_lookups
from .profiled import make_profiler, watch_autocast


class Capture:
    """Own the profiler: created before an iteration that warms it up, then told of each iteration that ends."""

    def __init__(self, iteration_count: int) -> None:
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            raise CaptureError(
                "another profiler is running: use wavecast.tracer.trace_handler as its on_trace_ready, or turn it off"
            )
        device_type = "cuda" if torch.cuda.is_initialized() else "cpu"
        self._wanted_count = iteration_count
        self._ended_count = 0
        self._hooks = ExitStack()
        self._profiler: profile = make_profiler(device_type, iteration_count, None)
        self._profiler.start()
        self._autocast_seen = self._hooks.enter_context(watch_autocast(device_type))
        self._counted = self._hooks.enter_context(count_lookups())

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
        if self.is_done:
            self.stop()
            return
        self._profiler.step()
        if self._ended_count == 1:
            self._hooks.close()
            self._hooks.enter_context(ModuleSpans())

    def stop(self) -> None:
        """Remove the hooks and stop the profiler, whether done or not."""
        self._hooks.close()
        self._profiler.stop()

    def read(self, workload: Workload) -> Trace:
        """Return what was captured; raises CaptureError where no iteration was."""
        if not self.captured_count:
            raise CaptureError("the code ended before the first iteration to be captured did")
        trace = import_profiler(self._profiler, workload, next(iter(self._autocast_seen), None))
        return add_lookups(keep_iterations(trace, self.captured_count), self._counted)
