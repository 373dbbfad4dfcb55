"""A rank that computed on its host's cores, put like one on a GPU: its ops and collectives as what a device ran."""

from dataclasses import replace

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ...formats.trace.collectives import NAMESPACES
from ...formats.trace.column import MISSING, build_table, row_count
from ...formats.trace.tables import KernelKind, KernelTable, Trace

OP_STREAM, COLLECTIVE_STREAM = 0, 1
"""Streams of the device that stands for the host: its threads' ops, and what the backend's own threads run."""


def is_host_rank(trace: Trace) -> bool:
    """Say whether a rank's collectives were run by threads of its host, as gloo does, and nothing ran on a GPU.

    >>> is_host_rank(measured)
    False
    """
    return not trace.is_measured and bool((trace.collectives.host_duration_ns >= 0).any())


def as_device(trace: Trace) -> Trace:
    """Return a rank of `is_host_rank` with its outermost ops and its collectives as kernels of one device.

    Ops that only issue a collective or wait for one are left out.
    """
    ops, table = trace.ops, trace.collectives
    outer = np.flatnonzero((ops.parent == MISSING) & (ops.duration_ns >= 0) & ~communicates(trace))
    timed = np.flatnonzero(table.host_duration_ns >= 0)
    start = np.concatenate((ops.start_ns[outer], table.host_start_ns[timed]))
    order = np.argsort(start, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    kind = np.repeat([KernelKind.KERNEL, KernelKind.COLLECTIVE], [len(outer), len(timed)])
    kernel = np.full(row_count(table), MISSING, dtype=np.int64)
    kernel[timed] = place[len(outer) :]
    kernels = build_table(
        KernelTable,
        len(order),
        name=np.concatenate((ops.name[outer], table.name[timed]))[order],
        kind=kind[order],
        stream=np.where(kind == KernelKind.COLLECTIVE, COLLECTIVE_STREAM, OP_STREAM)[order],
        start_ns=start[order],
        duration_ns=np.concatenate((ops.duration_ns[outer], table.host_duration_ns[timed]))[order],
        op=np.concatenate((outer, table.op[timed]))[order],
    )
    return replace(trace, kernels=kernels, collectives=replace(table, kernel=kernel))


def communicates(trace: Trace) -> Mask:
    """Say which ops are a process group's own: they issue collectives or wait for them, [n].

    >>> communicates(measured).any()
    np.False_
    """
    names = np.array([text.startswith(NAMESPACES) for text in trace.strings], dtype=bool)
    return np.asarray(at_rows(names, trace.ops.name, False))


def issuing_threads(trace: Trace) -> Rows:
    """Return the threads whose ops issue collectives.

    >>> issuing_threads(measured)
    array([], dtype=int32)
    """
    return np.unique(trace.ops.thread[trace.collectives.op[trace.collectives.op >= 0]])
