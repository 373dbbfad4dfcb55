"""An archive in a bucket holds what one in a folder does: in memory, and through a server that speaks S3."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from wavecast.analyzer.questions.archive.command import archive as archive_command
from wavecast.errors import InputError, OutputError, WavecastError
from wavecast.formats.archive import init_archive, open_archive
from wavecast.formats.archive.changes import publish, sweep
from wavecast.formats.archive.entry import key_of
from wavecast.formats.archive.seal import seal
from wavecast.formats.archive.store import JournalChangedError
from wavecast.formats.archive.stores import bucket_journal, open_store
from wavecast.formats.archive.stores.objects import Objects
from wavecast.formats.archive.verify import Fault, verify
from wavecast.formats.files.open import load_trace, save_trace
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.tables import Trace, Workload

pytest.importorskip("fsspec")
BUCKET = "wavecast-tests"
WRITERS = 2
EACH = 3


def settings(endpoint: str, cache: Path) -> dict[str, str]:
    """Return what points the cloud's own configuration at the server of the tests, and at nothing of this machine's."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "XDG_CACHE_HOME": str(cache),
    }


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a moto server with an empty bucket."""
    if any(find_spec(name) is None for name in ("moto", "flask", "flask_cors", "s3fs")):
        pytest.skip("needs moto and s3fs: pip install 'wavecast[dev]'")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ends_s = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > ends_s:
                    pytest.skip("the server of the tests does not start")
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)


@pytest.fixture
def s3(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty prefix of a bucket."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings(s3_server, tmp_path).items():
        monkeypatch.setenv(name, value)
    import fsspec

    system = fsspec.filesystem("s3", use_listings_cache=False)
    if not system.exists(BUCKET):
        system.mkdir(BUCKET)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture(params=["memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return f"memory://{BUCKET}/{uuid.uuid4().hex}"


def variant(trace: Trace, name: str) -> Trace:
    return replace(trace, meta=replace(trace.meta, workload=Workload(name=name, mode="training", batch_size=4)))


def journal(url: str) -> list[str]:
    names = [item.name for item in Objects(url).list("journal")]
    return [name for name in names if name.count("/") == 1]


def test_the_same_trace_is_kept_once_and_read_by_its_reference(url: str, small_trace: Trace) -> None:
    assert [init_archive(url), init_archive(f"{url}/")] == [True, False]
    with open_archive(url) as archive:
        first, is_new = archive.add_new(small_trace, tags=["one"])
        again, is_new_again = archive.add_new(small_trace, tags=["two"], note="seen twice")
        assert (is_new, is_new_again) == (True, False)
        assert (again.id, again.tags, again.note) == (first.id, ("one", "two"), "seen twice")
        assert [key for key, _ in archive.store.sizes()] == [key_of(first.id)]
        assert encode(load_trace(f"archive://{url}#one")) == encode(small_trace)
        assert verify(archive, deep=True).findings == ()
        archive.remove(first.id)
        assert archive.entries() == []
        assert list(archive.store.sizes()) == []


def test_what_is_damaged_or_missing_is_named_and_mended(url: str, small_trace: Trace) -> None:
    init_archive(url)
    with open_archive(url) as archive:
        lost, spoilt = archive.add(variant(small_trace, "lost")), archive.add(variant(small_trace, "spoilt"))
        store = Objects(url)
        store.delete(key_of(lost.id))
        data = bytearray(store.get(key_of(spoilt.id)))
        data[len(data) // 2] ^= 1
        store.put(key_of(spoilt.id), bytes(data))
        store.put("traces/notes.txt", b"mine")
        found = {item.name: item.fault for item in verify(archive).findings}
        assert found == {lost.id: Fault.MISSING, spoilt.id: Fault.DAMAGED, "traces/notes.txt": Fault.FOREIGN}
        for name in ("lost", "spoilt"):
            archive.add(variant(small_trace, name))
        assert verify(archive).is_sound


def test_damage_to_the_journal_is_counted_and_taken_out(url: str) -> None:
    store = open_store(url)
    store.append(b'{"a": 1}', b'{"b": 2}')
    store.append(b'{"c": 3}')
    name = journal(url)[0]
    data = Objects(url).get(name)
    for spoilt in (data.replace(b": 2}", b": 3}"), data[:-1], data.splitlines(keepends=True)[0]):
        Objects(url).put(name, spoilt)
        assert store.health().damaged_count == 1
        with pytest.raises(InputError, match="nothing was removed"):
            sweep(store, set, prefix="traces/")
    assert store.mend() == 1
    assert store.health().damaged_count == 0
    assert [line for _, line in store.records()] == [b'{"a": 1}', b'{"c": 3}']


def test_a_position_misses_nothing_that_arrives_under_an_earlier_name(url: str) -> None:
    store = open_store(url)
    for number in range(20):
        store.append(b"%d" % number, b"more")
    found = list(store.records())
    for number in (0, 1, 2, 25, 39):
        assert list(store.records(found[number][0])) == found[number + 1 :]
    objects, names = Objects(url), journal(url)
    late = open_store(url + "x")
    late.append(b"late")
    (name,) = journal(url + "x")
    data = Objects(url + "x").get(name)
    time_us = int(names[-2].partition("/")[2][:16]) + 1
    objects.put(f"journal/{time_us:016d}{name[24:]}", data)
    assert [line for _, line in store.records(found[-1][0])] == [b"late"]
    objects.put(f"journal/{1:016d}{name[24:]}", data)
    for position in (found[-1][0], "no position"):
        with pytest.raises(JournalChangedError):
            list(store.records(position))


def test_small_objects_are_merged_and_readers_beside_lose_nothing(
    url: str, small_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_journal, "MERGE_COUNT", 5)
    init_archive(url)
    with open_archive(url) as archive, open_archive(url) as reader:
        entry = archive.add(small_trace)
        for number in range(12):
            archive.tag([entry.id], add=[f"t{number}"])
        assert len(journal(url)) < 8
        assert reader.find("t0").tags == reader.find("t11").tags == archive.find(entry.id).tags
        assert len(reader.find("t0").tags) == 12
        names, get_all = journal(url), Objects.get_all

        def get_while_merged(self: Objects, wanted: Any) -> dict[str, bytes]:
            monkeypatch.setattr(Objects, "get_all", get_all)
            bucket_journal.BucketJournal(Objects(url)).merge()
            return get_all(self, wanted)

        monkeypatch.setattr(Objects, "get_all", get_while_merged)
        assert archive.store.health().record_count == 14
        assert len(journal(url)) == 1 < len(names)


def test_sweeps_remove_what_no_record_names_and_put_back_what_one_does(url: str) -> None:
    store = open_store(url)
    publish(store, {"traces/a.json.gz": seal(b"a"), "traces/b.json.gz": seal(b"b")}, b'{"a": 1}')
    assert store.write("traces/a.json.gz", seal(b"a")) is False
    assert sweep(store, set, prefix="traces/").removed_count == 0
    seen = iter([{"traces/a.json.gz"}, {"traces/a.json.gz", "traces/b.json.gz"}])
    assert sweep(store, lambda: next(seen), prefix="traces/", grace_s=0).restored_count == 1
    assert store.read("traces/b.json.gz") == seal(b"b")
    assert sweep(store, set, prefix="traces/", grace_s=0).removed_count == 2
    assert [item.name for item in Objects(url).list("")] == journal(url)
    assert store.move("traces/a.json.gz", "removed/a") is False
    with pytest.raises(InputError, match="holds no"):
        store.read("traces/a.json.gz")


def add_many(url: str, path: Path, writer: int, environment: dict[str, str]) -> None:
    os.environ |= environment
    trace = load_trace(path)
    with open_archive(url) as archive:
        for number in range(EACH):
            archive.add(variant(trace, f"model{number}"), tags=[f"writer{writer}"])


def test_several_writers_lose_nothing(s3: str, s3_server: str, small_trace: Trace, tmp_path: Path) -> None:
    save_trace(small_trace, tmp_path / "trace.json.gz")
    init_archive(s3)
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(
            target=add_many, args=(s3, tmp_path / "trace.json.gz", number, settings(s3_server, tmp_path / f"{number}"))
        )
        for number in range(WRITERS)
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join(timeout=120)
        assert process.exitcode == 0
    with open_archive(s3) as archive:
        assert [len(entry.tags) for entry in archive.entries()] == [WRITERS] * EACH
        assert verify(archive, deep=True).findings == ()


@pytest.mark.parametrize(
    "bad",
    ["s3://user:secret@bucket/x", "s3://bucket/x?token=secret", "ftp://host/x", "s3://", "s3://b/../x", "s3://b/journal",
     "abfs://user:secret@account/x", "s3://b/*"],
)  # fmt: skip
def test_urls_that_are_none_are_refused_without_their_secrets(bad: str) -> None:
    with pytest.raises(InputError) as caught:
        open_store(bad)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bucket_that_is_not_there_or_not_reached_is_one_line(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputError, match="there is no bucket no-such-bucket"):
        init_archive("s3://no-such-bucket/x")
    with pytest.raises(InputError, match="there is no bucket"):
        open_archive("s3://no-such-bucket/x")
    with pytest.raises(InputError, match="archive init"):
        open_archive(s3)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=r"pip install 'wavecast\[s3\]'"):
        init_archive(s3)


@pytest.mark.parametrize(
    ("error", "text"),
    [(PermissionError("secret"), "access denied"), (TimeoutError("secret"), "cannot be written")],
)
def test_what_a_cloud_refuses_is_one_line_without_its_text(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(WavecastError, match=text) as caught:
        open_store("memory://b/x").append(b"{}")
    assert "secret" not in str(caught.value)


def test_the_commands_take_a_bucket(url: str, small_trace: Trace, tmp_path: Path) -> None:
    save_trace(small_trace, tmp_path / "trace.json.gz")
    runner = CliRunner()
    for words, expected in (
        (["init", url], "an empty archive"),
        (["add", url, str(tmp_path / "trace.json.gz"), "--tag", "nightly"], "added"),
        (["add", url, f"archive://{url}#nightly"], "there already"),
        (["find", url, "tag=nightly"], str(small_trace.meta.workload.name)),
        (["verify", url, "--deep"], ""),
        (["export", url, "nightly", "-o", str(tmp_path / "out.json")], "out.json"),
        (["prune", url, "tag=nightly"], "1 traces removed"),
        (["repair", url], "0 traces"),
    ):
        result = runner.invoke(archive_command, words)
        assert result.exit_code == 0, (words, result.output)
        assert expected in result.output
    assert encode(load_trace(tmp_path / "out.json")) == encode(small_trace)
