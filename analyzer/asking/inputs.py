"""What is read: which part of a recording, what was recorded beside it, which GPU it is of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from ...errors import InputError
from ...records import dataclass, replace
from ..iteration.decision.amounts import TIMES_NS, find_amount
from .answer import as_names
from .choice import GPU_NAME, archived_names
from .declared import FILE, FunctionT, HelpPart, option
from .keywords import ITERATION_RULES, check_iteration
from .question import Gpus, OpenedTrace, find_named, read_recording, sharpen

if TYPE_CHECKING:
    from ...formats.trace.tables import Trace
    from ..measurements.calibration import CalibratedLibrary
    from ..models.library import Library

_MOST_DIGITS: Final = 18
"""More are no row of any file; the first ones are as wrong as all."""


def _read_iteration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | str | None:
    """Return the number, or the name of the rule."""
    if text is None or text in ITERATION_RULES:
        return text
    if not (text.isascii() and text.isdigit()):
        rules = f"{', '.join(ITERATION_RULES[:-1])} or {ITERATION_RULES[-1]}"
        raise click.BadParameter(f"{text!r}: expected a number, {rules}")
    return int(text[:_MOST_DIGITS])


def _read_window(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[int | None, int | None] | None:
    """Return both ends of a window in ns: 2s..3s, 350ms.., ..1.5s."""
    if text is None:
        return None
    low, dots, high = text.strip().lower().partition("..")
    if not dots or not (low or high):
        raise click.BadParameter(f"{text!r}: expected two times such as 2s..3s, 350ms.. or ..1.5s")
    start, end = (_read_end(part.strip(), text) if part.strip() else None for part in (low, high))
    if start is not None and end is not None and start >= end:
        raise click.BadParameter(f"{text!r}: the window ends before it begins")
    return start, end


def _read_end(part: str, text: str) -> int:
    found = find_amount("0s" if part == "0" else part, TIMES_NS | {"ns": 1.0})
    if found is None:
        raise click.BadParameter(f"{text!r}: found {part!r}, expected a time such as 350ms or 1.5s")
    return round(min(found, 2.0**60))


class TracePath(click.Path):
    """Name a trace: a file, `-` for standard input, or one of an archive (archive://DIR#ID)."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; of an archived trace, one that `load_trace` understands."""
        if isinstance(value, str) and value.startswith("archive:"):
            from ...formats.files.reference import as_path, is_reference

            if is_reference(value):
                try:
                    return as_path(value)
                except InputError as error:
                    self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the ids and tags of an archive that begin as was typed after `#`; else leave files to the shell."""
        place, hash_sign, beginning = incomplete.partition("#")
        if not (hash_sign and place.startswith("archive:")):
            return super().shell_complete(ctx, param, incomplete)
        location = place.removeprefix("archive:").removeprefix("//")
        return [CompletionItem(f"{place}#{name}") for name in archived_names(location, beginning)]


def trace_argument(function: FunctionT) -> FunctionT:
    """Add the argument TRACE."""
    return click.argument("trace", type=TracePath(), metavar="TRACE")(function)


@dataclass(frozen=True, kw_only=True)
class GpuFile:
    """Say where more GPUs are described."""

    gpu_file: str | Path | None = option(
        HelpPart.INPUT,
        "Read more GPUs (yours, unreleased, imagined) from this TOML file; see 'wavecast catalog --help'.",
        **FILE,
    )


@dataclass(frozen=True, kw_only=True)
class MeasuredGpu:
    """Say which GPU was measured."""

    source: str | None = option(
        HelpPart.INPUT, "The GPU that was measured, where the trace does not say it or says it wrongly.", "--from",
        **GPU_NAME,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AskedSource(MeasuredGpu, GpuFile):
    """Say which GPU was measured, and where more are described."""

    def named(self, targets: str | Sequence[str] = (), name: str = "to") -> Gpus:
        """Return the catalogue with the GPUs that were named. Raises UnknownGpuError for a name that nothing has.

        >>> [gpu.name for gpu in AskedSource().named("l40s").targets]
        ['L40S']
        """
        return find_named(as_names(targets, name), self.source, self.gpu_file)


@dataclass(frozen=True, kw_only=True)
class Recover:
    """Say what is done with damaged files."""

    recover: bool = option(
        HelpPart.INPUT,
        "Read a truncated or damaged profiler file as far as it goes; count what is lost.",
        default=False,
    )


@dataclass(frozen=True, kw_only=True)
class AskedIteration:
    """Say which iteration of a recording is meant."""

    iteration: int | str | None = option(
        HelpPart.INPUT,
        "Which iteration of the recording: its number as in 'wavecast show', median (default), longest, a server's "
        "prefill, decode or mixed, or all as one.",
        metavar="N|RULE",
        callback=_read_iteration,
    )


@dataclass(frozen=True, kw_only=True)
class Captures:
    """Say what was recorded when CUDA graphs were captured."""

    captures: Sequence[str | Path] = option(
        HelpPart.INPUT,
        "A recording of the capture of a CUDA graph that TRACE launches: its ops explain the kernels. Repeat for "
        "several.",
        "--capture",
        type=TracePath(),
        metavar="FILE",
        multiple=True,
    )


@dataclass(frozen=True, kw_only=True)
class AskedWindow:
    """Say which time of a recording is meant."""

    window_ns: tuple[int | None, int | None] | None = option(
        HelpPart.INPUT,
        "Only what the host began in this time since the recording's start: 2s..3s, 350ms.. or ..1.5s.",
        "--window",
        metavar="FROM..TO",
        callback=_read_window,
    )


@dataclass(frozen=True, kw_only=True)
class ExecutionTrace:
    """Say what PyTorch recorded beside the profiler."""

    execution_trace: str | Path | None = option(
        HelpPart.INPUT,
        "The PyTorch execution trace of the same run as the profiler file: exact inputs, types and tensors.",
        **FILE,
    )


@dataclass(frozen=True, kw_only=True)
class AskedRecording(AskedIteration, AskedWindow, Captures, ExecutionTrace, Recover):
    """Say which part of a recording is read, and what beside it."""

    def read(self, trace: str | Path | Trace) -> OpenedTrace:
        """Return the trace, and which iteration of it is meant."""
        return read_recording(
            trace,
            iteration=check_iteration(self.iteration),
            window_ns=self.window_ns,
            captures=self.captures,
            execution_trace=self.execution_trace,
            recover=self.recover,
        )


@dataclass(frozen=True, kw_only=True)
class AskedLookups:
    """Say how lookups in embedding tables are spread over rows."""

    indices: str | Path | None = option(
        HelpPart.INPUT,
        "How embedding lookups are spread over a table's rows: 'uniform', 'zipf:1.05', or a histogram file "
        "(.json, .toml, .csv). Default: as recorded, else zipf:1.05.",
        metavar="SPREAD",
    )

    def spread(self, library: Library | None = None) -> Library | None:
        """Return the models with how lookups are spread; as they are (None: the shipped ones) where none says.

        Raises InputError for what names no spread.

        >>> str(AskedLookups(indices="zipf:1.2").spread().indices)
        'zipf:1.2'
        """
        if self.indices is None:
            return library
        if not isinstance(self.indices, str | Path):
            raise InputError(f"indices={self.indices!r}: expected text, as in 'zipf:1.05', or a histogram file")
        from ..models.library import load_library
        from ..work.indices import read_indices

        return replace(library or load_library(), indices=read_indices(str(self.indices)))


@dataclass(frozen=True, kw_only=True)
class AskedCalibration:
    """Say what was measured of the GPUs that are asked about."""

    calibration: str | Path | None = option(
        HelpPart.INPUT,
        "Sharpen the models for the GPUs that a file of `wavecast measure`, or tables (DIR/ops/*.parquet), hold.",
        type=click.Path(path_type=Path),
        metavar="FILE|DIR",
    )

    def sharpened(self, trace: Trace, gpus: Gpus) -> CalibratedLibrary | None:
        """Return the models as the tables correct them; None without tables."""
        return None if self.calibration is None else sharpen(self.calibration, trace, gpus)
