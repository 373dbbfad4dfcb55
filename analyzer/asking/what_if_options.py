"""The options that ask for another iteration, for commands that predict one beside `analyze`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from ...errors import InputError
from .command import FunctionT

HOSTS: Final = "RATIO|NAME|FILE"
PRECISIONS: Final = ("bf16", "fp16", "tf32", "fp8", "nvfp4", "int8-weights", "int4-weights")
ATTENTION: Final = ("flash2", "flash3", "cudnn", "efficient", "math", "triton", "ck")


def host_option(explanation: str, *, has_old_name: bool = True) -> Callable[[FunctionT], FunctionT]:
    """Add `--host`, and its old name, which `take_host` puts into its place."""

    def decorate(function: FunctionT) -> FunctionT:
        old = click.option("--cpu-speed", hidden=True, metavar="RATIO", help="What --host was called before.")
        new = click.option("--host", metavar=HOSTS, shell_complete=complete_hosts, help=explanation)
        return new(old(function) if has_old_name else function)

    return decorate


def take_host(options: dict[str, Any], name: str = "host", old_name: str = "cpu_speed") -> None:
    """Put what was asked under the old name of `--host` under its own, and say so on standard error.

    Raises InputError where both were asked.
    """
    old = options.pop(old_name)
    if not old:
        return
    if options[name]:
        raise InputError("--cpu-speed is what --host was called before: leave it out")
    click.echo("Note: --cpu-speed is now called --host; the old name goes with the next version", err=True)
    options[name] = old


def complete_hosts(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the named hosts that hold what was typed, for the shell's completion; else files."""
    from ..host.named import host_list

    typed = incomplete.casefold()
    named = [CompletionItem(item.name) for item in host_list() if typed in item.name]
    return named or [CompletionItem(incomplete, type="file")]


def what_if_options(function: FunctionT) -> FunctionT:
    """Add the what-ifs of `analyze`; the command gets a value for each field of `WhatIfs`."""
    size = click.IntRange(min=1)
    options = (
        host_option("What if this host launched it: a speed ratio, a name, or a file that tells one?"),
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
