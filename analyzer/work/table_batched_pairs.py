"""FBGEMM's lookups and the autograd nodes that differentiate them: each says what the other's arguments leave out.

A node is recorded with the gradient alone, which tells how wide the tables are together; the lookup has the tables.
Older profilers give the lookup no sequence number, so that the node's forward op is the one before it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import numpy as np

from ...arrays import Codes
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.signature import Signature, TensorSpec
from ...formats.trace.tables import Trace

_NODE_PREFIX: Final = "torch::autograd::CppNode<Split"
_NODE: Final = re.compile(r"torch::autograd::CppNode<Split(?:NoBag)?(?:VBE)?LookupFunction_(\w+?)_Op(?:_pt2)?>")
_LOOKUP: Final = re.compile(r"fbgemm::split_embedding_codegen_lookup_(\w+?)_function(?:_cpu|_pt2)?")
_DENSE_LOOKUP: Final = "fbgemm::dense_embedding_codegen_lookup_function"
_DENSE: Final = "Dense"
"""What nodes of tables with dense gradients are called, in the place of an optimizer."""


def paired_signatures(trace: Trace) -> tuple[Codes, list[Signature]]:
    """Return for each op which of the signatures beside it has, -1 for its own, and these signatures.

    A lookup's has the gradient as its result; a node's has the lookup's arguments after the gradient.
    """
    code = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    numbers: dict[tuple[int, int, bool], int] = {}
    signatures: list[Signature] = []
    for node, lookup in _pairs(trace):
        own = int(trace.ops.signature[node]), int(trace.ops.signature[lookup])
        grad = _gradient(trace, own[0])
        if grad is None or own[1] < 0:
            continue
        for row, is_node in ((node, True), (lookup, False)):
            key = (*own, is_node)
            if key not in numbers:
                numbers[key] = len(signatures)
                signatures.append(_join(grad, trace.signatures[own[1]], is_node))
            code[row] = numbers[key]
    return code, signatures


def _pairs(trace: Trace) -> list[tuple[int, int]]:
    """Return autograd's nodes of lookups, each with the lookup that it differentiates."""
    nodes = _rows_by_optimizer(trace, _node_optimizer)
    lookups = _rows_by_optimizer(trace, _lookup_optimizer) if nodes else {}
    found = []
    for optimizer, rows in nodes.items():
        known = lookups.get(optimizer, [])
        for row in rows:
            lookup = _lookup_before(trace, row, known)
            found += [] if lookup is None else [(row, lookup)]
    return found


def _rows_by_optimizer(trace: Trace, optimizer_of: Callable[[str], str | None]) -> dict[str, list[int]]:
    """Return the ops whose name tells of an optimizer, in their order, by it."""
    named = [optimizer_of(text) for text in trace.strings]
    if not any(named):
        return {}
    rows = np.flatnonzero(np.array([name is not None for name in named], dtype=bool)[trace.ops.name])
    found = defaultdict[str, list[int]](list)
    for row in rows.tolist():
        found[named[trace.ops.name[row]] or ""].append(row)
    return found


def _node_optimizer(name: str) -> str | None:
    match = _NODE.fullmatch(name) if name.startswith(_NODE_PREFIX) else None
    return match and match[1]


def _lookup_optimizer(name: str) -> str | None:
    match = _LOOKUP.fullmatch(name)
    return _DENSE if name == _DENSE_LOOKUP else match and match[1]


def _lookup_before(trace: Trace, node: int, lookups: list[int]) -> int | None:
    """Return the lookup that a node differentiates: the one that its forward op lies in, else the next one from it."""
    row = int(trace.ops.forward[node])
    if row < 0 or not lookups:
        return None
    at = bisect_left(lookups, row)
    if at and _lies_in(trace, row, lookups[at - 1]):
        return lookups[at - 1]
    return lookups[at] if at < len(lookups) and lookups[at] < node else None


def _lies_in(trace: Trace, row: int, outer: int) -> bool:
    while row > outer:
        above = int(trace.ops.parent[row])
        row = above if above < row else MISSING
    return row == outer


def _gradient(trace: Trace, signature: int) -> TensorSpec | None:
    arguments = trace.signatures[signature].arguments if signature >= 0 else ()
    first = arguments[0] if arguments else None
    return first if isinstance(first, TensorSpec) and first.element_count else None


def _join(grad: TensorSpec, lookup: Signature, is_node: bool) -> Signature:
    return Signature((grad, *lookup.arguments)) if is_node else Signature(lookup.arguments, lookup.results or (grad,))
