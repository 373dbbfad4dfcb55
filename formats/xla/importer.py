"""Imports profiles of JAX and XLA on GPUs as traces. See docs/reference/files.md."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ...arrays import Rows
from ...errors import TraceError
from ..files.detect import starts_as_json
from ..files.source import ImportSource, ReadOptions
from ..recording.assemble import assemble
from ..recording.builder import RecordingBuilder
from ..recording.rows import CallRows, KernelRows, Mark, MarkRows, make_rows
from ..recording.settle import finish
from ..trace.column import MISSING
from ..trace.tables import Device, KernelKind, Trace
from .instructions import Instructions
from .profile import XlaEvent, XlaLine, XlaProfile, read_trace_json, read_xplane

_GPU: Final = re.compile(r"/device:GPU:(\d{1,4})")
_STREAM: Final = re.compile(r"Stream #(\d{1,9})")
_CALL: Final = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*")
_DETAIL: Final = re.compile(r"(\w+):([0-9,]{1,40})")
_NCCL: Final = ("nccl", "rccl")
_PS_PER_NS: Final = 1000
_MAX_INT16, _MAX_INT32 = 2**15 - 1, 2**31 - 1


def read_xla(
    source: ImportSource,
    *,
    options: ReadOptions,  # noqa: ARG001 (a damaged file of this kind has nothing that could be kept)
) -> Callable[[], Trace]:
    """Read a profile and return what builds its trace, as every importer does."""
    data = source.read()
    source.release()
    trace = import_xla(data)
    return lambda: trace


def import_xla(data: bytes) -> Trace:
    """Return the trace of an XPlane file or of the trace JSON made of one.

    Raises TraceError where it is neither, or holds no GPU's streams.
    """
    is_json = starts_as_json(data.removeprefix(b"\xef\xbb\xbf").lstrip()[:100])
    profile = read_trace_json(data) if is_json else read_xplane(data)
    streams = [(line, match) for line in profile.lines if (match := _GPU.fullmatch(line.plane))]
    gpu_lines = [(line, int(match[1])) for line, match in streams if _STREAM.match(line.name) and line.events]
    if not gpu_lines:
        raise TraceError(_explain_no_gpu(profile))
    builder = RecordingBuilder()
    builder.events_dropped = profile.dropped_count
    instructions = Instructions(builder.names, profile)
    for line, device in gpu_lines:
        _add_kernels(builder, instructions, line, device)
    host = [line for line in profile.lines if line.plane.startswith("/host:")]
    for line in host:
        _add_calls(builder, line)
        _add_marks(builder, line, [event for event in line.events if "step_num" in event.told], Mark.STEP)
    if not builder.length(MarkRows):
        _add_device_steps(builder, profile)
    for line in profile.lines:
        if _GPU.fullmatch(line.plane) and line.name == "XLA Modules":
            _add_marks(builder, line, line.events, Mark.MODULE)
    recording = finish(builder)
    trace = assemble(recording)
    trace = instructions.explain(trace, recording.kernel_row_of)
    devices = tuple(_device(profile, index) for index in sorted({index for _, index in gpu_lines}))
    platform = "hip" if any(name.startswith("hip") for name in builder.names.texts) else "cuda"
    return replace(
        trace,
        meta=replace(trace.meta, producer="XLA profiler", source_format="xla", accelerator=platform),
        devices=devices if any(profile.devices.values()) else (),
        strings=tuple(builder.names.texts),
    )


def _explain_no_gpu(profile: XlaProfile) -> str:
    tpus = sorted({line.plane for line in profile.lines if line.plane.startswith("/device:TPU")})
    if tpus:
        return f"this is a profile of a TPU ({tpus[0]}), which runs no GPU kernels: record the program on a GPU"
    planes = ", ".join(sorted({line.plane for line in profile.lines if line.plane})[:5]) or "none"
    return (
        f"the XLA profile holds no kernels on a GPU's streams (planes: {planes}): record with jax.profiler where "
        "jax.devices() lists GPUs"
    )


def _device(profile: XlaProfile, index: int) -> Device:
    told = profile.devices.get(f"/device:GPU:{index}", {})
    major, minor = (_number(told.get(f"compute_cap_{part}")) for part in ("major", "minor"))
    memory, cores = _number(told.get("memory_size")), _number(told.get("core_count"))
    return Device(
        index=index,
        name="GPU",
        compute_capability=f"{major}.{minor}" if major >= 0 and minor >= 0 else None,
        sm_count=cores if 0 < cores <= _MAX_INT32 else None,
        memory_bytes=memory if 0 < memory < 2**53 else None,
    )


def _times(events: Sequence[XlaEvent]) -> dict[str, Rows]:
    """Return starts and durations in ns: both ends are rounded, so that what touches goes on touching."""
    start = [(event.start_ps + _PS_PER_NS // 2) // _PS_PER_NS for event in events]
    end = [(event.start_ps + event.duration_ps + _PS_PER_NS // 2) // _PS_PER_NS for event in events]
    begins = np.array(start, dtype=np.int64)
    return {"start_ns": begins, "duration_ns": np.array(end, dtype=np.int64) - begins}


def _add_kernels(builder: RecordingBuilder, instructions: Instructions, line: XlaLine, device: int) -> None:
    match = _STREAM.match(line.name)
    stream = int(match[1]) if match else MISSING
    details = [_details(event) for event in line.events]
    instructions.note(line.events, builder.length(KernelRows))
    launches = [[_triple(item.get(name, "")) for item in details] for name in ("grid", "block")]
    shared = [_number(item.get("static_shared")) + max(0, _number(item.get("dynamic_shared"))) for item in details]
    builder.add(
        make_rows(
            KernelRows,
            len(line.events),
            name=builder.names.number([event.name for event in line.events]),
            kind=[_kind(event) for event in line.events],
            **_times(line.events),
            correlation=_numbers(line.events, "correlation_id"),
            device=device,
            stream=stream,
            grid=launches[0],
            block=launches[1],
            registers=[_small(_number(item.get("regs"))) for item in details],
            shared_memory_bytes=[_small(number) for number in shared],
            size_bytes=[_number(item.get("size")) for item in details],
        )
    )


def _details(event: XlaEvent) -> dict[str, str]:
    """Return what a text like `regs:32 grid:240,1,1` lists, of a kernel, a copy or a fill."""
    texts = (event.told.get(name, "") for name in ("kernel_details", "memcpy_details", "memset_details"))
    return dict(_DETAIL.findall(" ".join(texts)[:1000]))


def _kind(event: XlaEvent) -> KernelKind:
    name = event.name.lower()
    if "memcpy_details" in event.told or name.startswith("memcpy"):
        return KernelKind.MEMCPY
    if "memset_details" in event.told or name.startswith("memset"):
        return KernelKind.MEMSET
    return KernelKind.COLLECTIVE if name.startswith(_NCCL) else KernelKind.KERNEL


def _add_calls(builder: RecordingBuilder, line: XlaLine) -> None:
    events = [event for event in line.events if _CALL.match(event.name)]
    if not events:
        return
    builder.add(
        make_rows(
            CallRows,
            len(events),
            name=builder.names.number([event.name for event in events]),
            thread=builder.threads.number([(line.plane, line.name)] * len(events)),
            **_times(events),
            correlation=_numbers(events, "correlation_id"),
        )
    )


def _add_marks(builder: RecordingBuilder, line: XlaLine, events: Sequence[XlaEvent], mark: Mark) -> None:
    """Add annotations of a line; modules are labelled by what stands before a bracket in their names."""
    labels = builder.labels.number([event.name.partition("(")[0] for event in events] if mark is Mark.MODULE else [])
    if events:
        builder.add(
            make_rows(
                MarkRows,
                len(events),
                name=mark,
                label=labels if mark is Mark.MODULE else MISSING,
                thread=builder.threads.number([(line.plane, line.name)] * len(events)),
                **_times(events),
            )
        )


def _add_device_steps(builder: RecordingBuilder, profile: XlaProfile) -> None:
    """Take the steps of a GPU's own line, whose kernels have no launches, where the host marks none."""
    if builder.length(CallRows):
        return
    line = next((line for line in profile.lines if _GPU.fullmatch(line.plane) and line.name == "Steps"), None)
    if line is not None:
        _add_marks(builder, line, line.events, Mark.STEP)


def _triple(text: str) -> tuple[int, int, int]:
    numbers = [_number(part) for part in text.split(",")]
    if len(numbers) != 3 or not all(0 <= number <= _MAX_INT32 for number in numbers):
        return 0, 0, 0
    return numbers[0], numbers[1], numbers[2]


def _numbers(events: Sequence[XlaEvent], name: str) -> Rows:
    return np.array([_number(event.told.get(name)) for event in events], dtype=np.int64)


def _number(text: str | None) -> int:
    """Return a number of at most 18 digits, -1 where there is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 18 else MISSING


def _small(number: int) -> int:
    return number if number <= _MAX_INT32 else MISSING
