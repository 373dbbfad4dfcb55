"""`.pftrace` files. No file of torch 2.15 is at hand: these are MADE, after its encoder
(`torch/csrc/profiler/cupti/monitor_pftrace.cpp`) and Perfetto's protos."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from wavecast.errors import TraceError
from wavecast.formats.files.importers import find_importer
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import KernelKind
from wavecast.formats.trace.validate import validate

BASE = 1_790_000_000_000_000_000
NAMES = ["aten::mm", "cudaGraphLaunch", "ampere_gemm", "cudaMemcpyAsync"]
CATEGORIES = ["cpu_op", "cuda_runtime"]
STAGES = {1: "Kernel", 2: "Memcpy", 9: "Annotation", 100: "stream 007", 101: "stream 012"}


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def part(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def packet(*parts: bytes) -> bytes:
    return part(1, b"".join(parts))


def argument(name: str, value: Any) -> bytes:
    if isinstance(value, list):
        return (part(10, name) if name else b"") + b"".join(part(12, argument("", item)) for item in value)
    told = part(6, value) if isinstance(value, str) else part(4, value)
    return (part(10, name) if name else b"") + told


def slices(category: int, rows: list[tuple[int, int, int, dict[str, Any]]]) -> bytes:
    """Write slices of one kind: all their begins, then all their ends."""
    out = b""
    for name, start, _, args in rows:
        told = b"".join(part(4, argument(key, value)) for key, value in args.items())
        event = part(9, 1) + part(11, 55) + part(10, name) + part(3, category) + told
        out += packet(part(8, BASE + start), part(10, 1), part(13, 2), part(11, event))
    for _, start, lasting, _ in rows:
        out += packet(part(8, BASE + start + lasting), part(10, 1), part(11, part(9, 2) + part(11, 55)))
    return out


def stage(kind: int, start: int, lasting: int, *, name: Any = 0, queue: Any = 100, **extra: Any) -> bytes:
    told = b"".join(part(6, part(1, key) + part(2, str(value))) for key, value in extra.items())
    arguments = (
        part(3, part(1, 1) + part(4, 90)) + part(3, part(1, 2) + part(4, 2048)) + part(3, part(1, 3) + part(4, 1))
    )

    def size(*sizes: int) -> bytes:
        return b"".join(part(axis, number) for axis, number in enumerate(sizes, 1))

    launch = part(21, part(1, size(64, 2, 1)) + part(2, size(256, 1, 1)) + arguments) if name else b""
    event = part(1, 1) + part(2, lasting) + part(11, 0) + part(13, queue) + part(14, kind) + part(5, 1)
    event += (part(20, name) if name else b"") + launch + told
    return packet(part(8, BASE + start), part(10, 1), part(13, 2), part(53, event))


def interned() -> bytes:
    tables = [part(2, part(1, iid) + part(2, text)) for iid, text in enumerate(NAMES, 1)]
    tables += [part(1, part(1, iid) + part(2, text)) for iid, text in enumerate(CATEGORIES, 1)]
    tables += [part(24, part(1, iid) + part(2, text)) for iid, text in STAGES.items()]
    arguments = ("registers_per_thread", "shared_mem_static", "shared_mem_dynamic")
    tables += [part(1001, part(1, iid) + part(2, text)) for iid, text in enumerate(arguments, 1)]
    return packet(part(10, 1), part(13, 1), part(12, b"".join(tables)))


SHAPES = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"], "External id": 5}
CLOCKS = packet(part(8, BASE), part(10, 1), part(6, part(1, part(1, 6) + part(2, BASE))))
TRACK = packet(part(60, part(1, 55) + part(4, part(1, 90) + part(2, 91) + part(5, "python"))))
WHOLE = b"".join([
    CLOCKS, TRACK, interned(),
    slices(1, [(1, 1_001, 50_000, SHAPES)]),
    slices(2, [(2, 2_000, 3_000, {"correlation": 4}), (4, 5_000, 1_000, {"correlation": 6})]),
    stage(1, 10_003, 4_997, name=3, correlation=4, **{"graph id": 3, "graph node id": 1, "module_fqn": "layers.0.wq"}),
    stage(9, 10_000, 9_000),
    stage(2, 20_000, 1_234, queue=101, correlation=6, bytes=4096),
])  # fmt: skip


def load(data: bytes, folder: Path) -> Any:
    path = folder / "trace.pftrace"
    path.write_bytes(data)
    trace = load_trace(path)
    validate(trace)
    return trace


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_same_events_as_in_json(pack: Any, tmp_path: Path) -> None:
    trace = load(pack(WHOLE), tmp_path)
    assert decode(encode(trace)) == trace
    assert trace.kernels.kind.tolist() == [KernelKind.KERNEL, KernelKind.MEMCPY]
    assert trace.kernels.start_ns.tolist() == [9_002, 18_999]
    assert trace.kernels.duration_ns.tolist() == [4_997, 1_234]
    assert trace.kernels.stream.tolist() == [7, 12]
    assert (trace.kernels.grid[0].tolist(), trace.kernels.block[0].tolist()) == ([64, 2, 1], [256, 1, 1])
    assert (int(trace.kernels.registers[0]), int(trace.kernels.shared_memory_bytes[0])) == (90, 2049)
    assert int(trace.kernels.size_bytes[1]) == 4096
    ops = [trace.strings[trace.ops.name[row]] for row in trace.kernels.op.tolist()]
    assert ops == ["wq", "aten::mm"]
    assert trace.signatures[trace.ops.signature[trace.kernels.op[1]]].arguments[0].shape == (8, 16)
    assert trace.meta.source_format == "perfetto"
    assert trace.quality.events_dropped == 0


def test_a_slice_without_an_end_is_counted(tmp_path: Path) -> None:
    begin = packet(part(8, BASE), part(10, 1), part(13, 2), part(11, part(9, 1) + part(11, 55) + part(10, 1)))
    assert load(WHOLE + begin, tmp_path).quality.events_dropped == 1


def test_another_perfetto_trace_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no ops, calls or kernels .* export JSON instead"):
        load(CLOCKS + TRACK + interned(), tmp_path)


@pytest.mark.parametrize("cut", range(1, len(WHOLE) - 40, 97))
def test_a_cut_file_is_an_error_in_a_line_or_holds_what_came_before(cut: int, tmp_path: Path) -> None:
    try:
        load(WHOLE[:-cut], tmp_path)
    except TraceError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_values_within_values_end_somewhere(tmp_path: Path) -> None:
    deep = argument("x", 1)
    for _ in range(2000):
        deep = part(12, deep)
    event = part(9, 1) + part(11, 55) + part(10, 1) + part(3, 1) + part(4, part(10, "Input Dims") + deep)
    rows = packet(part(8, BASE), part(10, 1), part(11, event)) + packet(
        part(8, BASE + 9), part(10, 1), part(11, part(9, 2) + part(11, 55))
    )
    assert len(load(WHOLE + rows, tmp_path).ops.name) == 3


def test_it_is_known_by_its_first_packet() -> None:
    assert find_importer(WHOLE).name == "a Perfetto trace"  # type: ignore[union-attr]
    assert find_importer(TRACK + WHOLE).name == "a Perfetto trace"  # type: ignore[union-attr]
