"""What explains pairs that differ: precision, sizes, layout, arguments, kernels, order."""

from collections import Counter
from typing import Final

import numpy as np

from ....arrays import group_by
from ....formats.trace.tables import Phase, Precision
from ...work.registry import family_of
from ...work.work import Family
from .causes import Ledger
from .report import ChangeKind

_CASTS: Final = frozenset({"_to_copy", "to", "copy_", "copy", "clone", "contiguous"})
_SPATIAL: Final = "sequence length or image size"
_PRODUCTS: Final = {Family.MATMUL: "matmul", Family.CONVOLUTION: "convolution"}
_EXPLAINED_SHARE: Final = 0.8
_SHOWN_SIZES: Final = 3
_FILLED: Final = frozenset({"arange", "zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full"})
"""Ops whose result's size is an argument."""
_LAYOUT_COPIES: Final = _CASTS | {"new_zeros", "new_empty_strided", "empty_strided"}


def explain_precision(ledger: Ledger, precisions: tuple[Precision, Precision]) -> None:
    """Explain other number formats, with the casts between them, and TF32 switched on or off."""
    kinds = Counter(dtype for item in ledger.differences for dtype in item.dtypes if "float" in dtype[0] + dtype[1])
    if kinds:
        (old, new), _ = kinds.most_common(1)[0]
        open_rows = np.flatnonzero(ledger.open_pairs).tolist()
        pairs = [at for at in open_rows if any("float" in one for one, _ in ledger.differences[at].dtypes)]
        casts = [[row for row in ledger.left(side).tolist() if ledger.name(side, row) in _CASTS] for side in (0, 1)]
        text = f"precision {old} → {new}: {len(pairs):,} ops"
        if len(casts[1]) != len(casts[0]):
            text += f", {len(casts[1]):,} casts added" if casts[1] else f", {len(casts[0]):,} casts removed"
        ledger.claim(ChangeKind.PRECISION, text, old=casts[0], new=casts[1], pairs=pairs)
    for family, flags in (
        (Family.MATMUL, tuple(item.matmul_tf32 for item in precisions)),
        (Family.CONVOLUTION, tuple(item.cudnn_tf32 for item in precisions)),
    ):
        if flags[0] == flags[1] or None in flags:
            continue
        of_family = [family_of(name) is family for name in ledger.names]
        rows = np.array(of_family, dtype=bool)[ledger.old.name[ledger.pairing.old]] & ~ledger.said
        pairs = np.flatnonzero(rows).tolist()
        if pairs:
            text = f"TF32 switched {'on' if flags[1] else 'off'}: {len(pairs):,} {_PRODUCTS[family]} ops"
            ledger.claim(ChangeKind.PRECISION, text, pairs=pairs)


def explain_sizes(ledger: Ledger, batches: tuple[int | None, int | None]) -> None:
    """Explain other lengths of a dimension: once where one axis is longer everywhere, else op by op."""
    shaped = [at for at in range(len(ledger.differences)) if ledger.differences[at].changes_shape]
    pairs = [at for at in shaped if ledger.open_pairs[at]]
    sized = [at for at in shaped if ledger.differences[at].sizes]
    ratios = Counter((change.before, change.after) for at in sized for change in set(ledger.differences[at].sizes))
    ratio = Counter[float]()
    for (before, after), count in ratios.items():
        ratio[after / before if before else 0.0] += count
    if sized and ratio:
        best, found = ratio.most_common(1)[0]
        if found >= _EXPLAINED_SHARE * sum(ratio.values()) and best > 0:
            text = _axis(ledger, sized, best, batches)
            rows = np.flatnonzero(ledger.open_pairs).tolist()
            filled = [at for at in rows if ledger.name(0, int(ledger.pairing.old[at])) in _FILLED]
            pairs = sorted({*pairs, *filled})
            ledger.claim(ChangeKind.SIZE, f"{text}: {len(sized):,} ops scaled", pairs=pairs)
            return
    by_name = group_by(pairs, lambda at: ledger.name(0, int(ledger.pairing.old[at])))
    for name, found_pairs in sorted(by_name.items()):
        sizes = Counter(
            f"{change.before:,} → {change.after:,}" for at in found_pairs for change in ledger.differences[at].sizes
        )
        shown = ", ".join(text for text, _ in sizes.most_common(_SHOWN_SIZES)) or "other shapes"
        ledger.claim(ChangeKind.SIZE, f"{name} on other sizes: {shown}", pairs=found_pairs)


def _axis(ledger: Ledger, pairs: list[int], ratio: float, batches: tuple[int | None, int | None]) -> str:
    """Name the axis that grew by a ratio: batch, sequence length, image size or width.

    Tensors of three dimensions or more tell; flattened ones hold batch times sequence in one.
    """
    votes, lengths = Counter[str](), dict[str, Counter[tuple[int, int]]]()
    weights = 0
    least = min(3, max(change.dim_count for at in pairs for change in ledger.differences[at].sizes))
    for at in pairs:
        rank = max(change.dim_count for change in ledger.differences[at].sizes)
        weights += bool(ledger.old.phase[ledger.pairing.old[at]] == Phase.OPTIMIZER)
        for change in ledger.differences[at].sizes:
            if change.dim_count != rank or rank < least or not change.before or change.after / change.before != ratio:
                continue
            axis = _axis_of(change.dim, change.dim_count)
            votes[axis] += 1
            lengths.setdefault(axis, Counter())[change.before, change.after] += 1
    if not votes:
        return "sizes"
    kind = "width" if weights else max(votes, key=lambda axis: (votes[axis] * (1 if axis != "length" else 0), axis))
    if batches[0] and batches[1] and batches[1] / batches[0] == ratio:
        return f"batch {batches[0]:,} → {batches[1]:,}"
    if kind == _SPATIAL and "sequence length" in votes:
        kind = "sequence length"
    if kind == "batch" and batches[0] and batches[0] == batches[1]:
        before, after = min(lengths[kind])
        return f"tokens {before:,} → {after:,}"
    known = lengths.get(kind) or next(iter(lengths.values()))
    before, after = min(known)
    return f"{kind} {before:,} → {after:,}"


def _axis_of(dim: int, count: int) -> str:
    if dim == 0:
        return "batch" if count > 1 else "length"
    if count == 3:
        return "sequence length" if dim == 1 else "width"
    if count == 4:
        return "width" if dim == 1 else _SPATIAL
    return "width" if dim == count - 1 else "size"


def explain_layout(ledger: Ledger) -> None:
    """Explain elements that lie in another order, with the copies that this adds or saves."""
    pairs = [at for at in np.flatnonzero(ledger.open_pairs).tolist() if ledger.differences[at].layout]
    turned = sum(ledger.differences[at].channels_last for at in pairs)
    if not pairs:
        return
    copies = [
        [row for row in ledger.left(side).tolist() if ledger.name(side, row) in _LAYOUT_COPIES] for side in (0, 1)
    ]
    text = f"other strides: {len(pairs):,} ops"
    if turned:
        text = f"channels {'now last' if turned > 0 else 'no longer last'} (layout): {len(pairs):,} ops"
    else:
        copies = [[], []]
    ledger.claim(ChangeKind.LAYOUT, text, old=copies[0], new=copies[1], pairs=pairs)


def explain_rest(ledger: Ledger) -> None:
    """Explain what differs in other arguments, in kernels, and in order alone."""
    pairs = [at for at in np.flatnonzero(ledger.open_pairs).tolist() if ledger.differences[at].arguments]
    by_name = group_by(pairs, lambda at: ledger.name(0, int(ledger.pairing.old[at])))
    for name, found in sorted(by_name.items()):
        ledger.claim(ChangeKind.ARGUMENTS, f"{name} with other arguments", pairs=found)
    if ledger.old.is_timed and ledger.new.is_timed:
        other = ledger.old.kernels[ledger.pairing.old] != ledger.new.kernels[ledger.pairing.new]
        rows = np.flatnonzero(other & ~ledger.said).tolist()
        if rows:
            names = Counter(ledger.name(0, int(ledger.pairing.old[at])) for at in rows)
            shown = ", ".join(name for name, _ in names.most_common(_SHOWN_SIZES))
            text = f"same ops, other kernels: {len(rows):,} ops ({shown}{' …' if len(names) > _SHOWN_SIZES else ''})"
            ledger.claim(ChangeKind.KERNEL, text, pairs=rows)
    moved = np.flatnonzero(ledger.pairing.is_moved & ~ledger.said).tolist()
    if moved:
        ledger.claim(ChangeKind.ORDER, f"another order: {len(moved):,} ops", pairs=moved)
