"""What one per cent more of each figure of a GPU would buy: elasticities, by finite differences.

d ln(time) / d ln(figure) between figure / s and figure x s. Most figures give the same for every s from 1.01 to 1.2
(sweep_steps.py at f56f3bcf); multiprocessors do not, as a wave of tiles more or less comes and goes with each of
them. The step is therefore 1.1, where waves have averaged, and what 1.05 and 1.2 give is the range that is told beside
it.
"""

from typing import Any, Final

import numpy as np

from ....arrays import Floats
from ....errors import InputError, parameter
from ....records import replace
from ....specs.gpu import Gpu
from ....specs.variants import LEAST_CAP_RATIO
from ...iteration.analyze import report_on
from ...iteration.result import Analysis, arrange
from ...iteration.warnings import warn
from ...replay.forecast import iteration_lengths
from .figures import SENSITIVE, DatasheetFigure, find_figure
from .imagined import imagine, is_variable, variant_name, varied_figures, vary_gpu
from .report import SLOWER, FigureElasticity, SensitivityReport
from .sweep import SweepQuestion, base_point, run_on

STEPS: Final = (1.1, 1.05, 1.2)
"""The first is what is answered, the others say how much that depends on the step."""
HOST: Final = "host"


def find_sensitivity(question: SweepQuestion) -> SensitivityReport:
    """Return what one per cent more of each figure of the GPU would do to the iteration, most first."""
    named = [figure for name in SENSITIVE if (figure := find_figure(name)) is not None]
    if question.gpu.slice_name is not None:
        raise InputError(f"{parameter('on')}: {question.gpu.name} is a slice: vary the GPU that it is cut out of")
    gpu = question.gpu
    figures = [figure for figure in named if figure.read(gpu) and is_variable(gpu, figure)]
    variants = {
        variant_name(gpu, changed): changed
        for figure in figures
        for pair in _values(gpu, figure)
        for value in pair
        if (changed := varied_figures(gpu, ((figure, value),)))
    }
    gpus = [gpu, *vary_gpu(gpu, variants, question.gpu_file)]
    result = run_on(question, gpus)
    times = dict(zip((item.name for item in gpus), result.forecast.iteration_ns, strict=False))
    busy = dict(zip((item.name for item in gpus), result.forecast.busy_ns, strict=False))
    found = []
    for figure in figures:
        pairs = _values(gpu, figure)
        names = [[variant_name(gpu, varied_figures(gpu, ((figure, value),))) for value in pair] for pair in pairs]
        tried_ns, busy_ns = (np.array([[known[name] for name in pair] for pair in names]) for known in (times, busy))
        base = figure.read(gpu) or 1.0
        steps = np.array([(more / base) / (less / base) for less, more in pairs])
        told = {"name": figure.name, "words": figure.words, "unit": figure.unit.shown, "base": base}
        found.append(_elasticity(steps, tried_ns, busy_ns, float(times[gpu.name]), **told))
    report = report_on(result, ops_gpu=question.gpu, op_limit=0)
    unvaried = imagine(question.gpu, (), question.catalog, question.gpu_file)
    return SensitivityReport(
        trace=report.trace,
        source=report.source,
        scenario=question.scenario,
        gpu=question.gpu.name,
        base=base_point(result, unvaried),
        # By what they give, and where that is nothing, by what the host hides of it.
        figures=tuple(
            sorted((*found, _host(result)), key=lambda item: (round(item.elasticity, 4), item.busy_elasticity))
        ),
        absent=tuple(figure.name for figure in named if figure not in figures),
        warnings=tuple(warn(result)),
    )


def _values(gpu: Gpu, figure: DatasheetFigure) -> list[tuple[float, float]]:
    """Return less and more of a figure for each step; at least by one where it is a whole number."""
    base, unit = figure.read(gpu) or 0.0, figure.step
    if not unit:
        least = LEAST_CAP_RATIO * gpu.tdp_w if figure.name == "tdp" else 0.0
        return [(max(base / step, least), base * step) for step in STEPS]
    sizes = [max(round(base * (step - 1.0) / unit), 1) * unit for step in STEPS]
    return [(max(base - size, unit), base + size) for size in sizes]


def _elasticity(steps: Floats, tried_ns: Floats, busy_ns: Floats, base_ns: float, **told: Any) -> FigureElasticity:
    """Return what a figure gives, of times with less and with more of it, [steps, 2]; `steps` are more over less."""
    slopes = _slopes(steps, tried_ns)
    slower = max(float((tried_ns[:, 1] / base_ns).max()), float((base_ns / tried_ns[:, 0]).max())) - 1.0
    return FigureElasticity(
        **told,
        elasticity=float(slopes[0]),
        low=float(slopes.min()),
        high=float(slopes.max()),
        busy_elasticity=float(_slopes(steps, busy_ns)[0]),
        slower_with_more=slower if slower > SLOWER else 0.0,
    )


def _slopes(steps: Floats, times_ns: Floats) -> Floats:
    less_ns, more_ns = np.maximum(times_ns, 1.0).T
    return np.asarray(np.log(more_ns / less_ns) / np.log(steps))


def _host(result: Analysis) -> FigureElasticity:
    """Return what a faster host gives: replays with its times."""
    speed, steps = result.scenario.cpu_speed or 1.0, np.array(STEPS)
    tried_ns = np.array([[_with_host(result, speed * ratio) for ratio in (1 / step, step)] for step in STEPS])
    told = {"name": HOST, "words": "speed of the host", "unit": "", "base": speed}
    return _elasticity(steps / (1 / steps), tried_ns, np.ones_like(tried_ns), _with_host(result, speed), **told)


def _with_host(result: Analysis, speed: float) -> float:
    """Return how long the iteration takes on the unvaried GPU beside another host."""
    arranged = arrange(result, result.origin, replace(result.scenario, cpu_speed=speed), result.library)
    return float(iteration_lengths(result.trace, result.window, arranged.graph, arranged.timing)[0])
