"""Which traces a batch is about: files, what of folders and patterns is a trace, and what archives hold."""

from __future__ import annotations

import glob
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ....errors import InputError, WavecastError
from ....formats.detect import HEAD_BYTES, FileKind, describe_content, detect
from ....formats.importers import find_importer
from ....formats.trace import Trace
from .parts import is_parts_folder

ARCHIVE: Final = "archive://"
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """Say which trace is meant, and where it lies."""

    trace_id: str
    """SHA-256 of the file as it lies there; of a trace in an archive, its id."""
    name: str
    """Its path below the folder or pattern that was named; of a trace in an archive, its first tag or name."""
    location: str
    """The file, or the archive."""
    in_archive: bool = False
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """Say what a folder or pattern holds that is not in the batch, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInputs:
    """Hold the traces in the order of the table, each content once, and what was left out."""

    inputs: tuple[BatchInput, ...]
    skipped: tuple[SkippedFile, ...] = ()


def find_inputs(places: Sequence[str]) -> FoundInputs:
    """Return the traces that files, folders, glob patterns and archives name.

    A file that is named itself is always taken; of folders and patterns, what an importer recognises.
    Raises InputError for a place where nothing is.
    """
    everything = [item for place in places for item in _look(place)]
    found = [item for item in everything if isinstance(item, BatchInput)]
    skipped = [item for item in everything if isinstance(item, SkippedFile)]
    kept: dict[str, BatchInput] = {}
    seen: set[tuple[str, str]] = set()
    for item in sorted(found, key=lambda item: (item.name, item.location, item.trace_id)):
        known = kept.setdefault(item.trace_id, item)
        if known is not item and (item.location, item.trace_id) not in seen:
            skipped.append(SkippedFile(name=item.name, reason=f"the same trace as {known.name}"))
        seen.add((item.location, item.trace_id))
    if not kept:
        raise InputError(f"{', '.join(places)}: no trace there{_first_reason(skipped)}")
    unique = dict.fromkeys(sorted(skipped, key=lambda item: (item.name, item.reason)))
    return FoundInputs(inputs=tuple(kept.values()), skipped=tuple(unique))


def check_input(item: BatchInput) -> None:
    """Raise WavecastError where a file is not there any more, or is another one by now; the next run may find it."""
    if item.in_archive:
        return
    try:
        found = hash_file(Path(item.location))
    except InputError as error:
        raise WavecastError(str(error).replace(item.location, "the file")) from None
    if found != item.trace_id:
        raise WavecastError("the file is not the one that was found when the batch began; run it again")


def load_input(item: BatchInput) -> Trace:
    """Return the trace. Raises InputError where it cannot be read."""
    from ....formats.files import load_trace

    if item.in_archive:
        loaded: Trace = _open_archive(item.location).load(item.trace_id)
        return loaded
    return load_trace(item.location)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file. Raises InputError where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _look(place: str) -> Iterator[BatchInput | SkippedFile]:
    if place.startswith(ARCHIVE):
        return _in_archive(place)
    path = Path(place)
    if path.is_dir():
        return _recognised((path / name for name in _files_below(path)), path)
    if path.is_file():
        return iter([_file(path, path.name)])
    if path.exists():
        raise InputError(f"{place}: expected a file or a folder of traces, found a device or a pipe")
    if glob.has_magic(place):
        names = sorted(glob.glob(place, recursive=True))  # noqa: PTH207 (absolute patterns, too)
        if not names:
            raise InputError(f"{place}: no file matches this pattern")
        return _recognised((Path(name) for name in names if not Path(name).is_dir()), _fixed_part(place))
    raise InputError(f"{place}: no such file or folder")


def _fixed_part(pattern: str) -> Path:
    """Return the folders of a pattern before its first wildcard."""
    parts = Path(pattern).parts
    count = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:count])


def _files_below(folder: Path) -> Iterator[str]:
    """Yield the files below a folder in order, but for hidden ones and the parts of other batches."""
    for where, folders, names in os.walk(folder):
        at = Path(where)
        folders[:] = sorted(name for name in folders if name[0] != "." and not is_parts_folder(at / name))
        yield from (str((at / name).relative_to(folder)) for name in sorted(names) if name[0] != ".")


def _recognised(paths: Iterable[Path], folder: Path) -> Iterator[BatchInput | SkippedFile]:
    for path in paths:
        name = path.relative_to(folder).as_posix()
        try:
            reason = None if path.is_file() else "no regular file"
            reason = reason or explain_unreadable(path)
            yield _file(path, name) if reason is None else SkippedFile(name=name, reason=reason)
        except WavecastError as error:
            yield SkippedFile(name=name, reason=str(error))


def explain_unreadable(path: Path) -> str | None:
    """Return why no importer reads a file, by its first bytes or, of JSON, by all; None where one does."""
    from ....formats.files import read_bytes

    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if head.startswith(_GZIP):
        head = _unpack_head(head)
    if find_importer(head) is not None:
        return None
    if detect(head) is FileKind.JSON and len(head) >= HEAD_BYTES and find_importer(read_bytes(path)) is not None:
        return None
    return f"no trace: {describe_content(head)}"


def _unpack_head(packed: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(packed, HEAD_BYTES)
    except zlib.error:
        return packed


def _file(path: Path, name: str) -> BatchInput:
    return BatchInput(trace_id=hash_file(path), name=name, location=str(path.resolve()))


def _in_archive(place: str) -> Iterator[BatchInput]:
    location, _, query = place.removeprefix(ARCHIVE).partition("?")
    for entry in _open_archive(location).entries(query):
        tags = tuple(entry.tags)
        name = tags[0] if tags else getattr(entry, "name", None) or entry.id[:12]
        yield BatchInput(trace_id=entry.id, name=name, location=location, in_archive=True, tags=tags)


def _open_archive(location: str) -> Any:
    from ....formats import archive

    opener = getattr(archive, "open_archive", None)
    if opener is None:
        raise InputError(f"{ARCHIVE}{location}: this version of wavecast reads no archives")
    return opener(location)


def _first_reason(skipped: Sequence[SkippedFile]) -> str:
    return f" ({skipped[0].name}: {skipped[0].reason})" if skipped else ""
