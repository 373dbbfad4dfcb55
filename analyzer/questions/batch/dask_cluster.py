"""Workers of a Dask cluster: one that is started here, or one that listens somewhere.

Workers read the traces themselves, from the paths that the batch found, and hand their parts back: traces must lie
where all of them see them, results need not. Every worker must have this very wavecast.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Final

from ....errors import InputError, parameter
from .inputs import BatchInput
from .processes import Delivery, Work, deliver
from .question import installed_identity

LOCAL: Final = "local"
_PATIENCE_S: Final = 10
"""For a scheduler to answer, and to have a worker."""
_IN_FLIGHT_PER_THREAD: Final = 3
"""So that no worker waits, and no more results lie about than are written."""


def check_dask() -> None:
    """Raise InputError where Dask is not installed."""
    _distributed()


def answer_on_dask(work: Work, items: Sequence[BatchInput], scheduler: str, count: int) -> Iterator[Delivery]:
    """Yield what `work` makes of each item, as it is done, on the cluster of a scheduler.

    `scheduler` is its address, or `local` for one of `count` processes here. What `work` raises, and workers that die,
    fail their item. Raises InputError where there is no such cluster, it has no workers, or one of another wavecast.
    """
    distributed = _distributed()
    waiting = list(reversed(items))
    with _client(distributed, scheduler, count) as client:
        threads = sum(client.nthreads().values())
        by_key: dict[str, BatchInput] = {}

        def submit() -> Any:
            item = waiting.pop()
            future = client.submit(deliver, work, item, pure=False, retries=0)
            by_key[future.key] = item
            return future

        first = [submit() for _ in range(min(len(waiting), threads * _IN_FLIGHT_PER_THREAD))]
        done = distributed.as_completed(first, loop=client.loop, with_results=True, raise_errors=False)
        for future, result in done:
            item = by_key.pop(future.key)
            if waiting:
                done.add(submit())
            yield _delivery(item, future, result)


def _delivery(item: BatchInput, future: Any, result: Any) -> Delivery:
    if future.status == "finished":
        if isinstance(result, InputError):
            raise result
        if isinstance(result, bytes):
            return Delivery(item=item, data=result)
        return Delivery(item=item, failure=str(result))
    error = result[1] if isinstance(result, tuple) else result
    if type(error).__name__ == "KilledWorker":
        return Delivery(item=item, failure="its worker ended (out of memory?)")
    return Delivery(item=item, failure=f"{type(error).__name__}: {' '.join(str(error).split())}")


@contextmanager
def _client(distributed: Any, scheduler: str, count: int) -> Iterator[Any]:
    """Yield a client of the cluster, whose workers are known to be fit."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        if scheduler == LOCAL:
            stack.enter_context(import_module("dask").config.set({"distributed.scheduler.allowed-failures": 0}))
            target = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
                )
            )
        else:
            target = scheduler
        try:
            client = stack.enter_context(distributed.Client(target, timeout=_PATIENCE_S, set_as_default=False))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{parameter('scheduler', scheduler)}: no Dask scheduler answers there ({error})"
            ) from None
        _check_workers(client, scheduler)
        yield client


def _check_workers(client: Any, scheduler: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_PATIENCE_S)
    except TimeoutError:
        raise InputError(
            f"{parameter('scheduler', scheduler)}: it has no workers; start one with 'dask worker'"
        ) from None
    try:
        found = client.run(installed_identity)
    except Exception as error:  # noqa: BLE001 (whatever the worker raises)
        raise InputError(
            f"{parameter('scheduler', scheduler)}: a worker cannot import wavecast {installed_identity()}: {error}"
        ) from None
    others = {worker: identity for worker, identity in found.items() if identity != installed_identity()}
    if others:
        worker, identity = min(others.items())
        raise InputError(
            f"{parameter('scheduler', scheduler)}: {worker} has wavecast {identity}, here is {installed_identity()}: "
            "install the same version on all"
        )


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError:
        raise InputError(f"{parameter('scheduler')} needs Dask: pip install 'wavecast[dask]'") from None
