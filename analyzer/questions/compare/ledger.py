"""Which calls are explained by which change: each by one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from ....arrays import Mask, Rows
from ....records import dataclass, field
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
        counts: tuple[int, int] | None = None,
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
                old_count=counts[0] if counts else len(olds),
                new_count=counts[1] if counts else len(news),
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
