"""The overview: what a trace holds, as plain records for `wavecast show`."""

from collections.abc import Mapping

import numpy as np

from ...arrays import Rows, share_busy_time
from ...formats.trace.column import Column, row_count
from ...formats.trace.tables import TABLES, Device, KernelKind, Meta, Phase, Trace
from ...records import asdict, dataclass
from .compiled import count_regions
from .graphs import describe_graphs, graph_kernels, named_graph_kernels, unexplained_graph_kernels
from .recording import choose_recording
from .window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationLine:
    """Describe one measured iteration."""

    index: int
    duration_ns: int
    profiled: bool
    is_selected: bool
    """Whether `analyze` predicts this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameLine:
    """Sum up what shares a name: ops by the GPU time of their own kernels, or kernels."""

    name: str
    count: int
    gpu_ns: float
    """Overlap with other GPU activity shared out."""
    host_ns: float | None
    """Host time of the ops, with what runs inside them; None for kernels and where nothing was timed."""
    share: float
    """Of the GPU-busy time; of the count, where nothing was timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLine:
    """Sum up one phase of the iteration."""

    phase: str
    op_count: int
    kernel_count: int
    gpu_ns: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Hold what `show` says. Everything from `op_count` on is about the selected iteration."""

    meta: Meta
    devices: tuple[Device, ...]
    row_counts: Mapping[str, int]
    """Rows per table of the whole file."""
    quality: Mapping[str, int]
    """Counts of what is missing; zeros left out."""
    iterations: tuple[IterationLine, ...]
    duration_ns: float | None
    op_count: int
    kernel_count: int
    gpu_busy_ns: float | None
    kind_counts: Mapping[str, int]
    """Kernels, copies, fills, collectives."""
    compiled_region_count: int
    """How often the iteration enters code that torch.compile made."""
    graph_launch_count: int
    """How often it launches a CUDA or HIP graph."""
    graph_kernel_count: int
    """Kernels that ran from one."""
    graph_gpu_ns: float
    """GPU time of the kernels that ran from graphs, overlap shared out."""
    graph_explained_ns: float
    """Of those whose op is known: by the graph's capture, or by torch's annotations of its nodes."""
    graph_shaped_ns: float
    """Of those whose op is known with its inputs, which annotations do not tell."""
    captured_launch_count: int
    """Launches that went into a graph and ran nothing: the iteration, or a part of it, is a graph's capture."""
    phases: tuple[PhaseLine, ...]
    ops: tuple[NameLine, ...]
    kernels: tuple[NameLine, ...]


def describe_trace(trace: Trace, *, limit: int | None = 10) -> Overview:
    """Sum up a trace; `limit` is the length of the lists of ops and kernels (None: all).

    >>> [(line.name, line.gpu_ns) for line in describe_trace(measured).kernels]
    [('ampere_sgemm_128x128_tn', 500000.0), ('vectorized_elementwise_kernel', 26000.0)]
    """
    window = choose_recording(trace).window
    rows = window.kernel_rows
    busy = share_busy_time(trace.kernels.start_ns[rows], trace.kernels.duration_ns[rows])
    busy_ns = float(busy.sum())
    graphs = describe_graphs(trace, window)
    kinds = np.bincount(trace.kernels.kind[rows], minlength=len(KernelKind)).tolist()
    return Overview(
        meta=trace.meta,
        devices=trace.devices,
        row_counts={name: row_count(getattr(trace, name)) for name in TABLES},
        quality={name: count for name, count in asdict(trace.quality).items() if count},
        iterations=_iterations(trace, window),
        duration_ns=window.duration_ns,
        op_count=len(window.op_rows),
        kernel_count=len(rows),
        gpu_busy_ns=busy_ns if len(rows) else None,
        compiled_region_count=count_regions(trace, window.op_rows),
        graph_launch_count=graphs.launch_count,
        graph_kernel_count=graphs.kernel_count,
        **_graph_times(trace, window, busy),
        captured_launch_count=graphs.captured_count,
        kind_counts={kind.name.lower(): kinds[kind] for kind in KernelKind if kinds[kind]},
        phases=_phases(trace, window, busy),
        ops=_ops(trace, window, busy)[:limit],
        kernels=_kernels(trace, rows, busy)[:limit],
    )


def _graph_times(trace: Trace, window: Window, busy: Column) -> dict[str, float]:
    """Return the GPU time of kernels from graphs: all, with a known op, with an op whose inputs are known."""
    rows = window.kernel_rows
    of_graph = graph_kernels(trace)[rows]
    known = of_graph & ~unexplained_graph_kernels(trace)[rows]
    shaped = known & ~named_graph_kernels(trace)[rows]
    masks = {"graph_gpu_ns": of_graph, "graph_explained_ns": known, "graph_shaped_ns": shaped}
    return {name: float(busy[mask].sum()) for name, mask in masks.items()}


def _iterations(trace: Trace, window: Window) -> tuple[IterationLine, ...]:
    table = trace.iterations
    durations = (table.end_ns - table.start_ns).tolist()
    return tuple(
        IterationLine(
            index=index,
            duration_ns=duration_ns,
            profiled=bool(table.profiled[index]),
            is_selected=index == window.index,
        )
        for index, duration_ns in enumerate(durations)
    )


def _phases(trace: Trace, window: Window, busy: Column) -> tuple[PhaseLine, ...]:
    op_phase = trace.ops.phase[window.op_rows]
    kernel_phase = _of_op(trace.ops.phase, trace.kernels.op[window.kernel_rows], int(Phase.OTHER))
    total_ns = float(busy.sum())
    lines = []
    for phase in Phase:
        mine = kernel_phase == phase
        gpu_ns = float(busy[mine].sum())
        op_count, kernel_count = int((op_phase == phase).sum()), int(mine.sum())
        if op_count or kernel_count:
            share = gpu_ns / total_ns if total_ns else op_count / max(1, len(op_phase))
            lines.append(
                PhaseLine(
                    phase=phase.name.lower(), op_count=op_count, kernel_count=kernel_count, gpu_ns=gpu_ns, share=share
                )
            )
    return tuple(lines)


def _ops(trace: Trace, window: Window, busy: Column) -> tuple[NameLine, ...]:
    """Return ops by the GPU time of the kernels that they launched themselves; by count, where none ran."""
    width = len(trace.strings)
    names = trace.ops.name[window.op_rows]
    durations = trace.ops.duration_ns[window.op_rows]
    counts = np.bincount(names, minlength=width)
    host_ns = np.bincount(names, weights=np.maximum(durations, 0), minlength=width)
    owners = trace.kernels.op[window.kernel_rows]
    owned = owners >= 0
    gpu_ns = np.bincount(trace.ops.name[owners[owned]], weights=busy[owned], minlength=width)
    is_timed = bool(len(durations)) and int(durations.max()) >= 0
    return _rank(trace, counts, gpu_ns, float(busy.sum()), host_ns if is_timed else None)


def _kernels(trace: Trace, rows: Rows, busy: Column) -> tuple[NameLine, ...]:
    names = trace.kernels.name[rows]
    counts = np.bincount(names, minlength=len(trace.strings))
    gpu_ns = np.bincount(names, weights=busy, minlength=len(trace.strings))
    return _rank(trace, counts, gpu_ns, float(busy.sum()), None)


def _rank(
    trace: Trace, counts: Column, gpu_ns: Column, total_ns: float, host_ns: Column | None
) -> tuple[NameLine, ...]:
    present = np.flatnonzero(counts)
    order = present[np.lexsort((-counts[present], -gpu_ns[present]))]
    whole = total_ns or float(max(1, counts.sum()))
    shares = (gpu_ns if total_ns else counts) / whole
    return tuple(
        NameLine(
            name=trace.strings[row],
            count=int(counts[row]),
            gpu_ns=float(gpu_ns[row]),
            host_ns=None if host_ns is None else float(host_ns[row]),
            share=float(shares[row]),
        )
        for row in order.tolist()
    )


def _of_op(values: Column, ops: Column, absent: int) -> Column:
    """Return `values` of each kernel's op, or `absent` for a kernel without one."""
    if not len(values):
        return np.full(len(ops), absent)
    return np.where(ops >= 0, values[ops], absent)
