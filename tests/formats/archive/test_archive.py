"""An archive keeps each trace once, finds it again, and says what is lost; in a folder as in a bucket."""

from __future__ import annotations

import gzip
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wavecast.errors import InputError, OutputError, TraceError, WriteError
from wavecast.formats.archive import Archive, archive as archive_module, init_archive, open_archive
from wavecast.formats.archive.entry import Record, decode_record, encode_record, id_of_record, merge
from wavecast.formats.archive.making import repair_archive
from wavecast.formats.archive.seal import key_of, seal
from wavecast.formats.archive.store import open_store, read_one
from wavecast.formats.archive.verify import Fault, verify
from wavecast.formats.files.open import load_trace, save_trace
from wavecast.formats.files.reference import as_path, is_reference, load_reference, parse_reference
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.tables import HostTimes, Trace, Workload

WRITERS = 2
EACH = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert init_archive(tmp_path / "archive")
    return tmp_path / "archive"


def variant(trace: Trace, name: str, batch: int = 4) -> Trace:
    meta = replace(trace.meta, workload=Workload(name=name, mode="training", batch_size=batch))
    return replace(trace, meta=meta)


def names(place: str | Path) -> list[str]:
    """Return the names of an archive's traces and entries."""
    store = open_store(place)
    return [*store.names("traces"), *store.names("entries")]


def findings(place: str | Path) -> dict[str, Fault]:
    with open_archive(place) as archive:
        return {item.name: item.fault for item in verify(archive, deep=True).findings}


def test_the_same_trace_is_kept_once_whatever_it_came_from(place: str, small_trace: Trace) -> None:
    assert init_archive(f"{place}/") is False
    with open_archive(place) as archive:
        first, is_new = archive.add(small_trace, tags=["one"])
        again, is_new_again = archive.add(small_trace, tags=["two"], note="seen twice")
        assert (is_new, is_new_again) == (True, False)
        assert (again.id, again.tags, again.note) == (first.id, ("one", "two"), "seen twice")
        assert [name.partition("/")[0] for name in names(place)] == ["traces", "entries"]
        assert encode(load_trace(f"archive://{place}#one")) == encode(small_trace)
        assert gzip.decompress(read_one(archive.store, key_of(first.id)) or b"") == encode(small_trace)
        assert verify(archive, deep=True).findings == ()
        archive.remove(first.id)
        assert archive.entries() == []
        assert names(place) == []
        assert archive.add(small_trace)[0].tags == ()


def test_tags_and_notes_come_and_go(place: str, small_trace: Trace) -> None:
    with open_archive(place) as archive, open_archive(place) as reader:
        entry, _ = archive.add(small_trace, tags=["a", "b"], note="first")
        assert archive.tag("a", add=["c"], remove=["b"]).tags == ("a", "c")
        assert reader.find("c").note == "first"
        assert archive.tag(entry.id[:8], note="").note is None
        assert reader.find(entry.id) == archive.find("a")
        assert len(names(place)) == 2
        for tag in ("", "a b", "x" * 65, "ab" * 32):
            with pytest.raises(InputError):
                archive.tag(entry.id, add=[tag])


def test_queries_find_by_what_a_trace_holds(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        for name, batch in (("llama_8b", 8), ("llama_70b", 1), ("vit", 64)):
            archive.add(variant(small_trace, name, batch), tags=[f"of-{name}"])
        for query, found in (
            ("workload~llama", {"llama_8b", "llama_70b"}),
            ("workload~LLAMA batch>=8", {"llama_8b"}),
            ("tag=of-vit", {"vit"}),
            ("tag!=of-vit", {"llama_8b", "llama_70b"}),
            ("tag~of- batch!=8", {"llama_70b", "vit"}),
            ("date>=2020 size>1B and size<1GB", {"llama_8b", "llama_70b", "vit"}),
            ("sequence!=7 rank!=0 batch=64", {"vit"}),
            ("rank<9", set()),
            ("recorded=2026", set()),
            ('workload="x\' OR 1=1 --"', set()),
        ):
            assert {entry.workload for entry in archive.entries(query)} == found, query
        for query in ("colour=red", "batch~8", "batch>=many", "batch", "time<5parsecs", "batch=8GB", "date=yesterday"):
            with pytest.raises(InputError):
                archive.entries(query)


def test_names_that_mean_several_or_none_are_refused(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        one, _ = archive.add(variant(small_trace, "a"), tags=["both"])
        archive.add(variant(small_trace, "b"), tags=["both"])
        assert archive.find(one.id[:8]) == archive.find(one.id) == one
        assert archive.names("bo") == ["both"]
        with pytest.raises(InputError, match="means 2 traces"):
            archive.find("both")
        for name in ("neither", "ab" * 32):
            with pytest.raises(InputError, match="no trace has"):
                archive.find(name)


def test_what_is_damaged_missing_or_left_over_is_named_and_mended(place: str, small_trace: Trace) -> None:
    with open_archive(place) as archive:
        store = archive.store
        lost, spoilt, kept = (archive.add(variant(small_trace, name))[0] for name in ("lost", "spoilt", "kept"))
        store.remove(key_of(lost.id))
        data = bytearray(read_one(store, key_of(spoilt.id)) or b"")
        data[len(data) // 2] ^= 1
        store.write(key_of(spoilt.id), bytes(data))
        store.write("traces/notes.txt", b"mine")
        store.write("entries/notes.txt", b"mine")
        store.write(key_of("ab" * 32), read_one(store, key_of(kept.id)) or b"")
        harmless = {"traces/notes.txt": Fault.FOREIGN, "entries/notes.txt": Fault.FOREIGN, "ab" * 32: Fault.UNNAMED}
        assert findings(place) == {lost.id: Fault.MISSING, spoilt.id: Fault.DAMAGED, **harmless}
        for entry, kind in ((lost, InputError), (spoilt, TraceError)):
            with pytest.raises(kind, match=r"missing|damaged"):
                archive.load(entry.id)
        for name in ("lost", "spoilt"):
            assert archive.add(variant(small_trace, name))[1] is False
        assert findings(place) == harmless
        assert archive.sweep() == []
        assert archive.sweep(grace_s=0) == ["ab" * 32]
        assert len(archive.entries()) == 3


def test_a_forged_trace_is_refused(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        entry, _ = archive.add(small_trace)
        archive.store.write(key_of(entry.id), seal(encode(variant(small_trace, "forged"))))
        with pytest.raises(TraceError, match="not what was added"):
            archive.load(entry.id)
        assert findings(folder) == {entry.id: Fault.DAMAGED}


@pytest.mark.parametrize(
    "forged",
    [b'{"entry":{"id":"%s","added":"2026","format_version":"1","op_count":9223372036854775808}}', b'{"entry":{}}',
     b'{"entry":{"id":"%s","added":"2026","format_version":"1"},"tags":{"a b":1}}', b"[" * 10_000, b"\xff", b""],
)  # fmt: skip
def test_entries_that_hold_what_none_can_are_damaged(forged: bytes, folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        entry, _ = archive.add(small_trace)
        (name,) = archive.store.names("entries")
        content = forged.replace(b"%s", entry.id.encode())
        archive.store.remove(name)
        forged_name = f"{name[:-21]}{hashlib.sha256(content).hexdigest()[:16]}.json"
        archive.store.write(forged_name, content)
        assert archive.entries() == []
        assert findings(folder) == {forged_name: Fault.ENTRY}
        assert archive.sweep(grace_s=0) == [], "a damaged entry names its file"
    assert repair_archive(folder) == [entry.id]
    assert findings(folder) == {}


def test_every_flipped_bit_is_found_or_changes_nothing(
    folder: Path, small_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "_LOOSE_COUNT", 0)
    with open_archive(folder) as archive:
        for number in range(3):
            archive.add(variant(small_trace, f"model{number}"), tags=[f"t{number}"])
        before = archive.entries()
    chance = random.Random(0)  # noqa: S311
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".gz", ".json", ".wavecast"}
    for _ in range(80):
        path = chance.choice(files)
        whole = path.read_bytes()
        data = bytearray(whole)
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            with open_archive(folder) as archive:
                entries = archive.entries()
                is_sound = verify(archive).is_sound
        except InputError as error:
            assert path.name in str(error), (path, at)  # noqa: PT017 - the mark itself
        else:
            assert not is_sound or entries == before, (path, at)
        path.write_bytes(whole)
    assert findings(folder) == {}


def test_an_index_that_is_lost_or_damaged_is_made_again(
    folder: Path, small_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "_LOOSE_COUNT", 0)
    with open_archive(folder) as archive:
        archive.add(small_trace, tags=["kept"])
        archive.entries()
    index = folder / "index.wavecast"
    whole = index.read_bytes()
    for spoil in (index.unlink, lambda: index.write_bytes(whole[:-1]), lambda: index.write_bytes(whole[:23] + b"9\n")):
        spoil()
        with open_archive(folder) as archive:
            assert [entry.tags for entry in archive.entries()] == [("kept",)]
        assert index.read_bytes() == whole
    with open_archive(folder) as archive:
        archive.tag("kept", add=["later"])
    with open_archive(folder) as archive:
        monkeypatch.setattr(archive_module, "decode_record", lambda *_: pytest.fail("read though it is in the index"))
        monkeypatch.setattr(archive.store, "read", lambda wanted: {} if not wanted else pytest.fail(str(wanted)))
        index.write_bytes(whole)
        with pytest.raises(pytest.fail.Exception, match="000002"):
            archive.entries()


def test_what_is_somebody_elses_is_neither_written_nor_believed(tmp_path: Path, small_trace: Trace) -> None:
    (tmp_path / "theirs").mkdir()
    for name in ("index.wavecast", "index.sqlite"):
        (tmp_path / "theirs" / name).write_bytes(b"SQLite format 3\0 with their tables")
    assert init_archive(tmp_path / "theirs")
    told: list[str] = []
    with open_archive(tmp_path / "theirs", say=told.append) as archive:
        for number in range(40):
            archive.add(variant(small_trace, f"net{number}"))
        assert len(archive.entries()) == 40
    assert "not of wavecast" in told[0]
    assert (tmp_path / "theirs" / "index.wavecast").read_bytes() == b"SQLite format 3\0 with their tables"
    (tmp_path / "mine").mkdir()
    for content in (b'{"name": "ann"}', b"\x1f"):
        (tmp_path / "mine" / "archive.json").write_bytes(content)
        with pytest.raises(OutputError, match="another folder"):
            init_archive(tmp_path / "mine")
        assert (tmp_path / "mine" / "archive.json").read_bytes() == content
    (tmp_path / "theirs" / "archive.json").write_text('{"format": "wavecast.archive", "version": 3}')
    with pytest.raises(InputError, match="expected version 2, found 3"):
        open_archive(tmp_path / "theirs")


def test_entries_and_mark_are_made_again_from_the_files(place: str, small_trace: Trace) -> None:
    with open_archive(place) as archive:
        entry, _ = archive.add(small_trace, tags=["gone"])
        for name in [*archive.store.names("entries"), "archive.json"]:
            archive.store.remove(name)
    with pytest.raises(InputError, match="repair"):
        open_archive(place)
    assert init_archive(place) is False
    assert repair_archive(place) == [entry.id]
    with open_archive(place) as archive:
        assert [(item.id, item.tags) for item in archive.entries()] == [(entry.id, ())]


class Interrupted:
    """A store that does something before one of the steps of what is under way."""

    def __init__(self, store: Any, step: int, action: Callable[[], object]) -> None:
        self.store, self.step, self.action = store, step, action

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name not in ("read", "write", "remove", "names", "objects"):
            return found

        def call(*arguments: Any) -> Any:
            self.step -= 1
            if self.step == 0:
                self.action()
            return found(*arguments)

        return call


ADDED: dict[str, Callable[[Archive, Trace], object]] = {
    "add": lambda archive, trace: archive.add(trace, tags=["new"]),
    "tag": lambda archive, trace: archive.tag("old", add=["new"], remove=["old"]),
    "remove": lambda archive, trace: archive.remove(archive.find("old").id),
    "sweep": lambda archive, trace: archive.sweep(grace_s=-1),
}


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("first", ADDED)
@pytest.mark.parametrize("second", ADDED)
def test_two_at_once_lose_nothing_wherever_one_interrupts_the_other(
    first: str, second: str, is_kept: bool, tmp_path: Path, small_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    for step in range(1, 30):
        place, done = tmp_path / f"{step}", list[bool]()
        init_archive(place)
        with open_archive(place) as archive, open_archive(place) as other:
            archive.add(small_trace, tags=["old"])
            for name in [] if is_kept else archive.store.names("entries"):  # what a killed `add` leaves
                archive.store.remove(name)

            def interrupt(other: Archive = other, done: list[bool] = done) -> None:
                done.append(True)
                act(second, other, small_trace)

            archive.store = Interrupted(archive.store, step, interrupt)  # type: ignore[assignment]
            act(first, archive, small_trace)
            if not done:
                assert step > 1
                return
            assert set(findings(place).values()) <= {Fault.UNNAMED}, step
            if "remove" not in (first, second):
                entries = other.entries()
                assert len(entries) == (is_kept or "add" in (first, second)), step
                assert "add" not in (first, second) or "new" in entries[0].tags, step
    pytest.fail("does not end")


def act(name: str, archive: Archive, trace: Trace) -> None:
    try:
        ADDED[name](archive, trace)
    except InputError as error:  # the other one has taken the tag or the trace away
        assert re.search("no trace has|removed meanwhile", str(error))  # noqa: PT017


@pytest.mark.parametrize("action", ADDED)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), WriteError("no room")], ids=["killed", "full"])
def test_one_that_ends_at_any_step_leaves_nothing_half_done(
    action: str, error: BaseException, folder: Path, small_trace: Trace
) -> None:
    def end() -> None:
        raise error

    for step in range(1, 30):
        with open_archive(folder) as archive:
            entry, _ = archive.add(small_trace, tags=["old"])
            store = archive.store
            archive.store = Interrupted(store, step, end)  # type: ignore[assignment]
            try:
                ADDED[action](archive, small_trace)
                return
            except (KeyboardInterrupt, WriteError):
                archive.store = store
            assert {fault for fault in findings(folder).values() if fault is not Fault.UNNAMED} == set(), step
            assert action == "remove" or {"old", "new"} & set(archive.find(entry.id).tags), step


def add_many(place: str, path: Path, writer: int) -> None:
    trace = load_trace(path)
    with open_archive(place) as archive:
        for number in range(EACH):
            archive.add(variant(trace, f"model{number}"), tags=[f"writer{writer}"])


def test_several_writers_lose_nothing(tmp_path: Path, request: pytest.FixtureRequest, small_trace: Trace) -> None:
    save_trace(small_trace, tmp_path / "trace.json.gz")
    context = multiprocessing.get_context("spawn")
    places = [str(tmp_path / "archive"), str(request.getfixturevalue("s3"))]
    for place in places:
        init_archive(place)
    writers = [
        context.Process(target=add_many, args=(place, tmp_path / "trace.json.gz", number))
        for number in range(WRITERS)
        for place in places
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join(timeout=240)
        assert process.exitcode == 0
    for place in places:
        with open_archive(place) as archive:
            assert [len(entry.tags) for entry in archive.entries()] == [WRITERS] * EACH
        assert findings(place) == {}


def test_changes_at_once_come_to_the_same_in_any_order(folder: Path, small_trace: Trace) -> None:
    with open_archive(folder) as archive:
        entry, _ = archive.add(small_trace)
    plain = Record(entry=msgspec.structs.replace(entry, tags=(), note=None))
    records = [
        msgspec.structs.replace(plain, tags={"a": 5, "b": 1}, note="x", note_us=3),
        msgspec.structs.replace(plain, tags={"a": -6}),
        msgspec.structs.replace(plain, tags={"b": -1, "c": 2}, note=None, note_us=4),
    ]
    merged = merge(records)
    assert merged == merge(records[::-1]) == merge([merge(records[:2]), *records[1:]])
    assert (merged.describe().tags, merged.describe().note) == (("b", "c"), None)
    name, data = encode_record(merged, follows=[encode_record(records[0])[0]])
    assert id_of_record(name) == entry.id
    assert decode_record(name, data) == merged
    assert decode_record(name, data + b" ") is None


@pytest.mark.parametrize("text", ["archive://traces#nightly", "archive:///tmp/a b#ab12", "archive://s3://bucket/x#t"])
def test_references_survive_being_paths(text: str) -> None:
    location, name = parse_reference(text)
    path = as_path(text)
    assert is_reference(path)
    again, name_again = parse_reference(path)
    assert name_again == name
    assert again == location or Path(again) == Path(location).absolute()


def test_what_is_no_archive_is_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, text in (("nowhere", "archive init"), ("empty", "archive init"), ("file", "found a file")):
        for action in (open_archive, repair_archive):
            with pytest.raises(InputError, match=text):
                action(tmp_path / name)
    with pytest.raises(OutputError, match="found a file"):
        init_archive(tmp_path / "file")
    with pytest.raises(InputError, match="which trace"):
        load_reference(f"archive://{folder}")


def test_links_and_pipes_are_no_entries(folder: Path, small_trace: Trace, tmp_path: Path) -> None:
    with open_archive(folder) as archive:
        entry, _ = archive.add(small_trace)
    (path,) = (folder / "entries").rglob("*.json")
    outside = tmp_path / path.name
    shutil.move(path, outside)
    path.symlink_to(outside)
    with open_archive(folder) as archive:
        assert archive.entries() == []
        assert archive.unnamed() == [entry.id]


def test_an_archive_that_may_not_be_written_is_read(
    folder: Path, small_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "_LOOSE_COUNT", 0)
    with open_archive(folder) as archive:
        archive.add(small_trace, tags=["kept"])

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    for module in ("index", "folder"):
        monkeypatch.setattr(f"wavecast.formats.archive.{module}.replace_file", refuse)
    with open_archive(folder) as archive:
        assert archive.load("kept").meta == small_trace.meta
        assert verify(archive, deep=True).findings == ()
        with pytest.raises(OutputError, match="Permission denied"):
            archive.tag("kept", add=["more"])


def test_a_host_is_kept_without_what_tells_of_a_person(folder: Path, small_trace: Trace) -> None:
    told = HostTimes(processor="AMD EPYC /home/ann/x", python_version="3.11 ann@host.example", python_ns=5000.0)
    with open_archive(folder) as archive:
        archive.add(replace(small_trace, meta=replace(small_trace.meta, host=told)), tags=["one"])
    kept = load_trace(f"archive://{folder}#one").meta.host
    assert kept == HostTimes(processor="AMD EPYC <path>", python_version="3.11 <address>", python_ns=5000.0)
    (path,) = (folder / "entries").rglob("*.json")
    assert json.loads(path.read_text())["entry"]["workload"] == small_trace.meta.workload.name
