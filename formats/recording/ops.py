"""Builds the table of ops: nesting, phases, modules, and which forward op a backward op differentiates."""

from typing import Final

import numpy as np

from ...arrays import Rows, at_rows
from ...records import dataclass
from ..trace.column import MISSING, Column, build_table
from ..trace.tables import OpTable, Phase
from .nesting import Nesting, enclosing_rows, inherit, last_before, nest, parent_rows
from .rows import ENGINE, FlowRows, Mark, MarkRows, OpRows, take_rows
from .settle import Recording

_OPTIMIZER_OPS: Final = ("aten::_fused_adam", "aten::_fused_adagrad", "aten::_fused_sgd")
_DEEPEST_MODULE: Final = 100
"""Module paths end here: only runaway recursion goes deeper, and would take quadratic space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """Hold the table, and the trees that place calls in it."""

    table: OpTable
    nesting: Nesting


def build_ops(recording: Recording, signature_of: Rows) -> Ops:
    """Build the table; `signature_of` gives the signature of each distinct text of inputs."""
    rows = recording.ops
    nesting = nest(rows)
    parent = parent_rows(nesting)
    names = tuple(recording.names.texts)
    is_backward = _find_backward(rows, nesting, names)
    forward = _link_forward(rows, is_backward, parent, recording.flows)
    is_backward |= _on_engine_threads(rows, is_backward, forward)
    module = _find_modules(recording, is_backward, forward, nesting)
    phase = _find_phases(rows, is_backward, nesting, recording.marks, names)
    phase = np.where(_in_closures(phase, module, forward), Phase.FORWARD, phase)
    table = build_table(
        OpTable,
        len(parent),
        name=rows.name,
        signature=signature_of[rows.signature],
        thread=rows.thread,
        start_ns=rows.start_ns,
        duration_ns=rows.duration_ns,
        parent=parent,
        phase=phase,
        sequence=np.maximum(rows.sequence, MISSING),
        forward=forward,
        module=module,
    )
    return Ops(table=table, nesting=nesting)


def _named(rows: OpRows, names: tuple[str, ...], prefixes: str | tuple[str, ...]) -> Column:
    """Say which ops have a name that starts with one of the prefixes."""
    matches = np.array([name.startswith(prefixes) for name in names], dtype=bool)
    found: Column = matches[rows.name]
    return found


def _find_backward(rows: OpRows, nesting: Nesting, names: tuple[str, ...]) -> Column:
    """Say which ops are below a call of the autograd engine or name a forward thread, recomputed ones included."""
    roots = _named(rows, names, ENGINE) | (rows.forward_thread > 0)
    is_backward: Column = inherit(nesting, np.where(roots, 1, MISSING)) == 1
    return is_backward


def _on_engine_threads(rows: OpRows, is_backward: Column, forward: Rows) -> Column:
    """Say which ops run on threads that only the autograd engine uses: its final callbacks (DDP) have no call around.

    Such a thread has backward ops but none that they differentiate; on a CPU the engine runs on the main thread.
    """
    linked = forward[forward != MISSING]
    if len(linked) == 0:
        return np.zeros_like(is_backward)
    return ~np.isin(rows.thread, rows.thread[linked]) & np.isin(rows.thread, rows.thread[is_backward])


def _find_phases(rows: OpRows, is_backward: Column, nesting: Nesting, marks: MarkRows, names: tuple[str, ...]) -> Rows:
    """Return the phase of each op; an optimizer step inside backward (a hook) is the optimizer's."""
    steps = take_rows(marks, np.flatnonzero(marks.name == Mark.OPTIMIZER))
    clears = take_rows(marks, np.flatnonzero(marks.name == Mark.ZERO_GRAD))
    step = enclosing_rows(nest(steps), rows.thread, rows.start_ns, rows.end_ns)
    around = enclosing_rows(nesting, steps.thread, steps.start_ns, steps.end_ns)
    in_hook = np.append((around != MISSING) & at_rows(is_backward, around, False), False)
    in_clear = enclosing_rows(nest(clears), rows.thread, rows.start_ns, rows.end_ns) != MISSING
    is_step = (step != MISSING) & (~is_backward | in_hook[step]) | _named(rows, names, _OPTIMIZER_OPS)
    return np.select(
        [is_step, is_backward, in_clear], [Phase.OPTIMIZER, Phase.BACKWARD, Phase.OTHER], default=Phase.FORWARD
    )


def _in_closures(phase: Rows, module: Column, forward: Rows) -> Column:
    """Say which ops of an optimizer step are forward ones: some frameworks compute the loss in the step's closure."""
    is_differentiated = np.zeros(len(phase), dtype=bool)
    is_differentiated[forward[forward != MISSING]] = True
    is_forward: Column = (phase == Phase.OPTIMIZER) & ((np.asarray(module) != MISSING) | is_differentiated)
    return is_forward


def _link_forward(rows: OpRows, is_backward: Column, parent: Rows, flows: FlowRows) -> Rows:
    """Return the forward op of each backward op.

    Many forward ops carry one sequence number: those that create no autograd node show the next free one. The node
    belongs to the last of them to start. Recomputed ops inside backward have numbers of their own thread, so they are
    only considered where nothing else matches. The file's own arrows, where present, decide.
    """
    has_number = rows.sequence >= 0
    asking = np.flatnonzero(has_number & (rows.forward_thread > 0))
    offering = has_number & (rows.forward_thread <= 0)
    forward = np.full(len(rows.name), MISSING, dtype=np.int64)
    for group in (offering & is_backward, offering & ~is_backward):
        candidates = _grouped(np.flatnonzero(group), rows.sequence)
        at = last_before(
            rows.sequence[candidates], rows.start_ns[candidates], rows.sequence[asking], rows.start_ns[asking]
        )
        found = at != MISSING
        forward[asking[found]] = candidates[at[found]]
    _follow_arrows(rows, parent, flows, forward)
    return forward


def _grouped(index: Rows, key: Column) -> Rows:
    """Return the rows of `index` by `key`, else in order of start."""
    ordered: Rows = index[np.argsort(key[index], kind="stable")]
    return ordered


def _follow_arrows(rows: OpRows, parent: Rows, flows: FlowRows, forward: Rows) -> None:
    """Link the ops at the two ends of each arrow, and the engine's call around the backward one."""
    is_end = flows.is_end.astype(bool)
    starts, ends = take_rows(flows, np.flatnonzero(~is_end)), take_rows(flows, np.flatnonzero(is_end))
    source = _op_at(rows, (rows.sequence >= 0) & (rows.forward_thread <= 0), starts)
    target = _op_at(rows, rows.forward_thread > 0, ends)
    _, at_start, at_end = np.intersect1d(starts.flow, ends.flow, return_indices=True)
    source, target = source[at_start], target[at_end]
    both = (source != MISSING) & (target != MISSING)
    source, target = source[both], target[both]
    forward[target] = source
    engine = parent[target]
    same = (engine != MISSING) & (rows.sequence[engine] == rows.sequence[target])
    forward[engine[same]] = source[same]


def _op_at(rows: OpRows, allowed: Column, ends: FlowRows) -> Rows:
    """Return the innermost allowed op that starts on the thread at the very time of each arrow's end."""
    candidates = _grouped(np.flatnonzero(allowed), rows.thread)
    at = last_before(rows.thread[candidates], rows.start_ns[candidates], ends.thread, ends.start_ns)
    found = at_rows(candidates, at)
    exact = (found != MISSING) & (at_rows(rows.start_ns, found, 0) == ends.start_ns)
    return np.where(exact, found, MISSING)


def _find_modules(recording: Recording, is_backward: Column, forward: Rows, nesting: Nesting) -> Rows:
    """Return the module path around each op; a backward op has that of its forward op, or of what encloses it."""
    rows, modules = recording.ops, recording.modules
    trees = nest(modules)
    paths = np.array([*_module_paths(recording, parent_rows(trees)), MISSING], dtype=np.int64)
    module = paths[enclosing_rows(trees, rows.thread, rows.start_ns, rows.end_ns)]
    linked = at_rows(module, forward)
    known = np.where(linked != MISSING, linked, module)
    return np.where(is_backward, inherit(nesting, np.where(is_backward, known, MISSING)), module)


def _module_paths(recording: Recording, parent: Rows) -> list[int]:
    """Return the name number of each module call's path, e.g. `Net_0.Block_1`."""
    names = recording.names
    known: dict[tuple[int, int], tuple[int, str, int]] = {}
    found: list[tuple[int, str, int]] = []
    top = (MISSING, "", 0)
    for name, above in zip(recording.modules.name.tolist(), parent.tolist(), strict=True):
        number, path, depth = found[above] if above != MISSING else top
        key = (number, name)
        if depth < _DEEPEST_MODULE and key not in known:
            full = f"{path}.{recording.module_names[name]}" if path else recording.module_names[name]
            known[key] = (names[full], full, depth + 1)
        found.append(known[key] if depth < _DEEPEST_MODULE else (number, path, depth))
    return [number for number, _, _ in found]
