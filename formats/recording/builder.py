"""Gathers rows of every kind, part after part, while a file is read; numbers names and keeps what groups report."""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

import numpy as np

from ...records import dataclass
from ..trace.column import MISSING, Interner, build_table, table_of_rows
from ..trace.privacy import hide_private
from ..trace.tables import GroupTable, MemberTable
from .rows import EventRows, empty_rows, join_rows, row_count

RowsT = TypeVar("RowsT", bound=EventRows)
_UNNAMED: Final = frozenset({"", "None", "undefined", "default_pg"})
_MESH_PREFIX: Final = "mesh_"
"""What torch's DeviceMesh puts before the name of a dimension when it describes its groups."""


class RecordingBuilder:
    """Own the columns and the interned values while a file is read; `settle.finish` makes a Recording of them.

    Times are ns on any clock that all rows share. Names and threads are numbers that `names`, `modules` (of ModuleRows)
    and `threads` give; `inputs` numbers what ops were called with.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.modules = Interner[str]()
        self.threads = Interner[Hashable]()
        self.inputs = Interner[bytes]()
        self.collective_texts = Interner[str]()
        self.launched = Interner[str]()
        self.labels = Interner[str]()
        self.groups: dict[str, GroupReport] = {}
        self.events_dropped = 0
        self.is_whole_microseconds = False
        self.has_stacks = False
        self.has_memory = False
        self.lists_inner_first = False
        """Whether ops come as they end, so that an inner one comes before the outer one of the same span."""
        self.origin_ns: int | None = None
        """When the recording began, where rows are only a part of it; None: at the earliest row."""
        self._parts: defaultdict[type[EventRows], list[EventRows]] = defaultdict(list)
        self._lengths: defaultdict[type[EventRows], int] = defaultdict(int)

    def add(self, rows: EventRows) -> None:
        """Append rows of one kind."""
        self._parts[type(rows)].append(rows)
        self._lengths[type(rows)] += row_count(rows)

    def length(self, kind: type[EventRows]) -> int:
        """Return how many rows of a kind there are so far."""
        return self._lengths[kind]

    def parts(self, kind: type[RowsT]) -> list[RowsT]:
        """Return the rows of a kind so far, part after part."""
        return [part for part in self._parts.get(kind, ()) if isinstance(part, kind)]

    def rows(self, kind: type[RowsT]) -> RowsT:
        """Return all rows of a kind, in file order, and keep them no longer."""
        parts = self.parts(kind)
        self._parts.pop(kind, None)
        return join_rows(parts) if parts else empty_rows(kind)

    def note_resolution(self, times_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Notice times that are no whole microseconds, where all were so far."""
        if self.is_whole_microseconds:
            self.is_whole_microseconds = not np.any(times_ns % 1000)


class Names(Interner[str]):
    """Number names; `texts` holds them without what tells of a person or a machine."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._known: dict[str, int] = {}

    def __missing__(self, key: str) -> int:
        text = hide_private(key)
        self[key] = number = self._known.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number


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
    groups = build_table(
        GroupTable,
        len(found),
        size=[max(report.size, len(ranks)) for report, ranks in found],
        name=[
            MISSING if report.description in _UNNAMED else names[report.description.removeprefix(_MESH_PREFIX)]
            for report, _ in found
        ],
    )
    return groups, table_of_rows(MemberTable, ("group", "rank"), members)
