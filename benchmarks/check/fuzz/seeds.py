"""Small valid files of every kind that a command reads; the fuzzer changes them.

They are made here or taken from the samples, so that a run needs no other data. The profile holds one of everything
that an importer looks at: two iterations, forward, backward and an optimizer on two threads, copies, fills, a
collective, waits between streams, allocator events, a graph launch.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SAMPLES = ("dcgan-inference-fp32-b64-shapes", "seq2seq-inference-bf16-b64-shapes", "dlrm-training-fp32-b2048-shapes")
HIDDEN = 256
BATCH = 16
ITERATION_US = 4_000
TABLE_ROWS = 12

Event = dict[str, Any]


class Kind(Enum):
    """Say what a seed is, and so which commands read it."""

    PROFILE = "profile"
    TRACE = "trace"
    GPUS = "gpus"
    TABLE = "table"
    CONFIG = "config"
    HOST = "host"
    RECOMMENDER = "recommender"
    OTHER = "other"
    """Of another profiler."""
    SETTINGS = "settings"
    BATCH = "batch"
    ARCHIVE = "archive"
    """A folder of which one file is changed."""


@dataclass(frozen=True, slots=True)
class Seed:
    """Hold a valid input; `name` is what a command expects the file to be called."""

    kind: Kind
    name: str
    data: bytes
    words: tuple[tuple[str, ...], ...] = ()
    """Command lines that read it, one of which is drawn; none: those of its kind."""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """Other files of its folder, that are not changed."""
    named: str = ""
    """The file that a command names, where it is one of those beside it."""
    answers: Mapping[str, bytes] = field(default_factory=dict)
    """Files that a command writes whatever was changed: damage is found and its work done again, or it refuses."""


def build_seeds() -> tuple[Seed, ...]:
    """Return all seeds, in a fixed order."""
    from wavecast.formats.files.open import load_trace

    profile = write_profile()
    folder = Path(_scratch())
    source = folder / "profile.json"
    source.write_bytes(profile)
    seeds = [
        Seed(Kind.PROFILE, "profile.json", profile),
        Seed(Kind.PROFILE, "list.json", json.dumps(json.loads(profile)["traceEvents"]).encode()),
        Seed(Kind.TRACE, "measured.json", _trace_bytes(load_trace(source), folder)),
    ]
    for name in SAMPLES:
        packed = (ROOT / "samples" / f"{name}.json.gz").read_bytes()
        seeds.append(Seed(Kind.TRACE, f"{name}.json", gzip.decompress(packed)))
    seeds.append(Seed(Kind.TRACE, "counted.json", _trace_bytes(_counted(folder), folder)))
    seeds.append(Seed(Kind.TRACE, "hosted.json", _trace_bytes(_with_host(load_trace(source)), folder)))
    seeds.append(Seed(Kind.HOST, "host.json", json.dumps(HOST_FILE).encode()))
    seeds.append(Seed(Kind.RECOMMENDER, "recommender.toml", (ROOT / "samples" / "dlrm-dcnv2.toml").read_bytes()))
    seeds += [Seed(Kind.GPUS, "gpus.toml", text.encode()) for text in GPU_FILES]
    seeds += [Seed(Kind.TABLE, name, write_table(columns)) for name, columns in TABLES.items()]
    seeds.append(Seed(Kind.CONFIG, "config.json", json.dumps(CONFIG).encode()))
    from .other_seeds import build_other_seeds

    return (*seeds, *build_other_seeds(folder))


def _scratch() -> str:
    import tempfile

    return tempfile.mkdtemp(prefix="wavecast-fuzz-seeds-")


def _trace_bytes(trace: Any, folder: Path) -> bytes:
    from wavecast.formats.files.open import save_trace

    path = folder / "trace.json"
    save_trace(trace, path)
    return path.read_bytes()


def _with_host(trace: Any) -> Any:
    """Return a trace that says how fast its host was."""
    from dataclasses import replace

    from wavecast.formats.trace.meta import HostTimes

    return replace(trace, meta=replace(trace.meta, host=HostTimes(**HOST_FILE["host"])))


def _counted(folder: Path) -> Any:
    """Return a recording of lookups whose rows were counted."""
    from dataclasses import replace

    import numpy as np
    from wavecast.formats.files.open import load_trace
    from wavecast.formats.trace.column import build_table
    from wavecast.formats.trace.tables import LookupTable

    path = folder / "shapes.json"
    path.write_bytes(gzip.decompress((ROOT / "samples" / f"{SAMPLES[-1]}.json.gz").read_bytes()))
    trace = load_trace(path)
    names = [trace.strings[name] for name in trace.ops.name.tolist()]
    ops = np.flatnonzero([name == "aten::_embedding_bag" for name in names])
    classes = {"least_count": [1, 4], "distinct_rows": [200, 20], "lookup_count": [200, 100]}
    columns = {name: np.tile(np.array(values, dtype=np.int64), len(ops)) for name, values in classes.items()}
    table = build_table(LookupTable, 2 * len(ops), op=np.repeat(ops, 2).astype(np.int32), **columns)
    return _with_host(replace(trace, lookups=table))


def write_profile(gpu: str = "NVIDIA A100-SXM4-80GB", iterations: int = 2) -> bytes:
    """Return a training run of two layers on a GPU, as torch.profiler writes it; times in µs."""
    events = [event for number in range(iterations) for event in _iteration(number, number * ITERATION_US)]
    header = {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                **{"id": 0, "name": gpu, "totalGlobalMem": 85_051_572_224},
                **{
                    "computeMajor": 8,
                    "computeMinor": 0,
                    "numSms": 132 if "H100" in gpu else 108,
                    "warpSize": 32,
                    "maxThreadsPerBlock": 1024,
                },
                **{
                    "numSms": 132 if "H100" in gpu else 108,
                    "maxThreadsPerMultiprocessor": 2048,
                    "regsPerMultiprocessor": 65_536,
                },
                **{"sharedMemPerBlock": 49_152, "sharedMemPerMultiprocessor": 167_936},
            }
        ],
        "cuda_runtime_version": 12080,
        "record_shapes": 1,
        "profile_memory": 1,
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    return json.dumps({**header, "traceEvents": events}).encode()


def _event(cat: str, name: str, ts: float, dur: float, tid: int, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def _op(name: str, ts: float, dur: float, tid: int, shapes: Sequence[Sequence[int]], **args: Any) -> Event:
    types = {"Input Dims": shapes, "Input type": ["float"] * len(shapes), "Concrete Inputs": [""] * len(shapes)}
    return _event("cpu_op", name, ts, dur, tid, **types, **args)


def _launch(ts: float, tid: int, correlation: int, at: float, lasting: float, kernel: str, **args: Any) -> list[Event]:
    where = {"device": 0, "context": 1, "stream": 7, "correlation": correlation, **args}
    shape = {"grid": [8, 4, 1], "block": [256, 1, 1], "registers per thread": 122, "shared memory": 32_768}
    return [
        _event("cuda_runtime", "cudaLaunchKernel", ts, 5, tid, correlation=correlation),
        _event("kernel", kernel, at, lasting, where["stream"], **{**where, **shape}),
    ]


def _iteration(number: int, start: float) -> Iterator[Event]:
    key = number * 100
    yield _event("user_annotation", f"ProfilerStep#{number}", start, ITERATION_US - 10, 1)
    yield _event("cuda_runtime", "cudaMemcpyAsync", start + 20, 8, 1, correlation=key + 1)
    copied = {"device": 0, "stream": 7, "correlation": key + 1, "bytes": 4 * BATCH * HIDDEN}
    yield _event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start + 30, 9, 7, **copied)
    weight = [HIDDEN, HIDDEN]
    for layer in range(2):
        at = start + 100 + 200 * layer
        linear = [[BATCH, HIDDEN], weight, [HIDDEN]]
        yield _op("aten::linear", at, 90, 1, linear, **{"Sequence number": key + layer, "Fwd thread id": 0})
        yield _op("aten::addmm", at + 5, 70, 1, [[HIDDEN], [BATCH, HIDDEN], weight])
        yield from _launch(at + 20, 1, key + 10 + layer, at + 27, 60, "ampere_sgemm_128x64_tn")
        yield _op("aten::relu", at + 95, 60, 1, [[BATCH, HIDDEN]], **{"Sequence number": key + 10 + layer})
        relu = "void at::native::vectorized_elementwise_kernel<4, at::native::launch_clamp_scalar>(int, float)"
        yield from _launch(at + 110, 1, key + 20 + layer, at + 117, 8, relu)
        memory = {"Device Type": 1, "Device Id": 0, "Addr": 4096 * (layer + 1), "Bytes": 16_384}
        totals = {"Total Allocated": 1_000_000 + 16_384 * layer, "Total Reserved": 2_097_152}
        yield {
            **{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1},
            **{"ts": at + 98, "args": {**memory, **totals}},
        }
    for layer in range(2):
        at = start + 800 + 200 * layer
        backward = {"Sequence number": key + 1 - layer, "Fwd thread id": 1}
        yield _op("AddmmBackward0", at, 150, 2, [[BATCH, HIDDEN]], **backward)
        yield _op("aten::mm", at + 10, 60, 2, [[HIDDEN, BATCH], [BATCH, HIDDEN]])
        yield from _launch(at + 30, 2, key + 30 + layer, at + 37, 55, "ampere_sgemm_128x64_nt")
    yield from _reduce(key, start + 1300)
    yield _event("cuda_runtime", "cudaGraphLaunch", start + 1800, 20, 1, correlation=key + 50)
    for node in range(2):
        where = {"device": 0, "stream": 7, "correlation": key + 50, "grid": [4, 1, 1], "block": [128, 1, 1]}
        yield _event("kernel", f"graph_kernel_{node}", start + 1826 + 32 * node, 30, 7, **where)
    yield _event("user_annotation", "Optimizer.step#SGD.step", start + 2000, 200, 1)
    yield _op("aten::_foreach_add_", start + 2010, 120, 1, [[], []])
    update = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<2> >(int)"
    yield from _launch(start + 2040, 1, key + 60, start + 2047, 20, update)
    yield _event("cuda_runtime", "cudaDeviceSynchronize", start + 2300, 300, 1, correlation=key + 70)


def _reduce(key: int, at: float) -> Iterator[Event]:
    """A collective on a stream of its own, waited for by an event."""
    count = HIDDEN * HIDDEN
    group = {"Collective name": "allreduce", "In msg nelems": count, "Out msg nelems": count, "dtype": "Float"}
    sizes = {"Group size": 2, "Process Group Name": "0", "Process Group Description": "default_pg"}
    yield _op("record_param_comms", at, 90, 2, [[count]], **group, **sizes)
    yield from _launch(at + 10, 2, key + 40, at + 17, 120, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20)
    yield _event("cuda_runtime", "cudaEventRecord", at + 30, 3, 2, correlation=key + 41)
    yield _event("cuda_runtime", "cudaStreamWaitEvent", at + 40, 3, 2, correlation=key + 42)
    waited = {"wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": key + 41, "wait_on_cuda_event_id": 1}
    where = {"stream": 7, "correlation": key + 42, "device": 0, "cuda_sync_kind": "Stream Wait Event"}
    yield _event("cuda_sync", "Stream Wait Event", at + 41, 0, 7, **where, **waited)


GPU_FILES = (
    """[[gpu]]
name = "Mine"
based_on = "H100 SXM5 80GB"
aliases = ["mine mine"]
memory = { bandwidth_gb_per_s = 6704 }
""",
    """[[gpu]]
name = "Wide"
based_on = "L40S"
clocks = { sm_count = 200, boost_mhz = 2000 }
power = { tdp_w = 500 }

[[gpu]]
name = "Own"
chip = "AD107"
compute_capability = "8.9"
clocks = { sm_count = 24, base_mhz = 1830, boost_mhz = 2460 }
memory = { size_gib = 8, type = "GDDR6", bus_bits = 128, pin_gbit_per_s = 17, bandwidth_gb_per_s = 272 }
l2 = { size_mib = 24 }
vector = { fp64_tflops = 0.2362, fp32_tflops = 15.11, fp16_tflops = 15.11 }
matrix = { fp16_flop_per_clock_per_sm = 512, tf32_tflops = 15.11, fp16_tflops = 30.23, bf16_tflops = 30.23 }
links = { pcie_generation = 4, pcie_lanes = 8 }
power = { tdp_w = 115 }
""",
)

_GPUS = ["A100 SXM4 40GB", "L4", "H100 SXM5 80GB", "T4"] * (TABLE_ROWS // 4)
_SIZES = [256 * (row + 1) for row in range(TABLE_ROWS)]
_EDGES = [28 + row for row in range(TABLE_ROWS)]
_TIMES = [20.0 + 3 * row for row in range(TABLE_ROWS)]


def _columns(**values: Any) -> dict[str, list[Any]]:
    """Return columns; one value stands for a column that holds nothing else."""
    return {name: value if isinstance(value, list) else [value] * TABLE_ROWS for name, value in values.items()}


def _measured(**values: Any) -> dict[str, list[Any]]:
    """Return the columns of measured ops, those that all such tables have before the others."""
    shared = {"gpu": _GPUS, "latency_us": _TIMES, "suspect": False, "timing": "graph", "source": "fuzz", "kernel": ""}
    return _columns(**shared, **values)


def _among(*values: str) -> list[str]:
    return list(values) * (TABLE_ROWS // len(values))


TABLES: dict[str, Mapping[str, Sequence[Any]]] = {
    "ops/matmul.parquet": _measured(
        op="mm", dtype=_among("bf16", "fp16", "fp32"), batch=1, m=_SIZES, n=_SIZES, k=_SIZES
    ),
    "ops/attention.parquet": _measured(
        **{"phase": _among("context", "generation", "encoder"), "dtype": "bf16", "kv_dtype": "bf16", "batch": 4},
        **{"heads": 32, "kv_heads": 8, "head_dim": 128, "seq_q": _SIZES, "seq_kv": _SIZES, "window": 0},
    ),
    "ops/convolution.parquet": _measured(
        **{"batch": 8, "c_in": 64, "c_out": 128, "kernel_size": 3, "input_size": _EDGES, "output_size": _EDGES},
        **{"stride": 1, "padding": 1, "dtype": "fp32", "algorithm": "", "kernels": ""},
    ),
    "ops/vector.parquet": _measured(
        **{"op": _among("add", "softmax", "layer_norm"), "dtype": "fp32", "rows": _SIZES, "cols": _SIZES},
        **{"bytes_read": [8 * size * size for size in _SIZES], "bytes_written": [4 * size * size for size in _SIZES]},
    ),
    "models/throughput.parquet": _columns(
        **{"gpu": _GPUS, "model": "resnet50", "task": "image", "mode": _among("training", "inference")},
        **{"precision": "fp32", "precision_label": "fp32", "compile": False, "channels_last": False, "n_gpus": 1},
        **{"batch_per_gpu": 32, "image_size": 224, "seq_len": 0, "samples_per_s": _TIMES, "params_m": 25.56},
        **{"iter_ms": _TIMES, "software": "", "system": "", "parallel": "", "trust": "high", "note": ""},
        **{"source": "fuzz", "n_repeats": 1},
    ),
}
"""Table -> columns: a few rows of each table that `score` and `--calibration` read."""

HOST_FILE: dict[str, Any] = {
    **{"format": "wavecast.host", "version": "1.0", "producer": "wavecast 0.1.0", "date": "2026-11-23"},
    "host": {
        **{"python_version": "3.11", "processor": "AMD EPYC", "python_ns": 5280.0, "dispatch_ns": 1110.0},
        **{"autograd_ns": 3240.0, "module_ns": 540.0, "optimizer_ns": 17_690.0, "allocation_ns": 540.0},
        **{"launch_ns": 4000.0, "spread": 0.07},
    },
}
CONFIG = {
    **{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 128, "n_positions": 64},
    **{"n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1, "torch_dtype": "float32"},
}


def write_table(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Return a parquet table."""
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(columns)), buffer)
    return buffer.getvalue()
