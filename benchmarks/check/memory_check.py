"""Checks predicted memory against torch's own trackers, and the allocator's rules against recorded totals.

    python -m benchmarks.check.memory_check                                   # the models of benchmarks/make/models
    python -m benchmarks.check.memory_check --models resnet50 --precisions fp32
    python -m benchmarks.check.memory_check --inferred                        # without the recorded ends of storages
    python -m benchmarks.check.memory_check --traces FOLDER                   # recordings with allocation events

Of each model one step is recorded on the meta device, and two trackers watch the same step: one that follows every
storage by a weak reference, rounding to 512 bytes, and torch's MemTracker, which does not round. Neither shares
code with the prediction, which knows nothing but the recorded trace.
"""

from __future__ import annotations

import argparse
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from wavecast.analyzer.memory import MemoryMethod, describe_memory
from wavecast.analyzer.memory.describe import levels
from wavecast.analyzer.memory.events import pair_events
from wavecast.analyzer.memory.lifetimes import find_storages
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table, take_rows
from wavecast.formats.trace.tables import MemoryTable, Trace
from wavecast.tracer import trace_iteration

from ..make.record_samples import BATCH_SIZES, MODES, Sample, build_step

MIB = 1 << 20
ALLOCATION_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    sample: Sample
    predicted: int
    """Of tensors alone, without what ops take while they run: no tracker sees that."""
    highest: int
    tracked: int
    torch_tracked: int | None

    @property
    def error_percent(self) -> float:
        return 100 * (self.predicted / self.tracked - 1)


class LiveStorages(TorchDispatchMode):
    """Follow the bytes of living meta storages while `is_on`: each counts until the last reference to it is gone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_on = False
        self.now = self.peak = 0
        self._living: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.is_on:
            for item in tree_leaves(result):
                self.see(item)
        return result

    def see(self, item: object) -> None:
        """Count the storage of a meta tensor that was not seen before."""
        if not isinstance(item, torch.Tensor) or item.device.type != "meta":
            return
        storage = item.untyped_storage()
        key = storage._cdata
        if key in self._living:
            return
        size = -(-storage.nbytes() // ALLOCATION_BYTES) * ALLOCATION_BYTES

        def forget(_reference: object) -> None:
            del self._living[key]
            self.now -= size

        self._living[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)

    def see_existing(self, items: Sequence[object]) -> None:
        """Count what exists already: parameters, buffers, their gradients, the state of optimizers, and the batch."""
        for item in items:
            for tensor in _tensors_of(item):
                self.see(tensor)


def _tensors_of(item: object) -> list[Any]:
    if isinstance(item, torch.nn.Module):
        return [found for tensor in (*item.parameters(), *item.buffers()) for found in (tensor, tensor.grad)]
    leaves: list[Any] = tree_leaves(list(item.state.values()) if isinstance(item, torch.optim.Optimizer) else item)
    return leaves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=BATCH_SIZES, default=list(BATCH_SIZES))
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--inferred", action="store_true", help="leave out the recorded lifetimes, as older traces do")
    parser.add_argument("--traces", type=Path, help="folder of recordings: compare with the allocator's totals")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.traces:
        check_events(sorted(options.traces.glob("*.json.gz")))
    else:
        check_models(options.models, options.precisions, is_inferred=options.inferred)


def check_models(models: Sequence[str], precisions: Sequence[str], *, is_inferred: bool) -> None:
    """Print predicted and tracked peaks, and the mean absolute error per mode."""
    print(f"{'step':42}{'tracked':>10}{'MemTracker':>12}{'predicted':>11}{'error':>8}{'upper end':>11}   MiB")
    rows = []
    for model, mode, precision in product(models, MODES, precisions):
        sample = Sample(model=model, mode=mode, precision=precision, batch_size=BATCH_SIZES[model][0])
        row = _check(sample, is_inferred=is_inferred)
        rows.append(row)
        theirs = "-" if row.torch_tracked is None else f"{row.torch_tracked / MIB:.1f}"
        print(
            f"{row.sample.file_name('shapes').removesuffix('.json.gz'):42}{row.tracked / MIB:10.1f}{theirs:>12}"
            f"{row.predicted / MIB:11.1f}{row.error_percent:7.2f}%{row.highest / MIB:11.1f}"
        )
    for mode in MODES:
        errors = [row.error_percent for row in rows if row.sample.mode == mode]
        print(f"{mode}: mean |error| {np.mean(np.abs(errors)):.2f} %, worst {max(errors, key=abs):+.2f} %")


def _check(sample: Sample, *, is_inferred: bool) -> Row:
    trace, tracked = _record(sample)
    if is_inferred:
        trace = replace(trace, memory=build_table(MemoryTable, 0))
    storages = find_storages(trace, rows := select_window(trace).op_rows)
    predicted, highest = (int(levels(storages, ends, len(rows)).max()) for ends in (storages.last, storages.latest))
    return Row(
        sample=sample, predicted=predicted, highest=highest, tracked=tracked, torch_tracked=_torch_tracked(sample)
    )


def _record(sample: Sample) -> tuple[Trace, int]:
    """Return the trace of a step and the peak that our tracker saw in the very run that was recorded."""
    step, tracker, runs = _step(sample), LiveStorages(), iter(range(2))

    def watched() -> None:
        tracker.is_on = next(runs) == 1  # the first run warms up
        if tracker.is_on:
            tracker.see_existing(_held_by(step))
        step()

    with tracker:
        trace = _trace(sample, watched)
    return trace, tracker.peak


def _torch_tracked(sample: Sample) -> int | None:
    """Return the peak of torch's MemTracker; None where it refuses a model that calls a module twice."""
    step, tracker = _step(sample), MemTracker()
    for item in tree_leaves(_held_by(step)):
        if isinstance(item, torch.nn.Module | torch.optim.Optimizer | torch.Tensor):
            tracker.track_external(item)

    def watched() -> None:
        tracker.reset_mod_stats()
        step()

    try:
        with tracker:
            _trace(sample, watched)
    except NotImplementedError:
        return None
    return int(tracker.get_tracker_snapshot("peak")[torch.device("meta")]["Total"])


def _step(sample: Sample) -> Callable[[], object]:
    step: Callable[[], object] = build_step(import_module(f"benchmarks.make.models.{sample.model}"), sample, "meta")
    return step


def _held_by(step: Callable[[], object]) -> list[object]:
    """Return the model, the optimizer and the batch that a step of `build_step` works on."""
    cells: tuple[Any, ...] = getattr(step, "__closure__", None) or ()
    return [cell.cell_contents for cell in cells]


def _trace(sample: Sample, step: Callable[[], object]) -> Trace:
    return trace_iteration(step, device="meta", mode=sample.mode, batch_size=sample.batch_size)


def check_events(paths: Sequence[Path]) -> None:
    """Print, per iteration of each recording with events, our account of what lives beside the allocator's total."""
    print(f"{'recording':40}{'iteration':>10}{'allocator':>11}{'ours':>9}{'error':>8}   MiB, largest held")
    for path in paths:
        trace = load_trace(path)
        use = describe_memory(trace, select_window(trace))
        if use is None or use.method is not MemoryMethod.ALLOCATION_EVENTS:
            continue
        device = int(trace.memory.device.max())
        events = take_rows(trace.memory, np.flatnonzero(trace.memory.device == device))
        blocks, base = pair_events(events), int(events.allocated_bytes[0] - events.size_bytes[0])
        held = ", ".join(f"{name} {size / MIB:.0f}" for name, size in use.held.items())
        for number, rows in enumerate(_iteration_rows(trace, events.time_ns)):
            peak = int(rows[events.allocated_bytes[rows].argmax()])
            alive = (blocks.allocation >= 0) & (blocks.allocation <= peak) & (blocks.release > peak)
            freed = (blocks.allocation < 0) & (blocks.release <= peak)
            ours = base + int(blocks.size_bytes[alive].sum()) - int(blocks.size_bytes[freed].sum())
            theirs = int(events.allocated_bytes[peak])
            print(
                f"{path.name.removesuffix('.json.gz'):40}{number:10}{theirs / MIB:11.1f}{ours / MIB:9.1f}"
                f"{100 * (ours / theirs - 1):7.3f}%   {held}"
            )


def _iteration_rows(trace: Trace, time_ns: Any) -> Iterator[Any]:
    iterations = trace.iterations
    for begin, end in zip(iterations.start_ns, iterations.end_ns, strict=True):
        rows = np.flatnonzero((time_ns >= begin) & (time_ns <= end))
        if len(rows):
            yield rows


if __name__ == "__main__":
    main()
