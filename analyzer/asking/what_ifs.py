"""Another host, other sizes, another precision, fewer launches: see docs/reference/what-if.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from ...errors import InputError, parameter
from ...records import dataclass, fields
from ..whatif.scenario import LaunchWhatIfs, Scenario, TargetAttention, TargetPrecision
from .declared import COUNT, HelpPart, option

if TYPE_CHECKING:
    from ...formats.trace.tables import Trace

_IN_SCENARIO: Final = {
    "batch": "batch_size",
    "from_batch": "recorded_batch_size",
    "from_sequence_length": "recorded_sequence_length",
    "attention_kernel": "attention",
}
"""What the analyzer calls what-ifs that it calls otherwise."""


def complete_hosts(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the named hosts that hold what was typed, for the shell's completion; else files."""
    from ..host.named import host_list

    typed = incomplete.casefold()
    named = [CompletionItem(item.name) for item in host_list() if typed in item.name]
    return named or [CompletionItem(incomplete, type="file")]


@dataclass(frozen=True, kw_only=True)
class VariedWhatIfs:
    """Hold what a batch takes several values of."""

    batch: int | None = option(HelpPart.WHAT_IF, "What if the batch were N?", **COUNT)
    sequence_length: int | None = option(HelpPart.WHAT_IF, "What if each sample had N tokens?", **COUNT)
    precision: str | None = option(
        HelpPart.WHAT_IF,
        "What if it ran in this precision?",
        type=click.Choice([item.value for item in TargetPrecision]),
    )
    host: float | str | Path | None = option(
        HelpPart.WHAT_IF,
        "What if this host launched it: its speed relative to the recorded one (1.2: 20 % faster), a name ('wavecast "
        "catalog hosts'), or a file of 'measure --host' or a measured trace?",
        metavar="RATIO|NAME|FILE",
        shell_complete=complete_hosts,
    )


@dataclass(frozen=True, kw_only=True)
class OpWhatIfs:
    """Hold what else changes the ops, and what the recording does not say of its sizes."""

    attention_kernel: str | None = option(
        HelpPart.WHAT_IF,
        "What if this attention ran, where it exists? Default: the GPU's own choice.",
        type=click.Choice([item.value for item in TargetAttention]),
    )
    cached_tokens: int | None = option(
        HelpPart.WHAT_IF, "What if the keys and values of N tokens per sample were in the cache?", **COUNT
    )
    from_batch: int | None = option(
        HelpPart.WHAT_IF, "The batch size of the recording, where the trace does not say it.", **COUNT
    )
    from_sequence_length: int | None = option(
        HelpPart.WHAT_IF, "Tokens per sample of the recording, where its shapes do not tell.", **COUNT
    )


class AskedScenario:
    """Turn what-ifs into what the analyzer takes; those that a question does not have are not asked."""

    def scenario(self, trace: Trace, *, asks_for_batches: bool = False, counts_tokens: bool = False) -> Scenario:
        """Return them as the analyzer's. Raises InputError for what contradicts itself or is not known.

        Where samples or tokens are counted, the recorded sizes are of use without others.

        >>> WhatIfs(batch=8, precision="bf16").scenario(trace).changes
        ('a batch of 8', 'bf16 arithmetic')
        """
        self.check_sizes(asks_for_batches=asks_for_batches, counts_tokens=counts_tokens)
        values = {_IN_SCENARIO.get(name, name): value for name, value in self._asked().items()}
        if "host" in values:
            from ..host.speed import read_host

            found = read_host(str(values.pop("host")), trace)
            values |= {"cpu_speed": found.ratio, "host_half_width": found.half_width}
        for name, kind in (("precision", TargetPrecision), ("attention", TargetAttention)):
            if name in values:
                values[name] = kind(values[name])
        return Scenario(**values)

    def check_sizes(self, *, asks_for_batches: bool = False, counts_tokens: bool = False) -> None:
        """Raise InputError for a recorded size that nothing is of use for."""
        asked = self._asked()
        if "from_batch" in asked and not ("batch" in asked or asks_for_batches):
            raise InputError(
                f"{parameter('from_batch')} says what {parameter('batch')} rescales: add {parameter('batch', 'N')}"
            )
        if "from_sequence_length" in asked and not ("sequence_length" in asked or counts_tokens):
            raise InputError(
                f"{parameter('from_sequence_length')} says what {parameter('sequence_length')} rescales: add "
                f"{parameter('sequence_length', 'N')}"
            )

    def _asked(self) -> dict[str, Any]:
        return {item.name: value for item in fields(WhatIfs) if (value := getattr(self, item.name, None)) is not None}


@dataclass(frozen=True, kw_only=True)
class WhatIfs(VariedWhatIfs, LaunchWhatIfs, OpWhatIfs, AskedScenario):
    """Hold all that can be asked of an iteration."""
