"""The ops of one trace: what each must compute and move, and which of nested ones stands for GPU work.

Rows of a coalesced gradient: without values no two stored rows are known to be the same, each lookup counts as one.
FBGEMM's lookups and their autograd nodes each say what the other's arguments leave out: a node has the gradient alone.
Older profilers give the lookup no sequence number, so that the node's forward op is the one before it.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from ...arrays import Codes, Mask, Rows, at_rows, group_by, group_rows
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.signature import Signature, TensorSpec, flatten_tensors
from ...formats.trace.tables import Trace
from .collective import with_ranks
from .embedding_dims import DrawnRows, EmbeddingDims
from .groups import facts_of_ops
from .registry import are_of_family, family_of, work_of
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


def explained_ops(trace: Trace, lookup: WorkLookup | None = None) -> Rows:
    """Return the ops that stand for GPU work where no kernel was recorded."""
    return choose_explained(trace, np.arange(row_count(trace.ops)), lookup or WorkLookup(trace))


def choose_explained(trace: Trace, op_rows: Rows, lookup: WorkLookup) -> Rows:
    """Return the innermost ops with a formula, and ops without one that enclose none and are inside none.

    Of the latter those that enclose nothing, of other libraries those that only allocate and view in PyTorch, and
    products (sparse ones) beside what they enclose, if no product: what they launch themselves is no op. A matrix
    op that encloses none of its kind counts itself, not the helpers in it (the bias of a miopen convolution); so
    does a lookup in embedding tables, which a CPU parts into scans, copies and gathers and a GPU does not, and an
    op of `WHOLE`. The sum in a convolution's gradient, of its bias, counts beside it.
    """
    parents, count = trace.ops.parent, row_count(trace.ops)
    has_work, is_whole, is_view = _flags(trace, op_rows, lookup)
    launches = has_work & np.isin(trace.ops.name, np.flatnonzero([name in WHOLE for name in trace.strings]))
    own = np.asarray(parents)[op_rows]
    if not (own >= 0).any():
        return np.asarray(op_rows[has_work[op_rows] | ~is_view[op_rows]], dtype=np.int64)
    rows, above = op_rows.tolist(), own.tolist()
    works, whole, view = has_work.tolist(), is_whole.tolist(), is_view.tolist()
    alone = (is_whole | launches).tolist()
    gradients, sums = (
        np.isin(trace.ops.name, [at for at, name in enumerate(trace.strings) if name == wanted])
        for wanted in ("aten::convolution_backward", "aten::sum")
    )
    is_bias = (np.append(gradients, False)[parents] & sums & has_work).tolist()
    foreign = np.array(["::" in name and not name.startswith(_OF_PYTORCH) for name in trace.strings], dtype=bool)
    may_launch = foreign[trace.ops.name].tolist()
    products = are_of_family(trace.strings, Family.MATMUL)[trace.ops.name]
    holds, lacks = products.tolist(), (products & ~has_work).tolist()
    has_child, works_below, whole_below, inside = ([False] * count for _ in range(4))
    for row, parent in zip(reversed(rows), reversed(above), strict=True):
        if parent >= 0:
            has_child[parent] |= holds[row] if lacks[parent] else not (may_launch[parent] and view[row])
            holds[parent] |= holds[row]
            works_below[parent] |= works_below[row] or works[row]
            whole_below[parent] |= whole_below[row] or whole[row]

    def explains(row: int) -> bool:
        return works[row] and not (whole_below[row] if alone[row] else works_below[row])

    chosen = []
    for row, parent in zip(rows, above, strict=True):
        inside[row] = parent >= 0 and (inside[parent] or explains(parent)) and not is_bias[row]
        if inside[row] or (works_below[row] and not explains(row) and not lacks[row]):
            continue
        if works[row] or not (has_child[row] or view[row]):
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
        views = are_of_family([name if "::" in name else f"aten::{name}" for name in trace.strings], Family.VIEW)
        is_view[rows] = views[ops.name[rows]]
    return has_work, is_whole, is_view


def _is_whole(work: Work) -> bool:
    """Say whether work is a matrix product's or a lookup's, which is not the sum of the ops inside."""
    looks_up = work.family is Family.EMBEDDING and isinstance(work.dims, RowDims) and work.dims.table_rows > 0
    return work.is_matrix or isinstance(work.dims, EmbeddingDims) or looks_up


_OF_PYTORCH: Final = ("aten::", "prim::", "prims::", "torch::", "autograd::", "c10d::", "_c10d_functional::")

WHOLE: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("native_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward"),
        *("miopen_batch_norm", "miopen_batch_norm_backward", "native_group_norm", "native_group_norm_backward"),
        *("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
        *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("nll_loss_backward", "nll_loss2d_backward", "nll_loss_forward", "nll_loss2d_forward"),
        *("sum", "mean", "max_pool2d_with_indices_backward", "upsample_bilinear2d_backward"),
        *("embedding_dense_backward", "embedding", "topk", "sort"),
    )
)
"""Ops that launch kernels of their own, and call others for a part of their work: a copy, a fill, a product. Their
formulas hold all of it."""
_COALESCE: Final = "aten::_coalesce"
_SHAPES: Final = "shapes"
"""What `meta.capture` says where values were not there to be counted."""


def rows_drawn(trace: Trace) -> tuple[Codes, list[DrawnRows]]:
    """Return for each op which of the draws beside its rows are of, -1 for none, and these draws."""
    code = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    found: list[DrawnRows] = []
    if trace.meta.capture != _SHAPES or _COALESCE not in trace.strings:
        return code, found
    known: dict[DrawnRows, int] = {}
    starts = np.flatnonzero(trace.ops.name == trace.strings.index(_COALESCE)).tolist()
    for start, end in zip(starts, [*starts[1:], row_count(trace.ops)], strict=True):
        stored = _uncounted(trace, start)
        if stored is None:
            continue
        shape, drawn = stored
        if drawn not in known:
            known[drawn] = len(found)
            found.append(drawn)
        for row in _followers(trace, start, end):
            if _holds(trace.signatures[trace.ops.signature[row]], shape):
                code[row] = known[drawn]
    return code, found


def _uncounted(trace: Trace, row: int) -> tuple[tuple[int, ...], DrawnRows] | None:
    """Return the shape of the values that are coalesced, and their draw; None where they are no rows of a table."""
    number = int(trace.ops.signature[row])
    if number < 0:
        return None
    signature = trace.signatures[number]
    given = signature.arguments[0] if signature.arguments else None
    kept = signature.results[0] if signature.results else None
    if not isinstance(given, TensorSpec) or not isinstance(kept, TensorSpec) or kept.stored is None:
        return None
    if given.stored is None or len(given.stored) != len(given.shape) or not given.stored[0] > 1:
        return None
    return kept.stored, DrawnRows(table_rows=given.shape[0], lookups=given.stored[0])


def _followers(trace: Trace, start: int, end: int) -> Iterator[int]:
    """Yield the ops after one, up to another, that belong to the same part of training and have a signature."""
    phase = trace.ops.phase[start]
    for row in range(start + 1, end):
        if trace.ops.phase[row] != phase:
            return
        if trace.ops.signature[row] >= 0:
            yield row


def _holds(signature: Signature, shape: tuple[int, ...]) -> bool:
    """Say whether an op works on values of a shape, in a sparse tensor or by themselves."""
    return any(shape in (tensor.shape, tensor.stored) for tensor in flatten_tensors(signature.arguments))


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
        arguments = trace.signatures[own[0]].arguments if own[0] >= 0 else ()
        first = arguments[0] if arguments else None
        grad = first if isinstance(first, TensorSpec) and first.element_count else None
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
    return group_by(rows.tolist(), lambda row: named[trace.ops.name[row]] or "")


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


def _join(grad: TensorSpec, lookup: Signature, is_node: bool) -> Signature:
    return Signature((grad, *lookup.arguments)) if is_node else Signature(lookup.arguments, lookup.results or (grad,))
