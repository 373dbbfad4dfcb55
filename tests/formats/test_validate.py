"""Every misfit is refused with its place; nothing but TraceError ever comes out."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from wavecast.errors import TraceError
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import Device, IterationTable, Meta, OpTable, Quality, Trace
from wavecast.formats.trace.validate import validate

HOSTILE: list[Any] = [
    None,
    True,
    -1,
    1.5,
    10**30,
    -(10**30),
    2**63,
    "x",
    "\ud800",
    "",
    [],
    {},
    [[]],
    [{}],
    {"dtype": 1},
    [-5],
    1e308,
]


def put(document: Any, path: str, value: Any) -> None:
    """Set the value at a path such as `kernels.grid.2` (a number indexes a list); `...` deletes it."""
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for part in parents:
        document = document[part]
    if value is ...:
        del document[last]
    else:
        document[last] = value


def refusal(document: Any) -> str:
    with pytest.raises(TraceError) as caught:
        decode(json.dumps(document).encode())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def document(small_trace: Trace) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(encode(small_trace))
    return loaded


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("kernels.duration_ns.0", -5, "$.kernels.duration_ns[0]: expected an integer ≥ 0, found -5"),
        ("kernels.grid.2", -1, "$.kernels.grid[2]: expected an integer ≥ 0, found -1"),
        ("kernels.grid", [1, 1], "$.kernels.grid: expected 3 integers per row, one row after the other, found 2"),
        ("kernels.grid", [1] * 6, "$.kernels.grid: expected 1 rows like the columns before it, found 2"),
        ("kernels.grid", [[1, 1, 1]], "$.kernels.grid[0]: expected an integer ≥ 0, found a list of 3"),
        ("kernels.kind", [4], "$.kernels.kind[0]: expected an integer from 0 to 3, found 4"),
        ("kernels.registers", [2**31], "$.kernels.registers[0]: expected an integer ≤ 2147483647, found 2147483648"),
        ("kernels.start_ns", [10**30], f"$.kernels.start_ns[0]: expected an integer ≤ {2**53}, found {10**30}"),
        ("kernels.start_ns", [-(10**30)], f"$.kernels.start_ns[0]: expected an integer ≥ {-(2**53)}, found -1"),
        ("kernels.start_ns", [1.0], f"$.kernels.start_ns[0]: expected an integer ≥ {-(2**53)}, found 1.0"),
        ("kernels.duration_ns", ["7"], '$.kernels.duration_ns[0]: expected an integer ≥ 0, found the string "7"'),
        ("kernels.duration_ns", [None], "$.kernels.duration_ns[0]: expected an integer ≥ 0, found null"),
        ("kernels.duration_ns", [True], "$.kernels.duration_ns[0]: expected an integer ≥ 0, found true"),
        ("kernels.duration_ns", 7, "$.kernels.duration_ns: expected a list of integers, found 7"),
        ("kernels.duration_ns", {}, "$.kernels.duration_ns: expected a list of integers, found an object"),
        ("kernels.duration_ns", ..., "$.kernels.duration_ns: expected a list of integers, found nothing: the co"),
        ("kernels.name", [4], "$.kernels.name[0]: expected an index below 4, the number of strings, found 4"),
        ("kernels.call", [1], "$.kernels.call[0]: expected an index below 1, the number of calls, or -1, found 1"),
        ("kernels", [], "$.kernels: expected an object, found array"),
        ("tensors", {}, "$.tensors.storage: expected a list of integers, found nothing: the column is required"),
        ("kernels", None, "$.kernels: expected an object, found null"),
        ("iterations.profiled", [2], "$.iterations.profiled[0]: expected an integer from 0 to 1, found 2"),
        ("iterations.end_ns", [-1], "$.iterations.end_ns[0]: expected an end at or after the start, 0, found -1"),
        ("ops.parent", [1, 0], "$.ops.parent[0]: expected an op before op 0 (parents come first), found 1"),
        ("ops.parent", [-1, 1], "$.ops.parent[1]: expected an op before op 1 (parents come first), found 1"),
        ("ops.start_ns", [5, 4], "$.ops.start_ns[1]: expected a time at or after that of the row before, 5 (rows stan"),
        ("ops.start_ns", [1], "$.ops.start_ns: expected 2 rows like the columns before it, found 1"),
        ("ops.name", [], "$.ops.signature: expected 0 rows like the columns before it, found 2"),
        ("strings.1", 5, "$.strings[1]: expected a string, found 5"),
        ("strings", "abc", '$.strings: expected a list, found the string "abc"'),
        ("devices", {}, "$.devices: expected a list, found an object"),
        ("devices.0", 1, "$.devices[0]: expected an object, found 1"),
        ("devices.0.name", ..., "$.devices[0].name: expected a string, found nothing: the field is required"),
        ("devices.0.name", None, "$.devices[0].name: expected a string, found null"),
        ("devices.0.sm_count", 1.5, "$.devices[0].sm_count: expected an integer or null, found 1.5"),
        ("devices.0.sm_clock_hz", -1.0, "$.devices[0].sm_clock_hz: expected a number ≥ 0, found -1.0"),
        ("devices.0.sm_clock_hz", "1", '$.devices[0].sm_clock_hz: expected a number or null, found the string "1"'),
        ("devices.0.sm_clock_hz", 10**400, "$.devices[0].sm_clock_hz: expected an integer from 0 to 9007199254740992"),
        ("meta", 1, "$.meta: expected an object, found 1"),
        ("meta.rank", True, "$.meta.rank: expected an integer or null, found true"),
        ("meta.has_shapes", 1, "$.meta.has_shapes: expected true or false, found 1"),
        ("meta.workload", None, "$.meta.workload: expected an object, found null"),
        ("meta.workload.batch_size", -8, "$.meta.workload.batch_size: expected an integer from 0 to"),
        ("quality.ops_without_shapes", None, "$.quality.ops_without_shapes: expected an integer, found null"),
        ("signatures", {}, "$.signatures: expected `array`, found an object"),
        ("signatures.0.arguments", ..., "$.signatures[0]: object missing required field `arguments`"),
        ("signatures.0.arguments.0.shape.0", "x", '$.signatures[0].arguments[0].shape[0]: expected `int`, found the'),
        ("signatures.0.arguments.0.shape.0", -1, "$.signatures[0].arguments[0].shape[0]: expected `int` >= 0, foun"),
        ("signatures.0.arguments.0.shape", ..., "$.signatures[0].arguments[0]: expected null, a scalar, a list of"),
        ("signatures.0.arguments.1.stored", [1, 2, 3], "$.signatures[0].arguments[1].stored: expected 1 to 2 sizes"),
        ("signatures.0.arguments.1.stored", [-1], "$.signatures[0].arguments[1].stored[0]: expected `int` >= 0"),
        ("signatures.0.arguments.1.strides", [1], "$.signatures[0].arguments[1]: expected null, a scalar, a list of"),
        ("signatures.0.arguments.2", [1, {"dtype": "x", "shape": []}], "$.signatures[0].arguments[2][0]: expected o"),
        ("signatures.0.arguments.2", [{"unknown": True}], "$.signatures[0].arguments[2][0]: expected only numbers or"),
        ("signatures.0.arguments.2", 2**63, "$.signatures[0].arguments[2]: expected `int` <= 9223372036854775807, fou"),
        ("signatures.0.arguments.2", {"float": "big"}, "$.signatures[0].arguments[2].float: invalid enum value 'big'"),
    ],
)  # fmt: skip
def test_a_misfit_is_named_with_its_place(document: dict[str, Any], path: str, value: Any, message: str) -> None:
    put(document, path, value)
    assert refusal(document).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"duration_ns": [8500]', '"duration_ns": [NaN]', r"malformed JSON at byte \d+: NaN is no JSON number"),
        (
            '"duration_ns": [8500]',
            '"duration_ns": [-Infinity]',
            r"malformed JSON at byte \d+: -Infinity is no JSON num",
        ),
        ('"duration_ns": [8500]', '"duration_ns": [8500', r"malformed JSON at byte \d+: expected ',' or ']'"),
        ('"duration_ns": [8500]', '"duration_ns": [8500,]', r"malformed JSON at byte \d+: trailing comma in array"),
        ('"duration_ns": [8500]', '"duration_ns": [08]', r"malformed JSON at byte \d+: invalid number"),
        ('"duration_ns": [8500]', '"duration_ns": [1e400]', r"\$\.kernels\.duration_ns\[0\]: number out of range"),
        ('"aten::linear"', '"\\ud800 half a pair"', r"malformed JSON at byte \d+: .*surrogate"),
        ('"aten::linear"', '"a\nb"', r"malformed JSON at byte \d+: invalid character"),
        ("]}}", "]}", "truncated JSON: the text ends after"),
    ],
)
def test_malformed_json_is_named_with_its_place(document: dict[str, Any], old: str, new: str, message: str) -> None:
    text = json.dumps({name: value for name, value in document.items() if name != "quality"})
    assert old in text
    with pytest.raises(TraceError, match=message):
        decode(text.replace(old, new).encode())


def test_malformed_json_after_a_misfit_is_refused() -> None:
    with pytest.raises(TraceError, match="truncated JSON"):
        decode(b'{"format": "wavecast.trace", "ops": 1')


def test_deep_nesting_is_refused(document: dict[str, Any]) -> None:
    for name in ("signatures", "strings", "meta", "novelty"):
        text = json.dumps(document | {name: 0}).replace(
            f'"{name}": 0', f'"{name}": ' + "[" * 5_000_000 + "]" * 5_000_000
        )
        with pytest.raises(TraceError, match="nested too deeply"):
            decode(text.encode())


def test_the_last_of_two_equal_keys_counts(document: dict[str, Any], small_trace: Trace) -> None:
    text = json.dumps(document).replace('"ops": {', '"ops": {"name": ["wrong"], ')
    assert decode(text.encode()) == small_trace


def test_text_that_is_not_utf8_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=r"not UTF-8|\$\.strings: invalid UTF-8"):
        decode(json.dumps(document).replace("aten::linear", "\xff").encode("latin-1"))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"ops": None}, r"\$\.ops: expected a OpTable, found null"),
        ({"strings": ["a"]}, r"\$\.strings: expected a tuple of strings"),
        ({"devices": [Device(name="x")]}, r"\$\.devices: expected a tuple"),
        ({"devices": (Meta(),)}, r"\$\.devices\[0\]: expected a Device, found a Meta"),
        ({"meta": Quality()}, r"\$\.meta: expected a Meta, found a Quality"),
        ({"signatures": ((),)}, r"\$\.signatures\[0\]: expected a Signature"),
        ({"signatures": (Signature([1]),)}, r"\$\.signatures\[0\]\.arguments: expected a tuple"),  # type: ignore[arg-type]
        ({"signatures": (Signature((b"x",)),)}, r"arguments\[0\]: expected null.* found a bytes"),  # type: ignore[arg-type]
        ({"signatures": (Signature((2**63,)),)}, r"arguments\[0\]: expected an integer from"),
        ({"signatures": (Signature((TensorSpec("x", (-1,)),)),)}, r"arguments\[0\]\.shape\[0\]: expected an integer"),
        ({"signatures": (Signature((TensorSpec("x", (1,), ()),)),)}, r"arguments\[0\]\.strides: expected 1 strides"),
        ({"signatures": (Signature((TensorSpec("x", (9, 4), None, ()),)),)}, r"\.stored: expected 1 to 2 sizes"),
        ({"signatures": (Signature((TensorSpec("x", (9,), None, (2, 4)),)),)}, r"\.stored: expected 1 to 1 sizes"),
        ({"signatures": (Signature(((1, None),)),)}, r"arguments\[0\]\[1\]: expected only numbers"),  # type: ignore[arg-type]
        ({"devices": (Device(name="x", sm_clock_hz=float("nan")),)}, r"sm_clock_hz: expected a number ≥ 0, found nan"),
        ({"devices": (Device(name="x", sm_count=np.int64(3)),)}, r"sm_count: expected an integer or null"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_record_built_wrongly_is_refused(small_trace: Trace, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        validate(replace(small_trace, **parts))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([1.0, np.nan]), "expected an array of int64, found an array of float64"),
        (np.zeros((2, 1), dtype="int64"), r"expected an array of shape \(2,\), found one of shape \(2, 1\)"),
        (np.array(5, dtype="int64"), "expected an array of shape"),
        (np.zeros(3, dtype="int64"), "expected 2 rows like the columns before it, found 3"),
        ([1, 2], "expected an array of int64, found a list of 2"),
        (None, "expected an array of int64, found null"),
    ],
)
def test_a_column_built_wrongly_is_refused(values: Any, message: str) -> None:
    ops = build_table(OpTable, 2, name=[0, 0])
    columns = {item.name: getattr(ops, item.name) for item in fields(ops)} | {"start_ns": values}
    with pytest.raises(TraceError, match=rf"\$\.ops\.start_ns: {message}"):
        validate(Trace(strings=("x",), ops=OpTable(**columns)))


def test_an_iteration_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(TraceError, match=r"\$\.iterations\.end_ns\[1\]: expected an end at or after the start, 7"):
        validate(Trace(iterations=build_table(IterationTable, 2, start_ns=[0, 7], end_ns=[1, 6])))


def paths_of(value: Any, path: str = "") -> list[str]:
    """Return the path of everything inside a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in (f"{path}{key}", *paths_of(item, f"{path}{key}."))]


MANY = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@MANY
@given(data=st.data())
def test_a_mutated_document_never_shows_a_traceback(small_trace: Trace, data: st.DataObject) -> None:
    document = json.loads(encode(small_trace))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths_of(document)))
        put(document, path, deepcopy(data.draw(st.sampled_from([*HOSTILE, ...]))))
    check_bytes(json.dumps(document).encode())


@MANY
@given(data=st.data())
def test_mutated_bytes_never_show_a_traceback(small_trace: Trace, data: st.DataObject) -> None:
    text = bytearray(encode(small_trace))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"-", b"[", b"9" * 25])
        )
    check_bytes(bytes(text))


def check_bytes(text: bytes) -> None:
    """Check that bytes are either refused in one line or a trace that can be written again."""
    message = ""
    try:
        trace = decode(text)
    except TraceError as error:
        message = str(error)
    if message:
        assert "\n" not in message
    else:
        assert decode(encode(trace)) == trace
