"""Numbers names, without what tells of a person or a machine."""

from __future__ import annotations

from ..trace.interner import Interner
from ..trace.privacy import hide_private


class Names(Interner[str]):
    """Number names; `texts` holds them without what tells of a person or a machine."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._known: dict[str, int] = {}

    def __missing__(self, key: str) -> int:
        text = hide_private(key)
        self[key] = number = self._known.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number
