"""Makes the entry of a trace: what an archive knows of it without reading it again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from ..trace.column import MISSING, row_count
from ..trace.privacy import hide_private
from ..trace.signature import Signature, TensorSpec
from ..trace.tables import FORMAT_VERSION, Trace
from .entry import Entry
from .provenance import Provenance, format_time

PRECISIONS: Final = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
    "float4_e2m1fn_x2": "fp4",
}
_ARITHMETIC: Final = re.compile(r"mm|matmul|linear|conv|attention|lstm|gru|rnn")
"""In the names of ops that do most of an iteration's arithmetic."""
_MAX_TEXT_LENGTH: Final = 200
_NUMBER: Final = re.compile(r"_\d+\Z")
"""What profilers append to the name of a module's class."""


def describe_entry(
    trace: Trace,
    *,
    trace_id: str,
    sizes: tuple[int, int],
    added: datetime,
    tool: str,
    provenance: Provenance,
) -> Entry:
    """Return the entry of a trace whose packed and unpacked bytes are given."""
    meta, work = trace.meta, trace.meta.workload
    lengths, precision = _sequence_lengths(trace), _main_precision(trace)
    return Entry(
        id=trace_id,
        workload=_short(work.name),
        mode=_short(work.mode),
        model=_short(work.name) or _root_module(trace),
        gpu=_main_device(trace),
        gpu_count=len(trace.devices),
        rank=meta.rank,
        world_size=meta.world_size,
        capture=_short(meta.capture) or "unknown",
        framework=_short(meta.framework),
        recorded=provenance.recorded,
        added=format_time(added),
        batch_size=work.batch_size,
        precision=precision,
        sequence_length=max(lengths, default=None),
        iteration_ns=_iteration_ns(trace),
        iteration_count=row_count(trace.iterations),
        op_count=row_count(trace.ops),
        kernel_count=row_count(trace.kernels),
        packed_bytes=sizes[0],
        unpacked_bytes=sizes[1],
        source_format=_short(meta.source_format) or "unknown",
        source_sha256=provenance.sha256,
        source_name=provenance.name,
        tool=tool,
        format_version=FORMAT_VERSION,
    )


def drop_private(trace: Trace) -> Trace:
    """Return the trace without paths and addresses in its names: files of our format may come from anywhere.

    >>> drop_private(trace) == trace
    True
    """
    meta = trace.meta
    return replace(
        trace,
        strings=tuple(map(hide_private, trace.strings)),
        devices=tuple(replace(device, name=hide_private(device.name)) for device in trace.devices),
        meta=replace(
            meta,
            workload=replace(meta.workload, name=_hide(meta.workload.name), mode=_hide(meta.workload.mode)),
            producer=hide_private(meta.producer),
            source_format=hide_private(meta.source_format),
            capture=hide_private(meta.capture),
            framework=_hide(meta.framework),
            accelerator=_hide(meta.accelerator),
            host=replace(
                meta.host, processor=_hide(meta.host.processor), python_version=_hide(meta.host.python_version)
            ),
        ),
    )


def _hide(text: str | None) -> str | None:
    return None if text is None else hide_private(text)


def _short(text: str | None) -> str | None:
    return text[:_MAX_TEXT_LENGTH] if text else None


def _main_device(trace: Trace) -> str | None:
    """Return the name of the device that ran most kernels, else of the first one."""
    names = {device.index: device.name for device in trace.devices}
    if row_count(trace.kernels):
        indices, counts = np.unique(trace.kernels.device, return_counts=True)
        busiest = int(indices[np.argmax(counts)])
        if names.get(busiest):
            return _short(names[busiest])
    return _short(trace.devices[0].name) if trace.devices else None


def _root_module(trace: Trace) -> str | None:
    """Return the class of the outermost module of most ops, without a profiler's number."""
    rows, counts = np.unique(trace.ops.module[trace.ops.module != MISSING], return_counts=True)
    roots = Counter[str]()
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        roots[_NUMBER.sub("", trace.strings[row].split(".", 1)[0])] += count
    return _short(roots.most_common(1)[0][0]) if roots else None


def _iteration_ns(trace: Trace) -> float | None:
    """Return the median iteration; without iterations, from the first kernel's start to the last one's end."""
    table, kernels = trace.iterations, trace.kernels
    if row_count(table):
        untouched = ~table.profiled.astype(bool)
        chosen = untouched if untouched.any() else np.ones(len(untouched), dtype=bool)
        lengths = (table.end_ns - table.start_ns)[chosen]
        return float(np.median(lengths))
    if row_count(kernels):
        return float((kernels.start_ns + kernels.duration_ns).max() - kernels.start_ns.min())
    return None


def _main_precision(trace: Trace) -> str | None:
    """Return the floating-point type that most elements of arithmetic ops have, else those of all ops."""
    arithmetic, others = Counter[str](), Counter[str]()
    for name, signature, count in _called(trace):
        found = arithmetic if _ARITHMETIC.search(name) else others
        for tensor in signature.tensors():
            if tensor.dtype in PRECISIONS:
                found[PRECISIONS[tensor.dtype]] += count * tensor.element_count
    ranked = (arithmetic or others).most_common(1)
    return ranked[0][0] if ranked else None


def _sequence_lengths(trace: Trace) -> list[int]:
    """Return the tokens per sample that attention sees; where no op says so, those that are looked up."""
    attended, looked_up = list[int](), list[int]()
    for name, signature, _ in _called(trace):
        tensors = [value for value in signature.arguments if isinstance(value, TensorSpec)]
        if name.endswith("scaled_dot_product_attention") and len(tensors) > 1 and len(tensors[1].shape) == 4:
            attended.append(tensors[1].shape[2])
        elif name == "aten::embedding" and len(tensors) > 1 and len(tensors[1].shape) == 2:
            looked_up.append(tensors[1].shape[1])
    return attended or looked_up


def _called(trace: Trace) -> Iterator[tuple[str, Signature, int]]:
    """Yield each distinct call of an op with how often it was made."""
    rows = trace.ops.signature != MISSING
    pairs = np.stack([trace.ops.name[rows], trace.ops.signature[rows]], axis=1)
    calls, counts = np.unique(pairs, axis=0, return_counts=True)
    for (name, signature), count in zip(calls.tolist(), counts.tolist(), strict=True):
        yield trace.strings[name], trace.signatures[signature], count
