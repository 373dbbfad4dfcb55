"""What questions have in common, as a user gives it: the trace, the catalogue and the models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import InputError, parameter
from ...records import dataclass

if TYPE_CHECKING:
    from ...formats.trace.tables import Trace
    from ...specs.gpu import Catalog, Gpu
    from ..measurements.calibration import CalibratedLibrary


STANDARD_INPUT: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gpus:
    """Hold the catalogue, and of it the GPUs that were named."""

    catalog: Catalog
    targets: tuple[Gpu, ...]
    """Each once; none where all are meant."""
    source: Gpu | None

    def measured(self, trace: Trace) -> Gpu | None:
        """Return the GPU that was measured: the one that was named as such, else the one that the trace names."""
        from ..recorded.devices import first_known_gpu

        return self.source or (first_known_gpu(self.catalog, trace) if trace.is_measured else None)

    def expect_measured(self, trace: Trace, option: str, says: str, example: str) -> Gpu:
        """Return the same where no other is named. Raises InputError, which asks for `option`, where there is none."""
        found = self.measured(trace)
        if found is None:
            raise InputError(
                f"{parameter(option)} says {says}: a recording of shapes has none of its own; add "
                f"{parameter(option, example)}"
            )
        return found


def find_named(targets: Sequence[str], source: str | None, gpu_file: str | Path | None) -> Gpus:
    """Return the catalogue with the GPUs that were named. Raises UnknownGpuError for a name that nothing has."""
    from ...specs.match import find_gpus

    catalog = read_catalog(gpu_file)
    found = {gpu.name: gpu for name in targets for gpu in find_gpus(catalog, name)}
    return Gpus(catalog=catalog, targets=tuple(found.values()), source=find_one(catalog, source))


def read_catalog(gpu_file: str | Path | None) -> Catalog:
    """Return the catalogue, with the GPUs of a file."""
    from ...specs.catalog import load_catalog

    return load_catalog(None if gpu_file is None else Path(gpu_file))


def find_one(catalog: Catalog, name: str | None) -> Gpu | None:
    """Return the one GPU that a name means; None of none. Raises UnknownGpuError for several, or no such GPU."""
    from ...specs.match import find_gpu

    if name is not None and not isinstance(name, str):
        raise InputError(f"{name!r}: expected the name of a GPU")
    return None if name is None else find_gpu(catalog, name)


def refuse_input_twice(first: object, second: object) -> None:
    """Raise InputError where both of two traces are standard input."""
    if str(first) == str(second) == STANDARD_INPUT:
        raise InputError("standard input holds one trace: give a file for the other")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedTrace:
    """Hold a trace as it was read, and which iteration of it is meant."""

    trace: Trace
    iteration: int | str | None
    """As asked for; None where nothing else was read."""


def read_recording(
    trace: str | Path | Trace,
    *,
    iteration: int | str | None = None,
    window_ns: tuple[int | None, int | None] | None = None,
    captures: Sequence[str | Path] = (),
    execution_trace: str | Path | None = None,
    recover: bool = False,
) -> OpenedTrace:
    """Return what `read_trace` does, of a file that is too large to be read whole only the iteration asked for.

    Of `window_ns` (ns since the recording's start) only what the host began then is read.
    """
    from ...formats.files.open import is_read_in_parts, load_trace

    path = trace if isinstance(trace, str | Path) and execution_trace is None else None
    if window_ns is not None and (iteration is not None or path is None):
        raise InputError(
            f"{parameter('window')} is for a file, without {parameter('iteration')} and {parameter('execution_trace')}"
        )
    if path is not None and (window_ns is not None or (iteration is not None and is_read_in_parts(path))):
        trace = load_trace(path, recover=recover, window_ns=window_ns, iteration=iteration)
        iteration = None
    read = read_trace(trace, captures=captures, execution_trace=execution_trace, recover=recover)
    return OpenedTrace(trace=read, iteration=iteration)


def read_trace(
    trace: str | Path | Trace,
    *,
    captures: Sequence[str | Path] = (),
    execution_trace: str | Path | None = None,
    joins: bool = True,
    recover: bool = False,
) -> Trace:
    """Return a trace, or read it from a file or an archive; with `joins`, joined with what was recorded beside it."""
    from ...formats.files.open import load_trace

    if not isinstance(trace, str | Path):
        from ...formats.trace.tables import Trace

        if not isinstance(trace, Trace):
            raise InputError(f"trace: expected a path or a Trace, got {type(trace).__name__}")
        read = trace
    elif execution_trace is None:
        read = load_trace(trace, recover=recover)
    else:
        from ...formats.execution_trace import load_joined

        read = load_joined(Path(trace), Path(execution_trace), recover=recover)
    if not joins:
        return read
    from ..recorded.graphs import graph_kernels

    if not captures and not graph_kernels(read).any():
        return read
    from ..prediction.capture_join import join_captures

    return join_captures(read, {str(path): load_trace(path) for path in captures})


def sharpen(path: str | Path, trace: Trace, gpus: Gpus) -> CalibratedLibrary:
    """Calibrate the models for the targets, all GPUs where none is given, and the one that was measured."""
    from ..measurements.calibration import calibrate_library
    from ..models.library import load_library

    origin = gpus.measured(trace)
    named = [*gpus.targets, *([origin] if origin is not None else [])] if gpus.targets else []
    return calibrate_library(load_library(), Path(path), named, gpus.catalog)
