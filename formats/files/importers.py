"""The files that can be read as traces: one row per format, recognised by content, its reader loaded when needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ...errors import TraceError, parameter
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


IMPORTERS: Final = (
    Importer(
        name="a wavecast trace",
        pattern=re.compile(rb'"format"\s*:\s*"wavecast\.trace"'),
        module="..trace.codec",
        function="read_trace",
    ),
    Importer(
        name="an XLA trace",
        pattern=re.compile(rb'"name"\s*:\s*"/(?:device|host):[^"]{1,60}"'),
        module="..xla",
        function="read_xla",
    ),
    Importer(
        name="an XLA profile (XPlane)",
        pattern=re.compile(rb"\A.{0,18}?\x12.(?:/device:|/host:|Task Environment)", re.DOTALL),
        module="..xla",
        function="read_xla",
        is_json=False,
    ),
    Importer(
        name="a Perfetto trace",
        pattern=re.compile(rb"\A.{0,6}?(?:\x40.{4,10}?\x50.\x32|\xe2\x03.{1,4}?\x08)", re.DOTALL),
        module="..perfetto",
        function="read_perfetto",
        is_json=False,
    ),
    Importer(
        name="a PyTorch profiler trace",
        pattern=re.compile(rb'"traceEvents"\s*:|\A\s*\[\s*\{[^}]*"ph"\s*:'),
        module="..kineto",
        function="read_kineto",
        can_recover=True,
    ),
    Importer(
        name="an SQLite export of Nsight Systems or rocprofv3",
        pattern=re.compile(rb"\ASQLite format 3\0"),
        module="..nsys",
        function="read_sqlite",
        is_json=False,
    ),
    Importer(
        name="rocprofv3's JSON",
        pattern=re.compile(rb'"rocprofiler-sdk-tool"\s*:'),
        module="..rocprof",
        function="read_json",
    ),
    Importer(
        name="rocprofv3's CSV",
        pattern=re.compile(rb'\A"?(?:Kind"?,"?(?:Agent_Id|Direction)|Domain"?,"?Function|Node_Id"?,"?Logical_Node_Id)'),
        module="..rocprof",
        function="read_csv",
        is_json=False,
    ),
    Importer(
        name="a PyTorch execution trace",
        pattern=re.compile(rb'"nodes"\s*:\s*\[\s*(?:\]|\{[^{}]*"(?:ctrl_deps|rf_id)"\s*:)'),
        module="..execution_trace",
        function="read_execution_trace",
        can_recover=True,
    ),
    Importer(
        name="a Chakra trace",
        pattern=re.compile(rb'"workload_graph"\s*:'),
        module="..chakra",
        function="read_chakra_json",
        can_recover=True,
    ),
    Importer(
        name="a Chakra trace (.et)",
        pattern=re.compile(
            rb"\A.{0,4}[\n\x12].{1,3}\n\x06schema\xea\x01"
            rb"|\n(?:\tis_cpu_op\xd8\x01|\tcomm_size[Hh]|\tcomm_type[Hh]|\x07num_ops[Hh]|\x0btensor_size[Hh])",
            re.DOTALL,
        ),
        module="..chakra",
        function="read_chakra",
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
