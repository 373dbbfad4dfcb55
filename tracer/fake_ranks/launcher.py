"""Answers scripts made for torchrun, which read their rank from the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from .place import RankPlace

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
