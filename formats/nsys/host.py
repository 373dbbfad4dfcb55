"""Reads what the host did: calls of CUDA's runtime and driver, waits, and the ranges of NVTX."""

import re
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ...records import dataclass
from ..files.database import NULL, Batch, Database
from ..recording.builder import RecordingBuilder
from ..recording.nesting import last_before
from ..recording.ranges import RangeCollector
from ..recording.rows import MAX_INT32, CallRows, SpanRows, SyncRows, make_rows, up_to
from ..trace.column import MISSING
from ..trace.tables import SyncKind
from .gpu import Strings, process_of, take, usable

CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
WAITS: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
RANGES: Final = "NVTX_EVENTS"
_CALL_COLUMNS: Final = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId")
_WAIT_COLUMNS: Final = ("start", "end", "contextId", "streamId", "correlationId", "globalPid", "syncType", "eventId")
_EVENT_COLUMNS: Final = ("contextId", "streamId", "correlationId", "globalPid", "eventId")
_RANGE_COLUMNS: Final = ("start", "end", "eventType", "textId", "globalTid", "endGlobalTid", "domainId")
_BACKTRACES: Final = range(67, 70)
"""Event classes of rows that repeat calls, for their stacks."""
_VERSION: Final = re.compile(r"(?:_pt[sd][zs])?_v\d{4,}\Z")
"""Ends the names of runtime calls: the version of CUDA that has the call of this form, 7000 for 7.0."""
_SYNC_KINDS: Final = {1: SyncKind.EVENT, 2: SyncKind.STREAM_WAIT_EVENT, 3: SyncKind.STREAM, 4: SyncKind.DEVICE}
"""By `syncType` (ENUM_CUPTI_SYNC_TYPE)."""
_PUSH_POP: Final = (59, 70)
_START_END: Final = (60, 71)
_DOMAIN: Final = 75
"""Event types (ENUM_NSYS_EVENT_TYPE): ranges of a thread, ranges that may end on another, the name of a domain."""
_LIBRARIES: Final = re.compile(
    r"(?:nccl|mpi|ucx|nvshmem|cublas|cudnn|cufft|curand|cusolver|cusparse|cutensor|cub\b|cccl|thrust|libcu|openacc|dali)",
    re.IGNORECASE,
)
"""Domains of libraries: their ranges lie inside ops and are no modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCalls:
    """Hold the rows of calls, those of all processes."""

    columns: dict[str, Rows]

    @property
    def processes(self) -> Rows:
        """Return the process of each call."""
        return process_of(self.columns["globalTid"])


def read_calls(database: Database) -> RecordedCalls:
    """Read the calls of runtime and driver."""
    tables = [database.read_integers(table, _CALL_COLUMNS) for table in CALLS]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in _CALL_COLUMNS}
    return RecordedCalls(columns=take(columns, ~np.isin(columns["eventClass"], _BACKTRACES)))


def add_calls(builder: RecordingBuilder, calls: RecordedCalls, chosen: Mask, strings: Strings) -> CallRows:
    """Give the builder the chosen calls, and return them."""
    good = usable(calls.columns)
    builder.events_dropped += int(np.sum(chosen & ~good))
    rows = take(calls.columns, chosen & good)
    numbers, which = np.unique(rows["nameId"], return_inverse=True)
    texts = [_VERSION.sub("", strings.get(number)) or "unknown call" for number in numbers.tolist()]
    found = make_rows(
        CallRows,
        len(which),
        name=builder.names.number(texts)[which],
        thread=number_threads(builder, rows["globalTid"]),
        start_ns=rows["start"],
        duration_ns=rows["end"] - rows["start"],
        correlation=rows["correlationId"],
    )
    builder.add(found)
    return found


def number_threads(builder: RecordingBuilder, identifier: Rows) -> Rows:
    """Return the number of each thread."""
    distinct, which = np.unique(identifier, return_inverse=True)
    return builder.threads.number(distinct.tolist())[which]


def add_waits(builder: RecordingBuilder, database: Database, process: int) -> None:
    """Give the builder the waits of a process; those of an unknown kind are counted."""
    columns = database.read_integers(WAITS, _WAIT_COLUMNS)
    chosen = _of_process(columns["globalPid"], process)
    kinds = np.full(len(chosen), MISSING, dtype=np.int64)
    for code, kind in _SYNC_KINDS.items():
        kinds[columns["syncType"] == code] = int(kind)
    good = usable(columns) & (kinds != MISSING)
    builder.events_dropped += int(np.sum(chosen & ~good))
    rows, kind = take(columns, chosen & good), kinds[chosen & good]
    waited_stream, recorded_by = _find_records(database, rows, process)
    builder.add(
        SyncRows(
            kind=kind,
            start_ns=rows["start"],
            duration_ns=rows["end"] - rows["start"],
            correlation=rows["correlationId"],
            stream=up_to(rows["streamId"], MAX_INT32 - 1),
            waited_stream=up_to(waited_stream, MAX_INT32 - 1),
            record_correlation=recorded_by,
        )
    )


def _find_records(database: Database, waits: dict[str, Rows], process: int) -> tuple[Rows, Rows]:
    """Return the stream that recorded the event of each wait, and the id of the call: the last one before the wait."""
    events = database.read_integers(EVENTS, _EVENT_COLUMNS)
    events = take(events, _of_process(events["globalPid"], process) & (events["eventId"] != NULL))
    keys = [np.stack([rows["contextId"], rows["eventId"]], axis=1) for rows in (events, waits)]
    _, group = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.lexsort((events["correlationId"], group[: len(keys[0])]))
    at = last_before(
        group[: len(keys[0])][order], events["correlationId"][order], group[len(keys[0]) :], waits["correlationId"]
    )
    index = at_rows(order, at)
    stream, correlation = (at_rows(events[name], index) for name in ("streamId", "correlationId"))
    return stream, np.maximum(correlation, MISSING)


def add_ranges(builder: RecordingBuilder, database: Database, process: int, launches: SpanRows) -> None:
    """Give the builder the ops, modules and steps that the ranges of a process are."""
    collector = RangeCollector(builder)
    libraries = _library_domains(database, process)
    numbered = database.read_integers(RANGES, ("textId",))["textId"]
    strings = Strings(database, numbered)
    for batch in database.read(RANGES, _RANGE_COLUMNS, ("text",)):
        _add_batch(builder, collector, batch, strings, process, libraries)
    collector.finish(launches)


def _add_batch(
    builder: RecordingBuilder,
    collector: RangeCollector,
    batch: Batch,
    strings: Strings,
    process: int,
    libraries: frozenset[int],
) -> None:
    columns = batch.integers
    kind, end_thread = columns["eventType"], columns["endGlobalTid"]
    same_thread = (end_thread == NULL) | (end_thread == columns["globalTid"])
    is_range = (
        (process_of(columns["globalTid"]) == process)
        & (np.isin(kind, _PUSH_POP) | (np.isin(kind, _START_END) & same_thread) | ((kind == NULL) & same_thread))
        & ~np.isin(columns["domainId"], sorted(libraries))
    )
    good = usable(columns)
    builder.events_dropped += int(np.sum(is_range & ~good))
    index = np.flatnonzero(is_range & good)
    own, numbers = batch.texts["text"], columns["textId"].tolist()
    found = [own[row] or strings.get(numbers[row]) for row in index.tolist()]
    start = columns["start"][index]
    collector.add(found, number_threads(builder, columns["globalTid"][index]), start, columns["end"][index] - start)


def _library_domains(database: Database, process: int) -> frozenset[int]:
    found = set()
    for batch in database.read(RANGES, ("eventType", "globalTid", "domainId", "textId"), ("text",)):
        columns = batch.integers
        is_name = (columns["eventType"] == _DOMAIN) & (process_of(columns["globalTid"]) == process)
        for row in np.flatnonzero(is_name).tolist():
            if _LIBRARIES.match(batch.texts["text"][row] or ""):
                found.add(int(columns["domainId"][row]))
    return frozenset(found)


def _of_process(identifier: Rows, process: int) -> Mask:
    chosen: Mask = (identifier == NULL) | (process_of(identifier) == process)
    return chosen
