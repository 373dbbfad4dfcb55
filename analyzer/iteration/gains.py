"""What would shorten an iteration on one GPU, which changes that were asked for do not, and what one more would do."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from ...arrays import Floats, none_for_nan
from ...errors import InputError, parameter
from ...formats.trace.printable import list_names
from ...records import dataclass, replace
from ..graph.graph import Graph
from ..graph.roles import Role, call_roles
from ..replay.causes import CAUSES, IdleCause
from ..replay.engine import Timing, on_gpus
from ..replay.forecast import iteration_lengths
from ..whatif.scenario import Scenario, TargetPrecision
from .report import FASTER_HOST, FASTER_KERNELS, LAUNCH_BOUND_RATIO, Gain, GpuPrediction
from .result import Analysis, arrange, build_result

NO_GAIN: Final = 1.005
"""Below, a change that was asked for is said to change nothing."""
HOST_BOUND_RATIO, GPU_BOUND_RATIO = 0.4, 0.1
"""Of an iteration in which the GPU waits for launches, over and under which host and GPU are called the limit."""
_TWICE: Final = 2.0
_LEAST_SHARE: Final = 0.005
_WAITED_FOR: Final = {
    IdleCause.HOST: "launches",
    IdleCause.SYNC: "synchronisations",
    IdleCause.COMMUNICATION: "communication",
    IdleCause.DEPENDENCY: "other kernels",
    IdleCause.UNEXPLAINED: "what was not recorded",
}
_MATTERING: Final = 1.1
"""Kernels twice as slow that lengthen an iteration by more are no small part of it."""


def find_gains(result: Analysis, column: int) -> tuple[Gain, ...]:
    """Return what one more change would gain on one GPU where the host limits it, largest first, faster kernels last.

    Empty where the host is not the limit. A batch twice as large is a replay with kernels that take twice as long,
    about the most that they may: what it gains, at least.
    """
    if host_limited_ratio(result, column) < LAUNCH_BOUND_RATIO:
        return ()
    scenario, now_ns = result.scenario, float(result.forecast.iteration_ns[column])
    timing = on_gpus(result.forecast.timing, slice(column, column + 1))
    tried = _lengths(result, result.graph, _scaled(timing, host=(0.5, 1.0, 1.0), kernels=(1.0, 2.0, 0.5)))
    batch = scenario.batch_size or result.trace.meta.workload.batch_size
    larger_batch = parameter("batch") if batch is None else parameter("batch", 2 * batch)
    faster_host = parameter("host", f"{_TWICE * (scenario.cpu_speed or 1.0):.3g}")
    gains = [
        Gain(change=FASTER_HOST, option=faster_host, speedup=now_ns / float(tried[0])),
        Gain(change="a batch twice as large at least", option=larger_batch, speedup=_TWICE * now_ns / float(tried[1])),
    ]
    if not scenario.cuda_graph:
        captured_ns = _length_with(result, column, replace(scenario, cuda_graph=True))
        gains.append(Gain(change="CUDA graphs", option=parameter("cuda_graph"), speedup=now_ns / captured_ns))
    faster_gpu = Gain(change=FASTER_KERNELS, option=None, speedup=now_ns / float(tried[2]))
    return (*sorted(gains, key=lambda gain: -gain.speedup), faster_gpu)


def explain_idle_changes(result: Analysis, column: int) -> Iterator[str]:
    """Yield, for each asked change of graph, host or precision that changes nothing on one GPU, a sentence why."""
    now_ns = float(result.forecast.iteration_ns[column])
    gpu = result.prediction.fleet.gpus[column].name
    for option, length in _asked(result, column):
        is_explained = any(warning.startswith(option) for warning in result.warnings)
        if not is_explained and (1.0 / NO_GAIN < length() / max(now_ns, 1.0) < NO_GAIN):
            yield f"{option} changes nothing on {gpu}: {_why_not(result, option) or _where_time_goes(result, column)}"


def name_limit_changes(source: str | None, predictions: Sequence[GpuPrediction]) -> Iterator[str]:
    """Yield a sentence for GPUs that would be the limit where the source's host is, and one for the reverse."""
    row = next((item for item in predictions if item.gpu == source), None)
    if row is None:
        return
    bound = [item.gpu for item in predictions if item.host_limited_ratio < GPU_BOUND_RATIO]
    waiting = [item.gpu for item in predictions if item.host_limited_ratio > HOST_BOUND_RATIO]
    share = f"{100 * row.host_limited_ratio:.0f} % of the iteration it waits for launches"
    if row.host_limited_ratio > HOST_BOUND_RATIO and bound:
        yield f"the host limits {source} ({share}), but on {list_names(bound)} the GPU is the limit"
    if row.host_limited_ratio < GPU_BOUND_RATIO and waiting:
        machines = parameter("host")
        yield f"{source} is the limit itself ({share}), but on {list_names(waiting)} the host is: {machines} says whose"


def host_limited_ratio(result: Analysis, column: int) -> float:
    """Return the part of an iteration in which a GPU waits for the host to launch."""
    return _idle_ratio(result, column, IdleCause.HOST)


def _asked(result: Analysis, column: int) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield the changes that were asked for, each with how to find the iteration's length on one GPU without it."""
    scenario = result.scenario
    if scenario.cuda_graph:
        yield parameter("cuda_graph"), partial(_length_with, result, column, replace(scenario, cuda_graph=False))
    if scenario.fuse_elementwise:
        yield (
            parameter("fuse_elementwise"),
            partial(_length_unmerged, result, column, replace(scenario, fuse_elementwise=False)),
        )
    if scenario.cpu_speed is not None:
        option = parameter("host") if scenario.host_half_width else parameter("host", f"{scenario.cpu_speed:g}")
        yield option, partial(_length_with, result, column, replace(scenario, cpu_speed=None))
    if scenario.precision is not None:
        yield parameter("precision", scenario.precision.value), partial(_length_in_recorded_precision, result, column)


def _length_with(result: Analysis, column: int, scenario: Scenario) -> float:
    """Return how long the iteration takes on one GPU under another scenario, whose trace is the same."""
    alone = replace(result, prediction=result.prediction.on_gpu(column))
    arranged = arrange(alone, result.origin, scenario, result.library, result.window)
    return float(_lengths(result, arranged.graph, arranged.timing)[0])


def _length_unmerged(result: Analysis, column: int, scenario: Scenario) -> float:
    """Return the same where a scenario merges nothing: of shapes alone that changes layouts and the host as well."""
    if result.origin is not None:
        return _length_with(result, column, scenario)
    gpus = (result.prediction.fleet.gpus[column],)
    found = build_result(result.recorded, gpus, result.library, scenario)
    return float(found.forecast.iteration_ns[0])


def _length_in_recorded_precision(result: Analysis, column: int) -> float:
    """Return how long the iteration takes on one GPU in the precision that it was recorded in.

    Where kernels matter, another precision does, and a number that is not near now's is enough.
    """
    timing = on_gpus(result.forecast.timing, slice(column, column + 1))
    slower_ns = float(_lengths(result, result.graph, _scaled(timing, host=(1.0,), kernels=(_TWICE,)))[0])
    if slower_ns > _MATTERING * float(result.forecast.iteration_ns[column]):
        return slower_ns
    gpu, scenario = result.prediction.fleet.gpus[column], replace(result.scenario, precision=None)
    recorded = build_result(result.recorded, [gpu], result.library, scenario)
    return float(recorded.forecast.iteration_ns[0])


def _lengths(result: Analysis, graph: Graph, timing: Timing) -> Floats:
    return np.maximum(iteration_lengths(result.trace, result.window, graph, timing), 1.0)


def _scaled(timing: Timing, *, host: tuple[float, ...], kernels: tuple[float, ...]) -> Timing:
    """Return the timing of one GPU as columns with other host and kernel times."""
    return replace(
        timing,
        factor=timing.factor * np.array(kernels),
        latency_ns=np.repeat(timing.latency_ns, len(kernels), axis=1),
        host_ratio=timing.host_ratio * np.array(host),
    )


def _why_not(result: Analysis, option: str) -> str | None:
    """Return why a change found nothing to change; None where it did."""
    if option == parameter("cuda_graph"):
        return _why_not_captured(result)
    if result.scenario.cpu_speed == 1.0 and option.startswith(parameter("host")):
        return "it is as fast as the host that the replay has anyway"
    return None


def _why_not_captured(result: Analysis) -> str | None:
    """Return why no launch became part of a CUDA graph; None where some did."""
    from ..whatif.cuda_graph.capture import find_stretches

    trace, graph = result.trace, result.recorded_graph
    if len(find_stretches(graph, trace).launches):
        return None
    if len(trace.calls.name) and bool(np.any(call_roles(trace.strings, trace.calls.name) == Role.GRAPH_LAUNCH)):
        return "its kernels are launched by CUDA graphs already"
    return (
        "no two launches follow each other that a graph could hold: synchronisations, allocations or copies from "
        "memory that is not pinned stand between them"
    )


def _idle_ratio(result: Analysis, column: int, cause: IdleCause) -> float:
    idle_ns = float(result.forecast.idle_ns[column, CAUSES.index(cause)])
    return idle_ns / max(float(result.forecast.iteration_ns[column]), 1.0)


def _where_time_goes(result: Analysis, column: int) -> str:
    """Say what the GPU does during the iteration: launches, which host and graphs shorten, in any case."""
    busy = float(result.forecast.busy_ns[column]) / max(float(result.forecast.iteration_ns[column]), 1.0)
    waits = {cause: _idle_ratio(result, column, cause) for cause in CAUSES}
    named = [
        f"{share:.0%} for {_WAITED_FOR[cause]}"
        for cause, share in waits.items()
        if cause is IdleCause.HOST or share >= _LEAST_SHARE
    ]
    return f"the GPU is busy for {busy:.0%} of the iteration and waits {', '.join(named)}"


MOST_NODES: Final = 60_000
"""Of the graph: each change is predicted and replayed anew, and six of larger ones take more than three seconds."""
_SAME: Final = 0.01
"""A prediction anew that differs by more was made under conditions that are not known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Predict the iteration on one GPU with one change more, or without any."""

    change: str
    option: str | None
    """What asks for it; None where nothing changes."""
    iteration_ns: float
    iteration_low_ns: float | None
    iteration_high_ns: float | None
    batch_ratio: float = 1.0
    """How many times as many samples it processes."""
    speedup: float = 1.0
    """How much faster samples are processed than without the change."""


def try_alternatives(result: Analysis, column: int) -> tuple[Alternative, ...]:
    """Return the iteration on one GPU as it is and with each change that applies, the greatest gain first.

    Empty where nothing applies and for graphs that take too long.

    >>> [(item.change, item.speedup > 1) for item in try_alternatives(result, 0)][:2]
    [('as it is', False), ('a batch of 8', True)]
    """
    if len(result.graph.nodes.row) > MOST_NODES:
        return ()
    now = _predict(result, column, result.scenario, "as it is", None)
    known_ns = float(result.forecast.iteration_ns[column])
    if now is None or abs(now.iteration_ns / max(known_ns, 1.0) - 1.0) > _SAME:
        return ()
    tried = [
        replace(item, batch_ratio=ratio, speedup=ratio * now.iteration_ns / item.iteration_ns)
        for change, option, scenario, ratio in _changes(result)
        if (item := _predict(result, column, scenario, change, option)) is not None
    ]
    return (now, *sorted(tried, key=lambda item: -item.speedup)) if tried else ()


def _changes(result: Analysis) -> Iterator[tuple[str, str, Scenario, float]]:
    """Yield the changes that can be asked for: what it is called, its option, the scenario, the ratio of batches."""
    scenario = result.scenario
    if not scenario.cuda_graph:
        yield "launches by CUDA graphs", parameter("cuda_graph"), replace(scenario, cuda_graph=True), 1.0
    if not scenario.fuse_elementwise:
        yield "pointwise ops merged", parameter("fuse_elementwise"), replace(scenario, fuse_elementwise=True), 1.0
    if scenario.precision is None:
        yield "bf16 arithmetic", parameter("precision", "bf16"), replace(scenario, precision=TargetPrecision.BF16), 1.0
    speed = 2.0 * (scenario.cpu_speed or 1.0)
    yield "a host twice as fast", parameter("host", f"{speed:g}"), replace(scenario, cpu_speed=speed), 1.0
    batch = scenario.batch_size or result.recorded.trace.meta.workload.batch_size
    if batch:
        yield f"a batch of {2 * batch:,}", parameter("batch", 2 * batch), replace(scenario, batch_size=2 * batch), 2.0


def _predict(result: Analysis, column: int, scenario: Scenario, change: str, option: str | None) -> Alternative | None:
    """Return the prediction under a scenario; None where the trace does not allow it or nothing changes."""
    gpu = result.prediction.fleet.gpus[column]
    try:
        found = build_result(result.recorded, [gpu], result.library, scenario)
    except InputError:
        return None
    if option is not None and any(warning.startswith(option) for warning in found.warnings):
        return None
    forecast = found.forecast
    return Alternative(
        change=change,
        option=option,
        iteration_ns=max(float(forecast.iteration_ns[0]), 1.0),
        iteration_low_ns=none_for_nan(float(forecast.low_ns[0])),
        iteration_high_ns=none_for_nan(float(forecast.high_ns[0])),
    )
