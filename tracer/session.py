"""The recording session: one call records one iteration, whatever the device, and leaves nothing behind."""

from collections.abc import Callable
from dataclasses import replace

import torch

from ..errors import CaptureError, InputError
from ..formats.trace.tables import Trace, Workload
from .description.device import check_workload, describe_trace, mode_of
from .hooks.patches import only_recording


def trace_iteration(
    step: Callable[[], object],
    *,
    warmup: int = 3,
    repeats: int = 5,
    device: str | torch.device | None = None,
    name: str | None = None,
    mode: str | None = None,
    batch_size: int | None = None,
    samples_per_iteration: int | None = None,
) -> Trace:
    """Record one iteration: `step` is called without arguments and runs exactly one.

    `device` is `cuda` (the default where there is one), `cpu`, or `meta` for shapes alone. Every run is real:
    weights are updated and random numbers drawn, warmup + repeats + 2 times (at most twice on meta).
    `name`, `mode`, `batch_size` and `samples_per_iteration` describe the workload; a `mode` that is not
    given is read off the recorded ops. Exceptions of `step` pass through unchanged.
    Raises InputError for bad arguments and CaptureError when no recording can be made.

    >>> import torch
    >>> layer, x = torch.nn.Linear(64, 32, device="meta"), torch.ones(8, 64, device="meta")
    >>> recorded = trace_iteration(lambda: layer(x), device="meta")
    >>> [recorded.strings[name] for name in recorded.ops.name]
    ['aten::t', 'aten::addmm']
    """
    if not callable(step):
        raise InputError(f"step: expected a function without arguments that runs one iteration, got {step!r}")
    for counted, value in (("warmup", warmup), ("repeats", repeats)):
        if value < 0:
            raise InputError(f"{counted}: expected 0 or more, got {value}")
    workload = Workload(name=name, mode=mode, batch_size=batch_size, samples_per_iteration=samples_per_iteration)
    check_workload(workload)
    target = _resolve_device(device)
    with only_recording():
        if target.type == "meta":
            from .meta.recorder import record_shapes

            trace = record_shapes(step, warmup=warmup)
        else:
            from .measured.profiled import record_profiled

            trace = record_profiled(step, device=target, warmup=warmup, repeats=repeats)
    return describe_trace(trace, target.type, replace(workload, mode=mode or mode_of(trace)))


def _resolve_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device: expected cuda, cuda:N, cpu or meta, got {device!r}") from error
    if target.type not in ("cuda", "cpu", "meta"):
        raise InputError(f"device: expected cuda, cuda:N, cpu or meta, got {str(device)!r}")
    if target.type == "cuda":
        if not torch.cuda.is_available():
            raise CaptureError("no CUDA device is available here: record shapes with device='meta', or on a GPU")
        if (target.index or 0) >= torch.cuda.device_count():
            raise CaptureError(f"{target} does not exist: this process sees {torch.cuda.device_count()} CUDA devices")
    return target
