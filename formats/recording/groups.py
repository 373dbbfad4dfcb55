"""Builds the tables of process groups from what events report of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..trace.column import MISSING, build_table
from ..trace.tables import GroupTable, MemberTable
from .names import Names

_UNNAMED: Final = frozenset({"", "None", "undefined", "default_pg"})
_MESH_PREFIX: Final = "mesh_"
"""What torch's DeviceMesh puts before the name of a dimension when it describes its groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """Hold what the first event of a process group says of it; ranks are empty where they are cut short."""

    name: str
    size: int
    description: str
    ranks: tuple[int, ...]


def build_groups(
    reports: Mapping[str, GroupReport], listed: Mapping[str, tuple[int, ...]], names: Names
) -> tuple[GroupTable, MemberTable]:
    """Return the groups that events named, in the order of their numbers, and the ranks of those that are known.

    `listed` has the ranks that a file tells elsewhere, by the group's name. A group without a size counts its ranks.
    """
    found = [(report, report.ranks or listed.get(report.name, ())) for report in reports.values()]
    if any(report.size < 1 and not ranks for report, ranks in found):
        return build_table(GroupTable, 0), build_table(MemberTable, 0)
    members = [(number, rank) for number, (report, ranks) in enumerate(found) for rank in ranks]
    called = [_name(report.description) for report, _ in found]
    groups = build_table(
        GroupTable,
        len(found),
        size=[max(report.size, len(ranks)) for report, ranks in found],
        name=[MISSING if name is None else names[name] for name in called],
    )
    table = build_table(
        MemberTable, len(members), group=[number for number, _ in members], rank=[rank for _, rank in members]
    )
    return groups, table


def _name(description: str) -> str | None:
    return None if description in _UNNAMED else description.removeprefix(_MESH_PREFIX)
