"""The catalogue's entries of the devices that a trace was recorded on."""

from __future__ import annotations

from ...formats.trace import Device, Trace
from ...specs.gpu import Catalog, Gpu
from ...specs.match import match_device


def gpu_of_device(catalog: Catalog, device: Device) -> Gpu | None:
    """Return the entry of a device; None where none, or more than one, fits."""
    return match_device(catalog, device.name, sm_count=device.sm_count, memory_bytes=device.memory_bytes)


def first_known_gpu(catalog: Catalog, trace: Trace) -> Gpu | None:
    """Return the entry of the trace's first device that has one: enough where any GPU will do."""
    found = (gpu_of_device(catalog, device) for device in trace.devices)
    return next((gpu for gpu in found if gpu is not None), None)
