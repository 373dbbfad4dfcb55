"""Gives kernels inside CUDA graphs the op and module that torch's annotations of the graph's nodes name.

A graph's kernels all hang on one call, `cudaGraphLaunch`. From version 2.13 on torch can note while it captures which
scope (`torch.cuda.graph_annotations.mark_kernels`) or module put each node there, and the profiler, or a script after
it, writes the note to the arguments of the kernels that run from the node. The notes name; they hold no shapes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace  # noqa: TID251 (instances are sorted)
from typing import Any, Final

import msgspec
import numpy as np

from ...arrays import Mask, Rows, at_rows
from ..recording.assemble import add_ops
from ..recording.builder import Names
from ..trace.column import MISSING, Interner, build_table, row_count, take_rows
from ..trace.tables import CollectiveTable, OpTable, Phase, Trace
from .events import Arguments

_LONGEST_TEXT: Final = 1 << 16
"""Of one kernel's notes as JSON; longer ones are not read."""
_LONGEST_NAME: Final = 200
_LABELS: Final = ("name", "str")
"""What a scope is called: today, and by files of the feature's first months."""
_MODULE: Final = "module_fqn"
"""A module's path, as torchtitan writes it."""
_PHASE: Final = "autograd_phase"
_COLLECTIVE_OP: Final = "record_param_comms"
"""The op that process groups record outside graphs, with what torch writes to their kernels in graphs."""
_PATH: Final = re.compile(r"\w+(?:[./]\w+)*")
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """Say what a node of a graph is part of: an op or scope, a module's path ("": not told), and which pass."""

    op: str
    module: str
    is_backward: bool


class GraphNotes:
    """Own the notes on kernels while a file is read."""

    def __init__(self) -> None:
        self._notes = Interner[Note]()
        self._texts: dict[tuple[str | bool | None, ...], int] = {}
        self._rows: list[int] = []
        self._numbers: list[int] = []

    def add(self, arguments: Sequence[Arguments], first: int) -> None:
        """Keep the notes among kernels, of which `first` are in the file before these."""
        for row, item in enumerate(arguments):
            if not (item.graph_node or item.graph):
                continue
            told = (item.label, item.old_label, item.module, item.autograd_phase, item.annotation)
            texts = tuple(value if isinstance(value, str) else None for value in told)
            is_collective = item.collective is not None
            key = (is_collective, *texts)
            if key not in self._texts:
                note = _read_note(texts, is_collective=is_collective)
                self._texts[key] = MISSING if note is None else self._notes[note]
            if self._texts[key] != MISSING:
                self._rows.append(row + first)
                self._numbers.append(self._texts[key])

    def explain(self, trace: Trace, kernel_row_of: Rows, names: Names) -> Trace:
        """Return the trace with an op for each run of kernels on a stream, in one launch, that have one note.

        A collective has an op of its own. They take no time on the host, at the instant of the launch. `kernel_row_of`
        gives the trace's row of what was numbered in file order. Kernels without a launch keep what they have.
        """
        note = np.full(row_count(trace.kernels), MISSING, dtype=np.int64)
        rows = kernel_row_of[np.array(self._rows, dtype=np.int64)]
        note[rows[rows != MISSING]] = np.array(self._numbers, dtype=np.int64)[rows != MISSING]
        note[trace.kernels.call == MISSING] = MISSING
        noted = np.flatnonzero(note != MISSING)
        if not len(noted):
            return trace
        notes = tuple(self._notes)
        is_alone = at_rows([item.op == _COLLECTIVE_OP for item in notes], note, False)
        first, op = _runs(trace, note, is_alone)
        table = _ops(trace, [notes[number] for number in note[first].tolist()], first, names)
        explained = add_ops(trace, [table], op)
        mode = "training" if any(item.is_backward for item in notes) else trace.meta.workload.mode
        return replace(
            explained,
            meta=replace(explained.meta, workload=replace(trace.meta.workload, mode=mode)),
            strings=tuple(names.texts),
            collectives=_of_kernels(explained, is_alone),
        )


def _read_note(texts: tuple[str | None, ...], *, is_collective: bool) -> Note | None:
    """Return what the texts of one kernel say; None where they name nothing."""
    label, old_label, module, phase, listed = texts
    found = {"name": label, "str": old_label, _MODULE: module, _PHASE: phase}
    told = {key: value for key, value in found.items() if value}
    for item in _listed(listed):
        told |= {key: value for key, value in item.items() if key in found and isinstance(value, str) and value}
    name = next((told[key] for key in _LABELS if key in told), "")[:_LONGEST_NAME].strip()
    path = told.get(_MODULE, "")[:_LONGEST_NAME].strip()
    if not path and "::" not in name and _PATH.fullmatch(name):
        path = name
    path = path if _PATH.fullmatch(path) else ""
    op = _last_name(name or path) if _PATH.fullmatch(name or path) else name
    op = _COLLECTIVE_OP if is_collective else op
    return Note(op, path, told.get(_PHASE) == "backward") if op else None


def _listed(text: str | None) -> Iterator[dict[str, Any]]:
    """Yield the notes that a text lists as JSON; one that is no JSON is a name."""
    if not text or len(text) > _LONGEST_TEXT:
        return
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = [] if text.lstrip()[:1] in ("[", "{") else text
    for item in value if isinstance(value, list) else [value]:
        yield item if isinstance(item, dict) else {"name": item}


def _last_name(path: str) -> str:
    """Return the last part of a path that is no number: `wq` of `layers.0.attention.wq`, `layers` of `layers.0`."""
    parts = re.split(r"[./]", path)
    return next((part for part in reversed(parts) if not _NUMBER.fullmatch(part)), path)


def _runs(trace: Trace, note: Rows, is_alone: Mask) -> tuple[Rows, Rows]:
    """Return the first kernel of each run, and each kernel's op: a run's, numbered after the trace's, else its own.

    Kernels that are not noted, or alone, end a run.
    """
    kernels = trace.kernels
    calls = np.unique(kernels.call[note != MISSING])
    around = np.flatnonzero(np.isin(kernels.call, calls))
    order = around[np.lexsort((kernels.start_ns[around], kernels.stream[around], kernels.call[around]))]
    keys = np.stack((kernels.call[order], kernels.stream[order], note[order]))
    begins = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)) | is_alone[order]
    is_noted = note[order] != MISSING
    first = order[begins & is_noted]
    place = np.argsort(np.lexsort((kernels.start_ns[first], kernels.call[first])))
    op = kernels.op.astype(np.int64)
    op[order[is_noted]] = row_count(trace.ops) + place[np.cumsum(begins & is_noted) - 1][is_noted]
    return first[np.argsort(place)], op


def _ops(trace: Trace, notes: Sequence[Note], first: Rows, names: Names) -> OpTable:
    """Return an op per note, launched with the kernel `first`."""
    calls = trace.calls
    call = trace.kernels.call[first]
    around = calls.op[call]
    phase = at_rows(trace.ops.phase, around, Phase.FORWARD)
    return build_table(
        OpTable,
        len(first),
        name=[names[item.op] for item in notes],
        thread=calls.thread[call],
        start_ns=calls.start_ns[call],
        duration_ns=np.zeros(len(first)),
        parent=around,
        phase=np.where([item.is_backward for item in notes], Phase.BACKWARD, phase),
        module=[names[item.module] if item.module else MISSING for item in notes],
    )


def _of_kernels(trace: Trace, is_noted: Mask) -> CollectiveTable:
    """Return the collectives, those of noted kernels issued by these kernels' ops, in order of op."""
    table, kernel = trace.collectives, trace.collectives.kernel
    mine = (kernel != MISSING) & at_rows(is_noted, kernel, False)
    op = np.where(mine, at_rows(trace.kernels.op, kernel), table.op)
    moved = replace(table, op=op.astype(table.op.dtype))
    return take_rows(moved, np.argsort(op, kind="stable"))
