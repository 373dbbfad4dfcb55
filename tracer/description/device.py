"""Describes the local framework and GPUs, and where a trace comes from: facts, nothing about the user."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...errors import InputError
from ...formats.trace.meta import OWN_FORMAT
from ...formats.trace.privacy import hide_private
from ...formats.trace.tables import Device, Meta, Phase, Precision, Trace, Workload
from ...formats.trace.version import __version__

_HOST = -1
"""The host's number among devices."""
_HZ_PER_KHZ = 1e3
_HZ_PER_MHZ = 1e6
_W_PER_MW = 1e-3
_TF32 = "tf32"


def device_number(device: torch.device) -> int:
    """Return what the trace calls a device: its index, -1 for the host."""
    return _HOST if device.type == "cpu" else device.index or 0


def describe_framework() -> str:
    """Return e.g. `torch 2.13.0`, without the build's local suffix."""
    return f"torch {str(torch.__version__).partition('+')[0]}"


def describe_precision(autocast_dtype: str | None) -> Precision:
    """Return the switches that decide which kernels run, as they stand now, and the autocast dtype of the step."""
    return Precision(
        matmul_tf32=_matmul_allows_tf32(),
        cudnn_tf32=_cudnn_allows_tf32(),
        autocast_dtype=autocast_dtype,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic,
    )


def describe_device(index: int) -> Device:
    """Return what torch reports about a CUDA or HIP device, with clocks and power limit where readable."""
    found = torch.cuda.get_device_properties(index)
    gfx_name = getattr(found, "gcnArchName", "").partition(":")[0]
    is_amd = torch.version.hip is not None
    clocks = _read_clocks(found)
    return Device(
        index=index,
        name=hide_private(found.name),
        compute_capability=gfx_name if is_amd and gfx_name else f"{found.major}.{found.minor}",
        sm_count=found.multi_processor_count,
        memory_bytes=found.total_memory,
        warp_size=_positive(found, "warp_size"),
        max_threads_per_block=_positive(found, "max_threads_per_block"),
        max_threads_per_sm=_positive(found, "max_threads_per_multi_processor"),
        registers_per_sm=_positive(found, "regs_per_multiprocessor"),
        shared_memory_per_sm_bytes=_positive(found, "shared_memory_per_multiprocessor"),
        shared_memory_per_block_bytes=_positive(found, "shared_memory_per_block_optin")
        or _positive(found, "shared_memory_per_block"),
        **clocks,
    )


def describe_versions(meta: Meta) -> Meta:
    """Return `meta` with the versions of CUDA or HIP, driver, cuDNN and NCCL; what is unknown here stays as it was."""
    return replace(
        meta,
        cuda_version=torch.version.cuda or meta.cuda_version,
        hip_version=torch.version.hip or meta.hip_version,
        driver_version=_driver_version() or meta.driver_version,
        cudnn_version=_cudnn_version() or meta.cudnn_version,
        nccl_version=_nccl_version() or meta.nccl_version,
    )


def _matmul_allows_tf32() -> bool:
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch refuses the old switches once the new ones (`fp32_precision`) say something else
        products: Any = torch.backends.cuda.matmul
        return bool(products.fp32_precision == _TF32)


def _cudnn_allows_tf32() -> bool | None:
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        switches: Any = torch.backends.cudnn
        convolution, recurrent = switches.conv.fp32_precision, switches.rnn.fp32_precision
        return bool(convolution == _TF32) if convolution == recurrent else None  # the trace holds one switch for both


def _cudnn_version() -> str | None:
    number = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    if number is None or torch.version.hip is not None:
        return None
    # cuDNN 9 counts its major version in ten thousands, cuDNN 8 and before in thousands.
    major_unit = 10_000 if number >= 90_000 else 1_000
    return f"{number // major_unit}.{number % major_unit // 100}.{number % 100}"


def _nccl_version() -> str | None:
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _positive(found: Any, name: str) -> int | None:
    """Return an attribute that older torch releases lack or report as 0."""
    value = getattr(found, name, None)
    return int(value) if value else None


def _read_clocks(found: Any) -> dict[str, float | None]:
    """Return maximum clocks and the enforced power limit under the record's names; NVML's word before torch's."""
    clock_khz, memory_khz = _positive(found, "clock_rate"), _positive(found, "memory_clock_rate")
    clocks: dict[str, float | None] = {
        "sm_clock_hz": clock_khz * _HZ_PER_KHZ if clock_khz else None,
        "memory_clock_hz": memory_khz * _HZ_PER_KHZ if memory_khz else None,
        "power_limit_w": None,
    }
    uuid = getattr(found, "uuid", None)
    with _nvml() as nvml:
        if nvml is not None and uuid is not None:
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            clocks["power_limit_w"] = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * _W_PER_MW
            clocks["sm_clock_hz"] = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * _HZ_PER_MHZ
            clocks["memory_clock_hz"] = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * _HZ_PER_MHZ
    return clocks


def _driver_version() -> str | None:
    if torch.version.hip is None:
        with _nvml() as nvml:
            if nvml is not None:
                version = nvml.nvmlSystemGetDriverVersion()
                return version.decode() if isinstance(version, bytes) else str(version)
    return None


@contextmanager
def _nvml() -> Iterator[Any]:
    """Yield the NVML bindings where the user has them; what virtual GPUs and containers refuse is not read."""
    nvml: Any = None
    with suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old package of that name warns that it was renamed
        import pynvml

        nvml = pynvml
    try:
        if nvml is not None:
            nvml.nvmlInit()
    except nvml.NVMLError:
        nvml = None
    if nvml is None:
        yield None
        return
    with suppress(nvml.NVMLError):
        try:
            yield nvml
        finally:
            nvml.nvmlShutdown()


MODES = ("training", "inference")


def check_workload(workload: Workload) -> None:
    """Raise InputError where a workload's mode or counts are not possible."""
    if workload.mode is not None and workload.mode not in MODES:
        raise InputError(f"mode: expected one of {', '.join(MODES)}, got {workload.mode!r}")
    for name in ("batch_size", "samples_per_iteration"):
        count = getattr(workload, name)
        if count is not None and count < 1:
            raise InputError(f"{name}: expected 1 or more, got {count}")


def mode_of(trace: Trace) -> str:
    """Return `training` where the trace holds a backward pass or an optimizer, else `inference`."""
    is_training = np.isin(trace.ops.phase, (Phase.BACKWARD, Phase.OPTIMIZER)).any()
    return MODES[0] if is_training else MODES[1]


def describe_trace(trace: Trace, device_type: str, workload: Workload) -> Trace:
    """Return the trace with what is known here of who recorded it, on what software, and the workload.

    `device_type` is torch's, or `host` where a GPU was used whose kernels are not in the trace.
    """
    capture = {"cuda": "measured", "host": "host", "cpu": "cpu", "meta": "shapes"}[device_type]
    meta = replace(
        trace.meta,
        producer=f"wavecast {__version__}",
        source_format=OWN_FORMAT,
        capture=capture,
        accelerator=trace.meta.accelerator if device_type == "host" else None,
        framework=describe_framework(),
        has_shapes=trace.meta.has_shapes or device_type == "meta",
        workload=replace(workload, name=None if workload.name is None else hide_private(workload.name)),
    )
    if device_type == "cuda":
        meta = describe_versions(meta)
    if device_type == "meta":
        meta = replace(meta, precision=describe_precision(meta.precision.autocast_dtype))
    return replace(trace, meta=meta)
