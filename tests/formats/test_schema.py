"""The published JSON Schema says what the codec writes."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.tables import Trace

SCHEMA = json.loads((Path(__file__).parents[2] / "formats" / "trace" / "trace.schema.json").read_bytes())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_what_is_written_fits(small_trace: Trace) -> None:
    VALIDATOR.validate(json.loads(encode(small_trace)))
    VALIDATOR.validate(json.loads(encode(Trace())))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_whatever_is_written_fits(traces: st.SearchStrategy[Trace], data: st.DataObject) -> None:
    VALIDATOR.validate(json.loads(encode(data.draw(traces))))


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ((), "format", "wavecast.prediction"),
        ((), "format", None),
        ((), "version", "2.0"),
        ((), "version", 1.0),
        ((), "ops", []),
        ((), "ops", {}),
        ((), "strings", [1]),
        (("kernels", "duration_ns"), 0, -1),
        (("kernels", "duration_ns"), 0, 1.5),
        (("kernels", "duration_ns"), 0, "1"),
        (("kernels", "duration_ns"), 0, True),
        (("kernels", "duration_ns"), 0, None),
        (("kernels", "duration_ns"), 0, 10**30),
        (("kernels", "grid"), 0, [1, 1, 1]),
        (("kernels",), "kind", [4]),
        (("kernels",), "registers", [2**31]),
        (("iterations",), "profiled", [True]),
        (("devices", 0), "name", None),
        (("devices", 0), "sm_count", 1.5),
        (("devices", 0), "memory_bytes", -1),
        (("meta",), "workload", None),
        (("meta",), "has_shapes", 1),
        (("quality",), "bytes_lost", None),
        (("signatures", 0), "arguments", None),
        (("signatures", 0, "arguments"), 0, {"dtype": "float32"}),
        (("signatures", 0, "arguments"), 0, {"dtype": "float32", "shape": [-1]}),
        (("signatures", 0, "arguments"), 0, {"unknown": False}),
        (("signatures", 0, "arguments"), 0, {"float": "big"}),
        (("signatures", 0, "arguments"), 0, [1, {"dtype": "float32", "shape": []}]),
        (("signatures", 0, "arguments"), 0, ["text"]),
    ],
)
def test_misfits_do_not_fit(small_trace: Trace, where: tuple[Any, ...], name: Any, value: Any) -> None:
    document = deepcopy(json.loads(encode(small_trace)))
    inner = document
    for key in where:
        inner = inner[key]
    inner[name] = value
    assert not VALIDATOR.is_valid(document)
