"""Profiler files of Intel's GPUs. No file of one is at hand: this one is MADE, after what Kineto's XPUPTI plugin writes
(libkineto/src/plugin/xpupti/XpuptiActivityHandlers.cpp and XpuptiActivityProfiler.cpp of 2026)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.graph.roles import Role, call_roles
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import KernelKind, SyncKind, Trace
from wavecast.formats.trace.validate import validate

Event = dict[str, Any]
MAX_1550 = {
    "id": 0, "name": "Intel(R) Data Center GPU Max 1550", "totalGlobalMem": 68_719_476_736, "maxComputeUnits": 512,
    "maxWorkGroupSize": 1024, "maxClockFrequency": 1600, "maxMemAllocSize": 68_719_476_736, "localMemSize": 131_072,
    "vendor": "Intel(R) Corporation", "driverVersion": "1.6.31294+20",
}  # fmt: skip


def span(cat: str, name: str, ts: str, dur: str, /, pid: Any = 90, tid: Any = 90, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def on_gpu(cat: str, name: str, ts: str, dur: str, correlation: int, **args: Any) -> Event:
    queue = {
        "appended": "-20.336", "appended_rel_to_start": "-20.336", "submitted": "-18.336", "device": 0,
        "context": "0x000055d08918fc78", "sycl queue": 64, "l0 queue": "0x000055d08b8fc138",
    }  # fmt: skip
    return span(cat, name, ts, dur, pid=0, tid=64, correlation=correlation, **queue, **args)


EVENTS = [
    span("cpu_op", "aten::mm", "100.000", "80.000", **{
        "Input Dims": [[128, 64], [64, 32]], "Input type": ["c10::BFloat16"] * 2, "Concrete Inputs": ["", ""]
    }),
    span("xpu_runtime", "urEnqueueKernelLaunch", "110.000", "30.000", correlation=41),
    span("xpu_driver", "zeCommandListImmediateAppendCommandListsExp", "112.000", "20.000", correlation=41),
    on_gpu("kernel", "gemm_kernel", "150.336", "8.961", 41, kernel_id=1, sycl_node_id=5, sycl_invocation_id=7),
    span("kernel", "metrics: gemm_kernel", "150.335", "8.963", pid=0, tid=64, kernel_id=1, queue="0x1", GpuTime=8961),
    span("cpu_op", "aten::copy_", "200.000", "40.000"),
    span("xpu_runtime", "urEnqueueUSMMemcpy", "205.000", "20.000", correlation=42),
    on_gpu("gpu_memcpy", "Memcpy M2D (Host -> Device)", "230.001", "4.125", 42, bytes=8192, **{"l0 call": "zeCommand"}),
    on_gpu("gpu_memset", "Memset (0 -> Device)", "240.000", "1.500", 43, bytes=512),
    span("xpu_sync", "zeEventHostSynchronize", "250.000", "9.000", pid=-1, correlation=44, Type="HOST_EVENT"),
    span("xpu_sync", "zeCommandListAppendBarrier", "260.000", "1.000", pid=-1, correlation=45,
         Type="GPU_BARRIER_EXECUTION"),
    span("xpu_runtime", "urEventWait", "249.000", "11.000", correlation=44),
]  # fmt: skip


def load(events: list[Event] | None = None, devices: list[Event] | None = None) -> Trace:
    document = {"deviceProperties": [MAX_1550] if devices is None else devices, "traceEvents": events or EVENTS}
    trace = import_kineto(json.dumps(document).encode())
    validate(trace)
    return trace


def test_kernels_copies_and_calls_are_read_and_linked() -> None:
    trace = load()
    assert decode(encode(trace)) == trace
    assert (trace.meta.capture, trace.meta.accelerator) == ("measured", "xpu")
    kinds = [KernelKind.KERNEL, KernelKind.MEMCPY, KernelKind.MEMSET]
    assert trace.kernels.kind.tolist() == kinds
    assert trace.kernels.start_ns.tolist() == [50_336, 130_001, 140_000]
    assert trace.kernels.duration_ns.tolist() == [8_961, 4_125, 1_500]
    assert trace.kernels.stream.tolist() == [64, 64, 64]
    assert trace.kernels.size_bytes.tolist() == [-1, 8192, 512]
    calls = [trace.strings[trace.calls.name[row]] if row >= 0 else "" for row in trace.kernels.call.tolist()]
    assert calls == ["urEnqueueKernelLaunch", "urEnqueueUSMMemcpy", ""]
    ops = [trace.strings[trace.ops.name[row]] if row >= 0 else "" for row in trace.kernels.op.tolist()]
    assert ops == ["aten::mm", "aten::copy_", ""]


def test_counters_beside_a_kernel_are_no_second_kernel_and_counted() -> None:
    assert load().quality.device_events_unread == 1


def test_the_device_is_described_as_far_as_the_file_tells() -> None:
    (device,) = load().devices
    assert (device.name, device.memory_bytes) == ("Intel(R) Data Center GPU Max 1550", 68_719_476_736)
    assert (device.max_threads_per_block, device.shared_memory_per_block_bytes) == (1024, 131_072)
    assert device.sm_count is None
    assert load(devices=[]).devices == ()


def test_waits_of_the_host() -> None:
    trace = load()
    assert trace.syncs.kind.tolist() == [SyncKind.EVENT]
    assert trace.strings[trace.calls.name[trace.syncs.call[0]]] == "urEventWait"
    assert trace.quality.events_dropped == 0
    names = (
        "urQueueFinish",
        "urEventWait",
        "urEventWaitWithBarrier",
        "zeFenceHostSynchronize",
        "urEnqueueKernelLaunch",
    )
    roles = call_roles(names, np.arange(5, dtype=np.int32)).tolist()
    assert roles == [Role.SYNC_STREAM, Role.SYNC_EVENT, Role.NONE, Role.SYNC_STREAM, Role.NONE]


@pytest.mark.parametrize("queue", [None, -1, 2**31 - 1, 2**70, "64"])
def test_queues_of_any_kind(queue: Any) -> None:
    kernel = EVENTS[3] | {"args": EVENTS[3]["args"] | {"sycl queue": queue}}
    expected = 64 if queue == "64" else -1
    assert load([*EVENTS[:3], kernel]).kernels.stream.tolist() == [expected]
