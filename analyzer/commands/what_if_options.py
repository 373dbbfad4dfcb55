"""The options that ask for another iteration, for commands that predict one beside `analyze`."""

from __future__ import annotations

from typing import Final

import click

from .command import FunctionT

PRECISIONS: Final = ("bf16", "fp16", "tf32", "fp8", "nvfp4", "int8-weights", "int4-weights")
ATTENTION: Final = ("flash2", "flash3", "cudnn", "efficient", "math", "triton", "ck")


def what_if_options(function: FunctionT) -> FunctionT:
    """Add the what-ifs of `analyze`; the command gets a value for each field of `WhatIfs`."""
    size = click.IntRange(min=1)
    options = (
        click.option("--cpu-speed", metavar="RATIO", help="Speed of the host relative to the recorded one, or a name."),
        click.option("--precision", type=click.Choice(PRECISIONS), help="What if it ran in this precision?"),
        click.option("--batch", type=size, metavar="N", help="What if the batch were N?"),
        click.option("--from-batch", type=size, metavar="N", help="The recording's batch, where it does not say it."),
        click.option("--sequence-length", type=size, metavar="N", help="What if each sample had N tokens?"),
        click.option(
            "--from-sequence-length", type=size, metavar="N", help="The recording's, where its shapes do not tell."
        ),
        click.option("--cached-tokens", type=size, metavar="N", help="What if N tokens per sample were in the cache?"),
        click.option("--cuda-graph", is_flag=True, help="What if CUDA graphs launched it?"),
        click.option("--fuse-elementwise", is_flag=True, help="What if a compiler merged pointwise ops?"),
        click.option("--attention-kernel", type=click.Choice(ATTENTION), help="What if this attention ran?"),
    )
    for option in reversed(options):
        function = option(function)
    return function
