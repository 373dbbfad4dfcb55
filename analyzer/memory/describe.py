"""How much memory an iteration takes, and what holds it."""

from typing import Final

import numpy as np

from ...arrays import Rows
from ...formats.trace.column import row_count
from ...formats.trace.tables import Phase, Trace
from ..recorded.window import Window
from ..work import Family, are_of_family
from .allocator import play
from .events import describe_events
from .lifetimes import Bytes, Storages, find_storages, has_lifetimes
from .roles import CATEGORIES, find_roles
from .temporaries import temporary_bytes
from .use import MemoryCategory, MemoryMethod, MemoryUse

RECORDED_REASON: Final = "every storage held from the op that creates it until the recording saw it dropped"
TRAINING_REASON: Final = "every storage held from the op that creates it to the last one that uses it"
INFERENCE_REASON: Final = (
    f"{TRAINING_REASON}; without a backward pass, Python variables may hold some longer: the upper end counts them"
)
NOTHING: Final = "the recording has neither memory events nor tensor identities: record it with wavecast's own tracer"
HOST_ONLY: Final = "the recording holds host memory alone, and not what was allocated before it"


def describe_memory(trace: Trace, window: Window) -> MemoryUse | None:
    """Return the peak memory of the window and what holds it; None where the trace does not tell.

    `explain_missing_memory` then says why. Allocator events win over shapes and lifetimes.

    >>> round(describe_memory(trace, window).peak_bytes / 2**20)
    642
    """
    found = _describe(trace, window)
    return None if isinstance(found, str) else found


def explain_missing_memory(trace: Trace, window: Window) -> str | None:
    """Return why `describe_memory` has no answer; None where it has one."""
    found = _describe(trace, window)
    return found if isinstance(found, str) else None


def _describe(trace: Trace, window: Window) -> MemoryUse | str:
    if (trace.memory.device >= 0).any() and not has_lifetimes(trace):
        found = describe_events(trace, window)
        # Ops of measured recordings lie inside one another, and not all that they return is known.
        if isinstance(found, MemoryUse) or trace.is_measured or not row_count(trace.operands):
            return found
    if not row_count(trace.operands):
        return HOST_ONLY if row_count(trace.memory) else NOTHING
    if not (trace.tensors.device >= 0).any():
        return HOST_ONLY
    return _describe_lifetimes(trace, window)


def _describe_lifetimes(trace: Trace, window: Window) -> MemoryUse | str:
    storages = find_storages(trace, window.op_rows)
    if not storages.size_bytes.any():
        return "no op of the iteration uses a tensor of the accelerator"
    temporaries = temporary_bytes(trace, window.op_rows)
    beside = temporaries[1]
    level = levels(storages, storages.last, len(window.op_rows)) + beside
    peak = int(level.argmax())
    alive = (storages.first <= peak) & (storages.last >= peak)
    roles = find_roles(trace, window.op_rows, storages)
    sizes = np.bincount(roles[alive], weights=storages.size_bytes[alive], minlength=len(CATEGORIES))
    sizes[CATEGORIES.index(MemoryCategory.TEMPORARIES)] += beside[peak]
    peaks = play(storages, temporaries, is_late=roles == CATEGORIES.index(MemoryCategory.OPTIMIZER_STATE))
    # Count the threads that multiply matrices: autograd runs backward on one of its own, with its own handle.
    multiplies = are_of_family(trace.strings, Family.MATMUL)
    phase = trace.ops.phase[window.op_rows[multiplies[trace.ops.name[window.op_rows]]]]
    return MemoryUse(
        peak_bytes=int(level[peak]),
        highest_bytes=int((levels(storages, storages.latest, len(window.op_rows)) + beside).max()),
        allocated_peak_bytes=peaks.allocated_bytes,
        reserved_peak_bytes=peaks.reserved_bytes,
        held={category: int(size) for category, size in zip(CATEGORIES, sizes, strict=True) if size},
        at_op=int(window.op_rows[peak]),
        method=MemoryMethod.SHAPES_AND_LIFETIMES,
        reason=_explain(storages),
        workspace_count=int((phase == Phase.BACKWARD).any()) + int((phase != Phase.BACKWARD).any()),
    )


def _explain(storages: Storages) -> str:
    if storages.is_recorded:
        return RECORDED_REASON
    return TRAINING_REASON if (storages.uses.phase == Phase.BACKWARD).any() else INFERENCE_REASON


def levels(storages: Storages, last: Rows, op_count: int) -> Bytes:
    """Return the bytes held while each op runs: its results and all that it or a later one still needs."""
    change = np.zeros(op_count + 1, dtype=np.int64)
    np.add.at(change, storages.first, storages.size_bytes)
    np.add.at(change, last + 1, -storages.size_bytes)
    return np.cumsum(change)[:op_count]
