"""The files that can be read as traces: one row per format, recognised by content, its reader loaded when needed."""

from __future__ import annotations

import csv
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import TraceError, parameter
from ...records import dataclass
from .detect import HEAD_BYTES, starts_as_json, strip_mark
from .source import ImportSource, ReadOptions

if TYPE_CHECKING:
    from ..trace.tables import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """Describe a format: what its files hold, and the function that reads them.

    `module` (relative to this package) has `function(source, *, options) -> Callable[[], Trace]`: it reads
    the source, and returns what builds the trace when the content may be gone. Both raise TraceError.
    """

    name: str
    pattern: re.Pattern[bytes]
    """Found in the file's first bytes, of JSON anywhere in it."""
    module: str
    function: str
    is_json: bool = True
    can_recover: bool = False
    """Whether a damaged file is read as far as it goes where that is asked for."""

    def read(self, source: ImportSource, *, options: ReadOptions | None = None) -> Callable[[], Trace]:
        """Read a whole file of this format and return what builds its trace."""
        chosen = options or ReadOptions()
        function = getattr(import_module(self.module, __package__), self.function)
        try:
            build: Callable[[], Trace] = function(source, options=chosen)
        except TraceError as error:
            if chosen.recover and not self.can_recover:
                raise TraceError(
                    f"{error}; {self.name} is read whole or not at all, {parameter('recover')} or not"
                ) from error
            raise
        return build


def _read_rows() -> Iterator[Importer]:
    with Path(__file__).with_name("importers.csv").open(encoding="utf-8", newline="") as file:
        for name, reader, is_json, can_recover, pattern in islice(csv.reader(file), 1, None):
            module, function = reader.split(":")
            yield Importer(
                name=name,
                pattern=re.compile(pattern.encode(), re.DOTALL),
                module=module,
                function=function,
                is_json=bool(is_json),
                can_recover=bool(can_recover),
            )


IMPORTERS: Final = tuple(_read_rows())
"""First match wins. A new format is a folder beside this module and a row in `importers.csv`."""


def find_importer(data: bytes) -> Importer | None:
    """Return the format that a file's bytes are of; None where no row knows them.

    The first few thousand bytes usually suffice, a whole file never misleads.

    >>> find_importer(profile).name
    'a PyTorch profiler trace'
    """
    head = strip_mark(data[:HEAD_BYTES])
    is_json = starts_as_json(head)
    candidates = [item for item in IMPORTERS if item.is_json is is_json]
    parts = (head, data) if is_json else (head,)
    return next((item for part in parts for item in candidates if item.pattern.search(part)), None)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from walking millions of fresh values without cycles, or into what is timed.

    >>> import gc
    >>> with collection_paused():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
