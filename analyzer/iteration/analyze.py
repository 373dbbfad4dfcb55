"""From a trace to the report: the one function behind `analyze`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...formats.trace.tables import Trace
from ...specs.cluster import USUAL, Cluster
from ...specs.gpu import Catalog, Gpu
from ...specs.prices.book import PriceBook, prices_of
from ..graph.export.path import summarize_path
from ..models.library import Library, load_library
from ..recorded.choice import choose_iteration
from ..recorded.devices import explain_identity, source_gpu
from ..recorded.gaps import check_answerable, check_rescalable
from ..recorded.graphs import describe_graphs, refuse_capture
from ..recorded.standstill import Reason, leave_out_standstills
from ..recorded.window import check_usable, select_window
from ..whatif.scenario import Scenario
from .cut import check_cut
from .energy import op_power
from .finite import check_times
from .gains import explain_idle_changes, find_gains
from .gpu_replay import replay_on
from .gpu_rows import rank_gpus, warn_of_prices
from .op_rows import list_ops
from .report import AnalysisReport, Source, TraceSummary
from .result import Analysis, build_result
from .warnings import warn


def analyze_trace(  # noqa: PLR0913 (all that one may ask, by name)
    trace: Trace,
    catalog: Catalog,
    *,
    targets: Sequence[Gpu] = (),
    source: Gpu | None = None,
    ops_gpu: Gpu | None = None,
    op_limit: int | None = 10,
    library: Library | None = None,
    scenario: Scenario | None = None,
    iteration: int | str | None = None,
    cluster: Cluster = USUAL,
    prices: PriceBook | None = None,
) -> AnalysisReport:
    """Predict the trace's iteration on `targets` (default: every single-device GPU of the catalogue).

    `source` overrides what the trace's device record says. `ops_gpu` is the GPU that the op list is about
    (default: the first target given, else the source, else the fastest), `op_limit` its length (None: all).
    `library` holds the op models (default: the ones that wavecast ships), `scenario` what is asked beside the GPU,
    `iteration` which one is meant: its number, `longest`, `all` of them as one (default: `median`), `cluster` the
    machines that GPUs stand in, for what they send each other, `prices` what they cost (default: as shipped, and as the
    catalogue's own entries say).
    Raises UnknownGpuError when the trace's GPU is not in the catalogue, and InputError where the trace holds nothing
    that tells any GPU time.

    >>> report = analyze_trace(trace, catalog, targets=[h100, a100])
    >>> [(row.gpu, round(row.iteration_ns / 1e6)) for row in report.predictions]
    [('H100 SXM5 80GB', 5), ('A100 SXM4 80GB', 8)]
    """
    result = run_analysis(
        trace,
        catalog,
        targets=targets,
        source=source,
        library=library,
        scenario=scenario,
        iteration=iteration,
        cluster=cluster,
        prices=prices,
    )
    return report_on(result, ops_gpu=ops_gpu or (targets[0] if targets else None), op_limit=op_limit)


def run_analysis(  # noqa: PLR0913 (as analyze_trace)
    trace: Trace,
    catalog: Catalog,
    *,
    targets: Sequence[Gpu] = (),
    source: Gpu | None = None,
    library: Library | None = None,
    scenario: Scenario | None = None,
    iteration: int | str | None = None,
    cluster: Cluster = USUAL,
    prices: PriceBook | None = None,
) -> Analysis:
    """Predict and replay a trace; see `analyze_trace`.

    What an iteration holds of the process's start, while the GPU stands still, is left out where it is long.

    >>> run_analysis(trace, catalog, targets=[h100, a100]).prediction.time_ns.shape
    (13, 2)
    """
    trace, choice = choose_iteration(trace, iteration)
    refuse_capture(trace, select_window(trace, choice.index))
    trace, standstills = leave_out_standstills(trace, choice.index)
    window = select_window(trace, choice.index)
    check_answerable(trace, window)
    check_usable(window)
    check_cut(trace, window)
    if scenario is not None and scenario.lengths:
        check_rescalable(trace, window)
    origin = (source or source_gpu(trace, catalog, window)) if len(window.kernel_rows) else None
    gpus = list(targets or [gpu for gpu in catalog.gpus if not gpu.is_package])
    if origin is not None and all(gpu.name != origin.name for gpu in gpus):
        gpus.append(origin)
    result = build_result(
        trace,
        origin,
        gpus,
        library or load_library(),
        scenario or Scenario(),
        iteration=window.index,
        cluster=cluster,
    )
    check_times(result)
    identity = None if source is not None else explain_identity(trace, catalog, window)
    noted = () if identity is None else (identity,)
    return replace(
        result,
        choice=choice,
        standstills=standstills,
        warnings=(*noted, *result.warnings),
        prices=prices or prices_of(catalog),
    )


def report_on(result: Analysis, *, ops_gpu: Gpu | None = None, op_limit: int | None = 10) -> AnalysisReport:
    """Return what is shown of a result; `ops_gpu` defaults to the source, else the fastest.

    >>> [(op.op, op.count) for op in report_on(result, ops_gpu=a100, op_limit=2).ops]
    [('aten::mm', 1), ('aten::addmm', 12)]
    """
    ranked = rank_gpus(result)
    described = ops_gpu or result.origin
    name = described.name if described is not None else ranked[0].gpu
    column = next(at for at, gpu in enumerate(result.prediction.fleet.gpus) if gpu.name == name)
    source, busy_ns = Source(), float(result.recorded_busy_ns)
    if result.origin is not None:
        source = Source(gpu=result.origin.name, iteration_ns=result.window.duration_ns, gpu_busy_ns=busy_ns)
    return AnalysisReport(
        trace=_summary(result),
        source=source,
        scenario=result.scenario,
        memory=result.memory,
        memory_unknown=result.memory_unknown,
        predictions=ranked,
        ops_gpu=name,
        critical_path=summarize_path(replay_on(result, name).path),
        compiled=result.compiled,
        ops=list_ops(
            result.trace,
            result.run,
            column,
            limit=op_limit,
            power=op_power(result, column),
        ),
        gains=find_gains(result, column),
        warnings=(*warn(result), *explain_idle_changes(result, column), *warn_of_prices(result, ranked)),
    )


def _summary(result: Analysis) -> TraceSummary:
    trace, meta, window = result.trace, result.trace.meta, result.window
    # Those whose median is the window's duration.
    unprofiled_count = int(np.sum(~trace.iterations.profiled.astype(bool)))
    choice, graphs = result.choice, describe_graphs(result.recorded_trace, window)
    return TraceSummary(
        name=meta.workload.name,
        source_format=meta.source_format,
        capture=meta.capture,
        framework=meta.framework,
        mode=meta.workload.mode,
        batch_size=meta.workload.batch_size,
        samples_per_iteration=meta.workload.samples_per_iteration,
        iteration_count=unprofiled_count or choice.count - len(choice.idle) if result.origin is not None else 0,
        iteration_index=result.iteration_index,
        iteration_choice=choice.rule,
        recorded_iteration_count=choice.count,
        left_out_ns={
            reason.value: sum(item.length_ns for item in result.standstills if item.reason is reason)
            for reason in Reason
            if any(item.reason is reason for item in result.standstills)
        },
        graph_launch_count=graphs.launch_count,
        graph_kernel_count=graphs.kernel_count,
        graph_kernels_explained=graphs.explained_count,
        op_count=len(window.op_rows),
        kernel_count=len(window.kernel_rows),
    )
