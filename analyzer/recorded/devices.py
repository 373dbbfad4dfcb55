"""The catalogue's entries of the devices that a trace was recorded on."""

from __future__ import annotations

from ...errors import UnknownGpuError
from ...formats.trace import Device, Trace
from ...specs.gpu import Catalog, Gpu
from ...specs.match import match_device
from .window import Window


def gpu_of_device(catalog: Catalog, device: Device) -> Gpu | None:
    """Return the entry of a device; None where none, or more than one, fits.

    >>> gpu_of_device(catalog, measured.devices[0]).name
    'A100 SXM4 80GB'
    """
    return match_device(catalog, device.name, sm_count=device.sm_count, memory_bytes=device.memory_bytes)


def first_known_gpu(catalog: Catalog, trace: Trace) -> Gpu | None:
    """Return the entry of the trace's first device that has one: enough where any GPU will do.

    >>> first_known_gpu(catalog, measured).name
    'A100 SXM4 80GB'
    """
    found = (gpu_of_device(catalog, device) for device in trace.devices)
    return next((gpu for gpu in found if gpu is not None), None)


def source_gpu(trace: Trace, catalog: Catalog, window: Window) -> Gpu:
    """Return the catalogue's entry of the GPU that was measured. Raises UnknownGpuError where there is none.

    >>> from wavecast.analyzer.recorded.window import select_window
    >>> source_gpu(measured, catalog, select_window(measured)).name
    'A100 SXM4 80GB'
    """
    device = next((item for item in trace.devices if item.index == window.device), None)
    if device is None:
        raise UnknownGpuError("the trace does not say which GPU it was recorded on: name it with --from")
    gpu = gpu_of_device(catalog, device)
    if gpu is None:
        raise UnknownGpuError(
            f"the trace was recorded on {device.name!r}, which the catalogue does not hold: "
            "name the closest entry with --from, or describe it in a file with --gpu-file"
        )
    return gpu
