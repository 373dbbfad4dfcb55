"""`wavecast.record`: one call records a step, or a loop as it is. Importing this needs no torch; calling it does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ..errors import CaptureError

if TYPE_CHECKING:
    import torch

    from ..formats.trace.tables import Trace
    from .measured.recorder import Recorder


@overload
def record(
    step: Callable[[], object],
    *,
    warmup: int = 3,
    repeats: int = 5,
    device: str | torch.device | None = None,
    name: str | None = None,
    mode: str | None = None,
    batch_size: int | None = None,
    samples_per_iteration: int | None = None,
    host_times: bool = True,
) -> Trace: ...


@overload
def record(
    step: str | Path,
    *,
    iterations: tuple[int, int] = (10, 15),
    name: str | None = None,
    mode: str | None = None,
    iteration_ends: str | None = None,
    batch_size: int | None = None,
    samples_per_iteration: int | None = None,
    host_times: bool = True,
) -> AbstractContextManager[Recorder]: ...


def record(step: Callable[[], object] | str | Path, **options: Any) -> Trace | AbstractContextManager[Recorder]:
    """Record one iteration that `step` runs, and return its trace; or, given a file, the loop inside `with`.

    A function without arguments is run warmup + repeats + 2 times, really: weights are updated. `device` is `cuda` (the
    default where there is one), `cpu`, or `meta` for shapes alone (docs/reference/recording.md). Given a file's name,
    this is a context manager around a loop that stays as it is: `iterations` of it, the first and the one after the
    last, go to that file. `name`, `mode`, `batch_size` and `samples_per_iteration` describe the workload.
    Afterwards the host is timed for a third of a second, once per process, unless `host_times` is False.
    Raises CaptureError where torch is missing or no recording can be made, and InputError for bad arguments.

    >>> import torch
    >>> layer, x = torch.nn.Linear(64, 32, device="meta"), torch.ones(8, 64, device="meta")
    >>> record(lambda: layer(x), device="meta", name="linear")
    <Trace 'linear', shapes: 2 ops, 0 kernels, 0 iterations>
    """
    try:
        from .host_times.measure import add_host_times
        from .measured.recording import record as record_loop
        from .session import trace_iteration
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise CaptureError("recording needs torch: pip install 'wavecast[tracer]'") from None
    if isinstance(step, str | Path):
        return record_loop(step, **options)
    has_host_times = options.pop("host_times", True)
    trace = trace_iteration(step, **options)
    return add_host_times(trace) if has_host_times else trace
