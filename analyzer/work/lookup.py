"""The ops of one trace: what each must compute and move, and which of nested ones stands for GPU work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...arrays import Codes, Mask, Rows, at_rows, group_rows
from ...formats.trace.column import row_count
from ...formats.trace.signature import Signature
from ...formats.trace.tables import Trace
from .coalesced import rows_drawn
from .collective import with_ranks
from .embedding_dims import EmbeddingDims
from .groups import facts_of_ops
from .registry import are_of_family, family_of, work_of
from .table_batched_pairs import paired_signatures
from .work import Family, RowDims, Work


class WorkLookup:
    """Look up the work of a trace's ops once per name, signature and group, and the op that explains a kernel."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names, self._signatures = trace.ops.name.data, trace.ops.signature.data
        self._work: dict[tuple[int, int, int], Work | None] = {}
        self._owners: Rows | None = None
        self.context, self._facts = facts_of_ops(trace)
        paired, self._paired = paired_signatures(trace)
        is_paired = paired >= 0
        self.context[is_paired] = len(self._facts) + paired[is_paired]
        drawn, self._drawn = rows_drawn(trace)
        is_drawn = (drawn >= 0) & (self.context < 0)
        self.context[is_drawn] = len(self._facts) + len(self._paired) + drawn[is_drawn]

    context: Codes
    """A number per op, which differs where equal calls have other work: collectives of other groups, lookups of other
    widths, rows of other draws."""

    def work(self, row: int) -> Work | None:
        """Return the work of an op; None for views and where no formula fits."""
        key = (self._names[row], self._signatures[row], self.context[row])
        try:
            return self._work[key]
        except KeyError:
            signature = self._trace.signatures[key[1]] if key[1] >= 0 else None
            found = self._find(self._trace.strings[key[0]], signature, int(key[2]))
            self._work[key] = kept = None if found is not None and found.family is Family.VIEW else found
            return kept

    def _find(self, name: str, signature: Signature | None, context: int) -> Work | None:
        pair = context - len(self._facts)
        draw = pair - len(self._paired)
        if draw >= 0:
            found = work_of(name, signature)
            return None if found is None else replace(found, drawn=self._drawn[draw])
        if pair >= 0:
            return work_of(name, self._paired[pair])
        found = work_of(name, signature)
        return found if context < 0 else with_ranks(name, found, self._facts[context])

    def family(self, row: int) -> Family | None:
        """Return the family of an op by its name alone."""
        found = family_of(self._trace.strings[self._names[row]])
        return None if found is Family.VIEW else found

    def owners(self) -> Rows:
        """Return for each op the innermost one at or around it whose work is known, else whose family is, else itself.

        All are found at once, in a pass over the ops per doubling of the deepest nesting, when first asked for.
        """
        if self._owners is None:
            self._owners = self._find_owners()
        return self._owners

    def _find_owners(self) -> Rows:
        ops, own = self._trace.ops, np.arange(row_count(self._trace.ops))
        first, group = group_rows([ops.name, ops.signature, self.context])
        rows = first.tolist()
        works = np.array([self.work(row) is not None for row in rows], dtype=bool)
        known = np.array([self.family(row) is not None for row in rows], dtype=bool)
        found = own
        for stops in (known, works):
            nearest = _nearest(stops[group], ops.parent) if len(own) else own
            found = np.where(nearest >= 0, nearest, found)
        return found


def _nearest(stops: Mask, parent: Rows) -> Rows:
    """Return the nearest row at or above each that stops the search, -1 where none does."""
    none = len(stops)
    at = np.append(np.where(stops, np.arange(none), np.where(parent < 0, none, parent)), none)
    while not np.array_equal(at, at[at]):
        at = at[at]
    at = at[:-1]
    return np.where(at_rows(stops, at, False), at, -1)


def explained_ops(trace: Trace) -> Rows:
    """Return the ops that stand for GPU work where no kernel was recorded."""
    return choose_explained(trace, np.arange(row_count(trace.ops)), WorkLookup(trace))


def choose_explained(trace: Trace, op_rows: Rows, lookup: WorkLookup) -> Rows:
    """Return the innermost ops with a formula, and ops without one that enclose none and are inside none.

    A matrix op that encloses none of its kind counts itself, not the helpers in it (the bias of a miopen convolution);
    so does a lookup in embedding tables, which a CPU parts into scans, copies and gathers and a GPU does not.
    """
    parents, count = trace.ops.parent, row_count(trace.ops)
    has_work, is_whole, is_view = _flags(trace, op_rows, lookup)
    own = np.asarray(parents)[op_rows]
    if not (own >= 0).any():
        return np.asarray(op_rows[has_work[op_rows] | ~is_view[op_rows]], dtype=np.int64)
    rows, above = op_rows.tolist(), own.tolist()
    works, whole, view = has_work.tolist(), is_whole.tolist(), is_view.tolist()
    has_child, works_below, whole_below, inside = ([False] * count for _ in range(4))
    for row, parent in zip(reversed(rows), reversed(above), strict=True):
        if parent >= 0:
            has_child[parent] = True
            works_below[parent] |= works_below[row] or works[row]
            whole_below[parent] |= whole_below[row] or whole[row]

    def explains(row: int) -> bool:
        return works[row] and not (whole_below[row] if whole[row] else works_below[row])

    chosen = []
    for row, parent in zip(rows, above, strict=True):
        inside[row] = parent >= 0 and (inside[parent] or explains(parent))
        if inside[row] or (works_below[row] and not explains(row)):
            continue
        if works[row] or (not has_child[row] and not view[row]):
            chosen.append(row)
    return np.array(chosen, dtype=np.int64)


def _flags(trace: Trace, op_rows: Rows, lookup: WorkLookup) -> tuple[Mask, Mask, Mask]:
    """Return which ops have a formula, which of those count themselves whatever is in them, and which are views: of
    these and those around them; False for others."""
    ops = trace.ops
    around = np.asarray(ops.parent)[op_rows]
    has_work, is_whole, is_view, asked = (np.zeros(row_count(ops), dtype=bool) for _ in range(4))
    asked[op_rows], asked[around[around >= 0]] = True, True
    rows = np.flatnonzero(asked)
    if len(rows):
        first, group = group_rows([ops.name[rows], ops.signature[rows], lookup.context[rows]])
        found = [lookup.work(row) for row in rows[first].tolist()]
        has_work[rows] = np.array([work is not None for work in found], dtype=bool)[group]
        is_whole[rows] = np.array([work is not None and _is_whole(work) for work in found], dtype=bool)[group]
        views = are_of_family(trace.strings, Family.VIEW)
        is_view[rows] = views[ops.name[rows]]
    return has_work, is_whole, is_view


def _is_whole(work: Work) -> bool:
    """Say whether work is a matrix product's or a lookup's, which is not the sum of the ops inside."""
    looks_up = work.family is Family.EMBEDDING and isinstance(work.dims, RowDims) and work.dims.table_rows > 0
    return work.is_matrix or isinstance(work.dims, EmbeddingDims) or looks_up
