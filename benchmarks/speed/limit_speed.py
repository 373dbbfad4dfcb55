"""Measures two large inputs against bars: the import of a 1 GB profiler file, `analyze` of 1 M ops and kernels.

Usage: python -m benchmarks.speed.limit_speed [--megabytes 1000] [--launches 1000000] [--keep FOLDER]

Both are synthetic training iterations without side streams: an op of one of 400 shapes, its launch and its kernel at a
time, on a main thread and autograd's, which take turns. Each command runs in a process of its own; prints its CPU time
(user and system), its peak memory and the bars. Exit status 1 where one is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from wavecast.formats.files.open import save_trace
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Hold what a command may take."""

    cpu_s: float
    peak_bytes: float


IMPORT_BAR: Final = Bar(cpu_s=25.0, peak_bytes=1.5e9)
ANALYZE_BAR: Final = Bar(cpu_s=15.0, peak_bytes=1.0e9)


def signature(shape: int) -> Signature:
    """Return the arguments of an op of shape number `shape`, whose op is `NAMES[shape % 4]`."""

    def tensor(*sizes: int) -> TensorSpec:
        return TensorSpec("bfloat16", sizes)

    rows = 64 + 8 * shape
    if shape % 4 == 0:
        return Signature((tensor(1024), tensor(rows, 512), tensor(512, 1024), 1, 1))
    if shape % 4 == 1:
        return Signature((tensor(rows, 1024), tensor(rows, 1024)))
    if shape % 4 == 2:
        return Signature((tensor(rows, 1024), (1024,), tensor(1024), tensor(1024), 1e-5))
    return Signature((tensor(rows, 1024), "none"))


def build_trace(count: int) -> Trace:
    """Return a trace of `count` ops, calls and kernels."""
    rows = np.arange(count)
    start = rows * STEP_NS
    shape = rows * 7 % SHAPE_COUNT
    is_backward = rows % ITERATION_LAUNCHES >= ITERATION_LAUNCHES // 2
    begin = np.arange(0, count, ITERATION_LAUNCHES)
    step = {"cpu_start_ns": start[begin], "cpu_end_ns": np.append(start[begin[1:]], count * STEP_NS) - 1}
    kernel_start = start + 1_000 + CALL_NS + LATENCY_NS
    finish = np.append(kernel_start[begin[1:] - 1], kernel_start[-1]) + KERNEL_NS
    return Trace(
        meta=Meta(source_format="kineto"),
        devices=(Device(index=0, name=DEVICE, sm_count=108, memory_bytes=80 << 30),),
        strings=(*NAMES, *(f"void kernel_{shape}<float, {shape % 4}>(float const*)" for shape in range(SHAPE_COUNT))),
        signatures=tuple(map(signature, range(SHAPE_COUNT))),
        iterations=build_table(
            IterationTable, len(begin), start_ns=np.append(start[0], finish[:-1]), end_ns=finish, **step
        ),
        ops=build_table(
            OpTable,
            count,
            name=shape % 4,
            signature=shape,
            thread=is_backward,
            start_ns=start,
            duration_ns=np.full(count, 7_000),
            phase=np.where(is_backward, int(Phase.BACKWARD), int(Phase.FORWARD)),
        ),
        calls=build_table(
            CallTable,
            count,
            name=np.full(count, 4),
            thread=is_backward,
            start_ns=start + 1_000,
            duration_ns=np.full(count, CALL_NS),
            op=rows,
        ),
        kernels=build_table(
            KernelTable,
            count,
            name=shape + len(NAMES),
            stream=np.full(count, 7),
            start_ns=kernel_start,
            duration_ns=KERNEL_NS + rows * 31 % 500,
            call=rows,
            op=rows,
            grid=np.stack([shape + 1, rows * 0 + 1, rows * 0 + 1], axis=1),
            block=np.full((count, 3), [128, 1, 1]),
            registers=np.full(count, 64),
            shared_memory_bytes=np.full(count, 16_384),
        ),
    )


def write_profile(path: Path, size_bytes: int) -> int:
    """Write a profiler file of about `size_bytes` and return the number of its events."""
    row, events = 0, 0
    with path.open("w") as stream:
        stream.write(
            f'{{"schemaVersion": 1, "deviceProperties": [{{"id": 0, "name": "{DEVICE}", "totalGlobalMem": 85899345920, '
            '"computeMajor": 8, "computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, '
            '"regsPerMultiprocessor": 65536, "warpSize": 32, "sharedMemPerMultiprocessor": 167936, "numSms": 108}],'
            '\n  "cuda_runtime_version": 12040, "traceEvents": [\n'
        )
        while stream.tell() < size_bytes:
            stream.write("".join(map(profiled_launch, range(row, row + _WRITTEN_AT_ONCE))))
            row, events = row + _WRITTEN_AT_ONCE, events + 5 * _WRITTEN_AT_ONCE
        stream.write(profiled_launch(row).rstrip(",\n") + "\n]}")
    return events + 5


def profiled_launch(row: int) -> str:
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


def run(name: str, arguments: Sequence[str], bar: Bar) -> bool:
    """Run a command, print what it took beside its bar, and say whether it stayed below."""
    with subprocess.Popen([sys.executable, "-m", "wavecast", *arguments], stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s, peak_bytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    print(
        f"{name}: {cpu_s:.1f} s of CPU time (bar {bar.cpu_s:.0f}), {peak_bytes / 1e9:.2f} GB peak "
        f"(bar {bar.peak_bytes / 1e9:.1f}), exit status {process.returncode}",
        flush=True,
    )
    return process.returncode == 0 and cpu_s <= bar.cpu_s and peak_bytes <= bar.peak_bytes


def measure(folder: Path, megabytes: int, launches: int) -> bool:
    """Measure both and say whether all bars are kept."""
    profile, trace = folder / "profile.json", folder / "trace.json"
    kept = True
    if megabytes:
        events = write_profile(profile, megabytes * 1_000_000)
        print(f"profiler file: {profile.stat().st_size / 1e9:.2f} GB, {events:,} events", flush=True)
        kept &= run("import", ["convert", str(profile), str(folder / "imported.json")], IMPORT_BAR)
    if launches:
        save_trace(build_trace(launches), trace)
        print(f"trace: {trace.stat().st_size / 1e6:.0f} MB, {launches:,} ops, calls and kernels each", flush=True)
        kept &= run("analyze", ["analyze", str(trace), "--to", "H100"], ANALYZE_BAR)
    return kept


def main() -> int:
    """Measure what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1_000, help="size of the profiler file; 0: none")
    parser.add_argument("--launches", type=int, default=1_000_000, help="ops, calls and kernels; 0: none")
    parser.add_argument("--keep", type=Path, help="folder to leave the files in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return int(not measure(folder, options.megabytes, options.launches))


if __name__ == "__main__":
    sys.exit(main())
