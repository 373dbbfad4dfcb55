"""The files that can be read as traces: one row per format, recognised by content, its reader loaded when needed."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ...errors import TraceError, parameter
from ...records import dataclass
from .detect import HEAD_BYTES, starts_as_json, strip_mark
from .source import ImportSource, ReadOptions

if TYPE_CHECKING:
    from ..trace.tables import Trace

Progress = Callable[[int, int], None]
"""Takes bytes read and bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """Describe a format: what its files hold, and the function that reads them.

    `module` (relative to this package) has `function(source, *, options, progress) -> Callable[[], Trace]`: it reads
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

    def read(
        self, source: ImportSource, *, options: ReadOptions | None = None, progress: Progress | None = None
    ) -> Callable[[], Trace]:
        """Read a whole file of this format and return what builds its trace."""
        chosen = options or ReadOptions()
        function = getattr(import_module(self.module, __package__), self.function)
        try:
            build: Callable[[], Trace] = function(source, options=chosen, progress=progress)
        except TraceError as error:
            if chosen.recover and not self.can_recover:
                raise TraceError(
                    f"{error}; {self.name} is read whole or not at all, {parameter('recover')} or not"
                ) from error
            raise
        return build


def _importer(name: str, place: str, pattern: bytes, *, is_json: bool = True, can_recover: bool = False) -> Importer:
    module, function = place.split(":")
    found = re.compile(pattern, re.DOTALL)
    return Importer(
        name=name, pattern=found, module=module, function=function, is_json=is_json, can_recover=can_recover
    )


IMPORTERS: Final = (
    _importer("a wavecast trace", "..trace.codec:read_trace", rb'"format"\s*:\s*"wavecast\.trace"'),
    _importer("an XLA trace", "..xla:read_xla", rb'"name"\s*:\s*"/(?:device|host):[^"]{1,60}"'),
    _importer(
        "an XLA profile (XPlane)",
        "..xla:read_xla",
        rb"\A.{0,18}?\x12.(?:/device:|/host:|Task Environment)",
        is_json=False,
    ),
    _importer(
        "a Perfetto trace",
        "..perfetto:read_perfetto",
        rb"\A.{0,6}?(?:\x40.{4,10}?\x50.\x32|\xe2\x03.{1,4}?\x08)",
        is_json=False,
    ),
    _importer(
        "a PyTorch profiler trace",
        "..kineto:read_kineto",
        rb'"traceEvents"\s*:|\A\s*\[\s*\{[^}]*"ph"\s*:',
        can_recover=True,
    ),
    _importer(
        "an SQLite export of Nsight Systems or rocprofv3", "..nsys:read_sqlite", rb"\ASQLite format 3\0", is_json=False
    ),
    _importer("rocprofv3's JSON", "..rocprof:read_json", rb'"rocprofiler-sdk-tool"\s*:'),
    _importer(
        "rocprofv3's CSV",
        "..rocprof:read_csv",
        rb'\A"?(?:Kind"?,"?(?:Agent_Id|Direction)|Domain"?,"?Function|Node_Id"?,"?Logical_Node_Id)',
        is_json=False,
    ),
    _importer(
        "a PyTorch execution trace",
        "..execution_trace:read_execution_trace",
        rb'"nodes"\s*:\s*\[\s*(?:\]|\{[^{}]*"(?:ctrl_deps|rf_id)"\s*:)',
        can_recover=True,
    ),
    _importer("a Chakra trace", "..chakra:read_chakra_json", rb'"workload_graph"\s*:', can_recover=True),
    _importer(
        "a Chakra trace (.et)",
        "..chakra:read_chakra",
        rb"\A.{0,4}[\n\x12].{1,3}\n\x06schema\xea\x01"
        rb"|\n(?:\tis_cpu_op\xd8\x01|\tcomm_size[Hh]|\tcomm_type[Hh]|\x07num_ops[Hh]|\x0btensor_size[Hh])",
        is_json=False,
        can_recover=True,
    ),
)
"""First match wins. A new format is a folder beside this module and a row here."""


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
