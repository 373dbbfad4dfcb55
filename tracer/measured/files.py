"""Turns a finished profiler into our trace, and names the file of each rank."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.profiler import profile

from ...errors import CaptureError, OutputError
from ...formats.trace.column import take_rows
from ...formats.trace.tables import Trace, Workload
from ..description.device import describe_precision, describe_trace, mode_of
from .profiled import describe_devices, read_profiler

SUFFIXES = (".json.gz", ".json")


def import_profiler(finished: profile, workload: Workload, autocast_dtype: str | None) -> Trace:
    """Return what a finished profiler recorded, described as our own recording of `workload`.

    `autocast_dtype` is what was seen while it ran; where that is nothing, the casts that it recorded tell.
    """
    trace = read_profiler(finished)
    # Without kernels it was of a GPU all the same where the profiler was not told to watch it.
    used_gpu = (trace.memory.device >= 0).any() or trace.quality.launches_without_kernel > 0
    device_type = "cuda" if trace.is_measured else "host" if used_gpu else "cpu"
    rank, world_size = find_rank()
    meta = replace(
        trace.meta,
        precision=describe_precision(autocast_dtype or trace.meta.precision.autocast_dtype),
        rank=trace.meta.rank if rank is None else rank,
        world_size=trace.meta.world_size if rank is None else world_size,
    )
    devices = describe_devices(trace) if trace.is_measured else ()
    named = replace(workload, mode=workload.mode or mode_of(trace))
    return describe_trace(replace(trace, meta=meta, devices=devices), device_type, named)


def keep_iterations(trace: Trace, is_kept: npt.NDArray[np.bool_]) -> Trace:
    """Return the trace with those of its first iterations that `is_kept` says, and none after them.

    A recording that is cut short holds part of one more. Raises CaptureError where none is left.
    """
    rows = np.flatnonzero(is_kept[: len(trace.iterations.start_ns)])
    if not len(rows):
        raise CaptureError("the recording ended before its first iteration did")
    return replace(trace, iterations=take_rows(trace.iterations, rows))


def check_output(path: str | Path) -> Path:
    """Return the path as one; raises OutputError where no trace could be written there."""
    path = Path(path)
    if not path.name.endswith(SUFFIXES):
        raise OutputError(f"{path}: expected a name that ends in .json or .json.gz")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"{path}: cannot be written: its directory does not exist")
    return path.absolute()


def rank_path(path: Path) -> Path:
    """Return the path with this process's rank before its ending, where there are several: `trace.rank3.json.gz`."""
    rank, world_size = find_rank()
    return path if rank is None or world_size is None or world_size < 2 else name_of_rank(path, rank)


def name_of_rank(path: Path, rank: int) -> Path:
    """Return the path with a rank before its ending: `trace.rank3.json.gz`."""
    suffix = next(suffix for suffix in SUFFIXES if path.name.endswith(suffix))
    return path.with_name(f"{path.name.removesuffix(suffix)}.rank{rank}{suffix}")


def find_rank() -> tuple[int | None, int | None]:
    """Return this process's rank and how many there are: the process group's word, else the launcher's."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    pairs = ("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS")
    told = ([int(text) for text in map(os.environ.get, names) if text and text.isdecimal()] for names in pairs)
    rank, world_size = (next(iter(found), None) for found in told)
    return rank, world_size
