"""The options that ask about many GPUs, for `analyze` and `scale`, and the values they take."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .command import FunctionT, name_of_trace
from .output import choose_format, screen_for

if TYPE_CHECKING:
    from ..analysis.plans.report import ScaleReport

SVG: Final = "svg"
SHOWN_PLANS: Final = 10
"""Without --top."""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_BYTES: Final = {"": 2.0**30, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|µs)?")
_LENGTHS_NS: Final = {None: 1e6, "ms": 1e6, "s": 1e9, "us": 1e3, "µs": 1e3}
MOST_SAMPLES: Final = 1_000_000_000
_PLAN_HELP: Final = (
    "A plan, such as fsdp=8,tp=2, or a TOML file; an axis left open (tp=2; fsdp=*) takes the rest of --gpus. Repeat "
    "for several."
)


def plan_options(plan_note: str = "") -> Callable[[FunctionT], FunctionT]:
    """Add `--gpus`, `--plan` and `--global-batch`; the command gets `gpu_counts`, `plans` and `global_batch`."""

    def decorate(function: FunctionT) -> FunctionT:
        gpus = click.option(
            "--gpus",
            "gpu_counts",
            metavar="N,…",
            multiple=True,
            callback=read_counts,
            help="How many GPUs: 64, or several as in 8,64,512.",
        )
        plan = click.option("--plan", "plans", metavar="PLAN|FILE", multiple=True, help=f"{_PLAN_HELP}{plan_note}")
        batch = click.option(
            "--global-batch",
            type=click.IntRange(min=1, max=MOST_SAMPLES),
            metavar="N",
            help="Samples of an iteration on all GPUs together. Default: a recorded batch for every GPU.",
        )
        return gpus(plan(batch(function)))

    return decorate


def read_counts(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
    """Return the numbers of GPUs, each given once or in a list with commas."""
    words = [word.strip() for text in texts for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 9 and int(word)):
            raise click.BadParameter(f"{word!r}: expected a number of GPUs, or several as in 8,64,512")
    return tuple(dict.fromkeys(map(int, words)))


def read_names(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of GPUs, each given once or in a list with commas."""
    return tuple(dict.fromkeys(word.strip() for text in texts for word in text.split(",") if word.strip()))


def read_size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Return bytes: 70GiB, 70 (GiB), 80GB."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip().lower())
    value = float(found[1]) * _BYTES.get(found[2], 0.0) if found else 0.0
    if not (isfinite(value) and value >= 1):
        raise click.BadParameter(f"{text!r}: expected a size such as 70GiB or 80GB")
    return value


def read_time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Return ns: 350ms, 350 (ms), 1.2s."""
    if text is None:
        return None
    found = _TIME.fullmatch(text.strip().lower())
    if found is None or not 0 < float(found[1]) < 1e9:
        raise click.BadParameter(f"{text!r}: expected a time such as 350ms or 1.2s")
    return float(found[1]) * _LENGTHS_NS[found[2]]


def render_scale(report: ScaleReport, trace: Path, form: str | None, output: Path | None, top: int) -> str:
    """Write a report of plans in the format asked for; a file's ending may ask for the figure."""
    from ..rendering.formats import render
    from ..rendering.plans.records import draw_scale_csv, draw_scale_json
    from ..rendering.plans.svg import draw_scaling
    from ..rendering.plans.text import describe_scale

    name = name_of_trace(trace)
    if form == SVG or (form is None and output is not None and output.suffix.lower() == ".svg"):
        return draw_scaling(report, name=name)
    return render(
        choose_format(form, output),
        screen_for(output),
        page=lambda: describe_scale(report, name=name, top=top),
        json=lambda: draw_scale_json(report),
        csv=lambda: draw_scale_csv(report),
    )
