"""Which GPUs are asked about, in which order, for what run; and the names that shells complete."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ...errors import InputError, WavecastError, parameter
from ...records import dataclass
from ..iteration.decision.amounts import ORDERS, SHOWN_ROWS, Selection
from ..iteration.decision.goal import Goal
from .answer import as_names
from .declared import HelpPart, option

if TYPE_CHECKING:
    from ...specs.gpu import Gpu
    from .question import Gpus


def complete_gpu_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the catalogued GPUs that hold what was typed, or its slices after a `/`, for the shell's completion."""
    from ...specs.catalog import load_catalog
    from ...specs.variants import slice_names

    base, mark, part = incomplete.partition("/")
    if mark:
        return [f"{base}/{name}" for name in slice_names(load_catalog(), base) if name.startswith(part)]
    typed = incomplete.casefold()
    return [gpu.name for gpu in load_catalog().gpus if typed in gpu.name.casefold()]


def complete_gpu_equals(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return `GPU=` for the catalogued GPUs that hold what was typed; what follows the sign is the user's."""
    return [f"{name}=" for name in complete_gpu_names(context, parameter, incomplete)] if "=" not in incomplete else []


def complete_vendors(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the catalogue's vendors that begin as typed, for the shell's completion."""
    from ...specs.catalog import load_catalog

    known = sorted({gpu.vendor for gpu in load_catalog().gpus})
    return [name for name in known if name.casefold().startswith(incomplete.casefold())]


def complete_archived(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids and tags of the archive DIR that begin as was typed, for the shell's completion."""
    return archived_names(str(context.params.get("directory") or ""), incomplete)


def archived_names(location: str, beginning: str) -> list[str]:
    """Return ids and tags of an archive in a folder; a bucket is not asked between two keys."""
    from ...formats.archive import open_archive

    if not location or "://" in location:
        return []
    try:
        with open_archive(location, say=lambda _text: None) as archive:
            return archive.names(beginning)
    except WavecastError:
        return []


ALL_ROWS: Final = "all"
_MOST_DIGITS: Final = 9
_BETWEEN_NAMES: Final = re.compile(r",(?![^(]*\))")
"""A comma between names, and none of `B200 SXM (HGX, 180GB)`."""


def read_gpu_names(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of GPUs, each given once or in a list with commas; those in brackets belong to a name."""
    found = (_BETWEEN_NAMES.split(text.strip().strip(",")) for text in texts)
    return tuple(dict.fromkeys(word.strip() for words in found for word in words))


GPU_NAME: Final[dict[str, Any]] = {"metavar": "GPU", "shell_complete": complete_gpu_names}
GPU_NAMES: Final[dict[str, Any]] = GPU_NAME | {"metavar": "GPU,…", "multiple": True, "callback": read_gpu_names}


@dataclass(frozen=True, kw_only=True)
class DatacenterOnly:
    """Say of which class the GPUs are that nobody named."""

    datacenter: bool = option(
        HelpPart.GPUS, "Only GPUs that are sold for servers: no cards for desks, no devices.", default=False
    )

    def of_class(self, gpus: Gpus) -> tuple[Gpu, ...]:
        """Return the GPUs that were named, or of all those of the class; none where all are meant.

        Raises InputError where none that was named is of the class.
        """
        from ...specs.gpu import is_datacenter

        if not self.datacenter:
            return gpus.targets
        found = tuple(filter(is_datacenter, gpus.targets or gpus.catalog.gpus))
        if not found:
            raise InputError(f"{parameter('datacenter')}: none of the GPUs that were named is sold for servers")
        return found


@dataclass(frozen=True, kw_only=True)
class GpuSelection(DatacenterOnly):
    """Say which GPUs a table is of, and what it is sorted by."""

    sort: str | None = option(
        HelpPart.GPUS,
        "What stands first: the shortest iteration (default), the cheapest, the most samples per second, the least "
        "energy.",
        type=click.Choice(ORDERS),
    )
    fits: bool = option(HelpPart.GPUS, "Only GPUs whose memory the iteration fits.", default=False)
    priced: bool = option(HelpPart.GPUS, "Only GPUs whose price is known.", default=False)
    vendor: str | Sequence[str] = option(
        HelpPart.GPUS,
        "Only GPUs of this vendor; repeat for several.",
        metavar="NAME",
        multiple=True,
        shell_complete=complete_vendors,
    )
    min_memory: str | float | None = option(
        HelpPart.GPUS, "Only GPUs with at least this much memory (40GB, 40GiB).", metavar="SIZE"
    )
    only: str | Sequence[str] = option(
        HelpPart.GPUS,
        "Only GPUs whose name has this part or is this pattern ('*SXM*'); repeat for several.",
        metavar="PATTERN",
        multiple=True,
    )
    rows: int | str | None = option(
        HelpPart.OUTPUT,
        f"Rows of the table; 0 or all: all. Default: the best {SHOWN_ROWS}, the source and the cheapest that fits, of "
        "GPUs that tie a few. JSON and CSV hold all.",
        metavar="N|all",
    )

    def selection(self) -> Selection:
        """Return which GPUs are asked about. Raises InputError for what cannot be asked.

        >>> GpuSelection(vendor="nvidia", rows="all").selection().rows
        0
        """
        return Selection(
            sort=self.sort,
            vendors=as_names(self.vendor, "vendor"),
            datacenter=self.datacenter,
            min_memory=self.min_memory,
            priced=self.priced,
            fits=self.fits,
            only=as_names(self.only, "only"),
            rows=_row_count(self.rows) if isinstance(self.rows, str) else self.rows,
        )


def _row_count(text: str) -> int:
    """Return how many rows are asked for, 0 for all."""
    if text.strip().casefold() == ALL_ROWS:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{parameter('rows', text)}: expected a number of rows, or {ALL_ROWS}")
    return int(text[:_MOST_DIGITS])


@dataclass(frozen=True, kw_only=True)
class Goals:
    """Say what is to be run in all, and what it may cost."""

    goal: str | None = option(
        HelpPart.MONEY,
        "The whole run, for its time and cost: '90000 iterations', '3 epochs of 1281167 samples', '2e9 tokens'.",
        "--for",
        metavar="RUN",
    )
    budget: str | None = option(HelpPart.MONEY, "Say which GPUs the run costs no more on.", metavar="USD")
    deadline: str | None = option(
        HelpPart.MONEY, "Say on which GPUs the run finishes within 90min, 24h, 3d.", metavar="TIME"
    )
    allowance: str | None = option(
        HelpPart.MONEY,
        "What the run takes beside its iterations (loading, evaluation, checkpoints), on top of them. Default: 0%.",
        metavar="PERCENT",
    )

    def run(self) -> Goal | None:
        """Return what is to be run; None where nothing is. Raises InputError for limits of no run.

        >>> Goals(goal="90000 iterations").run().count
        90000.0
        """
        limits = {"allowance": self.allowance, "budget": self.budget, "deadline": self.deadline}
        if self.goal is not None:
            return Goal.read(self.goal, **limits)
        alone = next((name for name, value in limits.items() if value is not None), None)
        if alone is not None:
            raise InputError(
                f"{parameter(alone)} is of a whole run: say which, such as {parameter('for')} "
                '"3 epochs of 1281167 samples"'
            )
        return None
