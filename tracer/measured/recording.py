"""Recording in code: a context manager around a loop as it is, and a handler for torch's own profiler."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import profile

from ...errors import InputError
from ...formats.files.open import save_trace
from ...formats.trace.tables import Workload
from ..description.device import check_workload
from .files import check_output, import_profiler, rank_path
from .recorder import DEFAULT_ITERATIONS, Plan, Recorder


@contextmanager
def record(
    path: str | Path,
    *,
    iterations: tuple[int, int] = DEFAULT_ITERATIONS,
    name: str | None = None,
    mode: str | None = None,
    iteration_ends: str | None = None,
    batch_size: int | None = None,
    samples_per_iteration: int | None = None,
    host_times: bool = True,
) -> Iterator[Recorder]:
    """Record some iterations of the loop inside, which stays as it is, and write them to `path`.

    `iterations` are the first one to capture and the one after the last, numbered from 0. In training an iteration
    ends with the optimizer's step, in inference with the outermost module's forward; `mode` (`training` or
    `inference`) says which where both occur. `iteration_ends="backward"` lets one end with each backward pass, for
    training that steps no torch optimizer. Iterations before and after are timed without the profiler. When that is
    done the host is timed for a third of a second, unless `host_times` is False.
    With several ranks each writes its own file, its rank before the ending of the name.
    Raises InputError or OutputError before the loop starts. What fails later is a RuntimeWarning, and `error` of the
    recorder; the loop goes on.

    >>> import torch, wavecast
    >>> layer = torch.nn.Linear(64, 32)
    >>> with record(folder / "steps.json.gz", iterations=(2, 4), mode="inference"):
    ...     outputs = [layer(torch.ones(8, 64)) for _ in range(5)]
    >>> wavecast.load_trace(folder / "steps.json.gz").iterations.profiled.sum().item()
    2
    """
    if len(iterations) != 2:
        raise InputError(f"iterations: expected the first one and the one after the last, got {iterations!r}")
    workload = Workload(name=name, mode=mode, batch_size=batch_size, samples_per_iteration=samples_per_iteration)
    plan = Plan(first=iterations[0], end=iterations[1], ends=iteration_ends, workload=workload, host_times=host_times)
    recorder = Recorder(path, plan)
    with recorder:
        yield recorder
    if recorder.error is not None:
        warnings.warn(f"wavecast: {recorder.error}", RuntimeWarning, stacklevel=3)


def trace_handler(
    path: str | Path,
    *,
    name: str | None = None,
    mode: str | None = None,
    batch_size: int | None = None,
    samples_per_iteration: int | None = None,
) -> Callable[[profile], None]:
    """Return an `on_trace_ready` for torch.profiler that writes our trace to `path`; a later cycle replaces it.

    The profiler needs `record_shapes=True`. torch exports a recording once: this handler takes the place of another.
    Raises InputError or OutputError; what fails when the recording is ready is a RuntimeWarning.

    >>> import torch, wavecast
    >>> handler = trace_handler(folder / "step.json.gz", name="linear")
    >>> with torch.profiler.profile(record_shapes=True, on_trace_ready=handler):
    ...     outputs = torch.nn.Linear(64, 32)(torch.ones(8, 64))
    >>> wavecast.load_trace(folder / "step.json.gz").meta.workload.name
    'linear'
    """
    target = check_output(path)
    workload = Workload(name=name, mode=mode, batch_size=batch_size, samples_per_iteration=samples_per_iteration)
    check_workload(workload)

    def save(finished: profile) -> None:
        try:
            trace = import_profiler(finished, workload, None)
            save_trace(trace, rank_path(target))
        except Exception as error:  # noqa: BLE001 - raising here would end the user's training
            warnings.warn(f"wavecast: nothing was recorded: {error}", RuntimeWarning, stacklevel=2)
            return
        if not trace.meta.has_shapes:
            message = f"wavecast: {target.name} holds no shapes, which predictions need: pass record_shapes=True"
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    return save
