"""What an archive knows of a trace without reading it, and what a user may call it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ...errors import InputError

ID_LENGTH: Final = 64
SHORT_ID_LENGTH: Final = 12
LEAST_PREFIX_LENGTH: Final = 4
MAX_NOTE_LENGTH: Final = 1000
FOLDER: Final = "traces/"
"""Where an archive's traces lie: what else its folder holds is no trace."""

_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/=-]{0,63}")
_ID: Final = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_PREFIX: Final = re.compile(rf"[0-9a-f]{{{LEAST_PREFIX_LENGTH},{ID_LENGTH}}}")
_KEY: Final = re.compile(rf"{FOLDER}([0-9a-f]{{2}})/(\1[0-9a-f]{{{ID_LENGTH - 2}}})\.json\.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Describe an archived trace. What is not known is None; no host, user or path is among it."""

    id: str
    """sha256 of the trace in our format, unpacked: 64 hexadecimal digits."""
    workload: str | None = None
    mode: str | None = None
    """`training` or `inference`."""
    model: str | None = None
    """The workload's name, else the class of the outermost module of most ops."""
    gpu: str | None = None
    """The device's name as the recording has it."""
    gpu_count: int = 0
    rank: int | None = None
    world_size: int | None = None
    capture: str = "measured"
    framework: str | None = None
    recorded: str | None = None
    """When, as `2026-10-31T12:00:00Z`, where the source tells it."""
    added: str
    batch_size: int | None = None
    precision: str | None = None
    """What most of the arithmetic is done in: `bf16`, `fp32`."""
    sequence_length: int | None = None
    iteration_ns: float | None = None
    """Median of the iterations that were timed without the profiler, where there are such, else of all."""
    iteration_count: int = 0
    op_count: int = 0
    kernel_count: int = 0
    packed_bytes: int = 0
    unpacked_bytes: int = 0
    source_format: str = "wavecast"
    source_sha256: str | None = None
    """Of the file that was added, as it lay there."""
    source_name: str | None = None
    """Of the file that was added, without folders, hosts and users."""
    tool: str = "unknown"
    """What added it, e.g. `wavecast 0.1.0`."""
    format_version: str
    tags: tuple[str, ...] = ()
    note: str | None = None

    @property
    def short_id(self) -> str:
        """Return the first digits of the id, for tables."""
        return self.id[:SHORT_ID_LENGTH]

    @property
    def date(self) -> str:
        """Return when it was recorded; where that is not known, when it was added."""
        return self.recorded or self.added

    @property
    def key(self) -> str:
        """Return where the trace lies in its store."""
        return key_of(self.id)


def key_of(trace_id: str) -> str:
    """Return where a trace lies in its store.

    >>> key_of("ab" * 32)
    'traces/ab/abababababababababababababababababababababababababababababababab.json.gz'
    """
    return f"{FOLDER}{trace_id[:2]}/{trace_id}.json.gz"


def id_of(key: str) -> str | None:
    """Return the id of what lies at a key; None where no trace belongs."""
    match = _KEY.fullmatch(key)
    return match[2] if match else None


def is_id(text: str) -> bool:
    """Say whether a text is a whole id."""
    return _ID.fullmatch(text) is not None


def is_prefix(text: str) -> bool:
    """Say whether a text may be the beginning of an id."""
    return _PREFIX.fullmatch(text) is not None


def check_tag(text: str) -> str:
    """Return a tag as it is. Raises InputError for one that could not be typed in a query or a reference."""
    if _TAG.fullmatch(text) is None or is_id(text):
        raise InputError(
            f"tag {text[:80]!r}: expected up to 64 letters, digits and . _ - : / = that begin with a letter or digit"
        )
    return text


def check_note(text: str) -> str:
    """Return a note as it is. Raises InputError for one that is too long."""
    if len(text) > MAX_NOTE_LENGTH:
        raise InputError(f"the note holds {len(text):,} characters, more than {MAX_NOTE_LENGTH:,}")
    return text
