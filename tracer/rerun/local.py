"""The device that ops are re-run on: which one, in which state, and whether it still works."""

import platform
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from ...errors import InputError, parameter
from ...formats.measured.rerun import LocalDevice
from ...formats.trace.tables import Device, Precision
from ..description.device import describe_device, describe_precision


def find_device(name: str | None) -> LocalDevice:
    """Return the device that a name means: `cuda`, `cuda:N` or `cpu`; without one, the GPU if there is one.

    Raises InputError for a device that is not here.
    """
    device = _choose_device(name)
    if device.type == "cuda":
        return LocalDevice(torch_name=str(device), device=describe_device(device.index), is_gpu=True)
    found = Device(name=platform.processor() or platform.machine() or "CPU")
    return LocalDevice(torch_name="cpu", device=found, is_gpu=False)


def _choose_device(name: str | None) -> torch.device:
    has_gpu = torch.cuda.is_available()
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"{parameter('device', name)}: expected cuda, cuda:N or cpu") from None
    if device.type not in ("cuda", "cpu"):
        raise InputError(f"{parameter('device', name)}: expected cuda, cuda:N or cpu")
    if device.type == "cpu":
        return torch.device("cpu")
    if not has_gpu:
        raise InputError(
            f"{parameter('device', name)}: torch {torch.__version__} sees no GPU here; {parameter('device', 'cpu')} "
            "runs on the CPU"
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise InputError(f"{parameter('device', name)}: this machine has {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)


@contextmanager
def undisturbed(device: torch.device, precision: Precision) -> Iterator[None]:
    """Run without autograd, in the recorded precision; leave random numbers and switches as they were."""
    with ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            stack.enter_context(_precision(precision))
            stack.callback(torch.cuda.empty_cache)
        devices = [device.index] if device.type == "cuda" else []
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of operands that no model would use so
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.no_grad())
        yield


@contextmanager
def _precision(precision: Precision) -> Iterator[None]:
    """Set the TF32 switches as they were recorded; unknown ones stay."""
    matmul, before = torch.get_float32_matmul_precision(), describe_precision(None)
    cudnn_before, cudnn_wanted = before.cudnn_tf32, precision.cudnn_tf32
    if precision.matmul_tf32 not in (None, before.matmul_tf32):
        torch.set_float32_matmul_precision("high" if precision.matmul_tf32 else "highest")
    if cudnn_wanted is not None and cudnn_before is not None:
        torch.backends.cudnn.allow_tf32 = cudnn_wanted
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        if cudnn_wanted is not None and cudnn_before is not None:
            torch.backends.cudnn.allow_tf32 = cudnn_before
