"""Checks CUDA-graph annotations on real iterations: a profile whose kernels are made to hang on one graph launch.

Each kernel of a public profile with module events is moved under a single `cudaGraphLaunch` and annotated with its
module's path, as torch 2.15 would write it. Printed: how much of the graph's GPU time is explained, whether the
GPU-busy time is kept to the nanosecond, and the predicted GPU time beside that of the file as it was recorded.

Run: python -m benchmarks.check.graph_annotations DATA [GPU]    (DATA: the folder of profiler files)
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from wavecast.analyzer.analysis.analyze import analyze_trace
from wavecast.analyzer.recorded.overview import describe_trace
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

FILES = ("h100_bert_small_inference", "h100_vit_small_inference")
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


def main() -> None:
    """Print a line per file."""
    folder, gpu = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "a100-sxm4-80gb"
    catalog = load_catalog()
    target = find_gpu(catalog, gpu)
    for name in FILES:
        path = next(folder.glob(f"{name}*.json.gz"))
        data = gzip.decompress(path.read_bytes())
        plain = import_kineto(data)
        graph = import_kineto(annotate(data, plain))
        overview, before = describe_trace(graph), describe_trace(plain)
        busy = []
        for trace in (plain, graph):
            report = analyze_trace(trace, catalog, targets=[target])
            busy.append(next(row.gpu_busy_ns for row in report.predictions if row.gpu == target.name))
        share = overview.graph_explained_ns / overview.graph_gpu_ns
        print(
            f"{name}: {overview.graph_kernel_count} kernels from a graph, {share:.1%} of their GPU time explained; "
            f"GPU busy {before.gpu_busy_ns} and {overview.gpu_busy_ns} ns; on {target.name} "
            f"{busy[1] / busy[0] - 1:+.1%} GPU time against the file with shapes"
        )


def annotate(data: bytes, plain: Trace) -> bytes:
    """Return the file with its kernels in one graph, annotated with their modules where these are known."""
    document = json.loads(data)
    events = [event for event in document["traceEvents"] if event.get("cat") not in ("ac2g", "cuda_sync")]
    kernels = [event for event in events if event.get("cat") in GPU_CATEGORIES]
    modules = modules_of(plain)
    first = min(kernels, key=lambda event: float(event["ts"]))
    call = next(
        event
        for event in events
        if event.get("cat", "").startswith("cuda_") and event["args"].get("correlation") == first["args"]["correlation"]
    )
    call |= {"name": "cudaGraphLaunch", "tid": 0}  # on a thread of its own: in no op
    kernels.sort(key=lambda event: float(event["ts"]))
    for node, event in enumerate(kernels):
        args: dict[str, Any] = event["args"]
        args["correlation"] = call["args"]["correlation"]
        args |= {"graph id": 3, "graph node id": (3 << 32) + node, "module_fqn": modules[node]}
    kept = (call["args"]["correlation"],)
    calls = ("cuda_runtime", "cuda_driver")
    document["traceEvents"] = [
        event for event in events if event.get("cat") not in calls or event["args"].get("correlation") in kept
    ]
    return json.dumps(document).encode()


def modules_of(trace: Trace) -> list[str]:
    """Return the module of each kernel in order of start, `other` where it has none."""
    return [
        trace.strings[trace.ops.module[op]] if op >= 0 and trace.ops.module[op] >= 0 else "other"
        for op in trace.kernels.op.tolist()
    ]


if __name__ == "__main__":
    main()
