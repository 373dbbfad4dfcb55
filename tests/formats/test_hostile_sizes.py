"""What a file may make the reader hold: numbers far apart, parts out of proportion, strings that look like events."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast import load_trace
from wavecast.errors import TraceError
from wavecast.formats.files import open as files
from wavecast.formats.kineto import import_kineto, read as kineto_read
from wavecast.formats.trace.codec import MAX_RECORD_BYTES, decode
from wavecast.formats.trace.signature_json import MAX_SIGNATURE_BYTES

HEAD = {"format": "wavecast.trace", "version": "1.1"}
KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9, "dur": 2}


def op(number: int, **arguments: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 1, "tid": 1, "ts": 10 * number, "dur": 5}
    return event | {"args": arguments}


def save(folder: Path, **tables: Any) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({**HEAD, "strings": ["op"], **tables}))
    return path


def peak_bytes(read: Any) -> int:
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_threads_far_apart_come_closer_in_order(tmp_path: Path) -> None:
    ops = {"name": [0, 0, 0], "start_ns": [0, 5, 9], "thread": [7, 2**31 - 1, 7]}
    calls = {"name": [0], "start_ns": [1], "duration_ns": [1], "thread": [3]}
    trace = load_trace(save(tmp_path, ops=ops, calls=calls))
    assert trace.ops.thread.tolist() == [1, 2, 1]
    assert trace.calls.thread.tolist() == [0]


def test_storages_and_the_blocks_that_they_are_stay_the_same_ones(tmp_path: Path) -> None:
    tensors = {"storage": [2**31 - 1, 4], "dtype": [0, 0], "element_count": [1, 1]}
    memory = {"time_ns": [-1, -1, -1], "block": [4, -1, 2**31 - 1], "size_bytes": [512, 512, 512]}
    trace = load_trace(save(tmp_path, tensors=tensors, memory=memory))
    assert trace.tensors.storage.tolist() == [1, 0]
    assert trace.memory.block.tolist() == [0, -1, 1]


def test_numbers_that_are_close_enough_stay(tmp_path: Path) -> None:
    ops = {"name": [0, 0, 0], "start_ns": [0, 5, 9], "thread": [2, 0, 2]}
    assert load_trace(save(tmp_path, ops=ops)).ops.thread.tolist() == [2, 0, 2]


def test_columns_that_a_file_leaves_out_take_no_memory() -> None:
    count = 200_000
    data = json.dumps({**HEAD, "strings": ["op"], "ops": {"name": [0] * count}}).encode()
    assert decode(data).ops.sequence.tolist() == [-1] * count
    assert peak_bytes(lambda: decode(data)) < 24 * count


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"meta": {"x": [[]] * MAX_RECORD_BYTES}}, r"\$\.meta: expected at most \d+ bytes, found \d+ bytes"),
        ({"quality": {"x": [{}] * MAX_RECORD_BYTES}}, r"\$\.quality: expected at most"),
        ({"devices": [{"name": ""}] * (MAX_RECORD_BYTES // 8)}, r"\$\.devices: expected at most"),
        (
            {"signatures": [{"arguments": [[]] * (MAX_SIGNATURE_BYTES // 3)}]},
            r"\$\.signatures\[0\]: expected a signature of at most \d+ bytes",
        ),
    ],
)
def test_a_part_out_of_proportion_is_refused_before_it_is_decoded(part: dict[str, Any], message: str) -> None:
    data = json.dumps({**HEAD, **part}).encode()

    def read() -> None:
        with pytest.raises(TraceError, match=message):
            decode(data)

    assert peak_bytes(read) < 3 * len(data)


def test_a_refused_column_of_many_lists_takes_no_list_each() -> None:
    data = json.dumps({**HEAD, "iterations": {"start_ns": [0, *[[]] * 500_000], "end_ns": []}}).encode()

    def read() -> None:
        with pytest.raises(TraceError, match=r"\$\.iterations\.start_ns\[1\]: expected an integer .*, found a list"):
            decode(data)

    assert peak_bytes(read) < 5 * len(data)


def test_a_million_devices_are_refused() -> None:
    data = b'{"deviceProperties":[' + b"{}," * 1_000_000 + b'{}],"traceEvents":[' + json.dumps(KERNEL).encode() + b"]}"

    def read() -> None:
        with pytest.raises(TraceError, match=r"\$\.deviceProperties: found \d+ bytes, expected at most"):
            import_kineto(data)

    assert peak_bytes(read) < 6 * len(data)


def test_inputs_of_absurd_length_count_as_not_recorded() -> None:
    absurd = op(1, **{"Input type": ["TensorList"], "Input Dims": [[[]] * 2_000_000]})
    usual = op(2, **{"Input type": ["float"], "Input Dims": [[3, 4]]})
    data = json.dumps({"traceEvents": [absurd, usual, KERNEL]}).encode()
    trace = import_kineto(data)
    assert trace.ops.signature.tolist() == [-1, 0]
    assert trace.quality.ops_without_shapes == 1
    assert peak_bytes(lambda: import_kineto(data)) < 6 * len(data)


def test_equal_tensors_of_a_profile_are_one_object() -> None:
    inputs = [op(at, **{"Input type": ["float", "float"], "Input Dims": [[3, 4], [at]]}) for at in range(3)]
    first, second, _ = import_kineto(json.dumps({"traceEvents": [*inputs, KERNEL]}).encode()).signatures
    assert first.arguments[0] is second.arguments[0]


def test_strings_that_look_like_events_do_not_end_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_read, "CHUNK_BYTES", 1 << 12)
    tricky = op(0) | {"name": "},{" * 3_000}
    events = [tricky, *(op(at) for at in range(1, 2_000)), tricky, *(op(at) for at in range(2_000, 4_000)), KERNEL]
    sizes: list[int] = []
    document = kineto_read.read_document(
        json.dumps({"traceEvents": events}).encode(),
        lambda chunk, _path, _first: sizes.append(len(chunk)),
        recover=False,
    )
    assert document.event_count == len(events)
    assert max(sizes) < 200


def test_the_limit_is_what_the_machine_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WAVECAST_MAX_TRACE_BYTES", raising=False)
    monkeypatch.setattr(files, "machine_bytes", lambda: 400)
    path = save(tmp_path, ops={"name": [0] * 50, "start_ns": np.arange(50).tolist()})
    with pytest.raises(TraceError, match="more than the limit of 100: to read it nevertheless, set WAVECAST_MAX"):
        load_trace(path)


def test_a_container_has_no_more_memory_than_it_is_granted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(files, "CONTAINER_LIMITS", (limit, tmp_path / "none"))
    whole = files.machine_bytes()
    for text, expected in (("max\n", whole), ("4096\n", 4096), (str(10 * whole), whole)):
        limit.write_text(text)
        assert files.machine_bytes() == expected
