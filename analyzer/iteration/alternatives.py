"""What one change more would make of an iteration on one GPU, side by side: each a prediction of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ...arrays import none_for_nan
from ...errors import InputError, parameter
from ..whatif.scenario import Scenario, TargetPrecision
from .result import Analysis, build_result

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
    [('as it is', False), ('pointwise ops merged', True)]
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
