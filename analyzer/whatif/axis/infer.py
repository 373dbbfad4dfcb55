"""How long an axis is in a recording that does not say it."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from ....arrays import Rows
from ....errors import InputError, parameter
from ....formats.trace.signature import TensorSpec
from ....formats.trace.tables import Phase, Trace, distinct_calls
from ..calls import SignatureLayout, layout_of, short_name
from ..op_rules import WEIGHTS

_LOOKUPS: Final = ("embedding", "embedding_renorm")
_CACHE_RANK: Final = 4
"""Keys and values: samples, heads, tokens, features."""


def infer_batch_size(trace: Trace) -> int:
    """Return the most common leading size of what looks like data: inputs of rank 3 or more of forward ops.

    Raises InputError where there is none.

    >>> infer_batch_size(trace)
    4
    """
    sizes: Counter[int] = Counter()
    for name, first, count in _forward_calls(trace):
        if not first.inputs or first.input_positions[0] in WEIGHTS.get(name, ()):
            continue
        if len(first.inputs[0].shape) >= 3:
            sizes[first.inputs[0].shape[0]] += count
    if not sizes:
        raise InputError(
            f"the trace does not say its batch size and its shapes do not tell: pass it with {parameter('from_batch')}"
        )
    return sizes.most_common(1)[0][0]


def count_passes(trace: Trace, op_rows: Rows) -> int:
    """Return how many times an iteration runs the same forward and backward pass: gradients are accumulated; else 1.

    >>> count_passes(trace, window.op_rows)
    1
    """
    ops = trace.ops
    outer = op_rows[(ops.parent[op_rows] < 0) & (ops.phase[op_rows] != Phase.OPTIMIZER)]
    is_backward = ops.phase[outer] == Phase.BACKWARD
    ends = np.flatnonzero(is_backward & ~np.concatenate((is_backward[1:], [False]))) + 1
    called = np.column_stack((ops.name, ops.signature))[outer]
    parts = zip(np.split(called, ends)[:-1], np.split(is_backward, ends)[:-1], strict=True)
    passes = [rows[~is_last] for rows, is_last in parts]
    lengths = [len(rows) for rows in passes]
    least = min(lengths, default=0)
    if 2 * least <= max(lengths, default=0):
        return 1
    # The first may set up what the others find: it ends like them.
    is_alike = all(np.array_equal(rows[-least:], passes[0][-least:]) for rows in passes)
    return len(passes) if is_alike else 1


def holds_leading(trace: Trace, size: int) -> bool:
    """Say whether a tensor that a forward op reads, no weight, has such a first size.

    >>> holds_leading(trace, 4), holds_leading(trace, 5)
    (True, False)
    """
    return any(
        spec.shape[:1] == (size,)
        for name, first, _ in _forward_calls(trace)
        for spec, position in zip(first.inputs, first.input_positions, strict=True)
        if position not in WEIGHTS.get(name, ())
    )


def infer_sequence_length(trace: Trace) -> int:
    """Return how many tokens of a sample are looked up at once: the most common last size of lookups' indices.

    Raises InputError where nothing is looked up, or one token at a time.
    """
    if found := find_sequence_length(trace):
        return found
    if find_tokens(trace) == 1:
        raise InputError(
            "the recording reads one token per sample: a length of 1 leaves no mark in the shapes; what it sees of "
            f"earlier ones is rescaled with {parameter('cached_tokens')}"
        )
    raise InputError(
        "the shapes do not tell the sequence length (no table is looked up by samples and tokens): pass it with "
        f"{parameter('from_sequence_length')}"
    )


def find_sequence_length(trace: Trace) -> int | None:
    """Return the same; None where nothing is looked up, or one token at a time."""
    found = find_tokens(trace)
    return found if found is not None and found > 1 else None


def find_tokens(trace: Trace) -> int | None:
    """Return how many tokens of a sample are looked up at once, 1 where it is one at a time; None where none are.

    >>> find_tokens(trace)
    1024
    """
    batch, sizes = trace.meta.workload.batch_size, Counter[int]()
    for _, layout, count in _forward_calls(trace, _LOOKUPS):
        for spec, position in zip(layout.inputs, layout.input_positions, strict=True):
            if position == 1 and len(spec.shape) == 2 and batch in (None, spec.shape[0]):
                sizes[spec.shape[1]] += count
    longer = Counter({size: count for size, count in sizes.items() if size > 1})
    return longer.most_common(1)[0][0] if longer else 1 if sizes[1] else None


def infer_cached_tokens(trace: Trace) -> tuple[int, int]:
    """Return how many tokens are cached, and how many new ones each sample has beside them.

    New keys are appended to cached ones or written behind them, four-dimensional tensors that differ in one dimension;
    where no op does either, attention tells: it sees more keys than it has queries.
    Raises InputError where neither is found.
    """
    appended, seen = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for name, layout, count in _forward_calls(trace):
        if name == "cat" and len(layout.inputs) == 2:
            appended.update(dict.fromkeys(_appended(*layout.inputs), count))
        if name.startswith("index_copy") and len(layout.inputs) > 2:
            found = _appended(layout.inputs[0], layout.inputs[-1])
            appended.update({(room - new, new): count for room, new in found if room > new})
        if "attention" in name and len(layout.inputs) > 1:
            query, key = (spec.shape for spec in layout.inputs[:2])
            if len(query) == len(key) == _CACHE_RANK and key[2] > query[2]:
                seen[key[2] - query[2], query[2]] += count
    told = appended or seen
    if not told:
        raise InputError(
            "no op appends keys to cached ones, and no attention sees more keys than it has queries: the recording "
            "has no cache that another number of cached tokens could lengthen"
        )
    return told.most_common(1)[0][0]


def _appended(first: TensorSpec, second: TensorSpec) -> Iterator[tuple[int, int]]:
    if len(first.shape) == len(second.shape) == _CACHE_RANK:
        differing = [dim for dim, (a, b) in enumerate(zip(first.shape, second.shape, strict=True)) if a != b]
        if len(differing) == 1 and differing[0] in (1, 2):
            yield first.shape[differing[0]], second.shape[differing[0]]


def _forward_calls(trace: Trace, wanted: tuple[str, ...] = ()) -> Iterator[tuple[str, SignatureLayout, int]]:
    """Yield each distinct call of the forward pass, or of `wanted` ops: short name, tensors, how often it is made."""
    forward = np.isin(trace.ops.phase, (Phase.FORWARD, Phase.OTHER))
    if wanted:
        forward &= np.array([short_name(text) in wanted for text in trace.strings], dtype=bool)[trace.ops.name]
    for name, signature, count in distinct_calls(trace, forward):
        yield short_name(name), layout_of(signature), count
