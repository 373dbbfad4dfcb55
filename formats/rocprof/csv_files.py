"""Reads rocprofv3's CSV files: one per kind of record, all of one run beside each other."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Rows
from ...errors import TraceError
from ..files.database import NULL
from ..files.source import ImportSource, ReadOptions
from ..trace.tables import Trace
from .collect import (
    CALL_COLUMNS,
    COPY_COLUMNS,
    CPU,
    GPU,
    KERNEL_COLUMNS,
    Agent,
    Contents,
    Handle,
    MemoryBank,
    Records,
    build_trace,
    no_records,
)

_KERNELS, _COPIES, _CALLS, _RANGES, _AGENTS = "kernel_trace", "memory_copy_trace", "hip_api_trace", "marker", "agent"
_FILES: Final = {
    "kernel_trace": _KERNELS, "memory_copy_trace": _COPIES, "hip_api_trace": _CALLS, "hip_trace": _CALLS,
    "hip_runtime_trace": _CALLS, "marker_api_trace": _RANGES, "marker_trace": _RANGES, "agent_info": _AGENTS,
}  # fmt: skip
"""What ends the name of each file, and what it holds."""
_NAME: Final = re.compile(rf"(?P<prefix>.*?)_?(?P<kind>{'|'.join(_FILES)})\.csv(?:\.gz)?")
_NUMBER: Final = re.compile(r"(?<!\d)(\d{1,18})\Z")
_SIZES: Final = {
    f"{own}_{axis}": f"{theirs}_Size_{axis.upper()}"
    for own, theirs in (("grid", "Grid"), ("block", "Workgroup"))
    for axis in "xyz"
}
_TIMES: Final = {"start": "Start_Timestamp", "end": "End_Timestamp", "correlation": "Correlation_Id"}
_COLUMNS: Final = {
    _KERNELS: {"agent": "Agent_Id", "queue": "Queue_Id", "stream": "Stream_Id", "vgpr": "VGPR_Count",
               "lds": "LDS_Block_Size", **_SIZES, **_TIMES},
    _COPIES: {"source": "Source_Agent_Id", "target": "Destination_Agent_Id", "stream": "Stream_Id",
              "size": "Allocation_Size", **_TIMES},
    _CALLS: {"thread": "Thread_Id", **_TIMES},
    _RANGES: {"thread": "Thread_Id", **_TIMES},
}  # fmt: skip
_TEXTS: Final = {_KERNELS: "Kernel_Name", _COPIES: "Direction", _CALLS: "Function", _RANGES: "Function"}
_OTHER_NAMES: Final = {"LDS_Block_Size": "Group_Segment_Size"}
"""What columns were called before."""
_NO_RANGES: Final = ("CONTROL", "NAME")
"""In the domain of marker calls that are no ranges."""
_LONGEST_FIELD: Final = 1 << 20


class _Table:
    """Own the rows of a file by column; rows of another width than the header are counted."""

    def __init__(self, name: str, data: bytes) -> None:
        self.dropped_count = 0
        self._name = name
        rows = self._rows(data)
        self.header = tuple(next(rows, ()))
        kept = []
        for row in rows:
            if len(row) == len(self.header):
                kept.append(row)
            elif row:
                self.dropped_count += 1
        self.row_count = len(kept)
        self._columns = dict(zip(self.header, zip(*kept, strict=True), strict=True)) if kept else {}

    def _rows(self, data: bytes) -> Iterator[list[str]]:
        limit = csv.field_size_limit(_LONGEST_FIELD)
        try:
            yield from csv.reader(io.StringIO(data.decode("utf-8-sig", errors="replace"), newline=""))
        except csv.Error as error:
            raise TraceError(f"{self._name}: cannot be read as CSV: {error}") from None
        finally:
            csv.field_size_limit(limit)

    def texts(self, column: str) -> Sequence[str]:
        """Return a column as it stands, empty texts where there is none."""
        return self._columns.get(column) or ("",) * self.row_count

    def integers(self, column: str) -> Rows:
        """Return the numbers that a column's texts end in (`2`, `Agent 2`), NULL where there is none."""
        texts = self._columns.get(column) or self._columns.get(_OTHER_NAMES.get(column, ""))
        if texts is None:
            return np.full(self.row_count, NULL, dtype=np.int64)
        try:
            return np.fromiter(map(int, texts), dtype=np.int64, count=self.row_count)
        except (ValueError, OverflowError):
            return np.array([_number(text) for text in texts], dtype=np.int64)


def _number(text: str) -> int:
    match = _NUMBER.search(text)
    return NULL if match is None else int(match[1])


def read_csv(source: ImportSource, *, options: ReadOptions) -> Callable[[], Trace]:  # noqa: ARG001
    """Read a CSV file of rocprofv3 and those of the same run beside it, and return what builds their trace."""
    data = source.read()
    tables = _tables(source, data)
    source.release()
    kernels = _records(tables, _KERNELS, KERNEL_COLUMNS)
    copies = _records(tables, _COPIES, COPY_COLUMNS)
    ranges = _records(tables, _RANGES, CALL_COLUMNS)
    return build_trace(
        Contents(
            kernels=kernels,
            copies=copies,
            calls=_records(tables, _CALLS, CALL_COLUMNS),
            ranges=_only_ranges(tables.get(_RANGES), ranges),
            agents=_agents(tables.get(_AGENTS)),
            agent_keys=("logical_node_id", "node_id"),
            events_dropped=sum(table.dropped_count for table in tables.values()),
        )
    )


def _tables(source: ImportSource, data: bytes) -> dict[str, _Table]:
    """Return the tables of a run by what they hold: which file the source is tells its header."""
    own = _Table(source.name, data)
    tables = {_kind_of(own): own}
    for kind, path in _siblings(source.path):
        if kind not in tables:
            from ..files.open import read_bytes

            tables[kind] = _Table(path.name, read_bytes(path))
    return tables


def _kind_of(table: _Table) -> str:
    header = frozenset(table.header)
    if "Kernel_Name" in header and "Dispatch_Id" in header:
        return _KERNELS
    if "Direction" in header:
        return _COPIES
    if "Node_Id" in header:
        return _AGENTS
    domains = table.texts("Domain")
    if "Function" in header:
        return _RANGES if domains and "MARKER" in domains[0] else _CALLS
    raise TraceError(f"found a CSV file of other columns than rocprofv3's traces have: {', '.join(table.header[:5])}")


def _siblings(path: Path | None) -> Iterator[tuple[str, Path]]:
    match = None if path is None else _NAME.fullmatch(path.name)
    if path is None or match is None:
        return
    for other in sorted(path.resolve().parent.iterdir()):
        found = _NAME.fullmatch(other.name)
        if found is not None and found["prefix"] == match["prefix"] and other.is_file():
            yield _FILES[found["kind"]], other


def _records(tables: dict[str, _Table], kind: str, columns: Sequence[str]) -> Records:
    table = tables.get(kind)
    if table is None:
        return no_records(columns)
    names = _COLUMNS[kind]
    absent = [name for name in (_TEXTS[kind], *_TIMES.values()) if name not in table.header]
    if absent:
        raise TraceError(f"column {absent[0]} is missing in rocprofv3's {kind} table")
    return Records(
        texts=table.texts(_TEXTS[kind]), columns={name: table.integers(names.get(name, "")) for name in columns}
    )


def _only_ranges(table: _Table | None, records: Records) -> Records:
    if table is None:
        return records
    domains = table.texts("Domain")
    kept = np.array([not any(word in domain for word in _NO_RANGES) for domain in domains], dtype=bool)
    return records.take(kept & (records.columns["end"] > records.columns["start"]))


def _agents(table: _Table | None) -> list[Agent]:
    if table is None:
        return []
    numbers = {name.lower(): np.maximum(table.integers(name), 0).tolist() for name in _AGENT_NUMBERS}
    types, names, products = (table.texts(name) for name in ("Agent_Type", "Name", "Product_Name"))
    memory = np.maximum(table.integers("Local_Mem_Size"), 0).tolist()
    return [
        Agent(
            id=Handle(row),
            type=GPU if types[row] == "GPU" else CPU,
            name=names[row],
            product_name=products[row],
            mem_banks=[MemoryBank(memory[row])],
            **{name: values[row] for name, values in numbers.items()},
        )
        for row in range(table.row_count)
    ]


_AGENT_NUMBERS: Final = (
    "Node_Id", "Logical_Node_Id", "Cu_Count", "Wave_Front_Size", "Max_Waves_Per_Cu", "Lds_Size_In_Kb",
    "Workgroup_Max_Size", "Max_Engine_Clk_Fcompute",
)  # fmt: skip
