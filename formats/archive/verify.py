"""Checks an archive: every file whole, every entry with its file, the journal sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from ...errors import InputError
from .archive import Archive
from .entry import FOLDER, id_of, key_of
from .seal import is_whole


class Fault(Enum):
    """Say what is wrong."""

    DAMAGED = "damaged"
    MISSING = "missing"
    UNNAMED = "unnamed"
    """A file that no entry names: of a killed `add`, or of one that is under way. Harmless."""
    FOREIGN = "foreign"
    """A file that is none of an archive's. Harmless."""
    JOURNAL = "journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Say what is wrong with a file, an entry or the journal."""

    fault: Fault
    name: str
    """Id, key of a file, or `journal`."""
    text: str

    @property
    def is_harmful(self) -> bool:
        """Say whether something is lost or may be."""
        return self.fault not in (Fault.UNNAMED, Fault.FOREIGN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Hold what a check read and found."""

    trace_count: int
    packed_bytes: int
    unpacked_bytes: int
    """Of the traces whose files were read, as their entries have it."""
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Say whether nothing is lost."""
        return not any(item.is_harmful for item in self.findings)


def verify(archive: Archive, *, deep: bool = False, progress: Callable[[int, int], None] | None = None) -> Verification:
    """Check every file of an archive by the hash of its packed bytes; `deep` unpacks and decodes it as well.

    `progress` takes bytes read and bytes in all.

    >>> from wavecast.formats.archive import init_archive, open_archive
    >>> _ = init_archive(folder / "checked")
    >>> verify(open_archive(folder / "checked")).is_sound
    True
    """
    archive.reindex()
    entries = archive.unpacked_bytes()
    sizes = dict(archive.store.sizes())
    keys = {trace_id: key_of(trace_id) for trace_id in entries}
    total = sum(sizes.get(key, 0) for key in keys.values())
    read = 0
    findings = [*_journal(archive), *_strangers(sizes, set(entries))]
    for trace_id, key in keys.items():
        fault = _check(archive, trace_id, key, is_listed=key in sizes, deep=deep)
        if fault is not None:
            findings.append(fault)
        read += sizes.get(key, 0)
        if progress is not None:
            progress(read, total)
    return Verification(
        trace_count=len(entries), packed_bytes=read, unpacked_bytes=sum(entries.values()), findings=tuple(findings)
    )


def _check(archive: Archive, trace_id: str, key: str, *, is_listed: bool, deep: bool) -> Finding | None:
    """Return what is wrong with a trace's file, which is opened and read once; `is_listed`: it was there just now."""
    try:
        if not is_listed and not archive.store.exists(key):
            return _missing(trace_id)
        if not is_whole(archive.store.read(key)):
            text = "its file is not what was written: add the trace again from its source"
            return Finding(fault=Fault.DAMAGED, name=trace_id, text=text)
        if deep:
            archive.load(trace_id)
    except InputError as error:
        if not archive.store.exists(key):
            return _missing(trace_id)
        return Finding(fault=Fault.DAMAGED, name=trace_id, text=str(error))
    return None


def _missing(trace_id: str) -> Finding:
    text = "its file is missing: add the trace again from its source, or remove it"
    return Finding(fault=Fault.MISSING, name=trace_id, text=text)


def _journal(archive: Archive) -> Iterator[Finding]:
    health = archive.store.health()
    if health.damaged_count:
        text = f"{health.damaged_count} damaged records: what they said is lost ('wavecast archive repair' mends it)"
        yield Finding(fault=Fault.JOURNAL, name="journal", text=text)
    if archive.unread_record_count:
        text = f"{archive.unread_record_count} records of a kind that this wavecast does not know"
        yield Finding(fault=Fault.JOURNAL, name="journal", text=text)


def _strangers(sizes: dict[str, int], named: set[str]) -> Iterator[Finding]:
    for key in sizes:
        trace_id = id_of(key)
        if trace_id is None:
            if key.startswith(FOLDER):
                yield Finding(fault=Fault.FOREIGN, name=key, text="no trace of the archive")
        elif trace_id not in named:
            yield Finding(fault=Fault.UNNAMED, name=trace_id, text="no entry names it ('wavecast archive repair')")
