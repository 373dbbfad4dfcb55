"""Whole traces for the tests of the format: any legal one (hypothesis) and a small readable one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from wavecast.formats.trace.column import ColumnSpec, Table, build_table, columns
from wavecast.formats.trace.fields import FieldSpec, record_fields
from wavecast.formats.trace.signature import UNKNOWN, Signature, TensorSpec
from wavecast.formats.trace.tables import (
    TABLES,
    CallTable,
    Device,
    IterationTable,
    KernelTable,
    Meta,
    OpTable,
    Phase,
    Precision,
    Quality,
    Trace,
    Workload,
)
from wavecast.formats.trace.validate import column_range

MAX_ROWS = 3


@pytest.fixture(scope="session")
def traces() -> st.SearchStrategy[Trace]:
    """Any trace that the format allows, small."""
    return _traces()


@pytest.fixture(scope="session")
def small_trace() -> Trace:
    """One linear layer: an op inside another, its launch and its kernel."""
    strings = ("aten::linear", "aten::addmm", "cudaLaunchKernel", "ampere_sgemm_128x64_tn")
    arguments = (TensorSpec("float32", (64,)), TensorSpec("float32", (8, 32), (32, 1)), 1, None, True, UNKNOWN)
    return Trace(
        meta=Meta(
            producer="wavecast 0.1.0",
            framework="torch 2.13.0",
            cuda_version="12.8",
            has_shapes=True,
            workload=Workload(name="linear", mode="training", batch_size=8),
            precision=Precision(matmul_tf32=False),
        ),
        devices=(Device(name="NVIDIA A100-SXM4-80GB", compute_capability="8.0", sm_count=108, sm_clock_hz=1.41e9),),
        strings=strings,
        signatures=(Signature(arguments, (TensorSpec("float32", (8, 64)),)),),
        iterations=build_table(IterationTable, 1, start_ns=[0], end_ns=[90_000]),
        ops=build_table(
            OpTable,
            2,
            name=[0, 1],
            signature=[-1, 0],
            start_ns=[1_000, 4_000],
            duration_ns=[40_000, 30_000],
            parent=[-1, 0],
            phase=[Phase.FORWARD, Phase.FORWARD],
        ),
        calls=build_table(CallTable, 1, name=[2], start_ns=[9_000], duration_ns=[5_000], op=[1]),
        kernels=build_table(
            KernelTable,
            1,
            name=[3],
            stream=[7],
            start_ns=[16_000],
            duration_ns=[8_500],
            call=[0],
            op=[1],
            grid=[[1, 1, 4]],
            block=[[128, 1, 1]],
            registers=[90],
            shared_memory_bytes=[16_384],
        ),
        quality=Quality(ops_without_shapes=1),
    )


@st.composite
def _traces(draw: st.DrawFn) -> Trace:
    strings = tuple(draw(st.lists(st.text(max_size=5), max_size=3)))
    signatures = tuple(draw(st.lists(_signatures(), max_size=3)))
    counts = {"strings": len(strings), "signatures": len(signatures)}
    tables: dict[str, Any] = {}
    for name, table in TABLES.items():
        counts[name] = _draw_row_count(draw, table, counts)
        tables[name] = _draw_table(draw, table, counts[name], counts)
    return Trace(
        meta=draw(_records(Meta)),
        devices=tuple(draw(st.lists(_records(Device), max_size=2))),
        strings=strings,
        signatures=signatures,
        quality=draw(_records(Quality)),
        **tables,
    )


def _draw_row_count(draw: st.DrawFn, table: type[Table], counts: dict[str, int]) -> int:
    needed = [spec.refers_to for spec in columns(table) if spec.refers_to and spec.minimum == 0]
    return draw(st.integers(0, MAX_ROWS)) if all(counts[name] for name in needed) else 0


def _draw_table(draw: st.DrawFn, table: type[Table], rows: int, counts: dict[str, int]) -> Table:
    values = {
        spec.name: _draw_column(draw, spec, rows, counts)
        for spec in columns(table)
        if spec.default is None or draw(st.booleans())
    }
    if table is OpTable and "parent" in values:
        values["parent"] = np.minimum(values["parent"], np.arange(rows) - 1)
    for name in {"start_ns", "time_ns"} & values.keys():
        values[name] = np.sort(values[name])
    if table is IterationTable:
        values["end_ns"] = np.maximum(values["end_ns"], values["start_ns"])
    return build_table(table, rows, **values)


def _draw_column(draw: st.DrawFn, spec: ColumnSpec, rows: int, counts: dict[str, int]) -> Any:
    low, high = column_range(spec)
    if spec.refers_to is not None:
        high = counts[spec.refers_to] - 1
    size = rows * (spec.width or 1)
    values = draw(st.lists(st.integers(low, max(low, high)), min_size=size, max_size=size))
    return np.array(values, dtype=spec.dtype).reshape(rows, *spec.shape_tail)


def _records(record: Any) -> st.SearchStrategy[Any]:
    return st.builds(record, **{spec.name: _values(spec) for spec in record_fields(record)})


def _values(spec: FieldSpec) -> st.SearchStrategy[Any]:
    if spec.is_record:
        return _records(spec.kind)
    values: dict[type, st.SearchStrategy[Any]] = {
        str: st.text(max_size=5),
        int: st.integers(0, 2**53),
        float: st.floats(0, allow_infinity=False, allow_nan=False),
        bool: st.booleans(),
    }
    return st.none() | values[spec.kind] if spec.is_optional else values[spec.kind]


def _signatures() -> st.SearchStrategy[Signature]:
    integers, floats = st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)
    numbers = integers | floats | st.booleans()
    scalars = numbers | st.none() | st.text(max_size=5) | st.just(UNKNOWN)
    lists = st.lists(numbers, max_size=3).map(tuple) | st.lists(_tensors(), max_size=2).map(tuple)
    arguments = st.lists(scalars | lists | _tensors(), max_size=3).map(tuple)
    return st.builds(Signature, arguments, arguments)


@st.composite
def _tensors(draw: st.DrawFn) -> TensorSpec:
    rank = draw(st.integers(0, 3))
    most = 2 ** (62 // max(rank, 1))  # so that their product is a number of elements
    strides = st.lists(st.integers(0, 2**63 - 1), min_size=rank, max_size=rank).map(tuple)
    shape = st.lists(st.integers(0, most), min_size=rank, max_size=rank).map(tuple)
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int64"]))
    stored = st.none() | st.lists(st.integers(0, most), min_size=1, max_size=max(rank, 1)).map(tuple)
    return TensorSpec(dtype, draw(shape), draw(st.none() | strides), draw(stored))
