"""Which traces a batch is about, in files, folders, patterns and archives, and how often each of them runs."""

import csv
import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any, Final

from ....errors import InputError, WavecastError
from ....formats.files.detect import HEAD_BYTES, FileKind, describe_content, detect
from ....formats.files.importers import find_importer
from ....formats.files.source import ImportSource
from ....formats.trace.tables import Trace
from ....records import dataclass
from ....specs.documents import read_toml
from .parts import is_parts_folder

ARCHIVE: Final = "archive://"
MOST_RUNS: Final = 1e15
"""In a day, ten for each nanosecond."""
_MOST_RECOGNISED_BYTES: Final = 8 << 20
"""How far into a file of a folder or pattern it is looked for what makes it a trace."""


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

    >>> [item.name for item in find_inputs(["samples/bert_small-inference-bf16-b1-h100.json.gz"]).inputs]
    ['bert_small-inference-bf16-b1-h100.json.gz']
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
        reasons = [f" ({item.name}: {item.reason})" for item in skipped[:1]]
        raise InputError(f"{', '.join(places)}: no trace there{''.join(reasons)}")
    unique = dict.fromkeys(sorted(skipped, key=lambda item: (item.name, item.reason)))
    return FoundInputs(inputs=tuple(kept.values()), skipped=tuple(unique))


def check_input(item: BatchInput) -> None:
    """Raise WavecastError where a file is not there any more, or is another one by now; the next run may find it."""
    if item.in_archive:
        return
    try:
        found = _hash_file(Path(item.location))
    except InputError as error:
        raise WavecastError(str(error).replace(item.location, "the file")) from None
    if found != item.trace_id:
        raise WavecastError("the file is not the one that was found when the batch began; run it again")


def load_input(item: BatchInput) -> Trace:
    """Return the trace. Raises InputError where it cannot be read."""
    from ....formats.files.open import load_trace

    return load_trace(f"{ARCHIVE}{item.location}#{item.trace_id}" if item.in_archive else item.location)


def _hash_file(path: Path) -> str:
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
        parts = Path(place).parts
        count = next(number for number, part in enumerate(parts) if glob.has_magic(part))
        return _recognised((Path(name) for name in names if not Path(name).is_dir()), Path(*parts[:count]))
    raise InputError(f"{place}: no such file or folder")


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
            reason = reason or _explain_unreadable(path)
            yield _file(path, name) if reason is None else SkippedFile(name=name, reason=reason)
        except WavecastError as error:
            yield SkippedFile(name=name, reason=str(error))


def _explain_unreadable(path: Path) -> str | None:
    """Return why no importer reads a file, packed or not, by how it begins; None where one does."""
    try:
        with (
            path.open("rb") as stream,
            closing(ImportSource(path.name, path=path, stream=stream, recover=True)) as source,
        ):
            head = source.head
            if find_importer(head) is not None:
                return None
            if detect(head) is FileKind.JSON and len(head) >= HEAD_BYTES // 2:
                content = b"".join(_take(source.chunks(), _MOST_RECOGNISED_BYTES))
                if find_importer(content) is not None:
                    return None
            return f"no trace: {describe_content(head)}"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _take(chunks: Iterator[bytes], most_bytes: int) -> Iterator[bytes]:
    """Yield chunks until there are `most_bytes` of them."""
    count = 0
    for chunk in chunks:
        yield chunk
        count += len(chunk)
        if count >= most_bytes:
            return


def _file(path: Path, name: str) -> BatchInput:
    return BatchInput(trace_id=_hash_file(path), name=name, location=str(path.resolve()))


def _in_archive(place: str) -> Iterator[BatchInput]:
    from ....formats.archive import open_archive
    from ....formats.files.reference import as_path, parse_reference
    from ...recorded.devices import names_of_gpu

    text, _, query = place.partition("?")
    location, name = parse_reference(as_path(text))
    with open_archive(location) as archive:
        entries = [archive.find(name)] if name else archive.entries(query, gpu_names=names_of_gpu)
    if name and query:
        raise InputError(f"{place}: expected archive://FOLDER#ID or archive://FOLDER?QUERY, found both")
    for entry in entries:
        name = entry.tags[0] if entry.tags else entry.workload or entry.short_id
        yield BatchInput(trace_id=entry.id, name=name, location=location, in_archive=True, tags=entry.tags)


RUNS: Final = "runs_per_day"


def read_weights(path: Path) -> dict[str, float]:
    """Return runs per day by name of trace, tag or workload: TOML with a table `runs_per_day`, or CSV."""
    entries = _toml(path) if path.suffix.lower() == ".toml" else _csv(path)
    if not entries:
        raise InputError(f"{path.name}: expected at least one name with its {RUNS}, found none")
    found: dict[str, float] = {}
    for where, name, value in entries:
        number = _number(value)
        if number is None:
            expected = f"{RUNS} as a number from 0 to {MOST_RUNS:.0e}"
            raise InputError(f"{path.name}: {where}: expected {expected}, found {str(value)[:60]!r}")
        if name in found:
            raise InputError(f"{path.name}: {where}: {name} stands there twice")
        found[name] = number
    return found


def spread_weights(
    weights: Mapping[str, float], traces: Sequence[tuple[BatchInput, str | None]]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the runs per day by trace id, and the names that mean no trace; traces come with their workload's name.

    A trace's own name goes before its tags, these before its workload. What a tag or workload says is parted equally
    among the traces that it stands for.
    """
    shares: dict[str, list[str]] = {}
    for item, workload in traces:
        names = (item.name, Path(item.name).name, *item.tags, workload)
        chosen = next((name for name in names if name is not None and name in weights), None)
        if chosen is not None:
            shares.setdefault(chosen, []).append(item.trace_id)
    runs = {trace: weights[name] / len(traces) for name, traces in shares.items() for trace in traces}
    return runs, tuple(name for name in weights if name not in shares)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= MOST_RUNS else None


def _toml(path: Path) -> list[tuple[str, str, Any]]:
    table = read_toml(path).get(RUNS)
    if not isinstance(table, dict):
        raise InputError(f"{path.name}: expected a table [{RUNS}] with a number per name")
    return [(str(name), str(name), value) for name, value in table.items()]


def _csv(path: Path) -> list[tuple[str, str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(StringIO(text), strict=True))
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path.name}: expected CSV of two columns, name and {RUNS}: {error}") from None
    entries = []
    for number, row in enumerate(rows, 1):
        if not row or (number == 1 and len(row) > 1 and row[1].strip() == RUNS):
            continue
        if len(row) != 2:
            raise InputError(f"{path.name}: line {number}: expected a name and {RUNS}, found {len(row)} columns")
        entries.append((f"line {number}", row[0].strip(), row[1].strip()))
    return entries
