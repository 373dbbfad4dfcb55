"""Finds the captured graph that a graph launch ran: the launches that were captured, beside the kernels that ran."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from ...arrays import Rows, group_by
from ...formats.trace.column import MISSING
from ...formats.trace.signature import Signature, TensorSpec
from ...formats.trace.tables import KernelKind, Trace
from ...records import dataclass
from ..recorded.graphs import find_captures
from ..work.kernel_names import family_of_kernel
from ..work.lookup import WorkLookup
from ..work.work import VARYING_FAMILIES

LEAST_MATCHED_RATIO: Final = 0.9
"""Of a graph's kernels and of the captured launches: below this, they are not the same graph. The public pair of a
capture and its execution matches by 100 %."""
LEAST_KIN_RATIO: Final = 0.8
"""Of the products, convolutions and attentions among kernels that are matched by their place alone: so many must fall
on ops that call such kernels."""
_KINDS: Final = {"memcpy": KernelKind.MEMCPY, "memset": KernelKind.MEMSET}


@dataclass(frozen=True, kw_only=True, eq=False)
class CapturedGraph:
    """Hold a captured graph: c launches of a trace, in order."""

    file: str
    trace: Trace
    lookup: WorkLookup
    calls: Rows

    @cached_property
    def keys(self) -> tuple[str | KernelKind, ...]:
        """Return what each launch put into the graph: the kernel's name where it is told, else the kind of work."""
        return tuple(map(self._key, self.calls.tolist()))

    @cached_property
    def content(self) -> tuple[tuple[str, Signature | None], ...]:
        """Return the op and its signature of each launch."""
        ops, strings, signatures = self.trace.ops, self.trace.strings, self.trace.signatures
        rows = self.trace.calls.op[self.calls].tolist()
        numbers = [int(ops.signature[row]) if row >= 0 else MISSING for row in rows]
        names = [strings[ops.name[row]] if row >= 0 else "" for row in rows]
        known = (signatures[number] if number >= 0 else None for number in numbers)
        return tuple(zip(names, known, strict=True))

    @property
    def is_named(self) -> bool:
        """Say whether launches tell their kernels' names, as ROCm's do."""
        return any(isinstance(key, str) for key in self.keys)

    def _key(self, call: int) -> str | KernelKind:
        calls, strings = self.trace.calls, self.trace.strings
        if calls.kernel[call] != MISSING:
            return str(strings[calls.kernel[call]])
        name = strings[calls.name[call]].lower()
        return next((kind for word, kind in _KINDS.items() if word in name), KernelKind.KERNEL)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphMatch:
    """Say which of the launches of a captured graph put each of n kernels there, [n]; -1: not known."""

    graph: CapturedGraph
    launch: Rows

    @property
    def ratio(self) -> float:
        """Return the matched share of the kernels, or of the launches where these are more."""
        return float((self.launch >= 0).sum()) / max(len(self.launch), len(self.graph.calls), 1)


def captured_graphs(file: str, trace: Trace) -> list[CapturedGraph]:
    """Return the graphs whose capture a trace records; `file` names it in errors."""
    lookup = WorkLookup(trace)
    found = find_captures(trace, assume=True)
    return [CapturedGraph(file=file, trace=trace, lookup=lookup, calls=item) for item in found]


def match_graph(graph: CapturedGraph, trace: Trace, kernels: Rows) -> GraphMatch:
    """Match the kernels of one graph launch, in order of start, with the launches of a captured graph.

    Where launches tell names, the k-th kernel of a name is the k-th launch of it, if there are as many. Where they do
    not, the k-th kernel is the k-th launch, if there are as many, copies fall on copies and products on products.
    """
    names = [trace.strings[name] for name in trace.kernels.name[kernels].tolist()]
    kinds = [KernelKind(kind) for kind in trace.kernels.kind[kernels].tolist()]
    launch = _match_names(graph, names, kinds) if graph.is_named else _match_places(graph, names, kinds)
    return GraphMatch(graph=graph, launch=launch)


def choose_match(matches: Sequence[GraphMatch], trace: Trace, kernels: Rows) -> list[GraphMatch]:
    """Return the best matches: most kernels, then equal grids, then the shapes of the ops beside the graph's launch.

    These copy the graph's inputs and take its outputs, so that their shapes tell the batch that was captured. Several
    are left only where graphs with other ops or shapes match equally well.
    """
    good = [match for match in matches if match.ratio >= LEAST_MATCHED_RATIO]
    good = _best(good, [match.ratio for match in good])
    if len(good) > 1:
        good = _best(good, [_equal_grids(match, trace, kernels) for match in good])
    if len(good) > 1:
        near = _shapes(trace.signatures)
        good = _best(good, [len(near & _shapes(item for _, item in match.graph.content)) for match in good])
    distinct = {match.graph.content: match for match in reversed(good)}
    return list(distinct.values())[::-1]


def _match_names(graph: CapturedGraph, names: Sequence[str], kinds: Sequence[KernelKind]) -> Rows:
    keys = [kind if kind in _KINDS.values() else name for name, kind in zip(names, kinds, strict=True)]
    ran, captured = (group_by(range(len(each)), each.__getitem__) for each in (keys, graph.keys))
    launch = np.full(len(names), MISSING, dtype=np.int64)
    for key, places in ran.items():
        if len(captured.get(key, ())) == len(places):
            launch[places] = captured[key]
    return launch


def _match_places(graph: CapturedGraph, names: Sequence[str], kinds: Sequence[KernelKind]) -> Rows:
    unknown = np.full(len(names), MISSING, dtype=np.int64)
    if len(names) != len(graph.calls):
        return unknown
    same = [key is kind or kind is KernelKind.COLLECTIVE for key, kind in zip(graph.keys, kinds, strict=True)]
    kin = [
        answer
        for name, call in zip(names, graph.calls.tolist(), strict=True)
        if (answer := _is_kin(graph, name, call)) is not None
    ]
    if np.mean(same) < LEAST_MATCHED_RATIO or (kin and np.mean(kin) < LEAST_KIN_RATIO):
        return unknown
    return np.where(same, np.arange(len(names)), MISSING)


def _is_kin(graph: CapturedGraph, name: str, call: int) -> bool | None:
    """Say whether an op calls kernels like this one; None where the kernel's name or the op does not tell."""
    op = int(graph.trace.calls.op[call])
    if op < 0 or family_of_kernel(name) not in VARYING_FAMILIES:
        return None
    family = graph.lookup.family(int(graph.lookup.owners()[op]))
    return None if family is None else family in VARYING_FAMILIES


def _best(matches: list[GraphMatch], scores: Sequence[float]) -> list[GraphMatch]:
    return [match for match, score in zip(matches, scores, strict=True) if score == max(scores)]


def _equal_grids(match: GraphMatch, trace: Trace, kernels: Rows) -> int:
    """Return how many matched kernels ran with the grid that was captured, less those that ran with another."""
    known = match.launch >= 0
    ran = trace.kernels.grid[kernels[known]]
    captured = match.graph.trace.calls.grid[match.graph.calls[match.launch[known]]]
    told = ran.any(axis=1) & captured.any(axis=1)
    equal = (ran == captured).all(axis=1)
    return int((told & equal).sum()) - int((told & ~equal).sum())


def _shapes(signatures: Iterable[Signature | None]) -> set[tuple[int, ...]]:
    """Return the shapes of all tensors of more than one element."""
    found: set[tuple[int, ...]] = set()
    for signature in signatures:
        for item in signature.arguments if signature is not None else ():
            tensors = item if isinstance(item, tuple) else (item,)
            found.update(part.shape for part in tensors if isinstance(part, TensorSpec) and part.element_count > 1)
    return found
