"""How long each storage lives, as far as the ops and the modules that use it tell."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Rows
from ...formats.trace.column import MISSING, Column, row_count
from ...formats.trace.signature import DTYPE_BYTES
from ...formats.trace.tables import Phase, Trace
from ...records import dataclass
from .temporaries import RECURRENT_FORWARD, reserve_bytes

Bytes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

ALLOCATION_BYTES: Final = 512
"""torch's caching allocator hands out multiples of this (kMinBlockSize in c10/cuda/CUDACachingAllocator)."""
UNLISTED_ELEMENT_BYTES: Final = 4.0
DEEPEST_MODULE: Final = 100
"""As deep as module paths are imported: each level takes a pass over all ops."""
_STATE_MAKERS: Final = frozenset({"aten::zeros_like", "aten::zeros", "aten::full_like", "aten::full", "aten::clone"})
"""How torch's optimizers create the state that they keep, in their first step."""
_WEIGHT_BUFFER_READERS: Final = frozenset({"aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Uses:
    """Hold which op of an iteration uses which storage, one row per use in order of op; ops are numbered from 0."""

    op: Rows
    storage: Rows
    is_output: Mask
    phase: npt.NDArray[np.int8]
    """Of each op, [n ops]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Storages:
    """Hold the storages of one iteration, n rows: size and life, in positions of ops, both ends included."""

    size_bytes: Bytes
    """Rounded as the allocator does; 0 on other devices and for what shares another storage's memory."""
    is_recorded: bool
    """Whether lives are recorded, not inferred from uses."""
    is_new: Mask
    """Whether an op of the iteration created it."""
    is_kept: Mask
    """Whether it is known to outlive the iteration, so that the next one starts with it: lazy optimizer state."""
    first: Rows
    last: Rows
    """Last op before its recorded end; or that needs it: one that uses it, or the end of the module call that it was
    an argument of."""
    latest: Rows
    """Last op at which a Python frame could still hold it; never before `last`."""
    uses: Uses


def find_storages(trace: Trace, window_ops: Rows) -> Storages:
    """Return the storages that the ops of the window use, alive as recorded, else as inferred from their uses."""
    place = np.full(row_count(trace.ops), -1, dtype=np.int64)
    place[window_ops] = np.arange(len(window_ops))
    op = place[trace.operands.op]
    kept = op >= 0
    uses = Uses(
        op=op[kept],
        storage=trace.tensors.storage[trace.operands.tensor[kept]].astype(np.int64),
        is_output=trace.operands.is_output[kept].astype(bool),
        phase=trace.ops.phase[window_ops],
    )
    count = int(trace.tensors.storage.max()) + 1 if row_count(trace.tensors) else 0
    first_use = _first_rows(uses.storage, count)
    # Which storages are optimizer state that this very step creates: the next one starts with it.
    makes = _named(trace, window_ops, _STATE_MAKERS) & (uses.phase == Phase.OPTIMIZER)
    creator = _at(uses.op, first_use)
    is_state = np.asarray((first_use >= 0) & _at(uses.is_output, first_use) & _at(makes, creator), dtype=bool)
    is_recorded = has_lifetimes(trace)
    if is_recorded:
        lives = _recorded_lives(trace, window_ops, count, is_state)
    else:
        frames, fills = find_frames(trace, window_ops), _fills_result(trace, window_ops)
        lives = _inferred_lives(frames, uses, first_use, is_state, fills, _calls(trace, window_ops))
    size = _sizes(trace, count) * (first_use >= 0)
    size[_is_weight_buffer(trace, window_ops, uses, first_use)] = 0
    _add_reserves(trace, window_ops, uses, size)
    return Storages(
        size_bytes=size,
        is_recorded=is_recorded,
        is_new=lives.is_new,
        is_kept=is_state,
        first=lives.first,
        last=lives.last,
        latest=lives.latest,
        uses=uses,
    )


def has_lifetimes(trace: Trace) -> bool:
    """Say whether the trace tells when each storage was created and dropped: memory events without times."""
    return bool(row_count(trace.memory) and (trace.memory.time_ns == MISSING).all())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Lives:
    is_new: Mask
    first: Rows
    last: Rows
    latest: Rows


def _recorded_lives(trace: Trace, window_ops: Rows, count: int, is_state: Mask) -> _Lives:
    """Return what the trace says; what has no allocation existed before, what has no release lives on."""
    events = trace.memory
    place = np.append(np.searchsorted(window_ops, np.arange(row_count(trace.ops))), 0)
    is_known = (events.block >= 0) & (events.block < count) & (events.op != MISSING)
    made, dropped = (
        np.flatnonzero(is_known & (events.size_bytes > 0)),
        np.flatnonzero(is_known & (events.size_bytes < 0)),
    )
    end = max(len(window_ops) - 1, 0)
    first, last = np.zeros(count, dtype=np.int64), np.full(count, end, dtype=np.int64)
    is_new = np.zeros(count, dtype=bool)
    is_new[events.block[made]] = True
    first[events.block[made]] = np.minimum(place[events.op[made]], end)
    last[events.block[dropped]] = np.minimum(place[events.op[dropped]], end)
    first[is_state & (last == end)] = 0
    last = np.maximum(first, last)
    return _Lives(is_new=is_new, first=first, last=last, latest=last)


def _inferred_lives(frames: Frames, uses: Uses, first_use: Rows, is_state: Mask, fills: Mask, calls: Rows) -> _Lives:
    """Return how long what uses them keeps storages alive, and Python variables might.

    A storage whose first use is not as a result existed before, and lives on: nothing tells when it is dropped. What
    ops of `fills` write first is a result. Autograd's saved tensors need no rule: the backward op that reads one is a
    use.
    """
    count, end = len(first_use), max(len(uses.phase) - 1, 0)
    is_new = (first_use >= 0) & _at(uses.is_output, first_use)
    is_new[uses.storage[uses.is_output & fills[uses.op] & (uses.op == uses.op[first_use[uses.storage]])]] = True
    last = np.zeros(count, dtype=np.int64)
    np.maximum.at(last, uses.storage, uses.op)
    outlives = ~is_new | is_state | _is_left(uses, last, calls)
    first = np.where(is_new & ~is_state, _at(uses.op, first_use), 0)
    last = np.where(outlives, end, _extend_arguments(frames, uses, first, last))
    latest = np.where(outlives, end, _extend_locals(frames, first, last))
    return _Lives(is_new=is_new, first=first, last=last, latest=latest)


def _sizes(trace: Trace, count: int) -> Bytes:
    """Return the bytes of each storage on the accelerator: those of the first tensor seen of it, views being later."""
    tensors = trace.tensors
    element_bytes = np.array([DTYPE_BYTES.get(name, UNLISTED_ELEMENT_BYTES) for name in trace.strings], dtype=float)
    first = _first_rows(tensors.storage.astype(np.int64), count)
    exact = _at(tensors.element_count * element_bytes[tensors.dtype], first)
    rounded = np.ceil(exact / ALLOCATION_BYTES).astype(np.int64) * ALLOCATION_BYTES
    return np.where(_at(tensors.device, first) >= 0, rounded, 0)


def _first_rows(keys: Rows, count: int) -> Rows:
    """Return the first row of each key below `count`; -1 for keys without one."""
    first = np.full(count, -1, dtype=np.int64)
    found, rows = np.unique(keys, return_index=True)
    first[found] = rows
    return first


def _at(values: Column, rows: Rows) -> Column:
    """Return the values at `rows`; the value at -1 is never used, so any will do."""
    return values[rows] if len(values) else np.zeros(len(rows), dtype=values.dtype)


def _named(trace: Trace, window_ops: Rows, names: frozenset[str]) -> Mask:
    """Say of each op of the window whether it bears one of the names."""
    wanted = np.array([text in names for text in trace.strings], dtype=bool)
    return np.asarray(wanted[trace.ops.name[window_ops]] if len(wanted) else np.zeros(0, dtype=bool))


def _fills_result(trace: Trace, window_ops: Rows) -> Mask:
    """Say which ops write in place what the op of torch around them made, and no profiler lists: `copy_` in `clone`."""
    ends = np.array([text.partition(".")[0][-1:] if text.startswith("aten::") else "" for text in trace.strings])
    inner, parent = ends[trace.ops.name[window_ops]], trace.ops.parent[window_ops]
    return np.asarray((inner == "_") & (parent >= 0) & ~np.isin(ends[trace.ops.name[parent]], ("", "_")))


def _is_left(uses: Uses, last: Rows, call: Rows) -> Mask:
    """Say what nothing reads again, of calls that gave nothing else to read: what forward returns; lone gradients.

    `last`: the last op that uses each storage; `call`: the outermost op around each op.
    """
    is_read, left = np.zeros(len(call), dtype=bool), np.zeros(len(last), dtype=bool)
    is_read[call[uses.op[uses.is_output & (call[last[uses.storage]] > call[uses.op])]]] = True
    is_gradient = (uses.phase == Phase.BACKWARD) & ~(uses.phase == Phase.OPTIMIZER).any()
    is_kept = is_gradient | (uses.phase == Phase.FORWARD) & ~is_read[call]
    left[uses.storage] = uses.is_output & is_kept[uses.op]  # the last use wins
    return left


def _calls(trace: Trace, window_ops: Rows) -> Rows:
    """Return the outermost op around each op of the window, in positions of its ops; parents come first."""
    place, call = np.full(row_count(trace.ops) + 1, MISSING), np.arange(len(window_ops))
    place[window_ops] = call
    parent = place[trace.ops.parent[window_ops]]
    while (inner := np.flatnonzero(parent[call] >= 0)).size:
        call[inner] = parent[call[inner]]
    return call


def _is_weight_buffer(trace: Trace, window_ops: Rows, uses: Uses, first_use: Rows) -> Mask:
    """Say which storages are the flat weights of a recurrent layer, which a GPU's parameters are views of.

    Shape-only recordings keep the parameters apart and show beside them a buffer that nothing fills. In bfloat16 there
    is one on a GPU too: torch.nn lays out no such weights, and every call copies them.
    """
    makes = _named(trace, window_ops, frozenset({"aten::new_empty", "aten::empty"}))
    reads = _named(trace, window_ops, _WEIGHT_BUFFER_READERS)
    only_read = np.ones(len(first_use), dtype=bool)
    only_read[uses.storage[~reads[uses.op] & ~makes[uses.op]]] = False
    is_read = np.zeros(len(first_use), dtype=bool)
    is_read[uses.storage[reads[uses.op]]] = True
    is_made = _at(uses.is_output, first_use) & _at(makes, _at(uses.op, first_use))
    is_copied = np.array([text == "bfloat16" for text in trace.strings], dtype=bool)[trace.tensors.dtype]
    is_flat = np.zeros(len(first_use), dtype=bool)
    is_flat[trace.tensors.storage[~is_copied]] = True
    return np.asarray(is_read & only_read & is_made & is_flat, dtype=bool)


def _add_reserves(trace: Trace, window_ops: Rows, uses: Uses, size: Bytes) -> None:
    """Give what recurrent layers keep for backward its size, where a recording of shapes left it empty."""
    runs = _named(trace, window_ops, frozenset({RECURRENT_FORWARD}))
    for row in np.flatnonzero(runs[uses.op] & uses.is_output & (size[uses.storage] == 0)).tolist():
        signature = int(trace.ops.signature[window_ops[uses.op[row]]])
        if signature >= 0 and _is_reserve(trace, int(uses.storage[row])):
            blocks = -(-reserve_bytes(trace.signatures[signature]) // ALLOCATION_BYTES)
            size[uses.storage[row]] = blocks * ALLOCATION_BYTES


def _is_reserve(trace: Trace, storage: int) -> bool:
    tensor = int(np.flatnonzero(trace.tensors.storage == storage)[0])
    return trace.strings[trace.tensors.dtype[tensor]] == "uint8" and int(trace.tensors.device[tensor]) >= 0


def _extend_arguments(frames: Frames, uses: Uses, first: Rows, last: Rows) -> Rows:
    """Hold what a module call was given to its end: torch's `Module.__call__` keeps its arguments until it returns."""
    extended = last.copy()
    read = ~uses.is_output
    op, storage = uses.op[read], uses.storage[read]
    for start, end in zip(frames.start, frames.end, strict=True):
        given = first[storage] < start[op]
        np.maximum.at(extended, storage[given], end[op[given]])
    return extended


def _extend_locals(frames: Frames, first: Rows, last: Rows) -> Rows:
    """Hold everything to the end of the innermost module call that saw it created and used last."""
    latest = last.copy()
    for start, end in zip(frames.start, frames.end, strict=True):  # outermost first: inner calls overrule
        inside = (
            (start[first] == start[last]) & (end[first] >= last) if len(start) else np.zeros(len(first), dtype=bool)
        )
        latest = np.where(inside, np.maximum(end[first], last), latest)
    return latest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frames:
    """Hold, per depth of nesting (outermost first), the first and last op of the module call around each op.

    Ops outside any module of that depth are their own call. Calls of one module with no op between are one.
    """

    start: tuple[Rows, ...]
    end: tuple[Rows, ...]


def find_frames(trace: Trace, window_ops: Rows) -> Frames:
    """Return the module calls around the forward ops of a window, in positions of its ops."""
    module = trace.ops.module[window_ops].astype(np.int64)
    is_forward = (trace.ops.phase[window_ops] == Phase.FORWARD) & (module >= 0)
    used, place = np.unique(np.where(is_forward, module, -1), return_inverse=True)
    paths = [tuple(trace.strings[item].split(".")) if item >= 0 else () for item in used.tolist()]
    starts, ends = [], []
    for depth in range(1, min(max(map(len, paths), default=0), DEEPEST_MODULE) + 1):
        # Number the distinct beginnings of `depth` parts; -1 for shorter paths.
        numbers: dict[tuple[str, ...], int] = {}
        found = [numbers.setdefault(path[:depth], len(numbers)) if len(path) >= depth else -1 for path in paths]
        start, end = _runs(np.array(found, dtype=np.int64)[place])
        starts.append(start)
        ends.append(end)
    return Frames(start=tuple(starts), end=tuple(ends))


def _runs(keys: Rows) -> tuple[Rows, Rows]:
    """Return the first and last position of the run of equal keys around each; every -1 is a run of its own."""
    begins = np.ones(len(keys), dtype=bool)
    begins[1:] = (keys[1:] != keys[:-1]) | (keys[1:] < 0)
    starts = np.flatnonzero(begins)
    run = np.cumsum(begins) - 1
    ends = np.append(starts[1:], len(keys)) - 1
    return starts[run], ends[run]
