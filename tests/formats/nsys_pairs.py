"""Predicts workloads from a PyTorch-profiler file and from the same as Nsight Systems exports it.

For each trace: the largest difference of iteration and GPU-busy time over the targets where both files know the same
(no shapes, or sizes with the dtypes that kernels' names tell; no sizes of collectives and no number of ranks, either),
and how far both lie from the profiler's file with all of these.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import orjson
from wavecast.analyzer.iteration.analyze import report_on, run_analysis
from wavecast.arrays import Floats
from wavecast.formats.files.open import load_trace, read_bytes
from wavecast.formats.recording.dtypes import UNTOLD_DTYPE, infer_dtypes
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec
from wavecast.formats.trace.tables import CollectiveTable, GroupTable, MemberTable, Trace
from wavecast.specs.catalog import find_gpu, load_catalog

from .nsys_export import convert

TARGETS: Final = ("H100 SXM5 80GB", "A100 SXM4 80GB", "L40S")


def times_ns(trace: Trace) -> Floats:
    """Return iteration and busy time on each target, [targets, 2]."""
    catalog = load_catalog()
    result = run_analysis(trace, catalog, targets=[find_gpu(catalog, name) for name in TARGETS])
    found = {item.gpu: (item.iteration_ns, item.gpu_busy_ns) for item in report_on(result).predictions}
    return np.array([found[name] for name in TARGETS])


def without_shapes(trace: Trace) -> Trace:
    unknown = np.full_like(trace.ops.signature, -1)
    return replace(without_collectives(trace), signatures=(), ops=replace(trace.ops, signature=unknown))


def without_collectives(trace: Trace) -> Trace:
    return replace(
        trace,
        meta=replace(trace.meta, rank=None, world_size=None),
        collectives=build_table(CollectiveTable, 0),
        groups=build_table(GroupTable, 0),
        members=build_table(MemberTable, 0),
    )


def without_dtypes(trace: Trace, sizes: Trace) -> Trace:
    """Return the trace with what an export tells of its signatures; where that has none, neither has this."""
    keys = {key for key, row in zip(_keys(sizes), sizes.ops.signature.tolist(), strict=True) if row >= 0}
    told = np.array([key in keys for key in _keys(trace)], dtype=bool)
    signatures = tuple(Signature(tuple(_size(item) for item in one.arguments)) for one in trace.signatures)
    return replace(
        without_collectives(trace),
        signatures=signatures,
        ops=replace(trace.ops, signature=np.where(told, trace.ops.signature, -1)),
    )


def _keys(trace: Trace) -> list[tuple[int, int, str]]:
    ops = trace.ops
    names = (trace.strings[name] for name in ops.name.tolist())
    return list(zip(ops.start_ns.tolist(), ops.duration_ns.tolist(), names, strict=True))


def _size(argument: Argument) -> Argument:
    if isinstance(argument, TensorSpec):
        return TensorSpec("unknown", argument.shape) if argument.shape else UNKNOWN
    if isinstance(argument, tuple) and argument and isinstance(argument[0], TensorSpec):
        return tuple(TensorSpec("unknown", item.shape) for item in argument if isinstance(item, TensorSpec))
    return UNKNOWN


def count_dtypes(sizes: Trace, profile: Trace) -> tuple[int, int, int]:
    """Return how many tensors have sizes in the export, how many were given a dtype, and how many the right one.

    Tensors are found by op, and in it by their sizes; of several of the same sizes one has to agree.
    """
    truth = dict(zip(_keys(profile), profile.ops.signature.tolist(), strict=True))
    tensors = told = right = 0
    for key, row in zip(_keys(sizes), sizes.ops.signature.tolist(), strict=True):
        other = truth.get(key, -1)
        if row < 0 or other < 0:
            continue
        known = {(tensor.shape, tensor.dtype) for tensor in profile.signatures[other].tensors()}
        for tensor in sizes.signatures[row].tensors():
            tensors += 1
            told += tensor.dtype != UNTOLD_DTYPE
            right += (tensor.shape, tensor.dtype) in known
    return tensors, told, right


def compare(path: Path, folder: Path) -> tuple[float, float, float, float, tuple[int, int, int]]:
    """Return the largest relative differences and the counts of dtypes.

    Differences of no shapes, of sizes and dtypes told, of sizes from the profile, of no shapes from the profile.
    """
    bare, sized = folder / "bare.sqlite", folder / "sized.sqlite"
    for target, with_shapes in ((bare, False), (sized, True)):
        target.unlink(missing_ok=True)
        convert(orjson.loads(read_bytes(path)), target, with_shapes=with_shapes)
    profile, sizes = load_trace(path), load_trace(sized)
    full, from_sizes, from_bare = (times_ns(trace) for trace in (profile, sizes, load_trace(bare)))
    return (
        _difference(from_bare, times_ns(without_shapes(profile))),
        _difference(from_sizes, times_ns(infer_dtypes(without_dtypes(profile, sizes)))),
        _difference(from_sizes, full),
        _difference(from_bare, full),
        count_dtypes(sizes, profile),
    )


def _difference(found: Floats, expected: Floats) -> float:
    return float(np.max(np.abs(found / expected - 1)))
