"""Checks CUDA-graph annotations on real iterations: a profile whose kernels are made to hang on one graph launch.

Once the graph is alone in the file, once the iteration as it was recorded stands before it, as warm-up does.

Each kernel of a public profile with module events is moved under a single `cudaGraphLaunch` and annotated with its
module's path, as torch 2.15 would write it. Printed: how much of the graph's GPU time is explained and how much of it
with inputs, so that it is re-timed (at least 95 % where warm-up is there), whether the GPU-busy time is kept to the
nanosecond, and the predicted GPU time beside that of the file as it was recorded.

Run: python -m benchmarks.check.graph_annotations DATA [GPU]    (DATA: the folder of profiler files)
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from wavecast.analyzer.iteration.analyze import analyze_trace
from wavecast.analyzer.prediction.capture_join import join_captures
from wavecast.analyzer.recorded.overview import describe_trace
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.column import row_count
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

FILES = ("h100_bert_small_inference", "h100_vit_small_inference", "v100_dlrm_training_rank0", "b200_eager_inference")
LEAST_SHAPED_RATIO = 0.95
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


def main() -> int:
    """Print two lines per file; return 1 where too little is re-timed."""
    folder, gpu = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "a100-sxm4-80gb"
    catalog = load_catalog()
    target = find_gpu(catalog, gpu)
    least = 1.0
    for name in FILES:
        path = next(folder.glob(f"{name}*.json.gz"))
        data = gzip.decompress(path.read_bytes())
        plain = import_kineto(data)
        before, expected = describe_trace(plain), busy_ns(plain, target)
        for words, made in (("alone", annotate(data, plain)), ("after warm-up", after_warm_up(data, plain))):
            graph = join_captures(import_kineto(made), {})
            last = replace(graph, meta=replace(graph.meta, iteration=row_count(graph.iterations) - 1))
            overview = describe_trace(last)
            total = overview.graph_gpu_ns
            shaped = overview.graph_shaped_ns / total
            least = min(least, shaped) if words == "after warm-up" else least
            print(
                f"{name}, {words}: {overview.graph_kernel_count} kernels from a graph, "
                f"{overview.graph_explained_ns / total:.1%} of their GPU time explained, {shaped:.1%} with inputs; "
                f"GPU busy {before.gpu_busy_ns} and {overview.gpu_busy_ns} ns; on {target.name} "
                f"{busy_ns(last, target) / expected - 1:+.1%} GPU time against the file with shapes"
            )
    return int(least < LEAST_SHAPED_RATIO)


def busy_ns(trace: Trace, target: Gpu) -> float:
    """Return the predicted GPU-busy time on a GPU."""
    report = analyze_trace(trace, load_catalog(), targets=[target])
    return next(row.gpu_busy_ns for row in report.predictions if row.gpu == target.name)


def after_warm_up(data: bytes, plain: Trace) -> bytes:
    """Return the file with its iteration as recorded, and the same again from an annotated graph."""
    document = json.loads(data)
    graph = json.loads(annotate(data, plain))["traceEvents"]
    spans = [event for event in document["traceEvents"] if event.get("ph") == "X" and float(event.get("dur", 0)) < 1e9]
    begin = min(float(event["ts"]) for event in spans)
    shift = max(float(event["ts"]) + float(event["dur"]) for event in spans) - begin + 1000.0
    main = next(event for event in spans if event.get("cat") in ("cpu_op", "Operator"))
    kept = [event for event in graph if event.get("cat") in (*GPU_CATEGORIES, "cuda_runtime", "cuda_driver")]
    for event in kept:
        event["ts"] = float(event["ts"]) + shift
        event["args"]["correlation"] += 10_000_000
        event["args"].pop("External id", None)
        event["tid"] = main["tid"] if event["name"] == "cudaGraphLaunch" else event["tid"]
    steps = [event for event in document["traceEvents"] if str(event.get("name")).startswith("ProfilerStep#")]
    rest = [event for event in document["traceEvents"] if event not in steps]
    whole = main | {"cat": "user_annotation", "args": {}, "ts": begin, "dur": shift - 1000.0}
    first, second = (whole | {"name": f"ProfilerStep#{number}"} for number in (1, 2))
    document["traceEvents"] = [*rest, first, second | {"ts": begin + shift}, *kept]
    return json.dumps(document).encode()


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
    sys.exit(main())
