"""Reads what a profiler file says about its devices, software and place in a group."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ..trace.privacy import hide_private
from ..trace.tables import Device
from .events import DeviceProperties, Header

_VERSION: Final = re.compile(r"\d+(?:\.\d+){0,3}")


def read_devices(header: Header, used: Sequence[int]) -> tuple[Device, ...]:
    """Return the devices that ran kernels, or the first one listed.

    A file may list the one visible device as number 0 while kernels carry its physical number: then that one is meant.
    """
    listed = header.devices or []
    found = [_device(item, item.index) for item in listed if item.index in used]
    if found or not listed:
        return tuple(found)
    return (_device(listed[0], used[0] if len(used) == 1 else listed[0].index),)


def _device(item: DeviceProperties, index: int) -> Device:
    capability = None
    if item.compute_major is not None and item.compute_minor is not None:
        capability = f"{item.compute_major}.{item.compute_minor}"
    return Device(
        index=index,
        name=hide_private(item.name),
        compute_capability=capability,
        sm_count=item.sm_count,
        memory_bytes=item.memory_bytes,
        warp_size=item.warp_size,
        max_threads_per_block=item.max_threads_per_block or item.max_work_group_size,
        max_threads_per_sm=item.max_threads_per_sm,
        registers_per_sm=item.registers_per_sm or item.registers_per_block,
        shared_memory_per_sm_bytes=item.shared_memory_per_sm or item.shared_memory_per_cu,
        shared_memory_per_block_bytes=(
            item.shared_memory_per_block_optin or item.shared_memory_per_block or item.local_memory
        ),
    )


def cuda_version(number: int | None) -> str | None:
    """Return `12.4` for 12040, as CUDA numbers its runtime and driver."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def hip_version(number: int | None) -> str | None:
    """Return `6.4` for 60443483, as HIP numbers itself (major · 10⁷ + minor · 10⁵ + patch)."""
    return None if number is None else f"{number // 10_000_000}.{number % 10_000_000 // 100_000}"


def plain_version(text: str | None) -> str | None:
    """Return `text` if it is nothing but a version number."""
    return text if text is not None and _VERSION.fullmatch(text) else None
