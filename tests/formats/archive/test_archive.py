"""An archive keeps each trace once, finds it again, and says what is lost."""

from __future__ import annotations

import gzip
import multiprocessing
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from wavecast.errors import InputError, TraceError
from wavecast.formats.archive import Archive, init_archive, open_archive
from wavecast.formats.archive.entry import key_of
from wavecast.formats.archive.index import Index
from wavecast.formats.archive.journal import decode_change
from wavecast.formats.archive.reference import as_path, is_reference, load_reference, parse_reference
from wavecast.formats.archive.verify import Fault, verify
from wavecast.formats.files.open import load_trace, save_trace
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.tables import HostTimes, Trace, Workload

WRITERS = 4
EACH = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert init_archive(tmp_path / "archive")
    return tmp_path / "archive"


def variant(trace: Trace, name: str, batch: int = 4) -> Trace:
    meta = replace(trace.meta, workload=Workload(name=name, mode="training", batch_size=batch))
    return replace(trace, meta=meta)


def test_the_same_trace_is_kept_once_whatever_it_came_from(folder: Path, small_trace: Trace, tmp_path: Path) -> None:
    with open_archive(folder) as archive:
        first, is_new = archive.add_new(small_trace, tags=["one"])
        again, is_new_again = archive.add_new(small_trace, tags=["two"], note="seen twice")
    assert (is_new, is_new_again) == (True, False)
    assert again.id == first.id
    assert (again.tags, again.note) == (("one", "two"), "seen twice")
    assert len(list((folder / "traces").rglob("*.json.gz"))) == 1
    assert encode(load_trace(f"archive://{folder}#one")) == encode(small_trace)
    assert gzip.decompress((folder / key_of(first.id)).read_bytes()) == encode(small_trace)


def test_queries_find_by_what_a_trace_holds(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        for name, batch in (("llama_8b", 8), ("llama_70b", 1), ("vit", 64)):
            archive.add(variant(small_trace, name, batch), tags=[f"of-{name}"])
        assert {entry.workload for entry in archive.entries("workload~llama")} == {"llama_8b", "llama_70b"}
        assert [entry.workload for entry in archive.entries("workload~LLAMA batch>=8")] == ["llama_8b"]
        assert [entry.workload for entry in archive.entries("tag=of-vit")] == ["vit"]
        assert len(archive.entries("date>=2020")) == len(archive.entries()) == 3
        assert archive.entries('workload="x\' OR 1=1 --"') == []
        for query in ("colour=red", "batch~8", "batch>=many", "batch", "time<5parsecs"):
            with pytest.raises(InputError):
                archive.entries(query)


def test_an_index_that_is_lost_or_damaged_is_made_again(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        archive.add(small_trace, tags=["kept"])
    index = folder / "index.sqlite"
    for spoil in (index.unlink, lambda: index.write_bytes(b"no database at all" * 100)):
        spoil()
        with open_archive(folder) as archive:
            assert [entry.tags for entry in archive.entries()] == [("kept",)]
    with sqlite3.connect(index) as database:
        assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_every_flipped_bit_is_found_or_changes_nothing(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        for number in range(3):
            archive.add(variant(small_trace, f"model{number}"), tags=[f"t{number}"])
        before = archive.entries()
    chance = random.Random(0)  # noqa: S311
    files = [path for path in folder.rglob("*") if path.is_file() and "index" not in path.name]
    for _ in range(60):
        path = chance.choice(files)
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        whole = path.read_bytes()
        path.write_bytes(data)
        with open_archive(folder) as archive:
            found = verify(archive)
            assert not found.is_sound or archive.entries() == before, (path, at)
            assert not found.is_sound or all(encode(archive.load(entry.id)) for entry in before)
        path.write_bytes(whole)
    with open_archive(folder) as archive:
        assert verify(archive, deep=True).findings == ()


def test_what_is_missing_or_left_over_is_named(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        lost, kept = archive.add(variant(small_trace, "lost")), archive.add(variant(small_trace, "kept"))
        (folder / key_of(lost.id)).unlink()
        (folder / "traces" / "notes.txt").write_text("mine")
        data = (folder / key_of(kept.id)).read_bytes()
        stray = folder / key_of("ab" * 32)
        stray.parent.mkdir()
        stray.write_bytes(data)
        found = {item.fault: item.name for item in verify(archive).findings}
        assert found == {Fault.MISSING: lost.id, Fault.UNNAMED: "ab" * 32, Fault.FOREIGN: "traces/notes.txt"}
        with pytest.raises(InputError):
            archive.load(lost.id)
        assert archive.add_new(variant(small_trace, "lost"))[1] is False
        assert verify(archive).is_sound


def test_a_damaged_trace_is_refused_and_mended_by_adding_it_again(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        entry = archive.add(small_trace)
        path = folder / key_of(entry.id)
        path.write_bytes(gzip.compress(encode(variant(small_trace, "forged"))))
        with pytest.raises(TraceError, match="damaged"):
            archive.load(entry.id)
        archive.add(small_trace)
        assert archive.load(entry.id).meta == small_trace.meta


def test_entries_are_made_again_from_files_when_the_journal_is_lost(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        entry = archive.add(small_trace, tags=["gone"])
    for path in (folder / "journal").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="repair"):
        open_archive(folder)
    init_archive(folder)
    with open_archive(folder) as archive:
        assert archive.repair() == [entry.id]
        assert [item.id for item in archive.entries()] == [entry.id]


def test_names_that_mean_several_or_none_are_refused(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        one = archive.add(variant(small_trace, "a"), tags=["both"])
        archive.add(variant(small_trace, "b"), tags=["both"])
        assert archive.find(one.id[:8]) == one
        with pytest.raises(InputError, match="means 2 traces"):
            archive.find("both")
        with pytest.raises(InputError, match="no trace has"):
            archive.find("neither")
        for tag in ("", "a b", "x" * 65, "ab" * 32):
            with pytest.raises(InputError):
                archive.tag([one.id], add=[tag])


def test_removed_traces_are_gone_and_may_come_back(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        entry = archive.add(small_trace, tags=["old"])
        archive.remove(entry.id)
        assert archive.entries() == []
        assert not list((folder / "traces").rglob("*.json.gz"))
        assert archive.add(small_trace).tags == ()


def add_many(folder: Path, path: Path, writer: int) -> None:
    trace = load_trace(path)
    with open_archive(folder) as archive:
        for number in range(EACH):
            archive.add(variant(trace, f"model{number}"), tags=[f"writer{writer}"])


def test_several_writers_lose_nothing(folder: Path, small_trace: Trace, tmp_path: Path) -> None:
    save_trace(small_trace, tmp_path / "trace.json.gz")
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=add_many, args=(folder, tmp_path / "trace.json.gz", number)) for number in range(WRITERS)
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join(timeout=120)
        assert process.exitcode == 0
    with open_archive(folder) as archive:
        entries = archive.entries()
        assert len(entries) == EACH
        assert all(len(entry.tags) == WRITERS for entry in entries)
        assert verify(archive, deep=True).findings == ()


@pytest.mark.parametrize("text", ["archive://traces#nightly", "archive:///tmp/a b#ab12", "archive://s3://bucket/x#t"])
def test_references_survive_being_paths(text: str) -> None:
    location, name = parse_reference(text)
    path = as_path(text)
    assert is_reference(path)
    again, name_again = parse_reference(path)
    assert name_again == name
    assert again == location or Path(again) == Path(location).absolute()


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="archive init"):
        open_archive(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="archive init"):
        open_archive(tmp_path / "empty")
    init_archive(tmp_path / "a")
    with pytest.raises(InputError, match="which trace"):
        load_reference(f"archive://{tmp_path / 'a'}")
    assert isinstance(open_archive(tmp_path / "a"), Archive)


def test_an_index_that_another_process_made_anew_loses_nothing(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        archive.add(variant(small_trace, "first"))
    (folder / "index.sqlite").unlink()
    with open_archive(folder) as late:
        early_records = list(late.store.records())
        with open_archive(folder) as other:
            other.add(variant(small_trace, "second"))
            changes = [(position, decode_change(line)) for position, line in early_records]
            index = Index(folder / "index.sqlite")
            assert index.apply(changes, archive_id=index.archive_id, after="", is_new=True)
            assert not index.apply([], archive_id=index.archive_id, after="somewhere else")
            index.close()
            other.add(variant(small_trace, "third"))
        assert {entry.workload for entry in late.entries()} >= {"first"}
    with open_archive(folder) as archive:
        assert {entry.workload for entry in archive.entries()} == {"first", "second", "third"}


def test_checking_reads_a_journal_that_was_put_back(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        archive.add(variant(small_trace, "first"))
        archive.add(variant(small_trace, "second"))
    journal = folder / "journal" / "records.jsonl"
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b"second", b"sXcond")]))
    (folder / "index.sqlite").unlink()
    with open_archive(folder) as archive:
        assert not verify(archive).is_sound
    journal.write_bytes(whole)
    with open_archive(folder) as archive:
        assert verify(archive).findings == ()
        assert len(archive.entries()) == 2


def test_a_host_is_kept_without_what_tells_of_a_person(folder: Path, small_trace: Trace) -> None:
    told = HostTimes(processor="AMD EPYC /home/ann/x", python_version="3.11 ann@host.example", python_ns=5000.0)
    with open_archive(folder) as archive:
        archive.add(replace(small_trace, meta=replace(small_trace.meta, host=told)), tags=["one"])
    kept = load_trace(f"archive://{folder}#one").meta.host
    assert kept == HostTimes(processor="AMD EPYC <path>", python_version="3.11 <address>", python_ns=5000.0)
