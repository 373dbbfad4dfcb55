"""What explains ops that came or went: the likely cause of each, said once; each call by one change."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from ....arrays import Mask, Rows, group_by
from ....formats.trace.tables import Phase
from ....records import dataclass, field
from ...work.registry import family_of
from ...work.work import Family
from .calls import CallColumns, CallDifference, compare_signatures, signature_of
from .modules import ModuleMap
from .pairing import CallPairing
from .report import ChangeGroup, ChangeKind

_NUMBER: Final = re.compile(r"(?<![A-Za-z])\d+(?=\.|$)|(?<=_)\d+(?=\.|$)")
_SHOWN_MODULES: Final = 8


@dataclass(slots=True, kw_only=True, eq=False)
class Ledger:
    """Hold two sides, what differs between pairs, and what is explained so far."""

    old: CallColumns
    new: CallColumns
    names: tuple[str, ...]
    pairing: CallPairing
    modules: ModuleMap
    differences: tuple[CallDifference, ...]
    """Of each pair."""
    free: tuple[Mask, Mask]
    """Calls without a partner that nothing explains yet."""
    open_pairs: Mask
    """Pairs whose difference nothing explains yet."""
    groups: list[ChangeGroup] = field(default_factory=list)
    said: Mask
    """Pairs that belong to a group."""

    def calls(self, side: int) -> CallColumns:
        """Return one side's calls."""
        return (self.old, self.new)[side]

    def left(self, side: int, phase: int | None = None) -> Rows:
        """Return one side's calls that have no partner and no explanation."""
        found = self.free[side] if phase is None else self.free[side] & (self.calls(side).phase == phase)
        return np.flatnonzero(found)

    def name(self, side: int, row: int) -> str:
        """Return an op's name without its namespace."""
        return str(self.names[int(self.calls(side).name[row])]).rpartition("::")[2]

    def claim_side(self, side: int, kind: ChangeKind, cause: str, rows: Iterable[int]) -> None:
        """Explain calls of one side without a partner by one change."""
        self.claim(kind, cause, old=() if side else rows, new=rows if side else ())

    def claim(
        self,
        kind: ChangeKind,
        cause: str,
        *,
        old: Iterable[int] = (),
        new: Iterable[int] = (),
        pairs: Iterable[int] = (),
    ) -> None:
        """Explain calls without a partner, and pairs, by one change."""
        olds, news, both = (np.array(sorted(item), dtype=np.int64) for item in (old, new, pairs))
        self.free[0][olds], self.free[1][news] = False, False
        self.open_pairs[both] = False
        self.said[both] = True
        olds, news = np.append(olds, self.pairing.old[both]), np.append(news, self.pairing.new[both])
        paths = [self.old.module[row] for row in olds.tolist()] + [self.new.module[row] for row in news.tolist()]
        self.groups.append(
            ChangeGroup(
                kind=kind,
                cause=cause,
                old_count=len(olds),
                new_count=len(news),
                modules=module_patterns(paths),
                old_ns=tuple(self.old.time_ns[olds].sum(axis=0).tolist()),
                new_ns=tuple(self.new.time_ns[news].sum(axis=0).tolist()),
            )
        )


def open_ledger(
    old: CallColumns, new: CallColumns, names: tuple[str, ...], pairing: CallPairing, modules: ModuleMap
) -> Ledger:
    """Return a ledger in which nothing is explained yet."""
    known: dict[tuple[int, int], CallDifference] = {}
    found = []
    exact = old.exact[pairing.old].tolist(), new.exact[pairing.new].tolist()
    for one, other, key in zip(pairing.old.tolist(), pairing.new.tolist(), zip(*exact, strict=True), strict=True):
        if key not in known:
            known[key] = compare_signatures(signature_of(old, one), signature_of(new, other))
        found.append(known[key])
    free = np.zeros(old.count, dtype=bool), np.zeros(new.count, dtype=bool)
    for side in (0, 1):
        free[side][pairing.left[side]] = True
    return Ledger(
        old=old,
        new=new,
        names=names,
        pairing=pairing,
        modules=modules,
        differences=tuple(found),
        free=free,
        open_pairs=np.array([item != CallDifference() for item in found], dtype=bool),
        said=np.zeros(len(found), dtype=bool),
    )


def module_patterns(paths: Iterable[str]) -> tuple[str, ...]:
    """Return paths with their numbers as stars, each once, the first ones.

    >>> module_patterns(["Gpt.blocks.0.act", "Gpt.blocks.1.act", ""])
    ('Gpt.blocks.*.act',)
    """
    distinct = dict.fromkeys(path for path in paths if path)
    return tuple(dict.fromkeys(_NUMBER.sub("*", path) for path in distinct))[:_SHOWN_MODULES]


_ATTENTION: Final = re.compile(r"scaled_dot_product|flash_att|efficient_attention|attention_forward|fmha|_flash_attn")
_GRADIENTS: Final = frozenset({Family.MATMUL, Family.CONVOLUTION, Family.NORMALIZATION, Family.EMBEDDING})
_LEAST_RECOMPUTED: Final = 3
_REPEATED_SHARE: Final = 0.95
_SHOWN_NAMES: Final = 4


def explain_mode(ledger: Ledger) -> None:
    """Explain a backward pass that one side lacks."""
    counts = [int((ledger.calls(side).phase == Phase.BACKWARD).sum()) for side in (0, 1)]
    if bool(counts[0]) == bool(counts[1]):
        return
    side = 0 if counts[0] else 1
    calls = ledger.calls(side)
    rows = [row for row in ledger.left(side).tolist() if calls.phase[row] != Phase.FORWARD or not calls.module[row]]
    text = "training → inference" if side == 0 else "inference → training"
    verb = "gone" if side == 0 else "new"
    olds, news = ([], rows) if side else (rows, [])
    cause = f"{text}: backward pass and optimizer are {verb}"
    ledger.claim(ChangeKind.MODE, cause, old=olds, new=news, pairs=_argument_pairs(ledger))


def _argument_pairs(ledger: Ledger) -> list[int]:
    """Return the pairs that differ in arguments other than tensors alone."""
    rows = np.flatnonzero(ledger.open_pairs).tolist()
    return [row for row in rows if ledger.differences[row] == CallDifference(arguments=True)]


def explain_recomputing(ledger: Ledger) -> None:
    """Explain forward ops that run again in the backward pass.

    Only those count that both sides run forward: the backward pass of new ops may well look like their forward pass.
    """
    for side in (1, 0):
        calls = ledger.calls(side)
        both = np.flatnonzero((calls.phase == Phase.FORWARD) & ~ledger.free[side]).tolist()
        forward = {(calls.module[row], int(calls.full[row])) for row in both}
        rows = [
            row
            for row in ledger.left(side, Phase.BACKWARD).tolist()
            if (calls.module[row], int(calls.full[row])) in forward
        ]
        kinds = {ledger.name(side, row) for row in rows} - {"add", "mul", "clone", "mm"}
        if len(rows) < _LEAST_RECOMPUTED or not kinds:
            continue
        text = "activation checkpointing: {} forward ops run again in the backward pass"
        text = text if side else "activation checkpointing is gone: {} forward ops no longer run again"
        ledger.claim_side(side, ChangeKind.RECOMPUTED, text.format(f"{len(rows):,}"), rows)


def explain_repetition(ledger: Ledger) -> None:
    """Explain a model that runs several times per iteration."""
    counts = []
    for side in (0, 1):
        calls, numbers = ledger.calls(side), ledger.modules.numbers[side]
        rows = np.flatnonzero(calls.phase == Phase.FORWARD).tolist()
        counts.append(Counter((numbers.get(calls.module[row], -1), int(calls.name[row])) for row in rows))
    shared = [key for key in counts[0] if key in counts[1]]
    for side in (1, 0):
        ratios = Counter(counts[side][key] / counts[1 - side][key] for key in shared)
        ratio, found = ratios.most_common(1)[0] if ratios else (1.0, 0)
        if ratio < 2 or not ratio.is_integer() or found < _REPEATED_SHARE * len(shared) or len(shared) < 2:
            continue
        rows = [row for phase in (Phase.FORWARD, Phase.BACKWARD) for row in ledger.left(side, phase).tolist()]
        often = (f"1 → {ratio:.0f} times", f"{ratio:.0f} → 1 times")[1 - side]
        is_training = (ledger.calls(side).phase == Phase.BACKWARD).any()
        what = "forward and backward run {} per step (gradient accumulation)" if is_training else "the model runs {}"
        ledger.claim_side(side, ChangeKind.REPEATED, what.format(often), rows)


def explain_modules(ledger: Ledger) -> None:
    """Explain the ops of modules that one side lacks."""
    for side, kind, verb in ((0, ChangeKind.MODULE_REMOVED, "removed"), (1, ChangeKind.MODULE_ADDED, "added")):
        found: dict[str, list[int]] = {}
        for row in ledger.left(side).tolist():
            path = ledger.modules.outermost_unmapped(side, ledger.calls(side).module[row])
            if path:
                found.setdefault(path, []).append(row)
        for pattern, paths in group_by(found, lambda path: module_patterns([path])[0]).items():
            rows = [row for path in paths for row in found[path]]
            shown = _show_modules(pattern, paths)
            ledger.claim_side(side, kind, f"{shown} {verb}: {_ops(len(rows))}", rows)


def _show_modules(pattern: str, paths: list[str]) -> str:
    places = len({path.rpartition(".")[0] for path in paths})
    if len(paths) == 1:
        return paths[0]
    if places == 1:
        return f"{len(paths)} modules, {paths[0]} to {paths[-1]},"
    return f"{pattern} ({len(paths)} modules in {places} places)"


def _tensor_counts(ledger: Ledger) -> tuple[int, int] | None:
    """Return how many tensors the optimizer's lists hold on either side; None where they hold the same number."""
    pairs = np.flatnonzero(ledger.old.phase[ledger.pairing.old] == Phase.OPTIMIZER).tolist()
    lists = {(ledger.differences[pair].list_before, ledger.differences[pair].list_after) for pair in pairs}
    lists = {item for item in lists if item[0] != item[1] and min(item) > 0}
    return min(lists) if lists else None


def _list_pairs(ledger: Ledger) -> list[int]:
    phases = ledger.old.phase[ledger.pairing.old]
    rows = np.flatnonzero(ledger.open_pairs & (phases != Phase.FORWARD) & (phases != Phase.BACKWARD)).tolist()
    return [row for row in rows if ledger.differences[row].list_before != ledger.differences[row].list_after]


def explain_gradients(ledger: Ledger) -> None:
    """Explain gradients that are no longer computed, or shared, although the forward pass is the same."""
    if any(len(ledger.left(side, Phase.FORWARD)) for side in (0, 1)):
        return
    lists = _tensor_counts(ledger)
    for side in (0, 1):
        rows, others = ledger.left(side, Phase.BACKWARD).tolist(), ledger.left(1 - side, Phase.BACKWARD)
        kinds = {family_of(ledger.names[ledger.calls(side).name[row]]) for row in rows}
        olds, news = ([], rows) if side else (rows, [])
        if kinds & _GRADIENTS and not len(others):
            text = "weights trained: {} of gradients are new" if side else "weights frozen: {} of gradients are gone"
            pairs = {*_list_pairs(ledger), *_backward_arguments(ledger)}
            ledger.claim(ChangeKind.FROZEN, text.format(_ops(len(rows))), old=olds, new=news, pairs=pairs)
            return
        is_sum = bool(rows) and {ledger.name(side, row) for row in rows} == {"add"} and not len(others)
        if is_sum and lists is not None and (lists[0] > lists[1]) == bool(side):
            text = "weights tied: {} → {} parameter tensors, their gradients are added"
            text = text if side else "weights no longer tied: {} → {} parameter tensors"
            ledger.claim(ChangeKind.TIED, text.format(*lists), old=olds, new=news, pairs=_list_pairs(ledger))
            return


def _backward_arguments(ledger: Ledger) -> list[int]:
    """Return the pairs whose arguments say which gradients are wanted."""
    old, pairing = ledger.old, ledger.pairing
    return [
        row
        for row in _argument_pairs(ledger)
        if old.phase[pairing.old[row]] == Phase.BACKWARD or _ATTENTION.search(ledger.name(0, int(pairing.old[row])))
    ]


def explain_optimizer(ledger: Ledger) -> None:
    """Explain another optimizer, and one that updates other numbers of parameters."""
    rows = [np.flatnonzero(ledger.calls(side).phase == Phase.OPTIMIZER).tolist() for side in (0, 1)]
    left = [ledger.left(side, Phase.OPTIMIZER).tolist() for side in (0, 1)]
    if (left[0] or left[1]) and all(rows):
        names = [{ledger.name(side, row) for row in rows[side]} for side in (0, 1)]
        counts = f"{len(rows[0]):,} → {len(rows[1]):,} ops"
        if names[0] != names[1]:
            said = f"{_optimizer_change(names[0], names[1])}: {counts}"
            pairs = np.flatnonzero(ledger.open_pairs & (ledger.old.phase[ledger.pairing.old] == Phase.OPTIMIZER))
            ledger.claim(ChangeKind.OPTIMIZER, said, old=left[0], new=left[1], pairs=pairs.tolist())
        else:
            text = f"the optimizer updates other parameters: {counts}"
            ledger.claim(ChangeKind.PARAMETERS, text, old=left[0], new=left[1])
    lists, lengthened = _tensor_counts(ledger), _list_pairs(ledger)
    if lists is not None and lengthened:
        text = f"the optimizer updates {lists[0]:,} → {lists[1]:,} parameter tensors"
        ledger.claim(ChangeKind.PARAMETERS, text, pairs=lengthened)


def _optimizer_change(old: set[str], new: set[str]) -> str:
    fused = [any("fused" in name for name in names) for names in (old, new)]
    lists = [any("foreach" in name for name in names) for names in (old, new)]
    kinds = [_algorithm(names) for names in (old, new)]
    if kinds[0] != kinds[1]:
        return f"another optimizer ({kinds[0]} → {kinds[1]})"
    if fused[0] != fused[1]:
        return "optimizer no longer fused" if fused[0] else "optimizer fused"
    if lists[0] != lists[1]:
        return "optimizer now goes tensor by tensor" if lists[0] else "optimizer now takes all tensors at once"
    return "another optimizer"


def _algorithm(names: set[str]) -> str:
    """Return the kind of an optimizer by what it computes: Adam divides by a root of squares, plain SGD only adds."""
    text = " ".join(sorted(names))
    for kind in ("adam", "adagrad", "sgd"):
        if f"fused_{kind}" in text:
            return "Adam" if kind == "adam" else kind.upper()
    if "addcdiv" in text or "sqrt" in text:
        return "Adam" if "lerp" in text or "addcmul" in text else "RMSprop or the like"
    return "SGD"


def explain_sites(ledger: Ledger) -> None:
    """Explain what is left module by module: ops replaced, added or removed, alike in several modules."""
    sites: dict[int, tuple[list[int], list[int]]] = {}
    for side in (0, 1):
        for row in ledger.left(side).tolist():
            key = int(ledger.pairing.site[side][row])
            sites.setdefault(key, ([], []))[side].append(row)
    alike: dict[tuple[tuple[tuple[int, int], ...], ...], list[int]] = {}
    for site, rows in sites.items():
        delta = tuple(
            tuple((int(ledger.calls(side).phase[row]), int(ledger.calls(side).name[row])) for row in rows[side])
            for side in (0, 1)
        )
        alike.setdefault(delta, []).append(site)
    for delta, found in alike.items():
        old, new = ([row for site in found for row in sites[site][side]] for side in (0, 1))
        kind, cause = _describe_delta(ledger, delta, len(found))
        ledger.claim(kind, cause, old=old, new=new)


def _describe_delta(
    ledger: Ledger, delta: tuple[tuple[tuple[int, int], ...], ...], places: int
) -> tuple[ChangeKind, str]:
    has_forward = any(phase != Phase.BACKWARD for side in delta for phase, _ in side)
    names = [
        [ledger.names[name].rpartition("::")[2] for phase, name in side if not has_forward or phase != Phase.BACKWARD]
        for side in delta
    ]
    every = [[ledger.names[name] for _, name in side] for side in delta]
    where = f" at {places:,} places" if places > 1 else ""
    fused = [any(_ATTENTION.search(name) for name in side) for side in every]
    if any(fused) and all(every):
        counts = f"{len(names[0])} → {len(names[1])} ops{where}"
        if all(fused):
            return ChangeKind.ATTENTION, f"another attention kernel: {_list(names[0])} → {_list(names[1])}{where}"
        return ChangeKind.ATTENTION, f"attention {'no longer fused' if fused[0] else 'fused'}: {counts}"
    if names[0] and names[1]:
        return ChangeKind.REPLACED, f"{_list(names[0])} → {_list(names[1])}{where}"
    side = 0 if every[0] else 1
    kind, verb = ((ChangeKind.REMOVED, "removed"), (ChangeKind.ADDED, "added"))[side]
    return kind, f"{_list(names[side] or names[1 - side])} {verb}{where}"


def _list(names: list[str]) -> str:
    """Return names in order, each with how often it stands there."""
    counts = Counter(names)
    shown = [f"{count}× {name}" if count > 1 else name for name, count in list(counts.items())[:_SHOWN_NAMES]]
    more = len(counts) - _SHOWN_NAMES
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _ops(count: int) -> str:
    return f"{count:,} op" if count == 1 else f"{count:,} ops"
