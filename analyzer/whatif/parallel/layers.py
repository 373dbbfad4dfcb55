"""The repeated layers of a network, and to which of them each op of an iteration belongs."""

import re
from collections import Counter
from typing import Final

import numpy as np

from ....arrays import Mask, Rows, at_rows
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass
from ...work.lookup import WorkLookup

LEAST_SHARE: Final = 0.5
"""Of the forward ops that modules run, those of numbered modules: below, the numbers do not name the layers."""
SEGMENTS: Final = 32
"""Into how many pieces of equal FLOPs a network without layers is cut."""
_NUMBER: Final = re.compile(r"^(\d+)$")
_CONTAINERS: Final = ("Sequential", "ModuleList")
_NUMBERED: Final = re.compile(r"^[A-Za-z_]\w*?_(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layers:
    """Hold the layer of each op: 0 to count - 1, -1 before them all (embeddings), count after them (head, loss).

    Backward ops belong to the layer of their forward op. What follows backward, clipping and optimizer, has `NO_LAYER`.
    """

    count: int
    of_op: Rows
    is_named: bool
    """Whether modules name them; else they are pieces of equal FLOPs."""

    @property
    def in_order(self) -> Rows:
        """Return per op its place from 0: what stands before the layers belongs to the first, what after to the last.

        Ops of no layer have -1.
        """
        return np.where(self.of_op == NO_LAYER, MISSING, np.clip(self.of_op, 0, self.count - 1))


NO_LAYER: Final = -2


def find_layers(trace: Trace) -> Layers:
    """Return the layers of the iteration that a trace of shapes holds."""
    phase, count = trace.ops.phase, row_count(trace.ops)
    tail = tail_start(trace)
    is_pass = np.arange(count) < tail
    is_forward = is_pass & (phase != Phase.BACKWARD)
    block_of_text, blocks = _blocks(trace, np.unique(trace.ops.module[is_forward & (trace.ops.module >= 0)]))
    module = trace.ops.module
    block = np.where(module >= 0, at_rows(block_of_text, module), MISSING)
    forward_rows = np.flatnonzero(is_forward)
    has_module = module[forward_rows] >= 0
    named = block[forward_rows] >= 0
    of_op: Rows = np.full(count, NO_LAYER, dtype=np.int64)
    is_named = blocks > 0 and bool(named.sum() >= LEAST_SHARE * has_module.sum())
    if is_named:
        # Blocks are numbered as they first run.
        first = np.unique(block[forward_rows][named], return_index=True)[1]
        rank = np.argsort(np.argsort(first))
        known = np.unique(block[forward_rows][named])
        order: Rows = np.full(blocks, MISSING, dtype=np.int64)
        order[known] = rank
        of_op[forward_rows] = _fill(np.where(named, order[block[forward_rows]], MISSING), named)
        layer_count = len(known)
    else:
        of_op[forward_rows], layer_count = _equal_work(trace, forward_rows)
    backward_rows = np.flatnonzero(is_pass & (phase == Phase.BACKWARD))
    forward = trace.ops.forward[backward_rows].astype(np.int64)
    linked = (forward >= 0) & (at_rows(of_op, forward, NO_LAYER) != NO_LAYER)
    if len(backward_rows):
        last = int(of_op[forward_rows].max(initial=layer_count))
        of_op[backward_rows] = _hold(np.where(linked, at_rows(of_op, forward, NO_LAYER), last), linked, last)
    return Layers(count=max(layer_count, 1), of_op=of_op, is_named=is_named)


def tail_start(trace: Trace) -> int:
    """Return the first op after the last backward one: clipping and optimizer; without backward, of the optimizer."""
    phase = trace.ops.phase
    backward = np.flatnonzero(phase == Phase.BACKWARD)
    if len(backward):
        return int(backward[-1]) + 1
    optimizer = np.flatnonzero(phase == Phase.OPTIMIZER)
    return int(optimizer[0]) if len(optimizer) else len(phase)


def _blocks(trace: Trace, modules: Rows) -> tuple[Rows, int]:
    """Return per string the numbered module that a path first passes, -1: none; and how many such modules there are.

    A module is numbered by its name alone (`layers.17`), else by the end of it (`encoder_layer_3`).
    """
    paths = [(row, trace.strings[row].split(".")) for row in modules.tolist()]
    of_text: Rows = np.full(len(trace.strings), MISSING, dtype=np.int64)
    if paths and all(_NUMBERED.match(part) for _, parts in paths for part in parts):
        return _blocks_of_class(of_text, paths)
    for pattern in (_NUMBER, _NUMBERED):
        found: dict[tuple[str, ...], int] = {}
        of_text[:] = MISSING
        for row, parts in paths:
            place = next((at for at, part in enumerate(parts) if pattern.match(part)), None)
            if place is not None:
                of_text[row] = found.setdefault(tuple(parts[: place + 1]), len(found))
        if len(found) > 1 or (found and pattern is _NUMBERED):
            return of_text, len(found)
    return of_text, 0


def _blocks_of_class(of_text: Rows, paths: list[tuple[int, list[str]]]) -> tuple[Rows, int]:
    """Return the same where each module is its class and a number among that class, as PyTorch's profiler has it.

    The layers are the outermost class of several modules that most paths pass.
    """
    members: dict[str, dict[str, int]] = {}
    passing, depth = Counter[str](), dict[str, int]()
    for _, parts in paths:
        first = {part.rpartition("_")[0]: (at, part) for at, part in reversed(list(enumerate(parts)))}
        for name, (at, part) in first.items():
            found = members.setdefault(name, {})
            found.setdefault(part, len(found))
            depth[name] = min(depth.get(name, at), at)
        passing.update(first.keys())
    named = [
        name
        for name, found in members.items()
        if len(found) > 1 and passing[name] >= LEAST_SHARE * len(paths) and name not in _CONTAINERS
    ]
    if not named:
        return of_text, 0
    layer = members[min(named, key=lambda name: depth[name])]
    for row, parts in paths:
        of_text[row] = next((layer[part] for part in parts if part in layer), MISSING)
    return of_text, len(layer)


def _fill(layer: Rows, known: Mask) -> Rows:
    """Give ops between layers the layer before; those before all of them -1, those after the last one the count."""
    places = np.flatnonzero(known)
    result = _hold(layer, known, -1)
    result[places[-1] + 1 :] = layer.max() + 1
    return result


def _hold(values: Rows, known: Mask, first: int) -> Rows:
    """Give what is not known the last known value before it."""
    at = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1)) if len(values) else np.zeros(0, np.int64)
    return np.where(at >= 0, values[np.maximum(at, 0)], first)


def _equal_work(trace: Trace, rows: Rows) -> tuple[Rows, int]:
    """Cut the forward ops into pieces of equal FLOPs."""
    lookup = WorkLookup(trace)
    works = (lookup.work(row) for row in rows.tolist())
    flops = np.array([0.0 if work is None else work.flops for work in works], dtype=np.float64)
    total, count = float(flops.sum()), min(SEGMENTS, max(len(rows), 1))
    if total <= 0:
        return np.arange(len(rows)) * count // max(len(rows), 1), count
    done = np.cumsum(flops) - flops
    return np.minimum((done / total * count).astype(np.int64), count - 1), count
