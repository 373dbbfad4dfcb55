"""From two traces to the comparison: the one function behind `wavecast compare`."""

from collections.abc import Sequence
from math import exp, log

import numpy as np

from ....arrays import Rows, none_for_nan
from ....errors import InputError, parameter
from ....formats.measured.host_file import is_host_time
from ....formats.trace.tables import Trace
from ....records import dataclass, replace
from ....specs.gpu import Catalog, Gpu
from ...host.recorded_speed import relative_host_speed
from ...iteration.analyze import Asked, run_analysis
from ...iteration.decision.electricity import Electricity, JobEnergy, PowerDraw
from ...iteration.energy import draw_power
from ...iteration.gpu_rows import tokens_per_sample
from ...iteration.result import Analysis
from ...iteration.warnings import warn
from ...memory.fit import fit_on
from ...models.library import Library, load_library
from ...recorded.compiled import count_regions
from ...recorded.window import lengths_log_width, timed_iterations, working_iterations
from ...whatif.scenario import Scenario
from . import causes
from .calls import SharedNumbers, list_call_columns
from .causes import Ledger, open_ledger
from .interval import change_half_widths
from .modules import map_modules
from .pair_causes import explain_layout, explain_precision, explain_rest, explain_sizes
from .pairing import pair_calls
from .report import ChangeGroup, ChangeKind, Comparison, GpuChange


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedTrace:
    """Hold a trace with which iteration of it is meant."""

    trace: Trace
    source: Gpu | None = None
    """The GPU that was measured, in place of what the trace says."""
    iteration: int | str | None = None
    scenario: Scenario | None = None
    """What is changed of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _OnGpu:
    """Hold what one of the traces takes on a GPU."""

    result: Analysis
    column: int
    power: PowerDraw
    length_ns: float
    is_measured: bool


def compare_traces(
    old: ComparedTrace,
    new: ComparedTrace,
    catalog: Catalog,
    *,
    targets: Sequence[Gpu] = (),
    library: Library | None = None,
    electricity: Electricity | None = None,
) -> Comparison:
    """Compare an iteration of one trace with one of another: what changed, and what it does on `targets`.

    Without targets, both must have been measured; their GPUs are then compared on. Raises InputError where there is no
    GPU to compare on, and what `run_analysis` raises.
    """
    models = library or load_library()
    old, new = _on_one_host(old, new)
    asked = list(targets) or _measured_gpus((old, new), catalog)
    results = []
    for item, which in ((old, "old"), (new, "new")):
        about = Asked(targets=asked, source=item.source, library=models, iteration=item.iteration)
        about["scenario"] = item.scenario
        try:
            results.append(run_analysis(item.trace, catalog, **about))
        except InputError as error:
            raise type(error)(f"the {which} trace: {error}") from None
    ledger = _explain(*results)
    return _report(ledger, results, asked, electricity)


def _on_one_host(*compared: ComparedTrace) -> list[ComparedTrace]:
    """Return recordings of shapes as timed by one host, where nothing says that there were two.

    It is as fast as it ever measured itself, unless a script's time was measured beside its speed: what else a machine
    does only ever adds.
    """
    hosts = [item.trace.meta.host for item in compared]
    known = [host.python_ns for host in hosts if is_host_time(host.python_ns)]
    machines = {(host.processor, host.python_version) for host in hosts if host.python_ns is not None}
    is_told = len(known) == len(compared) and any(item.trace.meta.script_walks for item in compared)
    if any(item.trace.is_measured for item in compared) or not known or len(machines) > 1 or is_told:
        return list(compared)
    metas = [replace(item.trace.meta, host=replace(item.trace.meta.host, python_ns=min(known))) for item in compared]
    return [replace(item, trace=replace(item.trace, meta=meta)) for item, meta in zip(compared, metas, strict=True)]


def _measured_gpus(traces: Sequence[ComparedTrace], catalog: Catalog) -> list[Gpu]:
    """Return the GPUs that were measured. Raises InputError where none was."""
    from ...recorded.devices import source_gpu
    from ...recorded.recording import choose_recording

    found: dict[str, Gpu] = {}
    for item in traces:
        if item.trace.is_measured:
            gpu = item.source or source_gpu(item.trace, catalog, choose_recording(item.trace, item.iteration).window)
            found[gpu.name] = gpu
    if not found:
        raise InputError(
            f"neither trace was measured on a GPU: name the GPUs to predict with {parameter('on')}, e.g. "
            f"{parameter('on', 'h100')}"
        )
    return list(found.values())


def _host_warning(old: Trace, new: Trace) -> list[str]:
    """Say where two measured traces were recorded on hosts that are not equally fast, as their CPU ops tell."""
    told = relative_host_speed(old, new)
    if told is None or abs(log(told.ratio)) <= told.half_width:
        return []
    return [
        f"by its CPU ops the new trace's host is {told.ratio:.2f} times as fast as the old one's, within a factor of "
        f"{exp(told.half_width):.2f}: where the GPU waits for the host, that is a part of the change"
    ]


def _explain(old: Analysis, new: Analysis) -> Ledger:
    numbers = SharedNumbers()
    columns = list_call_columns(old, numbers), list_call_columns(new, numbers)
    modules = map_modules(*columns)
    ledger = open_ledger(*columns, tuple(numbers.names), pair_calls(*columns, modules), modules)
    metas = old.trace.meta, new.trace.meta
    _explain_compiled(ledger, old, new)
    causes.explain_mode(ledger)
    causes.explain_recomputing(ledger)
    causes.explain_repetition(ledger)
    explain_precision(ledger, (metas[0].precision, metas[1].precision))
    causes.explain_modules(ledger)
    causes.explain_gradients(ledger)
    causes.explain_optimizer(ledger)
    explain_layout(ledger)
    causes.explain_sites(ledger)
    explain_sizes(ledger, (metas[0].workload.batch_size, metas[1].workload.batch_size))
    explain_rest(ledger)
    return ledger


def _explain_compiled(ledger: Ledger, old: Analysis, new: Analysis) -> None:
    """Explain what a compiler does on one side alone: all ops of passes, or their times where shapes were recorded."""
    counts = [count_regions(item.trace, np.arange(len(item.trace.ops.name))) for item in (old, new)]
    if bool(counts[0]) == bool(counts[1]):
        return
    text = f"compiled (torch.compile): {counts[1]:,} regions" if counts[1] else "no longer compiled (torch.compile)"
    pairs = np.flatnonzero(
        np.any(ledger.old.time_ns[ledger.pairing.old] != ledger.new.time_ns[ledger.pairing.new], axis=1)
        & ~ledger.open_pairs
    )
    left = [[row for row in ledger.left(side).tolist() if ledger.calls(side).phase[row] != 2] for side in (0, 1)]
    if ledger.old.is_timed or ledger.new.is_timed:
        ledger.claim(ChangeKind.COMPILED, text, old=left[0], new=left[1])
    else:
        ledger.claim(ChangeKind.COMPILED, text, pairs=pairs.tolist())


def _report(
    ledger: Ledger, results: Sequence[Analysis], gpus: Sequence[Gpu], electricity: Electricity | None
) -> Comparison:
    same = np.flatnonzero(~ledger.said)
    power = [draw_power(result) for result in results]
    sides = [[_on_gpu(result, gpu, power[at]) for at, result in enumerate(results)] for gpu in gpus]
    places = [[side.column for side in pair] for pair in zip(*sides, strict=True)]
    shown = [_on_gpus(group, *places) for group in ledger.groups]
    groups = tuple(sorted(shown, key=lambda group: -abs(group.new_ns[0] - group.old_ns[0])))
    old, new = results
    peaks = [result.memory.peak_bytes if result.memory is not None else None for result in results]
    methods = {result.memory.method for result in results if result.memory is not None}
    changes = tuple(
        _gpu_change(ledger, gpu, pair[0], pair[1], same, electricity or Electricity())
        for gpu, pair in zip(gpus, sides, strict=True)
    )
    named = zip(("old", "new"), results, strict=True)
    asked = [*new.scenario.changes, *_host_asked(old, new)]
    warnings = [f"what if, of both traces: {', '.join(asked)}"] if asked else []
    warnings += [f"the {which} trace: {text}" for which, result in named for text in warn(result)]
    warnings += [_mixed_warning(item) for item in changes if item.old_measured != item.new_measured]
    warnings += _host_warning(old.recorded.trace, new.recorded.trace)
    if None not in peaks and len(methods) > 1:
        warnings.append("peak memory was found in two ways (allocation events, shapes): it is not compared")
        peaks = [None, None]
    return Comparison(
        old_name=old.trace.meta.workload.name,
        new_name=new.trace.meta.workload.name,
        gpus=changes,
        groups=groups,
        same_count=len(same),
        old_count=ledger.old.count,
        new_count=ledger.new.count,
        old_peak_bytes=peaks[0],
        new_peak_bytes=peaks[1],
        old_batch=old.trace.meta.workload.batch_size,
        new_batch=new.trace.meta.workload.batch_size,
        warnings=tuple(dict.fromkeys(warnings)),
        electricity=electricity,
    )


def _host_asked(old: Analysis, new: Analysis) -> list[str]:
    """Say which host was asked for; a measured one may be of another speed relative to each trace's."""
    speeds = [item.scenario.cpu_speed for item in (old, new)]
    told = dict.fromkeys(f"{speed:.3g}" for speed in speeds if speed is not None)
    return [f"a host {' and '.join(told)} times as fast"] if told else []


def _on_gpu(result: Analysis, gpu: Gpu, power: Sequence[PowerDraw]) -> _OnGpu:
    column = result.column(gpu.name)
    is_source = result.origin is not None and result.origin.name == gpu.name and not result.scenario.changes_anything
    measured_ns = result.window.duration_ns if is_source else None
    return _OnGpu(
        result=result,
        column=column,
        power=power[column],
        length_ns=float(result.forecast.iteration_ns[column] if measured_ns is None else measured_ns),
        is_measured=measured_ns is not None,
    )


def _mixed_warning(change: GpuChange) -> str:
    words = ("measured", "predicted") if change.old_measured else ("predicted", "measured")
    return (
        f"on {change.gpu} the old iteration is {words[0]} and the new one {words[1]}: the change holds the error of "
        "the prediction too"
    )


def _on_gpus(group: ChangeGroup, old: Sequence[int], new: Sequence[int]) -> ChangeGroup:
    return replace(group, old_ns=tuple(group.old_ns[at] for at in old), new_ns=tuple(group.new_ns[at] for at in new))


def _gpu_change(ledger: Ledger, gpu: Gpu, old: _OnGpu, new: _OnGpu, same: Rows, electricity: Electricity) -> GpuChange:
    ends = _interval(old, new)
    fits = [fit_on(side.result.memory, [gpu])[0] for side in (old, new)]
    pairing = ledger.pairing
    times = ledger.old.time_ns[:, old.column], ledger.new.time_ns[:, new.column]
    return GpuChange(
        gpu=gpu.name,
        old_measured=old.is_measured,
        new_measured=new.is_measured,
        old_ns=old.length_ns,
        new_ns=new.length_ns,
        change_low=ends[0] if ends else None,
        change_high=ends[1] if ends else None,
        same_old_ns=float(times[0][pairing.old[same]].sum()),
        same_new_ns=float(times[1][pairing.new[same]].sum()),
        rest_ns=new.length_ns - old.length_ns - float(times[1].sum() - times[0].sum()),
        old_fits=fits[0].fits,
        new_fits=fits[1].fits,
        is_tight=any(item.is_tight for item in fits),
        old_energy=_energy(old, electricity),
        new_energy=_energy(new, electricity),
    )


def _energy(side: _OnGpu, electricity: Electricity) -> JobEnergy:
    result, forecast, workload = side.result, side.result.forecast, side.result.recorded.trace.meta.workload
    samples, tokens = workload.samples_per_iteration or workload.batch_size, tokens_per_sample(result)
    return JobEnergy(
        power=side.power,
        time_ns=side.length_ns,
        low_ns=None if side.is_measured else none_for_nan(float(forecast.low_ns[side.column])),
        high_ns=None if side.is_measured else none_for_nan(float(forecast.high_ns[side.column])),
        samples=samples,
        tokens=samples * tokens if samples and tokens else None,
        electricity=electricity,
    )


def _interval(old: _OnGpu, new: _OnGpu) -> tuple[float, float] | None:
    """Return the ends of the change: what the prediction may be off, and what measured iterations differ by anyway."""
    noise = [_noise(side.result) if side.result.origin is not None else 0.0 for side in (old, new)]
    if old.length_ns <= 0 or new.length_ns <= 0 or any(np.isnan(noise)):
        return None
    widths: tuple[float, float] | None = (0.0, 0.0)
    if not (old.is_measured and new.is_measured):
        widths = change_half_widths(old.result, new.result, (old.column, new.column))
    if widths is None:
        return None
    ratio, spread = new.length_ns / old.length_ns, float(np.hypot(noise[0], noise[1]))
    down, up = (float(np.hypot(width, spread)) for width in widths)
    return ratio * float(np.exp(-down)) - 1.0, ratio * float(np.exp(up)) - 1.0


def _noise(result: Analysis) -> float:
    """Return the half-width of the 90 % spread of single recorded iterations, natural log; NaN for a single one."""
    trace = result.recorded.trace
    plain = timed_iterations(trace)
    return lengths_log_width(trace, plain if len(plain) > 1 else working_iterations(trace))
