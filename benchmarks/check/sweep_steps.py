"""Elasticities by the size of the step they are taken with, and varied copies of one GPU beside another.

Run: python -m benchmarks.check.sweep_steps

steps   d ln(GPU-busy time) / d ln(figure) between figure / s and figure x s, for s from 1.01 to 1.5: what depends on s
        is no property of the figure. `analyzer/questions/sweep/sensitivity.py` chooses its step by this.
pairs   a GPU of the catalogue with all figures of another one over that one's own prediction: 1, or something that is
        no figure counts; and with the bandwidth alone.
"""

from __future__ import annotations

import math
from pathlib import Path

from wavecast.analyzer.questions.sweep.figures import FIGURES, SENSITIVE, DatasheetFigure, find_figure
from wavecast.analyzer.questions.sweep.imagined import varied_figures, vary_gpu
from wavecast.analyzer.questions.sweep.sweep import SweepQuestion, run_on
from wavecast.formats.files.open import load_trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

SAMPLES = Path(__file__).parents[2] / "samples"
TRACES = ("gpt2_small-training-bf16-b4", "resnet50-training-bf16-b32", "vit_b16-training-fp32-b32",
          "dlrm-training-fp32-b2048")  # fmt: skip
GPUS = ("H100 SXM5 80GB", "L40S", "Instinct MI300X")
STEPS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5)
PAIRS = (("H100 PCIe 80GB", "H200 SXM"), ("H100 SXM5 80GB", "H200 SXM"), ("A100 SXM4 40GB", "A100 SXM4 80GB"),
         ("A100 PCIe 40GB", "A100 PCIe 80GB"), ("L4", "L40S"), ("Instinct MI300X", "Instinct MI325X"))  # fmt: skip
TOGETHER = {"memory.pin_rate", "memory.bus", "clock", "matrix", "vector"}
"""Figures that are several keys of the catalogue."""
CATALOG = load_catalog()


def main() -> None:
    """Print both tables."""
    for name in TRACES:
        for gpu in GPUS:
            print_steps(name, find_gpu(CATALOG, gpu))
    for pair in PAIRS:
        print_pair(*(find_gpu(CATALOG, name) for name in pair))


def question(name: str, gpu: Gpu) -> SweepQuestion:
    """Return what is asked of a sample."""
    return SweepQuestion(trace=load_trace(SAMPLES / f"{name}-shapes.json.gz"), catalog=CATALOG, gpu=gpu)


def print_steps(name: str, gpu: Gpu) -> None:
    """Print a line of elasticities for each figure."""
    figures = [figure for item in SENSITIVE if (figure := find_figure(item)) is not None and figure.read(gpu)]
    variants = {
        f"{gpu.name}, {figure.name} {value!r}": ((figure, value),)
        for figure in figures
        for step in STEPS
        for value in both(gpu, figure, step)
    }
    gpus = [gpu, *vary_gpu(gpu, variants, None)]
    found = run_on(question(name, gpu), gpus).prediction.total_busy_ns()
    times = {item.name: float(time) for item, time in zip(gpus, found, strict=True)}
    print(f"\n{name} on {gpu.name}, steps {', '.join(map(str, STEPS))}")
    for figure in figures:
        slopes = []
        for step in STEPS:
            less, more = both(gpu, figure, step)
            ratio = times[f"{gpu.name}, {figure.name} {more!r}"] / times[f"{gpu.name}, {figure.name} {less!r}"]
            slopes.append(math.log(ratio) / math.log(more / less))
        print(f"{figure.name:>18}", *(f"{slope:+.3f}" for slope in slopes))


def both(gpu: Gpu, figure: DatasheetFigure, step: float) -> tuple[float, float]:
    """Return less and more of a figure."""
    base = figure.read(gpu) or 1.0
    if figure.step:
        size = max(round(base * (step - 1) / figure.step), 1) * figure.step
        return base - size, base + size
    return base / step, base * step


def print_pair(base: Gpu, other: Gpu) -> None:
    """Print how near a varied copy of one GPU comes to another."""
    wanted = [(item, item.read(other)) for item in FIGURES if item.name not in TOGETHER]
    figures = varied_figures(base, tuple((figure, value) for figure, value in wanted if value))
    bandwidth = tuple(item for item in figures if item[0].name == "memory.bandwidth")
    variants = {f"{base.name}, all": figures, f"{base.name}, bandwidth": bandwidth}
    gpus = [base, other, *vary_gpu(base, variants, None)]
    print(f"\n{base.name} with the figures of {other.name}: {', '.join(figure.name for figure, _ in figures)}")
    for name in TRACES:
        busy = run_on(question(name, base), gpus).prediction.total_busy_ns()
        own, copy, alone = (busy[at] / busy[1] for at in (0, 2, 3))
        print(f"{name:>32}: {copy:.6f} with all, {alone:.3f} with the bandwidth alone, {own:.3f} with none")


if __name__ == "__main__":
    main()
