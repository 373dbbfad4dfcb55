"""Times the prediction of 5,000 distinct ops on every catalogued GPU, after loading.

Usage: python -m benchmarks.speed.predict_speed [--ops 5000] [--repeats 7]

The ops are a mix of matrix products, additions, softmaxes and layer norms, no two with equal shapes, each with one
kernel: the worst case, since equal ops are predicted once. Prints the CPU time of `analyze_trace`, least and median.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from wavecast.analyzer.iteration.analyze import analyze_trace
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import CallTable, Device, IterationTable, KernelTable, OpTable, Trace
from wavecast.specs.catalog import load_catalog

NAMES = ("aten::mm", "aten::add", "aten::_softmax", "aten::native_layer_norm", "cudaLaunchKernel", "kernel")


def signature(row: int) -> Signature:
    def tensor(*shape: int) -> TensorSpec:
        return TensorSpec("bfloat16", shape)

    size = 64 + row
    if row % 4 == 0:
        return Signature((tensor(size, 512), tensor(512, 1024)))
    if row % 4 == 1:
        return Signature((tensor(size, 1024), tensor(size, 1024), 1))
    if row % 4 == 2:
        return Signature((tensor(size, 1024), -1, False))
    return Signature((tensor(size, 1024), (1024,), tensor(1024), tensor(1024), 1e-5))


def build_trace(count: int) -> Trace:
    rows = np.arange(count)
    return Trace(
        devices=(Device(index=0, name="NVIDIA H100 80GB HBM3", sm_count=132),),
        strings=NAMES,
        signatures=tuple(signature(row) for row in range(count)),
        iterations=build_table(
            IterationTable, 1, start_ns=[0], end_ns=[count * 10_000], cpu_start_ns=[0], cpu_end_ns=[count * 10_000]
        ),
        ops=build_table(
            OpTable, count, name=rows % 4, signature=rows, start_ns=rows * 10_000, duration_ns=rows * 0 + 9
        ),
        calls=build_table(
            CallTable, count, name=rows * 0 + 4, start_ns=rows * 10_000 + 1, duration_ns=rows * 0 + 5, op=rows
        ),
        kernels=build_table(
            KernelTable,
            count,
            name=rows * 0 + 5,
            start_ns=rows * 10_000,
            duration_ns=rows * 0 + 8_000,
            call=rows,
            op=rows,
            grid=np.stack([rows + 1, rows * 0 + 1, rows * 0 + 1], axis=1),
            block=np.full((count, 3), [128, 1, 1]),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    catalog, trace = load_catalog(), build_trace(options.ops)
    seconds = []
    for _ in range(options.repeats):
        begin = time.process_time()
        report = analyze_trace(trace, catalog)
        seconds.append(time.process_time() - begin)
    print(
        f"{options.ops} ops on {len(report.predictions)} GPUs: least {min(seconds) * 1e3:.0f} ms, "
        f"median {float(np.median(seconds)) * 1e3:.0f} ms of CPU time"
    )


if __name__ == "__main__":
    main()
