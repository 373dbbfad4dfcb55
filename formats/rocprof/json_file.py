"""Reads rocprofv3's JSON (`--output-format json`): lists of records, and tables of what their numbers mean."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from ...errors import TraceError
from ..files.source import ImportSource, ReadOptions
from ..trace.tables import Trace
from .collect import Agent, Contents, Handle, Records, build_trace, gpu_time_ns

_MARKER_TEXTS: Final = ("roctxRange", "roctxThreadRange", "roctxProcessRange")
"""Calls whose message is what a range says."""
_LIMIT: Final = 2**62


class _Correlation(msgspec.Struct, frozen=True):
    internal: int = -1


class _Dimensions(msgspec.Struct, frozen=True):
    x: int = 0
    y: int = 0
    z: int = 0


class _Dispatch(msgspec.Struct, frozen=True):
    agent_id: Handle = Handle()
    queue_id: Handle = Handle()
    kernel_id: int = -1
    group_segment_size: int = -1
    workgroup_size: _Dimensions = _Dimensions()
    grid_size: _Dimensions = _Dimensions()


class _Record(msgspec.Struct, frozen=True):
    """Hold any record: those of kernels have a dispatch, those of copies agents."""

    start_timestamp: int
    end_timestamp: int
    kind: int = -1
    operation: int = -1
    thread_id: int = -1
    correlation_id: _Correlation = _Correlation()
    stream_id: Handle = Handle()
    dispatch_info: _Dispatch = _Dispatch()
    src_agent_id: Handle = Handle()
    dst_agent_id: Handle = Handle()
    bytes: int = -1


class _Records(msgspec.Struct, frozen=True):
    kernel_dispatch: list[_Record] = []
    kernel_dispatches: list[_Record] = []
    """The name of the list before ROCm 6.3."""
    hip_api: list[_Record] = []
    marker_api: list[_Record] = []
    memory_copy: list[_Record] = []
    memory_copies: list[_Record] = []


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct, frozen=True):
    key: int
    value: str


class _Strings(msgspec.Struct, frozen=True):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Symbol(msgspec.Struct, frozen=True):
    kernel_id: int = -1
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    arch_vgpr_count: int = -1


class _Process(msgspec.Struct, frozen=True):
    agents: list[Agent] = []
    strings: _Strings = _Strings()
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Records = _Records()


class _Document(msgspec.Struct, frozen=True, rename={"tool": "rocprofiler-sdk-tool"}):
    tool: list[_Process] | _Process


def read_json(source: ImportSource, *, options: ReadOptions) -> Callable[[], Trace]:  # noqa: ARG001
    """Return what builds the trace of a file; of several processes the one whose kernels last longest is taken."""
    data = source.read()
    source.release()
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.ValidationError as error:
        raise TraceError(f"rocprofv3's JSON: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TraceError(f"rocprofv3's JSON cannot be read: {error}") from None
    processes = document.tool if isinstance(document.tool, list) else [document.tool]
    if not processes:
        raise TraceError("$.rocprofiler-sdk-tool: found an empty list, expected a process")
    contents = [_read_process(process, len(processes) - 1) for process in processes]
    return build_trace(max(contents, key=lambda item: gpu_time_ns(item.kernels.columns)))


def _read_process(process: _Process, others: int) -> Contents:
    records = process.buffer_records
    copies = records.memory_copy or records.memory_copies
    marker_texts = {item.key: item.value for item in process.strings.marker_api}
    kinds = process.strings.buffer_records
    ranges = [item for item in records.marker_api if _operation(kinds, item).startswith(_MARKER_TEXTS)]
    return Contents(
        kernels=_kernels(process, records.kernel_dispatch or records.kernel_dispatches),
        copies=Records(
            texts=[_operation(kinds, item) for item in copies],
            columns=_spans(copies)
            | {
                "source": _column(item.src_agent_id.handle for item in copies),
                "target": _column(item.dst_agent_id.handle for item in copies),
                "size": _column(item.bytes for item in copies),
            },
        ),
        calls=Records(texts=[_operation(kinds, item) for item in records.hip_api], columns=_spans(records.hip_api)),
        ranges=Records(
            texts=[marker_texts.get(item.correlation_id.internal, "") for item in ranges], columns=_spans(ranges)
        ),
        agents=process.agents,
        agent_keys=("key",),
        processes_left_out=others,
    )


def _kernels(process: _Process, records: Sequence[_Record]) -> Records:
    symbols = dict(enumerate(process.kernel_symbols))
    symbols |= {item.kernel_id: item for item in process.kernel_symbols if item.kernel_id >= 0}
    nothing = _Symbol()
    found = [symbols.get(item.dispatch_info.kernel_id, nothing) for item in records]
    infos = [item.dispatch_info for item in records]
    sizes = {
        f"{own}_{axis}": _column(getattr(getattr(info, theirs), axis) for info in infos)
        for own, theirs in (("grid", "grid_size"), ("block", "workgroup_size"))
        for axis in "xyz"
    }
    return Records(
        texts=[item.formatted_kernel_name or item.kernel_name for item in found],
        columns=_spans(records)
        | sizes
        | {
            "agent": _column(info.agent_id.handle for info in infos),
            "queue": _column(info.queue_id.handle for info in infos),
            "vgpr": _column(item.arch_vgpr_count for item in found),
            "lds": _column(info.group_segment_size for info in infos),
        },
    )


def _spans(records: Sequence[_Record]) -> dict[str, Any]:
    return {
        "start": _column(item.start_timestamp for item in records),
        "end": _column(item.end_timestamp for item in records),
        "thread": _column(item.thread_id for item in records),
        "stream": _column(item.stream_id.handle for item in records),
        "correlation": _column(item.correlation_id.internal for item in records),
    }


def _column(values: Any) -> Any:
    """Return integers; what no 63 bits hold is none."""
    numbers = [value if -_LIMIT < value < _LIMIT else -1 for value in values]
    return np.array(numbers, dtype=np.int64)


def _operation(kinds: Sequence[_Kind], record: _Record) -> str:
    """Return the name of what a record did."""
    if not 0 <= record.kind < len(kinds):
        return ""
    operations = kinds[record.kind].operations
    return operations[record.operation] if 0 <= record.operation < len(operations) else ""
