"""Vector ops measured alone: `ops/vector.parquet` and `ops/vector_more.parquet` as problems of the vector model.

Profilers of their time showed kernels about half a microsecond longer: H100's shortest were 1.5 to 1.6 us in traces
with nanoseconds, and are 1.1 us in torch 2.11. That is fitted (`profiler_us`) and no part of a prediction.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...specs.gpu import Catalog
from ..models.frame.problems import problems_from
from ..models.vector.problems import VectorKernel, VectorProblems
from ..work.normalization import DIVIDED
from .own_lists import load_lists
from .own_ops import BYTES
from .own_works import load_own
from .samples import MeasurementTable, Samples, TableColumn, keep_known, pick, read_table, samples_of, shape_share
from .table_columns import shown_path

TABLE: Final = "ops/vector.parquet"
MORE: Final = "ops/vector_more.parquet"
"""Later measurements in the same columns; a folder may lack it."""
BINARY: Final = ("add", "mul", "div", "pow")
UNARY: Final = ("add_scalar", "mul_scalar", "div_scalar", "pow_scalar", "relu", "gelu", "tanh")
KINDS: Final[Mapping[str, VectorKernel]] = {
    **dict.fromkeys((*BINARY, *UNARY, "add3"), VectorKernel.ELEMENTWISE),
    "layernorm": VectorKernel.ROW_NORM,
    "softmax": VectorKernel.SOFTMAX,
    "rmsnorm": VectorKernel.TOKEN_NORM,
    "silu_and_mul": VectorKernel.TOKEN_GATED,
    "silu": VectorKernel.ELEMENTWISE,
    "rope": VectorKernel.TOKEN_ROPE,
    "embedding": VectorKernel.GATHER,
    "embedding_vocab_parallel": VectorKernel.GATHER_SHARD,
    "fp8_quantize_static": VectorKernel.QUANTIZE,
    "fp8_quantize_dynamic": VectorKernel.QUANTIZE_DYNAMIC,
}
"""Kernel by op; vidur's gelu is a kernel of its own (`_kind`)."""
FLOPS: Final[Mapping[str, float]] = {"pow": 30.0, "pow_scalar": 30.0, "gelu": 10.0, "tanh": 10.0, "div": 5.0}
"""Instructions beyond the moves, per element; a guess from instruction counts of the math library's forms; else 1."""
LAUNCHES: Final[Mapping[str, float]] = {"add3": 2.0, "silu": 2.0}
"""Kernels per op. The rows named silu are a gated activation in two kernels, silu(gate), then its product with a third
tensor: counted as one that moves two tensors they would reach 36-37 % of the bandwidth on three GPUs of three
generations, counted as two that move five, 89-93 %, as copies do."""
IN_LAYERS: Final = ("add", "add3", "silu")
"""What profilers saw in a layer, where the kernel before wrote an operand (the other of `add` was used before that: as
many bytes passed since); other rows repeat one call."""
HOLDING: Final = "SoftMaxForwardSmem"
"""Of the kernel that keeps a row in shared memory (MI100's, of whole vectors): nearest to the one by registers."""
CUT_US: Final = 0.5
"""What whole microseconds, as vidur's profiler counts them, cut off a kernel on average: added again."""
HOST_RATIO: Final[Mapping[str, float]] = {
    **dict.fromkeys(("add_scalar", "mul_scalar", "div_scalar", "relu"), 1.2),
    "pow_scalar": 1.14,
    "gelu": 1.17,
    "layernorm": 1.82,
    "softmax": 1.3,
}
"""Floor of an op's event times over the floor of add, mul, div and tanh: median of five hosts, alike within 3 %."""
HIDDEN_BYTES: Final = 1e6
"""Kernels that move less take 7 us at most on each GPU that events were read on (P4): under the floor of its host."""
FLOOR_BOUND_NS: Final = 60e3
"""Event times under this tell more of the host than of the kernel: a group of their own."""
TRAINED_SHARE: Final = 0.25
"""Shapes below this share train: scaling shares within the part keeps what is trained and what is scored."""
GATHER: Final = "embedding_vocab_parallel"


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[VectorProblems]]:
    """Return all rows that are not suspect, a table each, and own measurements of single calls."""
    found = [_load(data, name, catalog) for name in (TABLE, MORE) if name == TABLE or (data / name).exists()]
    return [*found, *load_own(data, "vector", TRAINED_SHARE, catalog), *load_lists(data, TRAINED_SHARE, catalog)]


def _load(data: Path, name: str, catalog: Catalog | None) -> Samples[VectorProblems]:
    table = read_table(data / name)
    _check_bytes(table)
    table = pick(table, ~table["suspect"].astype(bool)) if "suspect" in table else table
    table, notes = keep_known(table, {"dtype": BYTES, "op": KINDS})
    op, dtype = table["op"].astype(str), table["dtype"].astype(str)
    codes = np.unique(op, return_inverse=True)[1]
    family = _family(op, table["source"].astype(str))
    cut_us = CUT_US * _lookup(LAUNCHES, op, 1.0) * (table["source"].astype(str) == "vidur")
    table["latency_us"] = table["latency_us"].astype(np.float64) + cut_us
    is_event = table["timing"].astype(str) == "event_min5"
    # Shares that make families alike in number among the shapes that are drawn first.
    share = shape_share(codes, table["rows"], table["cols"])
    groups = np.where(is_event & (1e3 * table["latency_us"] < FLOOR_BOUND_NS), "floor", family.astype(str))
    _, index, count = np.unique(groups, return_inverse=True, return_counts=True)
    share = np.where(share < TRAINED_SHARE, share * count[index] / count.max(initial=1), share)
    samples = samples_of(table, "vector", _problems(table, op, dtype), catalog, family=family, share=share)
    samples = replace(samples, notes=notes)
    if not is_event.any():
        return samples
    floors = _host_floors(samples.problems, op, samples.gpu, samples.measured_ns)
    return replace(samples, problems=replace(samples.problems, host_floor_ns=floors))


def _host_floors(problems: VectorProblems, op: TableColumn, gpu: TableColumn, measured_ns: Floats) -> Floats:
    """Return the plain floor of each event-timed row's host, NaN where no row is short enough to tell it.

    No datasheet says how fast the host launches, and hosts differ by a factor of three: it is read off the host's own
    rows whose kernels are hidden under it, per op, since tables join sessions of one host (on P100's, gelu's floor is
    two thirds of add's). So event times near the floor are not blind, of no GPU.
    """
    moved = problems.read_bytes + problems.written_bytes
    is_short = np.isnan(problems.host_floor_ns) & (moved < HIDDEN_BYTES)
    _, series = np.unique(np.stack([np.unique(op, return_inverse=True)[1], gpu]), axis=1, return_inverse=True)
    floors = problems.host_floor_ns.copy()
    for row in np.unique(series[is_short]):
        found = measured_ns[is_short & (series == row)] / problems.host_ratio[series == row][0]
        floors[np.isnan(floors) & (series == row)] = np.median(found)
    return floors


def _check_bytes(table: MeasurementTable) -> None:
    """Raise InputError for a row that lacks the bytes it moves: only those of gathers follow from its sizes."""
    moved = table["bytes_read"].astype(np.float64) + table["bytes_written"].astype(np.float64)
    lacking = np.flatnonzero(np.isnan(moved) & (table["op"].astype(str) != GATHER))
    if len(lacking):
        op = table["op"][lacking[0]]
        raise InputError(
            f"{shown_path(table.path)}: row {lacking[0]}: {op} lacks bytes_read or bytes_written; expected both"
        )


def _problems(table: dict[str, TableColumn], op: TableColumn, dtype: TableColumn) -> VectorProblems:
    rows, columns = table["rows"].astype(np.float64), table["cols"].astype(np.float64)
    width = _lookup(BYTES, dtype)
    gathered = op == GATHER
    read = np.where(gathered, rows * (columns * width + 8.0), table["bytes_read"].astype(np.float64))
    written = np.where(gathered, rows * columns * width, table["bytes_written"].astype(np.float64))
    launches = _lookup(LAUNCHES, op, 1.0)
    is_gated = op == "silu"
    read, written = (np.where(is_gated, tensors * part, part) for tensors, part in ((3.0, read), (2.0, written)))
    again = op == "fp8_quantize_dynamic"
    elements = rows * columns
    is_event = table["timing"].astype(str) == "event_min5"
    kind = _lookup(KINDS, op)
    kind[(op == "gelu") & (table["source"].astype(str) == "vidur")] = VectorKernel.TOKEN_GELU
    if "kernel" in table:
        kind[np.char.find(table["kernel"].astype(str), HOLDING) >= 0] = VectorKernel.HELD_SOFTMAX
    return problems_from(
        VectorProblems,
        len(op),
        kind=kind,
        read_bytes=np.where(again, read / 2.0, read) / launches,
        written_bytes=written / launches,
        elements=elements,
        rows=rows,
        columns=columns,
        flops=elements * _lookup(FLOPS, op, 1.0),
        launches=launches,
        moved_since_bytes=np.where(op == "add", written, 1.0) * (np.isin(op, IN_LAYERS) & ~is_event),
        host_floor_ns=np.where(is_event, np.nan, 0.0),
        host_ratio=_lookup(HOST_RATIO, op, 1.0),
        index_operations=np.where(op == "softmax", DIVIDED.operations, 0.0),
        in_turn=1.0,
        is_by_profiler=np.char.startswith(table["timing"].astype(str), "profiler"),
    )


def _lookup(values: Mapping[str, Any], names: TableColumn, default: float | None = None) -> Floats:
    distinct, index = np.unique(names, return_inverse=True)
    found = [values[name] if default is None else values.get(name, default) for name in distinct.tolist()]
    return np.array(found, dtype=np.float64)[index]


def _family(op: TableColumn, source: TableColumn) -> TableColumn:
    """Return the group of the score: elementwise, layernorm and softmax of PyTorch, others by op and source."""
    is_torch = (source == "neusight") | np.char.startswith(source, "wavecast/")
    is_served = np.char.startswith(source, "llmservingsim/")
    short = np.where(source == "vidur", " (vidur)", np.where(is_served, " (LLMServingSim)", " (trtllm)"))
    short = np.where(is_torch, "", short)
    name = np.where(is_torch & np.isin(op, BINARY + UNARY), "elementwise", op)
    return np.char.add(name.astype(str), short.astype(str)).astype(object)
