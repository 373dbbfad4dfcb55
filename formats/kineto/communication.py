"""Reads what process groups report on ops and kernels: which ranks they hold, whom a message is for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ..recording.groups import GroupReport
from ..recording.rows import CollectiveRows
from ..trace.column import MISSING
from ..trace.interner import Interner
from .events import Arguments, Header
from .values import check_range, read_identifiers, read_integers

_MAX_INT32: Final = 2**31 - 1
_MOST_RANKS: Final = 1 << 20
_RANKS: Final = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")
"""A list that is whole: torch cuts long ones short and writes dots."""
_TRUTHS: Final = (True, 1, "true", "True", "1")


def read_collectives(
    arguments: Sequence[Arguments],
    texts: Interner[str],
    groups: dict[str, GroupReport],
    *,
    is_kernel: bool,
    first: int,
) -> CollectiveRows | None:
    """Return the collectives among events, numbering texts and keeping what their groups report; None: none."""
    rows = [row for row, item in enumerate(arguments) if item.collective is not None]
    if not rows:
        return None
    items = [arguments[row] for row in rows]
    sizes = check_range(
        read_integers([item.group_size for item in items], "Group size"), "Group size", MISSING, _MAX_INT32
    )
    names = [str(item.group_id if item.group_name is None else item.group_name) for item in items]
    for name, item, size in zip(names, items, sizes.tolist(), strict=True):
        if name not in groups:
            groups[name] = _report(name, item, size)
    number_of = {name: number for number, name in enumerate(groups)}
    peers = [item.peer_after if item.peer_before is None else item.peer_before for item in items]
    return CollectiveRows(
        is_kernel=np.full(len(rows), is_kernel),
        row=np.array(rows, dtype=np.int64) + first,
        name=texts.number(read_identifiers([item.collective for item in items])),
        dtype=texts.number(read_identifiers([item.collective_dtype for item in items])),
        in_elements=read_integers([item.in_elements for item in items], "In msg nelems"),
        out_elements=read_integers([item.out_elements for item in items], "Out msg nelems"),
        group_size=sizes,
        group=np.array([number_of[name] for name in names], dtype=np.int64),
        sequence=np.maximum(read_integers([item.group_sequence for item in items], "Seq"), MISSING),
        is_async=np.array([item.is_async in _TRUTHS for item in items], dtype=bool),
        peer=check_range(np.maximum(read_integers(peers, "Dst Rank"), MISSING), "Dst Rank", MISSING, _MAX_INT32),
    )


def _report(name: str, item: Arguments, size: int) -> GroupReport:
    text = item.group_ranks if isinstance(item.group_ranks, str) else ""
    ranks = tuple(map(int, re.findall(r"\d+", text))) if _RANKS.fullmatch(text) else ()
    start, stride = (read_integers([value], "Global rank")[0] for value in (item.rank_start, item.rank_stride))
    if not ranks and start >= 0 and stride > 0 and 0 < size <= _MOST_RANKS:
        ranks = tuple(range(int(start), int(start + stride * size), int(stride)))
    whole = ranks if size in (MISSING, len(ranks)) and all(rank <= _MAX_INT32 for rank in ranks) else ()
    return GroupReport(name=name, size=size, description=str(item.group_description), ranks=whole)


def listed_groups(header: Header) -> Mapping[str, tuple[int, ...]]:
    """Return the ranks of the groups that the header lists whole."""
    group = header.distributed
    found = group.groups if group is not None and isinstance(group.groups, list) else []
    whole: dict[str, tuple[int, ...]] = {}
    for item in found:
        ranks = item.get("ranks") if isinstance(item, dict) else None
        if not isinstance(ranks, list) or not all(type(rank) is int and 0 <= rank <= _MAX_INT32 for rank in ranks):
            continue
        if item.get("pg_size", len(ranks)) == len(ranks):
            whole[str(item.get("pg_name"))] = tuple(ranks)
    return whole
