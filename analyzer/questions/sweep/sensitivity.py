"""What one per cent more of each figure of a GPU would buy: elasticities, by finite differences.

d ln(time) / d ln(figure) between figure / s and figure x s. Most figures give the same for every s from 1.01 to 1.2
(sweep_steps.py at f56f3bcf); multiprocessors do not, as a wave of tiles more or less comes and goes with each of
them. The step is therefore 1.1, where waves have averaged, and what 1.05 and 1.2 give is the range that is told beside
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ....arrays import Floats
from ....errors import InputError, parameter
from ....records import dataclass, replace
from ....specs.gpu import Gpu
from ...iteration.analyze import report_on
from ...iteration.result import Analysis, arrange
from ...iteration.warnings import warn
from ...replay.forecast import iteration_lengths
from .figures import SENSITIVE, DatasheetFigure, find_figure
from .imagined import Figures, imagine, is_variable, variant_name, varied_figures, vary_gpu
from .report import SLOWER, FigureElasticity, SensitivityReport
from .sweep import SweepQuestion, base_point, run_on

STEPS: Final = (1.1, 1.05, 1.2)
"""The first is what is answered, the others say how much that depends on the step."""
HOST: Final = "host"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tried:
    """Hold what steps of one figure come to: less and more of it, [steps] each."""

    less: Floats
    """Over the base."""
    more: Floats
    less_ns: Floats
    more_ns: Floats
    less_busy_ns: Floats
    more_busy_ns: Floats


def find_sensitivity(question: SweepQuestion) -> SensitivityReport:
    """Return what one per cent more of each figure of the GPU would do to the iteration, most first."""
    named = [figure for name in SENSITIVE if (figure := find_figure(name)) is not None]
    if question.gpu.slice_name is not None:
        raise InputError(f"{parameter('on')}: {question.gpu.name} is a slice: vary the GPU that it is cut out of")
    figures = [figure for figure in named if figure.read(question.gpu) and is_variable(question.gpu, figure)]
    variants = {
        variant_name(question.gpu, changed): changed
        for figure in figures
        for changed in _both_ways(question.gpu, figure)
        if changed
    }
    gpus = [question.gpu, *vary_gpu(question.gpu, variants, question.gpu_file)]
    result = run_on(question, gpus)
    times = {gpu.name: float(time) for gpu, time in zip(gpus, result.forecast.iteration_ns, strict=False)}
    busy = {gpu.name: float(time) for gpu, time in zip(gpus, result.forecast.busy_ns, strict=False)}
    found = [
        _elasticity(figure, question.gpu, _tried(question.gpu, figure, times, busy), times[question.gpu.name])
        for figure in figures
    ]
    report = report_on(result, ops_gpu=question.gpu, op_limit=0)
    unvaried = imagine(question.gpu, (), question.catalog, question.gpu_file)
    return SensitivityReport(
        trace=report.trace,
        source=report.source,
        scenario=question.scenario,
        gpu=question.gpu.name,
        base=base_point(result, unvaried),
        figures=tuple(sorted((*found, _host(result)), key=_gain_first)),
        absent=tuple(figure.name for figure in named if figure not in figures),
        warnings=tuple(warn(result)),
    )


def _gain_first(item: FigureElasticity) -> tuple[float, float]:
    """Return what orders figures: what they give, and where that is nothing, what the host hides of it."""
    return round(item.elasticity, 4), item.busy_elasticity


def _both_ways(gpu: Gpu, figure: DatasheetFigure) -> list[Figures]:
    """Return the steps of a figure, less and more of it in turn."""
    return [varied_figures(gpu, ((figure, value),)) for pair in _values(gpu, figure) for value in pair]


def _values(gpu: Gpu, figure: DatasheetFigure) -> list[tuple[float, float]]:
    """Return less and more of a figure for each step; at least by one where it is a whole number."""
    base, unit = figure.read(gpu) or 0.0, figure.step
    if not unit:
        return [(base / step, base * step) for step in STEPS]
    sizes = [max(round(base * (step - 1.0) / unit), 1) * unit for step in STEPS]
    return [(max(base - size, unit), base + size) for size in sizes]


def _tried(gpu: Gpu, figure: DatasheetFigure, times: Mapping[str, float], busy: Mapping[str, float]) -> _Tried:
    pairs = _values(gpu, figure)
    less, more = (np.array([pair[side] for pair in pairs]) for side in (0, 1))

    def read(values: Sequence[float], known: Mapping[str, float]) -> Floats:
        names = [variant_name(gpu, varied_figures(gpu, ((figure, value),))) for value in values]
        return np.array([known[name] for name in names])

    base = figure.read(gpu) or 1.0
    return _Tried(
        less=less / base,
        more=more / base,
        less_ns=read(less.tolist(), times),
        more_ns=read(more.tolist(), times),
        less_busy_ns=read(less.tolist(), busy),
        more_busy_ns=read(more.tolist(), busy),
    )


def _elasticity(figure: DatasheetFigure, gpu: Gpu, tried: _Tried, base_ns: float) -> FigureElasticity:
    return _of_steps(figure.name, figure.words, figure.unit.shown, figure.read(gpu) or 0.0, tried, base_ns)


def _of_steps(name: str, words: str, unit: str, base: float, tried: _Tried, base_ns: float) -> FigureElasticity:
    slopes = _slopes(tried, tried.less_ns, tried.more_ns)
    slower = max(float((tried.more_ns / base_ns).max()), float((base_ns / tried.less_ns).max())) - 1.0
    return FigureElasticity(
        name=name,
        words=words,
        unit=unit,
        base=base,
        elasticity=float(slopes[0]),
        low=float(slopes.min()),
        high=float(slopes.max()),
        busy_elasticity=float(_slopes(tried, tried.less_busy_ns, tried.more_busy_ns)[0]),
        slower_with_more=slower if slower > SLOWER else 0.0,
    )


def _slopes(tried: _Tried, less_ns: Floats, more_ns: Floats) -> Floats:
    least = np.maximum(less_ns, 1.0)
    return np.asarray(np.log(np.maximum(more_ns, 1.0) / least) / np.log(tried.more / tried.less))


def _host(result: Analysis) -> FigureElasticity:
    """Return what a faster host gives: replays with its times."""
    speed = result.scenario.cpu_speed or 1.0
    less_ns, more_ns = (
        np.array([_with_host(result, speed * ratio) for ratio in ratios])
        for ratios in ([1 / step for step in STEPS], STEPS)
    )
    busy = np.ones(len(STEPS))
    tried = _Tried(
        less=1.0 / np.array(STEPS),
        more=np.array(STEPS),
        less_ns=less_ns,
        more_ns=more_ns,
        less_busy_ns=busy,
        more_busy_ns=busy,
    )
    return _of_steps(HOST, "speed of the host", "", speed, tried, _with_host(result, speed))


def _with_host(result: Analysis, speed: float) -> float:
    """Return how long the iteration takes on the unvaried GPU beside another host."""
    arranged = arrange(result, result.origin, replace(result.scenario, cpu_speed=speed), result.library)
    return float(iteration_lengths(result.trace, result.window, arranged.graph, arranged.timing)[0])
