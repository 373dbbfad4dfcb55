"""What is kept of a batch while it runs: a file per trace beside the output, written whole or not at all.

A part is named by its trace and by all that its rows depend on, so that a run that was ended goes on where it was, and
so that rows of two catalogues, weights or questions never come together.
"""

import hashlib
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ....errors import InputError, OutputError, parameter
from ....formats.files.open import explain_unwritable, write_atomic

SUFFIX: Final = ".parts"
SETTINGS_FILE: Final = "settings.json"
PARTS_FORMAT: Final = "wavecast.batch.parts"
PARTS_VERSION: Final = "2"
_DIGEST_BYTES: Final = 32
Value = str | int | float | bool | None


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the rows of one what-if: what all of them share, and a column per remaining name."""

    shared: dict[str, Value]
    columns: dict[str, list[Value]]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Say why a trace, or one what-if of it, cannot be predicted."""

    what_if: str | None
    """None: whatever is asked of the trace."""
    reason: str


class TracePart(msgspec.Struct, frozen=True, kw_only=True):
    """Hold all that was found of one trace."""

    trace_id: str
    facts: dict[str, Value]
    answers: list[BatchAnswer]
    refusals: list[Refusal]

    @property
    def row_count(self) -> int:
        """Return the number of rows."""
        return sum(len(answer.columns["gpu"]) for answer in self.answers)


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    version: str
    settings: dict[str, str]


def encode_part(part: TracePart) -> bytes:
    """Return a part as bytes, which begin with their hash: the same part gives the same bytes."""
    content = msgspec.msgpack.encode(part)
    return hashlib.sha256(content).digest() + content


def _decode_part(data: bytes) -> TracePart:
    """Return the part. Raises InputError for bytes that are none, or not as they were written."""
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise InputError("expected a part of a batch, found one that is damaged")
    try:
        return msgspec.msgpack.decode(content, type=TracePart)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"expected a part of a batch: {error}") from None


def parts_path(output: Path) -> Path:
    """Return the folder in which a batch keeps what it has, beside its output.

    >>> parts_path(Path("table.csv")).name
    'table.csv.parts'
    """
    return output.with_name(output.name + SUFFIX)


def is_parts_folder(path: Path) -> bool:
    """Say whether a folder is that of a batch."""
    return path.name.endswith(SUFFIX) and (path / SETTINGS_FILE).is_file()


class PartFolder:
    """Own the folder of one run's parts. `settings` are all that rows depend on beside the trace, by what they say."""

    def __init__(self, path: Path, settings: Mapping[str, str]) -> None:
        self.path = path
        self._settings = dict(settings)
        self._key = hashlib.sha256(repr(sorted(self._settings.items())).encode()).hexdigest()

    def open(self, *, restart: bool) -> None:
        """Make the folder, or go on with the one that is there.

        Raises InputError where it is of a run with other settings, unless `restart`, which empties it; OutputError
        where it cannot be made, or is no such folder.
        """
        try:
            if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
                if not is_parts_folder(self.path):
                    raise OutputError(f"{self.path}: expected the parts of a batch, found something else; move it away")
                if restart:
                    shutil.rmtree(self.path)
                else:
                    self._check_settings()
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise explain_unwritable(str(self.path), error) from None
        head = _Settings(format=PARTS_FORMAT, version=PARTS_VERSION, settings=self._settings)
        write_atomic(self.path / SETTINGS_FILE, msgspec.json.format(msgspec.json.encode(head)) + b"\n")

    def write(self, trace_id: str, data: bytes) -> None:
        """Keep a trace's part."""
        write_atomic(self._file(trace_id), data)

    def read(self, trace_id: str) -> TracePart | None:
        """Return a trace's part; None where there is none, or what is there is not it, which is told the log."""
        path = self._file(trace_id)
        try:
            part = _decode_part(path.read_bytes())
        except OSError:
            return None
        except InputError as error:
            logging.getLogger(__name__).warning("%s: %s; it is done again", path, error)
            return None
        return part if part.trace_id == trace_id else None

    def _file(self, trace_id: str) -> Path:
        return self.path / f"{hashlib.sha256(f'{self._key} {trace_id}'.encode()).hexdigest()[:32]}.part"

    def _check_settings(self) -> None:
        try:
            found = msgspec.json.decode((self.path / SETTINGS_FILE).read_bytes(), type=_Settings)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise InputError(
                f"{self.path}: its {SETTINGS_FILE} cannot be read; {parameter('restart')} begins anew"
            ) from None
        names = [*self._settings, *(name for name in found.settings if name not in self._settings)]
        changed = [name for name in names if found.settings.get(name) != self._settings.get(name)]
        if found.version != PARTS_VERSION or changed:
            what = " and ".join(changed) or "its layout"
            raise InputError(
                f"{self.path}: an earlier run differs in {what}; {parameter('restart')} begins anew, another "
                f"{parameter('output')} keeps both"
            )
