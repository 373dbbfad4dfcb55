"""Chooses what to re-run: for each op that put work on the device, the outermost op around it that can be called."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...arrays import Rows
from ...formats.trace.signature import Signature
from ...formats.trace.tables import Trace
from .schema import Bound, UnfitError, bind, find_packet

CPU_CAPTURE = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Hold a distinct op and signature; `bound` is None where it cannot be called, for the `reason`."""

    op: int
    """The first op of the trace that asks for it."""
    bound: Bound | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """Hold what is to be re-run; see `Rerun`."""

    call_of_leaf: Rows
    op_of_call: Rows
    problem_of_call: Rows
    problems: tuple[Problem, ...]


def choose_calls(trace: Trace, leaves: Rows, device_type: str) -> Calls:
    """Return the calls that `leaves`, ops in order of launch, belong to; -1 stands for work without an op."""
    resolver = _Resolver(trace, device_type)
    unit_of = {leaf: resolver.unit(leaf) for leaf in np.unique(leaves).tolist() if leaf >= 0}
    units = np.array([unit_of.get(leaf, -1) for leaf in leaves.tolist()], dtype=np.int64)
    known = units >= 0
    ops, first, inverse = np.unique(units[known], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    call_of_leaf = np.full(len(leaves), -1)
    call_of_leaf[known] = rank[inverse]
    op_of_call = ops[order]
    numbers: dict[tuple[int, int], int] = {}
    keys = list(zip(trace.ops.name[op_of_call].tolist(), trace.ops.signature[op_of_call].tolist(), strict=True))
    problem_of_call = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    leaders = np.unique(problem_of_call, return_index=True)[1] if keys else np.zeros(0, dtype=np.int64)
    return Calls(
        call_of_leaf=call_of_leaf,
        op_of_call=op_of_call,
        problem_of_call=problem_of_call,
        problems=tuple(resolver.problem(int(op)) for op in op_of_call[leaders]),
    )


class _Resolver:
    """Look up once per name and signature whether an op can be called."""

    def __init__(self, trace: Trace, device_type: str) -> None:
        self._trace = trace
        self._device_type = device_type
        self._names, self._signatures = trace.ops.name.tolist(), trace.ops.signature.tolist()
        self._parents = trace.ops.parent.tolist()
        self._known: dict[tuple[int, int], Bound | str] = {}

    def unit(self, leaf: int) -> int:
        """Return the outermost op at or around `leaf` that can be called, else the leaf."""
        found, row = leaf, leaf
        while row >= 0:
            if isinstance(self._look_up(row), Bound):
                found = row
            row = self._parents[row]
        return found

    def problem(self, op: int) -> Problem:
        """Return the problem that an op stands for."""
        found = self._look_up(op)
        if isinstance(found, Bound):
            return Problem(op=op, bound=found, reason="")
        return Problem(op=op, bound=None, reason=found)

    def _look_up(self, row: int) -> Bound | str:
        key = (self._names[row], self._signatures[row])
        if key not in self._known:
            signature = self._trace.signatures[key[1]] if key[1] >= 0 else None
            self._known[key] = self._resolve(self._trace.strings[key[0]], signature)
        return self._known[key]

    def _resolve(self, name: str, signature: Signature | None) -> Bound | str:
        try:
            if signature is None:
                find_packet(name)
                return "its shapes were not recorded"
            from_cpu = self._trace.meta.capture == CPU_CAPTURE
            bound = bind(name, signature.arguments, device_type=self._device_type, from_cpu=from_cpu)
            return replace(bound, results=signature.results)
        except UnfitError as error:
            return str(error)
