"""From a trace to the report: the one function behind `analyze`, which refuses times beyond any number."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

import numpy as np

from ...arrays import Floats
from ...errors import WavecastError
from ...formats.trace.tables import Trace
from ...specs.cluster import USUAL, Cluster
from ...specs.gpu import Catalog, Gpu
from ...specs.prices.book import PriceBook, prices_of
from ..graph.critical import summarize_path
from ..models.library import Library, load_library
from ..recorded.no_iteration import Reason
from ..recorded.recording import check_rescalable, take_recording
from ..recorded.window import Window
from ..replay.causes import CAUSES
from ..whatif.scenario import Scenario
from .captured import check_compiling
from .energy import draw_power, row_joules
from .gains import explain_idle_changes, find_gains, name_limit_changes
from .gpu_replay import replay_on
from .gpu_rows import rank_gpus, warn_of_prices
from .op_rows import list_ops
from .report import AnalysisReport, Source, TraceSummary
from .result import Analysis, build_result
from .warnings import check_cut, warn


class Asked(TypedDict, total=False):
    """Name what may be asked of a trace's iteration."""

    targets: Sequence[Gpu]
    """Default: every single-device GPU of the catalogue."""
    source: Gpu | None
    """The GPU that was measured, in place of what the trace says."""
    library: Library | None
    """The op models; default: the ones that wavecast ships."""
    scenario: Scenario | None
    """What is asked beside the GPU."""
    iteration: int | str | None
    """Which one is meant: its number, `longest`, `all` of them as one; default: `median`."""
    cluster: Cluster
    """The machines that GPUs stand in, for what they send each other."""
    prices: PriceBook | None
    """What GPUs cost; default: as shipped, and as the catalogue's own entries say."""


def analyze_trace(
    trace: Trace, catalog: Catalog, *, ops_gpu: Gpu | None = None, op_limit: int | None = 10, **asked: Unpack[Asked]
) -> AnalysisReport:
    """Predict the trace's iteration on the targets.

    `ops_gpu` is the GPU that the op list is about (default: the first target given, else the source, else the fastest),
    `op_limit` its length (None: all).
    Raises UnknownGpuError when the trace's GPU is not in the catalogue, and InputError where the trace holds nothing
    that tells any GPU time.

    >>> report = analyze_trace(trace, catalog, targets=[h100, a100])
    >>> [(row.gpu, round(row.iteration_ns / 1e6)) for row in report.predictions]
    [('H100 SXM5 80GB', 8), ('A100 SXM4 80GB', 11)]
    """
    described = ops_gpu or next(iter(asked.get("targets", ())), None)
    return report_on(run_analysis(trace, catalog, **asked), ops_gpu=described, op_limit=op_limit)


def run_analysis(trace: Trace, catalog: Catalog, **asked: Unpack[Asked]) -> Analysis:
    """Predict and replay a trace; see `analyze_trace`.

    What an iteration holds of the process's start, while the GPU stands still, is left out where it is long.

    >>> run_analysis(trace, catalog, targets=[h100, a100]).prediction.time_ns.shape
    (13, 2)
    """
    scenario = asked.get("scenario") or Scenario()

    def check(trace: Trace, window: Window) -> None:
        check_cut(trace, window)
        check_compiling(trace, window)
        if scenario.lengths:
            check_rescalable(trace, window)

    recorded = take_recording(trace, catalog, asked=asked.get("iteration"), source=asked.get("source"), check=check)
    origin = recorded.gpu
    gpus = list(asked.get("targets") or [gpu for gpu in catalog.gpus if not gpu.is_package])
    if origin is not None and all(gpu.name != origin.name for gpu in gpus):
        gpus.append(origin)
    library, cluster = asked.get("library") or load_library(), asked.get("cluster", USUAL)
    if any(gpu.power_cap_w for gpu in gpus):
        gpus = _with_drawn(
            build_result(recorded, [replace(gpu, power_cap_w=None) for gpu in gpus], library, scenario, cluster), gpus
        )
    result = build_result(recorded, gpus, library, scenario, cluster)
    check_times(result)
    noted = () if recorded.identity is None else (recorded.identity,)
    return replace(result, warnings=(*noted, *result.warnings), prices=asked.get("prices") or prices_of(catalog))


def _with_drawn(uncapped: Analysis, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return GPUs that know what the iteration draws of them without a cap, as it runs in a loop."""
    time_ns = np.fmax(np.fmin(uncapped.forecast.iteration_ns, uncapped.forecast.loop_ns), 1.0).tolist()
    return [
        replace(gpu, drawn_ratio=power.joule(ns) / ns * 1e9 / gpu.tdp_w) if gpu.power_cap_w else gpu
        for gpu, power, ns in zip(gpus, draw_power(uncapped), time_ns, strict=True)
    ]


def report_on(result: Analysis, *, ops_gpu: Gpu | None = None, op_limit: int | None = 10) -> AnalysisReport:
    """Return what is shown of a result; `ops_gpu` defaults to the source, else the fastest.

    >>> [(op.op, op.count) for op in report_on(result, ops_gpu=a100, op_limit=2).ops]
    [('aten::mm', 1), ('aten::addmm', 12)]
    """
    ranked = rank_gpus(result)
    described = ops_gpu or result.origin
    name = described.name if described is not None else ranked[0].gpu
    column = result.column(name)
    row = next(item for item in ranked if item.gpu == name)
    joules = None if row.power is None else row_joules(result, column, row.power, row.iteration_ns)
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
        ops=list_ops(result.trace, result.run, column, limit=op_limit, joules=joules),
        gains=find_gains(result, column),
        warnings=(
            *warn(result),
            *explain_idle_changes(result, column),
            *name_limit_changes(source.gpu, ranked),
            *warn_of_prices(result, ranked),
        ),
    )


def _summary(result: Analysis) -> TraceSummary:
    trace, meta, window = result.trace, result.trace.meta, result.window
    # Those whose median is the window's duration.
    unprofiled_count = int(np.sum(~trace.iterations.profiled.astype(bool)))
    choice, standstills, graphs = result.recorded.choice, result.recorded.standstills, result.recorded.graphs
    count = choice.count
    return TraceSummary(
        name=meta.workload.name,
        source_format=meta.source_format,
        capture=meta.capture,
        framework=meta.framework,
        mode=meta.workload.mode,
        batch_size=meta.workload.batch_size,
        samples_per_iteration=meta.workload.samples_per_iteration,
        iteration_count=unprofiled_count or count - len(choice.idle) if result.origin is not None else 0,
        iteration_index=result.recorded.index,
        iteration_choice=choice.rule,
        recorded_iteration_count=count,
        left_out_ns={
            reason.value: sum(item.length_ns for item in standstills if item.reason is reason)
            for reason in Reason
            if any(item.reason is reason for item in standstills)
        },
        graph_launch_count=graphs.launch_count,
        graph_kernel_count=graphs.kernel_count,
        graph_kernels_explained=graphs.explained_count,
        op_count=len(window.op_rows),
        kernel_count=len(window.kernel_rows),
    )


def check_times(result: Analysis) -> None:
    """Raise WavecastError, naming op and GPU, where a predicted time is NaN, infinite or negative.

    >>> check_times(result)  # nothing to say
    """
    time_ns = result.prediction.time_ns
    wrong = np.argwhere(~(np.isfinite(time_ns) & (time_ns >= 0.0)))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise _failure(result, f"{_name(result, row)} is predicted to take {time_ns[row, column]:g} ns", column)
    forecast = result.forecast
    totals: dict[str, Floats] = {
        "the iteration": forecast.iteration_ns,
        "the GPU's busy time": forecast.busy_ns,
        "the time of communication": forecast.communication_ns,
        **{f"idle time ({cause.value})": forecast.idle_ns[:, at] for at, cause in enumerate(CAUSES)},
    }
    ends = {"the interval's low end": forecast.low_ns, "the interval's high end": forecast.high_ns}
    for what, values in (*totals.items(), *ends.items()):
        # Of an interval, NaN says that nothing is known.
        bad = np.flatnonzero(np.isinf(values) if what in ends else ~np.isfinite(values))
        if len(bad):
            raise _failure(result, f"{what} comes to {values[bad[0]]:g} ns", int(bad[0]))


def _name(result: Analysis, row: int) -> str:
    trace, workload = result.trace, result.workload
    op = int(workload.op[row])
    if op >= 0:
        return f"{trace.strings[int(trace.ops.name[op])]} (op {op})"
    return trace.strings[int(trace.kernels.name[workload.kernel[row]])]


def _failure(result: Analysis, found: str, column: int) -> WavecastError:
    gpu = result.prediction.fleet.gpus[column].name
    return WavecastError(f"{found} on {gpu}: no report may hold that; this is a fault of a model, please report it")
