"""Checks an archive: every file whole, every entry whole and with its file."""

from collections.abc import Iterator
from enum import Enum

from ...errors import InputError
from ...progress import tell
from ...records import dataclass
from .archive import Archive
from .entry import ENTRIES, id_of_record
from .seal import TRACES, id_of, is_whole, key_of
from .store import read_one


class Fault(Enum):
    """Say what is wrong."""

    DAMAGED = "damaged"
    MISSING = "missing"
    UNNAMED = "unnamed"
    """A file that no entry names: of a killed `add`, or of one that is under way. Harmless."""
    FOREIGN = "foreign"
    """A file that is none of an archive's. Harmless."""
    ENTRY = "entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Say what is wrong with a file or an entry."""

    fault: Fault
    name: str
    """Id, or name of a file."""
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


def verify(archive: Archive, *, deep: bool = False) -> Verification:
    """Check every file of an archive by the hash of its packed bytes; `deep` unpacks and decodes it as well.

    >>> from wavecast.formats.archive import init_archive, open_archive
    >>> _ = init_archive(folder / "checked")
    >>> verify(open_archive(folder / "checked")).is_sound
    True
    """
    archive.reread()
    damaged = sorted(archive.damaged)
    unpacked_bytes = {entry.id: entry.unpacked_bytes for entry in archive.entries()}
    sizes = {item.name: item.size_bytes for item in archive.store.objects(TRACES)}
    total = sum(sizes.get(key_of(trace_id), 0) for trace_id in unpacked_bytes)
    findings = [*map(_damaged_entry, damaged), *_strangers(archive, sizes)]
    read = 0
    for trace_id in unpacked_bytes:
        fault = _check(archive, trace_id, deep=deep)
        if fault is not None:
            findings.append(fault)
        read += sizes.get(key_of(trace_id), 0)
        tell("", read, total)
    return Verification(
        trace_count=len(unpacked_bytes),
        packed_bytes=read,
        unpacked_bytes=sum(unpacked_bytes.values()),
        findings=tuple(findings),
    )


def _check(archive: Archive, trace_id: str, *, deep: bool) -> Finding | None:
    """Return what is wrong with a trace's file."""
    from ..trace.codec import decode

    try:
        packed = read_one(archive.store, key_of(trace_id))
        if packed is None:
            if trace_id not in archive.ids():  # removed meanwhile
                return None
            text = "its file is missing: add the trace again from its source, or remove it"
            return Finding(fault=Fault.MISSING, name=trace_id, text=text)
        if not is_whole(packed):
            text = "its file is not what was written: add the trace again from its source"
            return Finding(fault=Fault.DAMAGED, name=trace_id, text=text)
        if deep:
            decode(archive.read(trace_id))
    except InputError as error:
        return Finding(fault=Fault.DAMAGED, name=trace_id, text=str(error))
    return None


def _damaged_entry(name: str) -> Finding:
    text = "damaged: what it said is lost ('wavecast archive repair' makes it again from the trace)"
    return Finding(fault=Fault.ENTRY, name=name, text=text)


def _strangers(archive: Archive, sizes: dict[str, int]) -> Iterator[Finding]:
    entries = archive.store.names(ENTRIES)
    named = set(map(id_of_record, entries))
    foreign = [name for name in sizes if id_of(name) is None] + [name for name in entries if id_of_record(name) is None]
    for name in foreign:
        yield Finding(fault=Fault.FOREIGN, name=name, text="no file of the archive")
    for trace_id in filter(None, map(id_of, sizes)):
        if trace_id not in named:
            yield Finding(fault=Fault.UNNAMED, name=trace_id, text="no entry names it ('wavecast archive repair')")
