"""Lets a script be one of many processes, alone, while its shapes are recorded: torch's fake group stands for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.parallel import DataParallel

from ..hooks.patches import patched
from .launcher import launched_on_demand
from .mail import objects_handed_on
from .objects import objects_kept
from .place import RankPlace
from .refused import sharding_refused


@contextmanager
def fake_ranks(place: RankPlace, on_gpus: Callable[[], None]) -> Iterator[None]:
    """Let every process group be torch's fake one, which exchanges nothing, and data-parallel modules run alone.

    `on_gpus` is called where a group of several GPUs begins.
    """
    with ExitStack() as entered:
        entered.enter_context(patched(DataParallel, "forward", _run))
        entered.enter_context(sharding_refused())
        entered.enter_context(_fake_groups(place, entered.enter_context(launched_on_demand(place)), on_gpus))
        yield


@contextmanager
def _fake_groups(place: RankPlace, launch: Callable[[], None], on_gpus: Callable[[], None]) -> Iterator[None]:
    groups: Any = torch.distributed
    if not groups.is_available():
        yield
        return
    begin, backends = groups.init_process_group, ["nccl"]
    begin_group = groups.new_group

    def begin_alone(backend: str | None = None, *_arguments: Any, **_options: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend that does nothing

        launch()
        backends.append(backend if backend in ("nccl", "gloo", "mpi") else "nccl")
        if place.size > 1 and backend != "gloo":
            on_gpus()
        begin("fake", store=FakeStore(), rank=place.rank, world_size=place.size)

    def begin_fake_group(*arguments: Any, **options: Any) -> Any:
        """Begin a group of any backend as a fake one: arguments are ranks, timeout, backend and its options."""
        for name in ("backend", "pg_options", "device_id"):
            options.pop(name, None)
        return begin_group(*arguments[:2], **options)

    with ExitStack() as stack:
        for owner in (groups, groups.distributed_c10d):
            stack.enter_context(patched(owner, "init_process_group", begin_alone))
            stack.enter_context(patched(owner, "new_group", begin_fake_group))
            stack.enter_context(patched(owner, "is_nccl_available", lambda: True))
        # Scripts choose a device by the backend; torch's own code, which asks elsewhere, has to know the real one.
        stack.enter_context(patched(groups, "get_backend", lambda *_, **__: backends[-1]))
        stack.enter_context(objects_kept())
        stack.enter_context(objects_handed_on(place))
        if not groups.is_initialized():
            stack.callback(_end)
        yield


def _end() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _run(self: Any, *inputs: Any, **options: Any) -> Any:
    return self.module(*inputs, **options)
