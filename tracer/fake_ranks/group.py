"""Lets a script be one of many processes, alone: torch's fake group, torchrun's variables, objects' exchanges."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

import torch
from torch.nn.parallel import DataParallel

from ...errors import InputError
from ..hooks.patches import patched
from .mail import RankPlace, objects_handed_on


@contextmanager
def fake_ranks(place: RankPlace, on_gpus: Callable[[], None]) -> Iterator[None]:
    """Let every process group be torch's fake one, which exchanges nothing, and data-parallel modules run alone.

    `on_gpus` is called where a group of several GPUs begins.
    """
    with ExitStack() as entered:
        entered.enter_context(
            patched(DataParallel, "forward", lambda self, *inputs, **options: self.module(*inputs, **options))
        )
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


@contextmanager
def objects_kept() -> Iterator[None]:
    """Let torch's functions that exchange objects do so without the others."""
    groups: Any = torch.distributed
    answers = {
        "all_gather_object": _gather_all,
        "gather_object": _gather,
        "broadcast_object_list": lambda *_, **__: None,
        "scatter_object_list": _scatter,
    }
    with ExitStack() as stack:
        for owner in (groups, groups.distributed_c10d):
            for name, answer in answers.items():
                stack.enter_context(patched(owner, name, answer))
        yield


def _gather_all(object_list: list[Any], obj: Any, group: Any = None) -> None:  # noqa: ARG001
    object_list[:] = [obj] * len(object_list)


def _gather(obj: Any, object_gather_list: list[Any] | None = None, *_rest: Any, **_options: Any) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    *_rest: Any,
    **_options: Any,
) -> None:
    if scatter_object_input_list:
        position = min(torch.distributed.get_rank(), len(scatter_object_input_list) - 1)
        scatter_object_output_list[0] = scatter_object_input_list[position]


_UNSET: Final = object()


_told: dict[str, str] = {}
"""What the environment answers while a script runs."""


class _LaunchedOnDemand(os._Environ[str]):
    """Answer `os.environ["RANK"]` and its like where they are not set, and set all of them from then on.

    `get` without a default answers too, and sets nothing: libraries ask so. A script that says what to do without
    them (`in`, `get` with a default) can run without torchrun, and does as it would if Python had started it: nothing
    is wrapped for several processes.
    """

    def __getitem__(self, name: str) -> str:
        if name in _told and not self._has(name):
            launch(self)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return self._has(name)

    def get(self, name: str, default: Any = None) -> Any:
        if self._has(name):
            return super().__getitem__(name)
        return _told.get(name) if default is None else default

    def pop(self, name: str, default: Any = _UNSET) -> Any:
        if self._has(name):
            return super().pop(name)
        if default is _UNSET:
            raise KeyError(name)
        return default

    def _has(self, name: object) -> bool:
        try:
            super().__getitem__(name)  # type: ignore[index] # others are refused in the same way
        except KeyError:
            return False
        return True


@contextmanager
def launched_on_demand(place: RankPlace) -> Iterator[Callable[[], None]]:
    """Let the environment answer as torchrun's; yield what sets the variables. Afterwards they are as they were.

    Of several processes a script is told at once, whatever was set before.
    """
    environment: Any = os.environ
    _told.update(place.variables())
    kind, before = type(environment), {name: environment.get(name) for name in _told}
    if place.world_size is not None:
        environment.update(_told)
    environment.__class__ = _LaunchedOnDemand
    try:
        yield lambda: launch(environment)
    finally:
        environment.__class__ = kind
        for name, value in before.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value


def launch(environment: Any) -> None:
    """Set what torchrun sets, but for what is set already."""
    for name, value in _told.items():
        environment.setdefault(name, value)


_DEEPSPEED: Final = "deepspeed"
_REFUSED: Final[Mapping[str, Sequence[str]]] = {_DEEPSPEED: ("initialize", "init_inference")}
"""Modules, and what of each shards a model."""


def refusal(name: str) -> InputError:
    """Return what is said of something that shards: what can be recorded, and how."""
    return InputError(
        f"{name}: a recording of shapes runs torch's own ways of sharding alone (DistributedDataParallel, fully_shard, "
        "tensor, pipeline and expert parallel code); record the script on its GPUs (torchrun ... -m wavecast record)"
    )


def is_deepspeeds(error: BaseException) -> bool:
    """Say whether an error is that DeepSpeed is not there, or comes from inside of it: it looks for compilers."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == _DEEPSPEED:
        return True
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == _DEEPSPEED:
            return True
        trace = trace.tb_next
    return False


@contextmanager
def sharding_refused() -> Iterator[None]:
    """Let what shards raise InputError, in modules that are there and in those that a script imports."""
    with ExitStack() as patches:
        finder = _Finder(partial(_refuse, patches))
        sys.meta_path.insert(0, finder)
        patches.callback(sys.meta_path.remove, finder)
        for name in _REFUSED:
            if name in sys.modules:
                _refuse(patches, sys.modules[name])
        yield


def _refuse(patches: ExitStack, module: ModuleType) -> None:
    for name in _REFUSED[module.__name__]:
        if hasattr(module, name):
            patches.enter_context(patched(module, name, partial(_raise, name)))


def _raise(name: str, *_arguments: Any, **_options: Any) -> None:
    raise refusal(name)


class _Finder(MetaPathFinder):
    """Tell when one of the modules has been loaded, which others find."""

    def __init__(self, when_loaded: Callable[[ModuleType], None]) -> None:
        self._when_loaded = when_loaded
        self._is_looking = False

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _REFUSED or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = find_spec(name)
        finally:
            self._is_looking = False
        loader: Any = spec.loader if spec else None
        if loader is not None:
            run = loader.exec_module

            def run_and_tell(module: ModuleType) -> None:
                run(module)
                self._when_loaded(module)

            loader.exec_module = run_and_tell
        return spec
