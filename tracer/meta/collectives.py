"""Collects what a rank's collectives say of themselves: their group, their number in it, whom they meet."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...formats.trace.collectives import describe_collective
from ...formats.trace.column import MISSING, Interner, build_table, table_of_rows
from ...formats.trace.privacy import hide_private
from ...formats.trace.signature import Signature
from ...formats.trace.tables import CollectiveTable, GroupTable, MemberTable, OpTable
from ...records import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Name a process group: its ranks in the world, and what they share (`tp`)."""

    key: str
    name: str | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Say what of a collective its op's arguments do not."""

    group: Group
    sequence: int
    is_async: bool
    peer: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what a collective returns and moves, and what there is to record of it; None: nothing."""

    result: Any
    transfer: Transfer | None = None
    received: Sequence[Tensor] = ()
    sent: Sequence[Tensor] = ()
    """What nothing else may change until it has left; empty where it is what is received."""


@dataclass(slots=True)
class Flights:
    """Know which storages are on their way, and so have to be waited for."""

    _arriving: set[int] = field(default_factory=set)
    _leaving: set[int] = field(default_factory=set)

    @property
    def is_any(self) -> bool:
        """Say whether whoever reads has to look."""
        return bool(self._arriving)

    def begin(self, arriving: Sequence[int], leaving: Sequence[int]) -> None:
        """Let storages be on their way."""
        self._arriving.update(arriving)
        self._leaving.update(leaving)

    def has(self, storage: int) -> bool:
        """Say whether a storage is arriving."""
        return storage in self._arriving

    def end(self, storages: Sequence[int]) -> bool:
        """Let storages have arrived, or left; say whether any of them was on its way."""
        found = (self._arriving | self._leaving).intersection(storages)
        self._arriving -= found
        self._leaving -= found
        return bool(found)


@dataclass(slots=True)
class CollectiveLog:
    """Accumulate collectives in order of issue, each with its op."""

    groups: Interner[Group] = field(default_factory=Interner)
    rows: list[tuple[int, Transfer]] = field(default_factory=list)

    def add(self, op: int, transfer: Transfer) -> None:
        """Append what is known of an op that communicates."""
        self.groups[transfer.group]
        self.rows.append((op, transfer))

    def table(self, ops: OpTable, signatures: Sequence[Signature], strings: Interner[str]) -> CollectiveTable:
        """Return the collectives; interns their names, so take `strings` afterwards."""
        names = tuple(strings)
        sizes = [
            describe_collective(names[ops.name[op]], signatures[ops.signature[op]], len(transfer.group.ranks))
            for op, transfer in self.rows
        ]
        return build_table(
            CollectiveTable,
            len(self.rows),
            op=[op for op, _ in self.rows],
            name=[strings[item.name] for item in sizes],
            dtype=[MISSING if item.dtype is None else strings[item.dtype] for item in sizes],
            in_element_count=[item.in_element_count for item in sizes],
            out_element_count=[item.out_element_count for item in sizes],
            group_size=[len(transfer.group.ranks) for _, transfer in self.rows],
            group=[self.groups[transfer.group] for _, transfer in self.rows],
            sequence=[transfer.sequence for _, transfer in self.rows],
            is_async=[transfer.is_async for _, transfer in self.rows],
            peer=[MISSING if transfer.peer is None else transfer.peer for _, transfer in self.rows],
        )

    def group_tables(self, strings: Interner[str]) -> tuple[GroupTable, MemberTable]:
        """Return the groups of the collectives, and their ranks."""
        groups = list(self.groups)
        members = [(number, rank) for number, group in enumerate(groups) for rank in group.ranks]
        names = (MISSING if group.name is None else strings[hide_private(group.name)] for group in groups)
        sizes = [(name, len(group.ranks)) for name, group in zip(names, groups, strict=True)]
        members_of = table_of_rows(MemberTable, ("group", "rank"), members)
        return table_of_rows(GroupTable, ("name", "size"), sizes), members_of
