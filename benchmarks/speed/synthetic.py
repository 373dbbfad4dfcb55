"""Large synthetic inputs: traces of any number of ops, and the profiler files that would hold them.

A training iteration without side streams: an op, its launch and its kernel at a time, on a main thread and autograd's,
which take turns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import CallTable, Device, IterationTable, KernelTable, Meta, OpTable, Phase, Trace

DEVICE: Final = "NVIDIA A100-SXM4-80GB"
NAMES: Final = ("aten::addmm", "aten::mul", "aten::native_layer_norm", "aten::gelu", "cudaLaunchKernel")
SHAPE_COUNT: Final = 400
ITERATION_LAUNCHES: Final = 50_000
"""Launches per iteration; the first half of each runs forward on the main thread, the rest on autograd's."""
STEP_NS, CALL_NS, LATENCY_NS, KERNEL_NS = 9_000, 4_000, 2_500, 8_000
_WRITTEN_AT_ONCE: Final = 2_000
_HEADER: Final = (
    f'{{"schemaVersion": 1, "deviceProperties": [{{"id": 0, "name": "{DEVICE}", "totalGlobalMem": 85899345920, '
    '"computeMajor": 8, "computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, '
    '"regsPerMultiprocessor": 65536, "warpSize": 32, "sharedMemPerMultiprocessor": 167936, "numSms": 108}],'
    '\n  "cuda_runtime_version": 12040, "traceEvents": [\n'
)


def build_trace(count: int, shape_count: int = SHAPE_COUNT) -> Trace:
    """Return a trace of `count` ops, calls and kernels."""
    rows = np.arange(count)
    start, shape = rows * STEP_NS, rows * 7 % shape_count
    is_backward = rows % ITERATION_LAUNCHES >= ITERATION_LAUNCHES // 2
    begin = np.arange(0, count, ITERATION_LAUNCHES)
    step = {"cpu_start_ns": start[begin], "cpu_end_ns": np.append(start[begin[1:]], count * STEP_NS) - 1}
    kernel_start = start + 1_000 + CALL_NS + LATENCY_NS
    finish = np.append(kernel_start[begin[1:] - 1], kernel_start[-1]) + KERNEL_NS
    ops = {"name": shape % 4, "signature": shape, "thread": is_backward, "start_ns": start}
    calls = {"name": np.full(count, 4), "thread": is_backward, "start_ns": start + 1_000, "op": rows}
    kernels = {"name": shape + len(NAMES), "stream": np.full(count, 7), "call": rows, "op": rows}
    return Trace(
        meta=Meta(source_format="kineto"),
        devices=(Device(index=0, name=DEVICE, sm_count=108, memory_bytes=80 << 30),),
        strings=(*NAMES, *(f"void kernel_{shape}<float, {shape % 4}>(float const*)" for shape in range(shape_count))),
        signatures=tuple(map(_signature, range(shape_count))),
        iterations=build_table(
            IterationTable, len(begin), start_ns=np.append(start[0], finish[:-1]), end_ns=finish, **step
        ),
        ops=build_table(
            OpTable,
            count,
            **ops,
            duration_ns=np.full(count, 7_000),
            phase=np.where(is_backward, int(Phase.BACKWARD), int(Phase.FORWARD)),
        ),
        calls=build_table(CallTable, count, **calls, duration_ns=np.full(count, CALL_NS)),
        kernels=build_table(
            KernelTable,
            count,
            **kernels,
            start_ns=kernel_start,
            duration_ns=KERNEL_NS + rows * 31 % 500,
            grid=np.stack([shape + 1, rows * 0 + 1, rows * 0 + 1], axis=1),
            block=np.full((count, 3), [128, 1, 1]),
            registers=np.full(count, 64),
            shared_memory_bytes=np.full(count, 16_384),
        ),
    )


def _signature(shape: int) -> Signature:
    """Return the arguments of an op of shape number `shape`, whose op is `NAMES[shape % 4]`."""

    def tensor(*sizes: int) -> TensorSpec:
        return TensorSpec("bfloat16", sizes)

    rows = 64 + 8 * shape
    return (
        Signature((tensor(1024), tensor(rows, 512), tensor(512, 1024), 1, 1)),
        Signature((tensor(rows, 1024), tensor(rows, 1024))),
        Signature((tensor(rows, 1024), (1024,), tensor(1024), tensor(1024), 1e-5)),
        Signature((tensor(rows, 1024), "none")),
    )[shape % 4]


def write_profile(path: Path, size_bytes: int) -> int:
    """Write a profiler file of about `size_bytes` and return the number of its events."""
    row = 0
    with path.open("w") as stream:
        stream.write(_HEADER)
        while stream.tell() < size_bytes:
            stream.write("".join(map(_profiled_launch, range(row, row + _WRITTEN_AT_ONCE))))
            row += _WRITTEN_AT_ONCE
        stream.write(_profiled_launch(row).rstrip(",\n") + "\n]}")
    return 5 * (row + 1)


def _profiled_launch(row: int) -> str:
    """Return the profiler's events of one launch: op, call, kernel, and the flow between the latter two."""
    shape, start_us = row * 7 % SHAPE_COUNT, row * STEP_NS / 1000 + 1_000_000
    thread = 77 if row % ITERATION_LAUNCHES < ITERATION_LAUNCHES // 2 else 78
    rows, call_us, kernel_us = 64 + 8 * shape, start_us + 1, start_us + 1 + (CALL_NS + LATENCY_NS) / 1000
    return (
        f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 70, "tid": {thread},\n'
        f'    "ts": {start_us:.3f}, "dur": 7.000,\n    "args": {{\n'
        f'      "External id": {row + 1},"Sequence number": {row}, "Fwd thread id": 0, "Record function id": 0, '
        f'"Concrete Inputs": ["", ""], "Input type": ["c10::BFloat16", "c10::BFloat16"], '
        f'"Input Dims": [[{rows}, 1024], [{rows}, 1024]], "Ev Idx": {row}\n    }}\n  }},\n'
        f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 70, "tid": {thread},\n'
        f'    "ts": {call_us:.3f}, "dur": 4.000,\n    "args": {{\n'
        f'      "External id": {row + 1}, "cbid": 211, "correlation": {row + 1}\n    }}\n  }},\n'
        f'  {{\n    "ph": "s", "id": {row + 1}, "pid": 70, "tid": {thread}, "ts": {call_us:.3f},\n'
        f'    "cat": "ac2g", "name": "ac2g"\n  }},\n'
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "void kernel_{shape}<float>(float const*)", '
        f'"pid": 0, "tid": 7,\n'
        f'    "ts": {kernel_us:.3f}, "dur": {8 + row * 31 % 500 / 1000:.3f},\n    "args": {{\n'
        f'      "External id": {row + 1}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
        f'"correlation": {row + 1}, "registers per thread": 64, "shared memory": 16384, "blocks per SM": 1.5, '
        f'"warps per SM": 6.0, "grid": [{shape + 1}, 1, 1], "block": [128, 1, 1], '
        f'"est. achieved occupancy %": 9\n    }}\n  }},\n'
        f'  {{\n    "ph": "f", "id": {row + 1}, "pid": 0, "tid": 7, "ts": {kernel_us:.3f},\n'
        f'    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }},\n'
    )
