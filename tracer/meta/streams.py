"""Knows which stream a script is on that has no GPU: what is issued to another than the default one goes beside it."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

import torch

_numbers: Final = count(1)
_DEFAULT: Final = 0


class _State:
    stream: FakeStream | None = None
    """The current one."""


_state: Final = _State()


def current_stream() -> int:
    """Return the number of the stream that ops go to now; 0 for the default one."""
    return _state.stream.stream_id if _state.stream is not None else _DEFAULT


class FakeStream:
    """Stand in for torch.cuda.Stream: everything is done at once."""

    def __init__(self, *_arguments: Any, is_default: bool = False, **_options: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.stream_id = _DEFAULT if is_default else next(_numbers)
        self.cuda_stream = self.stream_id
        self._outer: list[FakeStream | None] = []

    def __enter__(self) -> FakeStream:
        self._outer.append(_state.stream)
        _state.stream = self
        return self

    def __exit__(self, *_raised: Any) -> None:
        _state.stream = self._outer.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return self.stream_id

    def query(self) -> bool:
        """Say that everything is done."""
        return True

    def is_capturing(self) -> bool:
        """Say that no graph is captured."""
        return False

    def record_event(self, event: Any = None) -> Any:
        """Return an event that has happened."""
        return event or torch.cuda.Event()

    def synchronize(self, *_awaited: Any) -> None:
        """Wait for nothing."""

    wait_event = wait_stream = synchronize


class OnFakeStream:
    """Stand in for torch.cuda.stream and its class, torch.cuda.StreamContext."""

    def __init__(self, stream: FakeStream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.__enter__()

    def __exit__(self, *_raised: Any) -> None:
        if self._stream is not None:
            self._stream.__exit__()


def find_current_stream(*_device: Any) -> FakeStream:
    """Stand in for torch.cuda.current_stream."""
    return _state.stream or FakeStream(is_default=True)


def set_stream(stream: FakeStream | None) -> None:
    """Stand in for torch.cuda.set_stream."""
    _state.stream = stream


def default_stream(*_device: Any) -> FakeStream:
    """Stand in for torch.cuda.default_stream."""
    return FakeStream(is_default=True)
