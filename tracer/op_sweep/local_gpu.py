"""Names the local GPU, its state, and the formats that it computes in."""

from __future__ import annotations

import subprocess
from typing import Final

import torch

from ...errors import InputError, UnknownGpuError, parameter
from ...specs.generations import generation_at
from ...specs.gpu import Catalog
from ...specs.match import find_gpu, find_gpus, match_device

CLOCKS: Final = ("driver_version", "clocks.max.sm", "clocks.max.memory", "clocks.sm", "clocks.memory", "power.limit")


def name_gpu(catalog: Catalog, device: str, name: str | None, option: str = "--gpu") -> str:
    """Return the catalogue's name of the GPU that is measured, the driver's where the catalogue does not hold it.

    `name` overrides what the driver says. Raises InputError where no GPU is known, and where the driver shows only a
    part of one.
    """
    if name is not None:
        return find_gpu(catalog, name).name
    if device == "cpu":
        raise InputError(f"a CPU is no GPU of the catalogue: say with {option} which one the rows shall be of")
    if not torch.cuda.is_available():
        raise InputError(f"no CUDA GPU here: pass {parameter('device', 'cpu')} to try the sweep out")
    found = torch.cuda.get_device_properties(0)
    gpu = match_device(catalog, found.name, sm_count=found.multi_processor_count, memory_bytes=int(found.total_memory))
    if gpu is not None:
        return gpu.name
    if is_catalogued(catalog, found.name):
        raise InputError(
            f"{found.name!r} with {found.multi_processor_count} SMs and {found.total_memory / 1e9:.0f} GB is no GPU of "
            f"the catalogue, perhaps a part of one: pass {option}"
        )
    return str(found.name)


def is_catalogued(catalog: Catalog, name: str) -> bool:
    """Say whether a name means at least one GPU."""
    try:
        return bool(find_gpus(catalog, name))
    except UnknownGpuError:
        return False


def has_tf32(device: str) -> bool:
    """Say whether TF32 is another unit than fp32: switched on elsewhere, PyTorch ignores it."""
    if device == "cpu" or torch.version.hip is not None:
        return device == "cpu"
    major, minor = torch.cuda.get_device_capability(0)
    return generation_at(f"{major}.{minor}").has_tf32


def default_dtypes(device: str) -> list[str]:
    """Return the formats worth measuring: before there were matrix units for bf16, fp16 instead."""
    if has_tf32(device):
        return ["fp32", "tf32", "bf16"]
    return ["fp32", "fp16"] if torch.version.hip is None else ["fp32", "bf16"]


def read_gpu_state() -> dict[str, str]:
    """Return driver, clocks (MHz) and power limit (W) as nvidia-smi tells them; nothing where it does not."""
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    index = "0" if uuid is None else f"GPU-{uuid}"
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits", "-i", index]
    try:
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in text.strip().split(",")]
    return dict(zip(CLOCKS, values, strict=True)) if len(values) == len(CLOCKS) else {}
