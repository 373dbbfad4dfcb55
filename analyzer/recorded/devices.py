"""The catalogue's entries of the devices that a trace was recorded on."""

from typing import Final

from ...errors import InputError, UnknownGpuError, parameter
from ...formats.trace.tables import Device, Trace
from ...specs.gpu import Catalog, Gpu
from ...specs.match import find_fitting, find_gpus, is_generic_name, match_device, plain_name
from .window import Window

_GIB: Final = 1 << 30


def gpu_of_device(catalog: Catalog, device: Device) -> Gpu | None:
    """Return the entry of a device; None where none, or more than one, fits.

    One whose name tells nothing is known by its SM count, memory and compute capability.

    >>> gpu_of_device(catalog, measured.devices[0]).name
    'A100 SXM4 80GB'
    """
    return match_device(
        catalog,
        device.name,
        sm_count=device.sm_count,
        memory_bytes=device.memory_bytes,
        compute_capability=device.compute_capability,
    )


def names_of_gpu(asked: str) -> tuple[str, ...]:
    """Return what devices may be called of the GPUs that a name means in the shipped catalogue; empty for none.

    >>> "NVIDIA H100 80GB HBM3" in names_of_gpu("h100sxm"), names_of_gpu("h900")
    (True, ())
    """
    from ...specs.catalog import load_catalog

    try:
        found = find_gpus(load_catalog(), asked, suggest=False)
    except InputError:
        return ()
    return tuple(name for gpu in found for name in (gpu.name, *gpu.aliases))


def first_known_gpu(catalog: Catalog, trace: Trace) -> Gpu | None:
    """Return the entry of the trace's first device that has one: enough where any GPU will do.

    >>> first_known_gpu(catalog, measured).name
    'A100 SXM4 80GB'
    """
    found = (gpu_of_device(catalog, device) for device in trace.devices)
    return next((gpu for gpu in found if gpu is not None), None)


def source_gpu(trace: Trace, catalog: Catalog, window: Window, option: str = "from") -> Gpu:
    """Return the catalogue's entry of the GPU that was measured; `option` is the parameter that could name it.

    Raises UnknownGpuError where there is none.

    >>> source_gpu(measured, catalog, recorded.window).name
    'A100 SXM4 80GB'
    """
    device = _device_of(trace, window)
    if device is None:
        lost = ", which may be lost with the file's end" if trace.quality.bytes_lost else ""
        raise UnknownGpuError(
            f"the trace does not say which GPU it was recorded on{lost}: name it with {parameter(option)}"
        )
    gpu = gpu_of_device(catalog, device)
    if gpu is None:
        raise UnknownGpuError(_explain_unknown(catalog, device, option))
    return gpu


def explain_identity(trace: Trace, catalog: Catalog, window: Window) -> str | None:
    """Say by what the GPU that was measured is known where its name tells nothing; None where it tells.

    >>> explain_identity(measured, catalog, recorded.window) is None
    True
    """
    device = _device_of(trace, window)
    if device is None or not is_generic_name(device.name):
        return None
    gpu = gpu_of_device(catalog, device)
    if gpu is None or plain_name(device.name) in map(plain_name, (gpu.name, *gpu.aliases)):
        return None
    return (
        f"the recording does not name its GPU ({device.name!r}): it is taken for {gpu.name}, the only one of the "
        f"catalogue with {_describe(device)} (another: {parameter('from')})"
    )


def _device_of(trace: Trace, window: Window) -> Device | None:
    return next((item for item in trace.devices if item.index == window.device), None)


def _explain_unknown(catalog: Catalog, device: Device, option: str) -> str:
    """Say why no entry is the device's, and what to name instead."""
    if not is_generic_name(device.name):
        return (
            f"the trace was recorded on {device.name!r}, which the catalogue does not hold: name the closest entry "
            f"with {parameter(option)}, or describe it in a file with {parameter('gpu_file')}"
        )
    fitting = find_fitting(
        catalog,
        sm_count=device.sm_count,
        memory_bytes=device.memory_bytes,
        compute_capability=device.compute_capability,
    )
    found = f"the trace does not name its GPU ({device.name!r}: {_describe(device) or 'nothing else is known of it'})"
    if fitting:
        return (
            f"{found}, which may be {' or '.join(gpu.name for gpu in fitting)}: name the one with {parameter(option)}"
        )
    return (
        f"{found}, which no entry of the catalogue fits: name the closest with {parameter(option)}, or describe it in "
        f"a file with {parameter('gpu_file')}"
    )


def _describe(device: Device) -> str:
    """Say what a device is known by beside its name."""
    parts = [
        f"{device.sm_count:,} SMs" if device.sm_count else None,
        f"{device.memory_bytes / _GIB:.0f} GiB" if device.memory_bytes else None,
        f"capability {device.compute_capability}" if device.compute_capability else None,
    ]
    return ", ".join(part for part in parts if part)
