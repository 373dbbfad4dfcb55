"""Lets a script for several processes run as one, while its shapes are recorded: collectives do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ..hooks.patches import patched
from .launcher import launched_on_demand
from .sharding import sharding_refused


@contextmanager
def lone_process() -> Iterator[None]:
    """Let every process group be one of this process alone, and data-parallel modules run what they hold as it is."""
    with ExitStack() as entered:
        entered.enter_context(patched(DataParallel, "forward", _run))
        entered.enter_context(sharding_refused())
        entered.enter_context(_lone_groups(entered.enter_context(launched_on_demand())))
        yield


@contextmanager
def _lone_groups(launch: Callable[[], None]) -> Iterator[None]:
    groups: Any = torch.distributed
    if not groups.is_available():
        yield
        return
    begin, backends = groups.init_process_group, ["nccl"]

    def begin_alone(backend: str | None = None, *_arguments: Any, **_options: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend that does nothing

        launch()
        backends.append(backend if backend in ("nccl", "gloo", "mpi") else "nccl")
        begin("fake", store=FakeStore(), rank=0, world_size=1)

    with ExitStack() as stack:
        for owner in (groups, groups.distributed_c10d):
            stack.enter_context(patched(owner, "init_process_group", begin_alone))
            stack.enter_context(patched(owner, "is_nccl_available", lambda: True))
        # Scripts choose a device by the backend; torch's own code, which asks elsewhere, has to know the real one.
        stack.enter_context(patched(groups, "get_backend", lambda *_, **__: backends[-1]))
        # Its reducer reads values, and spreads gradients over buckets by them.
        stack.enter_context(patched(DistributedDataParallel, "__init__", _hold))
        stack.enter_context(patched(DistributedDataParallel, "forward", _run))
        if not groups.is_initialized():
            stack.callback(_end)
        yield


def _end() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _hold(self: Any, module: nn.Module, *_arguments: Any, **_options: Any) -> None:
    nn.Module.__init__(self)
    self.module = module
    self.require_backward_grad_sync = True


def _run(self: Any, *inputs: Any, **options: Any) -> Any:
    return self.module(*inputs, **options)
