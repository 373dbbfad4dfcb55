"""The trace file: what is written, what is read back, and which versions are read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from wavecast.errors import TraceError
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import UNKNOWN, Signature, TensorSpec
from wavecast.formats.trace.tables import TABLES, IterationTable, KernelTable, Meta, Trace, Workload

KEY_ORDER = ["format", "version", "meta", "devices", "strings", "signatures", *TABLES, "quality"]


def change(trace: Trace, **parts: Any) -> bytes:
    """Return the trace's file with top-level parts replaced; None removes one."""
    document = json.loads(encode(trace)) | parts
    return json.dumps({name: value for name, value in document.items() if value is not None}).encode()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_decoding_returns_what_was_encoded(traces: st.SearchStrategy[Trace], data: st.DataObject) -> None:
    trace = data.draw(traces)
    text = encode(trace)
    read = decode(text)
    assert read == trace
    assert repr(read.signatures) == repr(trace.signatures)  # 1, 1.0 and True are equal, but not the same
    assert repr((read.meta, read.devices)) == repr((trace.meta, trace.devices))
    assert encode(read) == text
    keys = list(json.loads(text))
    assert keys == [name for name in KEY_ORDER if name in keys]


def test_an_empty_trace_is_its_format_and_version() -> None:
    assert json.loads(encode(Trace())) == {"format": "wavecast.trace", "version": "1.3"}


def test_defaults_are_left_out(small_trace: Trace) -> None:
    document = json.loads(encode(small_trace))
    assert document["ops"].keys() == {"name", "signature", "start_ns", "duration_ns", "parent", "phase"}
    assert document["iterations"] == {"start_ns": [0], "end_ns": [90_000]}
    assert document["quality"] == {"ops_without_shapes": 1}
    assert "tensors" not in document
    assert document["meta"]["workload"] == {"name": "linear", "mode": "training", "batch_size": 8}


def test_rows_of_several_values_are_written_one_after_the_other() -> None:
    kernels = build_table(KernelTable, 2, name=[0, 0], start_ns=[1, 2], duration_ns=[1, 1], grid=[[1, 2, 3], [4, 5, 6]])
    trace = Trace(strings=("k",), kernels=kernels)
    assert json.loads(encode(trace))["kernels"]["grid"] == [1, 2, 3, 4, 5, 6]
    assert decode(encode(trace)).kernels.grid.shape == (2, 3)


def test_truth_columns_are_written_as_zero_and_one() -> None:
    trace = Trace(iterations=build_table(IterationTable, 2, start_ns=[0, 5], end_ns=[4, 9], profiled=[0, 1]))
    assert json.loads(encode(trace))["iterations"]["profiled"] == [0, 1]
    assert decode(encode(trace)).iterations.profiled.tolist() == [False, True]


def test_one_line_holds_one_column() -> None:
    lines = encode(Trace(iterations=build_table(IterationTable, 2, start_ns=[0, 5], end_ns=[4, 9]))).splitlines()
    assert lines == [
        b"{", b'"format":"wavecast.trace",', b'"version":"1.3",',
        b'"iterations":{', b'"start_ns":[0,5],', b'"end_ns":[4,9]', b"}", b"}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        (None, None),
        (True, True),
        (1, 1),
        (1.0, 1.0),
        (float("-inf"), {"float": "-inf"}),
        (float("inf"), {"float": "inf"}),
        ("sum", "sum"),
        ((1, 2.5, False), [1, 2.5, False]),
        ((float("inf"), 1), [{"float": "inf"}, 1]),
        ((), []),
        (UNKNOWN, {"unknown": True}),
        (TensorSpec("float32", ()), {"dtype": "float32", "shape": []}),
        (TensorSpec("int8", (2, 3), (3, 1)), {"dtype": "int8", "shape": [2, 3], "strides": [3, 1]}),
        (TensorSpec("int8", (9, 3), None, (2, 3)), {"dtype": "int8", "shape": [9, 3], "stored": [2, 3]}),
        ((TensorSpec("int8", (2,)),), [{"dtype": "int8", "shape": [2]}]),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_arguments_have_one_written_form(argument: Any, written: Any) -> None:
    trace = Trace(signatures=(Signature((argument,)),))
    document = json.loads(encode(trace))
    assert repr(document["signatures"]) == repr([{"arguments": [written]}])
    assert repr(decode(encode(trace)).signatures) == repr(trace.signatures)


def test_not_a_number_survives() -> None:
    read = decode(encode(Trace(signatures=(Signature((float("nan"),)),))))
    assert repr(read.signatures[0].arguments) == "(nan,)"


def test_columns_cannot_be_changed(small_trace: Trace) -> None:
    read = decode(encode(small_trace))
    with pytest.raises(ValueError, match="read-only"):
        read.ops.start_ns[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        read.ops.thread[0] = 1


def test_any_json_layout_is_read(small_trace: Trace) -> None:
    document = json.loads(encode(small_trace))
    for text in (json.dumps(document, indent=3), json.dumps(document, sort_keys=True), "\ufeff" + json.dumps(document)):
        assert decode(text.encode()) == small_trace


def test_unknown_parts_and_fields_are_ignored(small_trace: Trace) -> None:
    document = json.loads(encode(small_trace)) | {"version": "1.7", "novelties": {"x": [{}]}}
    document["ops"]["colour"] = ["red", None]
    document["meta"]["mood"] = {"deep": [1]}
    document["devices"][0]["smell"] = 3
    document["signatures"][0]["arguments"][0]["layout"] = "strided"
    assert decode(json.dumps(document).encode()) == small_trace


def test_what_is_not_on_the_allow_list_does_not_survive(small_trace: Trace) -> None:
    document = json.loads(encode(small_trace)) | {"env": {"TOKEN": "hunter2"}}
    document["meta"]["hostname"] = "hunter2"
    assert b"hunter2" not in encode(decode(json.dumps(document).encode()))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"version": "2.0"}, "trace format 2.0 is not supported (this wavecast reads 1.x): upgrade wavecast"),
        (
            {"version": "2.0", "ops": []},
            "trace format 2.0 is not supported (this wavecast reads 1.x): upgrade wavecast",
        ),
        ({"version": "0.9"}, "trace format 0.9 is not supported (this wavecast reads 1.x): convert it with an older"),
        ({"version": None}, '$.version: expected a version such as "1.3", found null'),
        ({"version": 1.0}, '$.version: expected a version such as "1.3", found 1.0'),
        ({"version": "1"}, '$.version: expected a version such as "1.3", found the string "1"'),
        ({"format": None}, '$.format: expected "wavecast.trace", found nothing'),
        ({"format": "wavecast.prediction"}, '$.format: expected "wavecast.trace", found the string "wavecast.pred'),
    ],
)
def test_other_versions_are_refused_by_name(small_trace: Trace, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        decode(change(small_trace, **parts))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"3", b'"x"', b"{}", b"\xff\xfe{}", b"{", b'{"format":', b'{"format":1}', b"\x00" * 9]
)
def test_what_is_no_trace_is_refused(text: bytes) -> None:
    with pytest.raises(TraceError):
        decode(text)


def test_what_validation_refuses_is_not_written() -> None:
    with pytest.raises(TraceError, match=r"\$\.meta\.rank: expected an integer from 0"):
        encode(Trace(meta=Meta(rank=-1)))


def test_half_a_surrogate_pair_is_not_written(small_trace: Trace) -> None:
    broken = replace(small_trace, strings=(*small_trace.strings, "half \ud800"))
    with pytest.raises(TraceError, match=r"\$\.strings\[4\]: expected Unicode text, found half of a surrogate"):
        encode(broken)


def test_wide_integers_survive() -> None:
    times = np.array([-(2**53), 0, 2**53])
    trace = Trace(iterations=build_table(IterationTable, 3, start_ns=times, end_ns=[2**53] * 3))
    assert decode(encode(trace)).iterations.start_ns.tolist() == times.tolist()


def test_a_trace_says_what_it_holds_in_a_line() -> None:
    meta = Meta(capture="shapes", workload=Workload(name="resnet"))
    assert repr(Trace(meta=meta)) == "<Trace 'resnet', shapes: 0 ops, 0 kernels, 0 iterations>"
    assert repr(Trace()) == "<Trace measured: 0 ops, 0 kernels, 0 iterations>"


def test_tensors_that_torch_could_not_number_are_refused() -> None:
    signature = Signature((TensorSpec("float32", (2**40, 0, 2**40)),))
    trace = Trace(signatures=(signature,))
    with pytest.raises(
        TraceError, match=r"\$\.signatures\[0\]\.arguments\[0\]\.shape: expected at most 9223372036854775807"
    ):
        encode(trace)
    text = encode(Trace(signatures=(Signature((TensorSpec("float32", (5, 0, 7)),)),)))
    with pytest.raises(TraceError, match="expected at most 9223372036854775807 elements, found more"):
        decode(text.replace(b"[5,0,7]", b"[1099511627776,0,1099511627776]"))
    sparse = Signature((TensorSpec("float32", (2**40, 2**40), None, (7,)),))
    assert decode(encode(Trace(signatures=(sparse,)))).signatures == (sparse,)


def test_a_bad_value_of_a_key_that_stands_twice_is_named() -> None:
    text = encode(Trace(signatures=(Signature((), (TensorSpec("float32", (5,)),)),)))
    twice = text.replace(b'"results":', b'"results":[null,null,{"dtype":"float32","shape":"x"}],"results":')
    assert twice != text
    with pytest.raises(TraceError, match=r"\$\.signatures\[0\]\.results\[2\]\.shape: expected .*, found `str`"):
        decode(twice)


def test_another_major_version_is_refused(small_trace: Trace) -> None:
    data = encode(small_trace).replace(b'"version":"1.3"', b'"version":"0.7"')
    with pytest.raises(TraceError, match=r"trace format 0\.7 is not supported"):
        decode(data)
