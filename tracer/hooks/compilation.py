"""Counts what torch compiles: an iteration in which it does is no step's."""

import sys
from typing import Any, Self


class Compilations:
    """Own a callback of torch.compile; `count` is how often it compiled since this was entered.

    Importing the compiler takes seconds, so this waits for the code to import it: doing so counts as compiling.
    """

    def __init__(self) -> None:
        self._count = 0
        self._handler: Any = None
        self._is_entered = False

    @property
    def count(self) -> int:
        """Return how often torch compiled: a frame, a backward pass put off until it ran, a CUDA graph."""
        if self._handler is None and self._is_entered and self._watch():
            self._count += 1
        return self._count

    def __enter__(self) -> Self:
        self._is_entered = True
        self._watch()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._is_entered = False
        if self._handler is not None and self._note in self._handler.start_callbacks:
            self._handler.remove_start_callback(self._note)  # torch._dynamo.reset removes all callbacks

    def _watch(self) -> bool:
        compiler = sys.modules.get("torch._dynamo.callback")
        self._handler = getattr(compiler, "callback_handler", None)
        if self._handler is not None:
            self._handler.register_start_callback(self._note)
        return self._handler is not None

    def _note(self, *_call: object) -> None:
        self._count += 1
