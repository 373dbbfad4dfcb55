"""The options that ask about many GPUs, for `analyze` and `scale`, and the values they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import click

from .amounts import parse_bytes, parse_duration_ns
from .command import FunctionT

MOST_SAMPLES: Final = 1_000_000_000
"""More are no batch of anyone's, and lose digits as a number of float64."""
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


def check_size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """Return the text of a size: 70GiB, 70 (GiB), 80GB."""
    if text is not None and parse_bytes(text) is None:
        raise click.BadParameter(f"{text!r}: expected a size such as 70GiB or 80GB")
    return text


def check_time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """Return the text of a time: 350ms, 350 (ms), 1.2s."""
    if text is not None and parse_duration_ns(text) is None:
        raise click.BadParameter(f"{text!r}: expected a time such as 350ms or 1.2s")
    return text
