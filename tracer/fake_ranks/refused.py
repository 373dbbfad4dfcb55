"""Refuses in one line what spreads a model over several GPUs by compilers and kernels of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from ...errors import InputError
from ..hooks.patches import patched

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
