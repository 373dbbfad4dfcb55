"""Measure how much of a profiled step is the profiler: small models on the CPU with and without it, two minutes.

    python -m wavecast.mlp_weights.train.profiler_ratios [--write]

Runs differ by 5 %, machines by more. CUPTI's own share, in every runtime call of a GPU trace, cannot be measured
without a GPU and is left in.
"""

import time
from enum import StrEnum
from statistics import median
from typing import Any, Final

import click
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ...formats.files.constants import read_constants
from ...records import dataclass
from .constants import Fitted, program

NAME: Final = "profiler_ratios"
ABOUT: Final = (
    "Unprofiled over profiled host time by what the profiler was asked to record: of leads, of ops' own time, and of a "
    "whole step. Medians over rounds and models on one machine; host_costs is fitted with them."
)
ROUNDS: Final = 7


class Mode(StrEnum):
    """What the profiler was asked to record."""

    PLAIN = "plain"
    SHAPES = "shapes"
    STACKS = "stacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerRatios:
    """Hold unprofiled over profiled host time: of leads, of ops' own time, and of a whole step."""

    lead: float
    own: float
    whole: float


def models() -> list[tuple[nn.Module, torch.Tensor]]:
    """Return models whose ops are so small that the host's own work is nearly all of their time."""
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    blocks = [m for _ in range(8) for m in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))]
    perceptron = [m for _ in range(12) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())]
    return [
        (nn.TransformerEncoder(encoder, 6, enable_nested_tensor=False), torch.randn(1, 4, 8)),
        (nn.Sequential(*blocks), torch.randn(1, 4, 4, 4)),
        (nn.Sequential(*perceptron), torch.randn(2, 8)),
    ]


def step(model: nn.Module, data: torch.Tensor) -> None:
    """Run a model forward and backward."""
    model(data).sum().backward()


def timed(model: nn.Module, data: torch.Tensor, count: int = 5) -> float:
    """Return the mean time of a step, ns."""
    begin = time.perf_counter_ns()
    for _ in range(count):
        step(model, data)
    return (time.perf_counter_ns() - begin) / count


def profiled(model: nn.Module, data: torch.Tensor, mode: Mode) -> tuple[float, float, float]:
    """Return the step's whole time, the time inside outermost aten ops and the rest, ns."""
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=mode is not Mode.PLAIN, with_stack=mode is Mode.STACKS
    ) as recorded:
        step(model, data)
        whole = timed(model, data)
    events: list[Any] = recorded.profiler.kineto_results.events()
    spans = sorted((e.start_ns(), -e.duration_ns()) for e in events if e.name().startswith("aten::"))
    inside, end = 0, 0
    for start, length in spans:
        if start >= end:
            inside, end = inside - length, start - length
    own = inside / 6
    return whole, own, whole - own


def measure_profiler(rounds: int = ROUNDS) -> dict[Mode, ProfilerRatios]:
    """Compare profiled with unprofiled steps, alternating; medians over rounds and models.

    What a bare step spends inside ops and between them cannot be seen without the profiler: the plain profiler is
    taken to slow both alike, and the costlier modes are compared with it.
    """
    torch.set_num_threads(1)
    ratios: dict[Mode, list[tuple[float, float, float]]] = {mode: [] for mode in Mode}
    for model, data in models():
        timed(model, data, 50)
        for _ in range(rounds):
            bare = timed(model, data, 20)
            found = {mode: profiled(model, data, mode) for mode in Mode}
            plain = found[Mode.PLAIN]
            for mode, (whole, own, lead) in found.items():
                slowed = bare / plain[0]
                ratios[mode].append((slowed * plain[2] / lead, slowed * plain[1] / own, bare / whole))
    middle = {mode: [median(column) for column in zip(*rows, strict=True)] for mode, rows in ratios.items()}
    return {mode: ProfilerRatios(lead=lead, own=own, whole=whole) for mode, (lead, own, whole) in middle.items()}


def profiler_ratios() -> dict[Mode, ProfilerRatios]:
    """Return the ratios in use."""
    return {mode: ProfilerRatios(**read_constants(NAME)[mode.value]) for mode in Mode}


@program(NAME, ABOUT, __doc__, has_data=False)
def main() -> Fitted:
    """Print a line per mode."""
    found = measure_profiler()
    for mode, ratios in found.items():
        click.echo(f"{mode:12} lead {ratios.lead:.3f}   own {ratios.own:.3f}   whole {ratios.whole:.3f}")
    names = ("lead", "own", "whole")
    values = {mode.value: {key: round(getattr(ratios, key), 2) for key in names} for mode, ratios in found.items()}
    return values, {"rounds": ROUNDS}, ()


if __name__ == "__main__":
    main()
