"""Walks over rows measured alone: batch norm's kernels, norms by backend, and what `reduction_sequences` reads."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...records import dataclass
from ...specs.gpu import Catalog
from ..models.frame.problems import problems_from
from ..models.reduction.model import INPUT_FLOPS
from ..models.reduction.problems import ReductionProblems
from ..work.row_kernels import RowKernel
from .own_works import load_own
from .reduction_sequences import Launched, eager_of, inductor_of, liger_of
from .samples import MeasurementTable, Samples, read_table, records_of, samples_of, shape_share

TABLE: Final = "ops/batch_norm.parquet"
NORMS: Final = "ops/norm_backward.parquet"
LIGER: Final = "ops/vector_liger.parquet"
KERNELBENCH: Final = "ops/vector_kernelbench.parquet"
BYTES: Final[Mapping[str, float]] = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
CHANNEL_KERNELS: Final[Mapping[str, tuple[RowKernel, RowKernel]]] = {
    "batch_norm_stats": (RowKernel.MOMENTS, RowKernel.COLUMN_MOMENTS),
    "batch_norm_elemt": (RowKernel.CHANNEL_ELEMENTS, RowKernel.COLUMN_ELEMENTS),
    "batch_norm_backward_reduce": (RowKernel.CHANNEL_SUMS, RowKernel.COLUMN_SUMS),
    "batch_norm_backward_elemt": (RowKernel.CHANNEL_ELEMENTS, RowKernel.COLUMN_ELEMENTS),
}
"""By op: the kernel of NCHW, and of channels last."""
TENSORS: Final[Mapping[str, float]] = {
    "batch_norm_stats": 1.0,
    "batch_norm_elemt": 2.0,
    "batch_norm_backward_reduce": 2.0,
    "batch_norm_backward_elemt": 3.0,
}
ROW_KERNELS: Final[Mapping[tuple[str, str], RowKernel]] = {
    ("pytorch", "forward"): RowKernel.ROW_FORWARD,
    ("pytorch", "backward"): RowKernel.ROW_BACKWARD,
    ("cudnn", "forward"): RowKernel.FUSED_FORWARD,
    ("cudnn", "backward"): RowKernel.FUSED_BACKWARD,
    ("torch_compile", "forward"): RowKernel.COMPILED_FORWARD,
    ("torch_compile", "backward"): RowKernel.COMPILED_BACKWARD,
}
"""By backend and direction."""
COMMON: Final = ("gpu", "op", "latency_us")
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    TABLE: (*COMMON, "direction", "channels", "depth", "height", "width", "dtype", "layout", "elements", "library"),
    NORMS: (*COMMON, "direction", "rows", "cols", "dtype", "backend"),
    LIGER: (*COMMON, "backend", "direction", "x_value", "config"),
    KERNELBENCH: (*COMMON, "machine", "mode", "kind", "inputs", "init", "dtype", "input_bytes"),
}
"""What each table is read for."""
LAST_VERSION: Final = "git7317dba"
"""Of the two versions of PyTorch whose volumes were measured, the one that runs its own kernels on channels last."""
LEAST_CHANNELS: Final = 32
"""Of volumes with channels last: with fewer, tiles are narrower than a warp, which `STREAM` does not know."""
LEAST_EVENT_US: Final = 200.0
"""Times of events under this tell of the host, by what the data's README says of them."""
DO_BENCH_US: Final = 10.0
"""What Triton's `do_bench` reads around nothing: its rows of 14 to 90 us on A100 and H100 exceed their bytes' time by
6 to 9 us alike (chosen while reading these)."""
HIDDEN_BYTES: Final = 4e6
"""Inputs of elementwise ops whose kernels hide under any host."""
TRAINED_SHARE: Final = 0.25
"""The recipe's `shape_share`."""
SCARCE_SHARE: Final = 0.25
"""Tables of few rows are drawn as if their shares were this much smaller: all their shapes train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Hold one measurement: what was launched, where, how long it took."""

    gpu: str
    launched: Launched
    latency_us: float
    family: str
    dtype: str
    moved_since_bytes: float = 0.0
    host_floor_us: float = 0.0


def _row(item: Mapping[str, Any], launched: Launched, family: str, **more: float) -> _Row:
    gpu, latency_us, dtype = item["gpu"], item["latency_us"], item["dtype"]
    return _Row(gpu=gpu, launched=launched, latency_us=latency_us, family=family, dtype=dtype, **more)


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[ReductionProblems]]:
    """Return the rows of every table that the directory has and whose kernels are known."""
    readers: dict[str, Callable[[MeasurementTable], Iterator[_Row]]] = {
        TABLE: _batch_norm,
        NORMS: _norms,
        LIGER: _liger,
        KERNELBENCH: _kernelbench,
    }
    found = []
    for name, read in readers.items():
        if (data / name).exists():
            rows = list(read(read_table(data / name, COLUMNS[name])))
            if rows:
                found.append(_samples(name, rows, catalog))
    return [*found, *load_own(data, "reduction", TRAINED_SHARE, catalog)]


def _samples(name: str, rows: Sequence[_Row], catalog: Catalog | None) -> Samples[ReductionProblems]:
    names = (
        *("kernel", "columns", "rows", "elements", "flops", "launches"),
        *("walked_bytes", "streamed_bytes", "least_bytes"),
    )
    problems = problems_from(
        ReductionProblems,
        len(rows),
        **{name: [getattr(row.launched, name) for row in rows] for name in names},
        run=[row.launched.run if row.launched.run > 0 else row.launched.columns for row in rows],
        streaming=-1,
        moved_since_bytes=[row.moved_since_bytes for row in rows],
        host_floor_ns=[1e3 * row.host_floor_us for row in rows],
    )
    share = shape_share(problems.kernel, problems.rows, problems.columns, problems.run)
    columns = {
        key: np.array([getattr(row, key) for row in rows], dtype=object) for key in ("gpu", "latency_us", "dtype")
    }
    return samples_of(
        MeasurementTable(Path(name), columns),
        "reduction",
        problems,
        catalog,
        family=[row.family for row in rows],
        share=share if name == TABLE else SCARCE_SHARE * share,
    )


def _batch_norm(table: MeasurementTable) -> Iterator[_Row]:
    """Yield PyTorch's four kernels; whole batch norms over volumes, by cuDNN, where the host does not hide them.

    Of channels last those of `LAST_VERSION`, which are two kernels of PyTorch's; the other version's are 40 times as
    long. Every backward pass adds the gradient to the one before, since the benchmark keeps it: three tensors more.
    """
    records = records_of(table)
    whole = [item for item in records if item["op"] == "batch_norm_training"]
    floors = {
        way: float(np.median([item["latency_us"] for item in whole if item["direction"] == way and _is_hidden(item)]))
        for way in {item["direction"] for item in whole if _is_hidden(item)}
    }
    for item in records:
        is_last = item["layout"] in ("NHWC", "NDHWC")
        run = 1 if is_last else item["depth"] * item["height"] * item["width"]
        is_forward, streamed, launches = item["direction"] == "forward", 0.0, 1
        if item["op"] in CHANNEL_KERNELS:
            kernel, tensors, floor = CHANNEL_KERNELS[item["op"]][is_last], TENSORS[item["op"]], 0.0
        elif item["latency_us"] < LEAST_EVENT_US:
            continue
        elif is_last:
            if LAST_VERSION not in item["library"] or item["channels"] < LEAST_CHANNELS:
                continue
            kernel = RowKernel.COLUMN_MOMENTS if is_forward else RowKernel.COLUMN_SUMS
            tensors, streamed, launches = (1.0, 2.0, 2) if is_forward else (2.0, 6.0, 3)
            floor = floors.get(item["direction"], 0.0)
        else:
            kernel = RowKernel.BATCH_NORM if is_forward else RowKernel.BATCH_NORM_BACKWARD
            tensors, streamed, launches = (2.0, 0.0, 1) if is_forward else (3.0, 3.0, 2)
            floor = floors.get(item["direction"], 0.0)
        tensor = item["elements"] * BYTES[item["dtype"]]
        launched = Launched(
            kernel=kernel,
            rows=item["channels"],
            columns=item["elements"] // item["channels"],
            run=run,
            walked_bytes=tensors * tensor,
            streamed_bytes=streamed * tensor,
            launches=launches,
        )
        yield _row(item, launched, f"{item['op']}{' channels last' if is_last else ''}", host_floor_us=floor)


def _is_hidden(item: Mapping[str, Any]) -> bool:
    return bool(item["elements"] < 1e5)


def _norms(table: MeasurementTable) -> Iterator[_Row]:
    """Yield norms by backend: the kernel is an input."""
    for item in records_of(table):
        tensor = item["rows"] * item["cols"] * BYTES[item["dtype"]]
        is_backward, backend = item["direction"] == "backward", item["backend"]
        has_columns, is_root = is_backward and backend != "cudnn", item["op"] == "rms_norm"
        kernel = ROW_KERNELS[backend, item["direction"]]
        launched = Launched(
            kernel=RowKernel.ROOT_NORM if is_root and kernel == RowKernel.ROW_FORWARD else kernel,
            rows=item["rows"],
            columns=item["cols"],
            flops=(INPUT_FLOPS + (1.0 if is_root else 2.0)) * item["rows"] * item["cols"],
            walked_bytes=(3.0 if is_backward else 2.0) * tensor,
            streamed_bytes=2.0 * tensor * has_columns,
            launches=3 if has_columns else 1,
        )
        yield _row(item, launched, f"norm {item['direction']} ({backend})", moved_since_bytes=np.inf)


def _liger(table: MeasurementTable) -> Iterator[_Row]:
    for item in records_of(table):
        launched = liger_of(item)
        if launched is not None:
            family = f"{item['op']} {item['direction']} (Liger's benchmark)"
            more = {"moved_since_bytes": np.inf, "host_floor_us": DO_BENCH_US}
            yield _row({**item, "dtype": "fp32"}, launched, family, **more)


def _kernelbench(table: MeasurementTable) -> Iterator[_Row]:
    """Yield rows of known kernels, with the floor of their host as its own short rows read."""
    records = records_of(table)
    short: dict[tuple[str, str], list[float]] = defaultdict(list)
    for item in records:
        if item["kind"] == "elementwise" and item["input_bytes"] < HIDDEN_BYTES:
            short[item["machine"], item["mode"]].append(item["latency_us"])
    floors = {host: float(np.median(times_us)) for host, times_us in short.items()}
    for item in records:
        launched = (eager_of if item["mode"] == "eager" else inductor_of)(item)
        if launched is None or item["latency_us"] < LEAST_EVENT_US:
            continue
        others = [value for (_, mode), value in floors.items() if mode == item["mode"]]
        floor = floors.get((item["machine"], item["mode"]), float(np.median(others)) if others else 0.0)
        yield _row(item, launched, f"{item['kind']} ({item['mode']})", host_floor_us=floor)
