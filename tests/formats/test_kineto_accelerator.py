"""Whose recording a file is: of a CPU, of a GPU, or of the host of a device whose kernels are missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.tables import Trace

Event = dict[str, Any]


def span(cat: str, name: str, ts: Any = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 2, "args": args}


def call(name: str, correlation: int = 1, cat: str = "cuda_runtime") -> Event:
    return span(cat, name, correlation=correlation)


def kernel(correlation: int) -> Event:
    return span("kernel", "gemm", 5, device=0, stream=7, correlation=correlation)


def memory(kind: int) -> Event:
    args = {"Device Type": kind, "Device Id": 0, "Bytes": 8, "Addr": 16}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2, "args": args}


def arrow(cat: str) -> Event:
    return {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 2, "cat": cat, "name": cat}


def load(*events: Event, **top: Any) -> Trace:
    return import_kineto(json.dumps({**top, "traceEvents": [span("cpu_op", "aten::mm"), *events]}).encode())


NVIDIA = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
AMD = {"id": 0, "name": "AMD Instinct MI210", "computeMajor": 9, "computeMinor": 0, "warpSize": 64}
NAMELESS_AMD = AMD | {"name": "", "maxSharedMemoryPerMultiProcessor": 65536}

CPU_FILES: dict[str, tuple[list[Event], dict[str, Any]]] = {
    "ops": ([], {}),
    "no device listed": ([], {"deviceProperties": []}),
    "gloo": ([span("user_annotation", "gloo:all_reduce")], {"distributedInfo": {"backend": "gloo", "rank": 3}}),
    "an op that asks for cuDNN": ([span("cpu_op", "aten::cudnn_is_acceptable")], {}),
    "attention of the CPU": ([span("cpu_op", "aten::_scaled_dot_product_flash_attention_for_cpu")], {}),
    "host memory": ([memory(0)], {}),
    "tensors without data": ([memory(14)], {}),
    "a device that is the CPU": ([span("cpu_op", "aten::to", **{"Concrete Inputs": ["", "cpu"]})], {}),
    "arrows of autograd": ([arrow("fwdbwd")], {}),
}


@pytest.mark.parametrize("kind", CPU_FILES)
def test_a_file_that_names_no_device_is_of_a_cpu(kind: str) -> None:
    events, top = CPU_FILES[kind]
    meta = load(*events, **top).meta
    assert (meta.capture, meta.accelerator) == ("cpu", None)


HOST_FILES: dict[str, tuple[list[Event], dict[str, Any], str]] = {
    "NVIDIA listed": ([], {"deviceProperties": [NVIDIA]}, "cuda"),
    "AMD listed": ([], {"deviceProperties": [AMD]}, "hip"),
    "AMD listed without a name": ([], {"deviceProperties": [NAMELESS_AMD]}, "hip"),
    "Intel listed": ([], {"deviceProperties": [{"id": 0, "name": "Intel(R) Data Center GPU Max 1550"}]}, "xpu"),
    "something listed": ([], {"deviceProperties": [{"id": 17, "name": "ARTEMIS", "maxGridHeight": 8}]}, "unknown"),
    "a driver": ([], {"cuda_driver_version": 12080}, "cuda"),
    "AMD's runtime": ([], {"hip_runtime_version": 60443483, "hip_driver_version": 60443483}, "hip"),
    "launches": ([call("cudaLaunchKernel")], {}, "cuda"),
    "launches of the driver": ([call("cuLaunchKernel", cat="cuda_driver")], {}, "cuda"),
    "launches of HIP": ([call("hipLaunchKernel")], {}, "hip"),
    "launches of old": ([call("cudaLaunchKernel", cat="Runtime")], {}, "cuda"),
    "MTIA's calls": ([call("runFunction", cat="mtia_runtime")], {}, "mtia"),
    "MTIA's events": ([call("pe_exe", cat="mtia_ccp_events")], {"deviceProperties": [NVIDIA]}, "mtia"),
    "XPU's calls": ([call("urEnqueueKernelLaunch", cat="xpu_runtime")], {}, "xpu"),
    "Gaudi's ops": ([span("hpu_op", "mm")], {}, "hpu"),
    "calls of who knows": ([call("secretLaunch", cat="secret_runtime")], {}, "unknown"),
    "counters": ([span("cuda_profiler_range", "gemm")], {}, "cuda"),
    "arrows to a device": ([arrow("ac2g")], {}, "gpu"),
    "arrows of old": ([arrow("async_gpu")], {}, "gpu"),
    "NCCL": ([span("user_annotation", "nccl:all_reduce")], {}, "gpu"),
    "NCCL's group": ([], {"distributedInfo": {"backend": "nccl", "rank": 0}}, "gpu"),
    "memory of a GPU": ([memory(1)], {}, "gpu"),
    "memory of a GPU of AMD": ([memory(1)], {"deviceProperties": [AMD]}, "hip"),
    "memory of an XPU": ([memory(12)], {}, "xpu"),
    "memory of an MTIA": ([memory(19)], {}, "mtia"),
    "ops of streams": ([span("cpu_op", "aten::record_stream")], {}, "gpu"),
    "ops of cuDNN": ([span("cpu_op", "aten::cudnn_convolution")], {}, "gpu"),
    "code of inductor": ([span("cpu_op", "triton_poi_fused_relu_0")], {}, "gpu"),
    "a device among inputs": ([span("cpu_op", "aten::to", **{"Concrete Inputs": ["", "cuda:0"]})], {}, "gpu"),
}


@pytest.mark.parametrize("kind", HOST_FILES)
def test_a_device_that_a_file_names_is_never_a_cpu(kind: str) -> None:
    events, top, platform = HOST_FILES[kind]
    meta = load(*events, **top).meta
    assert (meta.capture, meta.accelerator) == ("host", platform)


def test_kernels_make_a_measured_recording() -> None:
    trace = load(call("cudaLaunchKernel"), kernel(1), deviceProperties=[NVIDIA])
    assert (trace.meta.capture, trace.meta.accelerator) == ("measured", "cuda")
    assert trace.quality.launches_without_kernel == 0


def test_launches_without_kernels_are_counted_once() -> None:
    calls = [
        call("cudaLaunchKernel", 1),
        call("cudaLaunchKernel", 2),
        call("cuLaunchKernel", 2, cat="cuda_driver"),
        call("hipGraphLaunch", 3),
        call("cudaLaunchHostFunc", 4),
        call("cudaStreamSynchronize", 5),
    ]
    assert load(*calls, kernel(1)).quality.launches_without_kernel == 2


def test_events_of_devices_in_other_forms_are_counted() -> None:
    unread = [span("mtia_ccp_events", "pe_exe"), span("mtia_ccp_events", "dma"), span("cuda_profiler_range", "gemm")]
    known = [span("mtia_runtime", "run"), span("overhead", "buffers"), span("gpu_user_annotation", "step")]
    assert load(*unread, *known).quality.device_events_unread == 3


def test_a_lost_end_is_counted_beside_what_was_read() -> None:
    data = json.dumps({"traceEvents": [span("cpu_op", "aten::mm", at) for at in range(9)]}).encode()
    cut = data[: len(data) // 2]
    quality = import_kineto(cut, recover=True).quality
    assert quality.bytes_lost > 0
    assert quality.bytes_read + quality.bytes_lost == len(cut)
    assert cut[: quality.bytes_read].endswith(b"}}")
    assert import_kineto(data).quality.bytes_read == 0
