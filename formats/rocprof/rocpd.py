"""Reads rocprofv3's SQLite database (rocpd, its default since ROCm 7)."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
import numpy as np

from ...arrays import Rows
from ...errors import TraceError
from ..files.database import NULL, Database
from ..trace.tables import Trace
from .collect import CPU, GPU, Agent, Contents, Handle, Records, build_trace, unknown

_PREFIX: Final = "rocpd_"
_DISPATCHES: Final = "rocpd_kernel_dispatch"
_REGIONS: Final = "rocpd_region"
_MARKER_WORD: Final = "MARKER"
_HIP_WORD: Final = "HIP"
_AGENTS: Final = msgspec.json.Decoder(Agent)


def is_rocpd(database: Database) -> bool:
    """Say whether a database is one of rocprofv3's."""
    return any(name.startswith((_DISPATCHES, _REGIONS)) for name in database.tables)


def read_rocpd(database: Database) -> Callable[[], Trace]:
    """Read a database and return what builds its trace; the names of its tables end in an identifier of the run."""
    reader = _Reader(database)
    names = reader.texts("rocpd_string", "string")
    regions, region_names = reader.spans(_REGIONS), reader.column(_REGIONS, "name_id")
    categories = reader.categories(_REGIONS, names)
    texts = [names.get(number, "") for number in region_names.tolist()]
    messages = reader.messages()
    is_marker = np.array([_MARKER_WORD in text for text in categories], dtype=bool)
    is_call = np.array([_HIP_WORD in text for text in categories], dtype=bool)
    events = reader.column(_REGIONS, "event_id").tolist()
    told = [messages.get(event) or text for event, text in zip(events, texts, strict=True)]
    return build_trace(
        Contents(
            kernels=reader.kernels(),
            copies=reader.copies(names),
            calls=Records(texts=texts, columns=regions).take(is_call),
            ranges=Records(texts=told, columns=regions).take(is_marker),
            agents=reader.agents(),
            agent_keys=("key",),
        )
    )


class _Reader:
    """Own a database while it is read, whose times and places may stand in tables of their own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        suffixes = [name.removeprefix(_REGIONS) for name in database.tables if name.startswith(_REGIONS)]
        suffixes += [name.removeprefix(_DISPATCHES) for name in database.tables if name.startswith(_DISPATCHES)]
        if len(set(suffixes)) > 1:
            raise TraceError(
                f"found the records of {len(set(suffixes))} processes in one rocpd database, expected one: record with "
                "`rocprofv3 -o %pid%`, one file per process"
            )
        self._suffix = suffixes[0]
        if "rocpd_string" + self._suffix not in database.tables:
            raise TraceError("the database lacks the table rocpd_string, which names what ran: record again")
        self._times: dict[int, int] | None = None

    def column(self, table: str, name: str) -> Rows:
        """Return a column of integers, of NULL where the table lacks it."""
        return self._database.read_integers(table + self._suffix, (name,))[name]

    def texts(self, table: str, column: str) -> dict[int, str]:
        """Return a column of texts by `id`."""
        return self._database.read_texts(table + self._suffix, "id", column)

    def spans(self, table: str) -> dict[str, Rows]:
        """Return when and where the records of a table ran, and the call that caused each."""
        columns = ("start", "end", "start_id", "end_id", "tid", "track_id", "event_id", "agent_id", "queue_id")
        rows = self._database.read_integers(table + self._suffix, (*columns, "stream_id"))
        if self._database.columns(table + self._suffix).isdisjoint({"start", "end"}):
            times = self._keyed("rocpd_timestamp", "value")
            rows["start"], rows["end"] = (_look_up(times, rows[name]) for name in ("start_id", "end_id"))
        if "track_id" in self._database.columns(table + self._suffix):
            for name in ("tid", "agent_id", "queue_id", "stream_id"):
                rows[name] = _look_up(self._keyed("rocpd_track", name), rows["track_id"])
        return {
            "start": rows["start"],
            "end": rows["end"],
            "thread": rows["tid"],
            "agent": rows["agent_id"],
            "queue": rows["queue_id"],
            "stream": rows["stream_id"],
            "correlation": _look_up(self._keyed("rocpd_event", "stack_id"), rows["event_id"]),
        }

    def _keyed(self, table: str, column: str) -> tuple[Rows, Rows]:
        rows = self._database.read_integers(table + self._suffix, ("id", column))
        return rows["id"], rows[column]

    def categories(self, table: str, names: dict[int, str]) -> list[str]:
        """Return what kind of event each record is."""
        category = _look_up(self._keyed("rocpd_event", "category_id"), self.column(table, "event_id"))
        return [names.get(number, "") for number in category.tolist()]

    def messages(self) -> dict[int, str]:
        """Return what rocTX ranges say, by event: their name is that of the call that made them."""
        found: dict[int, str] = {}
        for batch in self._database.read("rocpd_event" + self._suffix, ("id",), ("extdata",)):
            for number, text in zip(batch.integers["id"].tolist(), batch.texts["extdata"], strict=True):
                if text and '"message"' in text:
                    with suppress(msgspec.DecodeError, RecursionError):
                        value = msgspec.json.decode(text, type=dict[str, object]).get("message")
                        found |= {number: value} if isinstance(value, str) else {}
        return found

    def kernels(self) -> Records:
        """Return the dispatches of kernels."""
        rows = self.spans(_DISPATCHES)
        kernel = self.column(_DISPATCHES, "kernel_id")
        names = self.texts("rocpd_info_kernel_symbol", "display_name")
        plain = self.texts("rocpd_info_kernel_symbol", "kernel_name")
        registers = self._keyed("rocpd_info_kernel_symbol", "arch_vgpr_count")
        sizes = {
            f"{own}_{axis}": self.column(_DISPATCHES, f"{theirs}_size_{axis}")
            for own, theirs in (("grid", "grid"), ("block", "workgroup"))
            for axis in "xyz"
        }
        return Records(
            texts=[names.get(number) or plain.get(number, "") for number in kernel.tolist()],
            columns=rows
            | sizes
            | {"vgpr": _look_up(registers, kernel), "lds": self.column(_DISPATCHES, "group_segment_size")},
        )

    def copies(self, names: dict[int, str]) -> Records:
        """Return the copies."""
        table = "rocpd_memory_copy"
        rows = self.spans(table)
        return Records(
            texts=[names.get(number, "") for number in self.column(table, "name_id").tolist()],
            columns=rows
            | {
                "source": self.column(table, "src_agent_id"),
                "target": self.column(table, "dst_agent_id"),
                "size": self.column(table, "size"),
            },
        )

    def agents(self) -> list[Agent]:
        """Return the agents; their further properties are a JSON text that rocprofv3's JSON output holds, too."""
        found = []
        table = "rocpd_info_agent" + self._suffix
        for batch in self._database.read(
            table, ("id", "absolute_index", "logical_index"), ("type", "name", "product_name", "extdata")
        ):
            numbers = (column.tolist() for column in batch.integers.values())
            for key, node, logical, kind, name, product_name, told in zip(*numbers, *batch.texts.values(), strict=True):
                try:
                    agent = _AGENTS.decode(told or "{}")
                except (msgspec.DecodeError, RecursionError):
                    agent = Agent()
                found.append(
                    msgspec.structs.replace(
                        agent,
                        id=Handle(key),
                        type=GPU if kind == "GPU" else CPU,
                        node_id=node,
                        logical_node_id=logical,
                        name=name or agent.name,
                        product_name=product_name or agent.product_name,
                    )
                )
        return found


def _look_up(table: tuple[Rows, Rows], keys: Rows) -> Rows:
    """Return the values of keys, NULL for a key that refers to nothing."""
    known, values = table
    if not len(known):
        return unknown(len(keys))
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], keys), len(known) - 1)
    return np.where(known[order][at] == keys, values[order][at], NULL)
