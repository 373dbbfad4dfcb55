"""Files are replaced whole or not at all, and what a killed writer leaves goes with the next write."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from wavecast.errors import OutputError, WriteError
from wavecast.formats.files import replacing
from wavecast.formats.files.open import write_atomic
from wavecast.formats.files.replacing import remove_left

LEFT = ".wavecast-0123456789abcdef.tmp"
SLOW_WRITER = """
import os, sys, time
from pathlib import Path
from wavecast.formats.files import replacing
from wavecast.formats.files.open import write_atomic
def wait(descriptor):
    print("writing", flush=True)
    time.sleep(60)
replacing._settle = wait
write_atomic(sys.argv[1], b"new")
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that stands still in the middle of writing `tmp_path / "t"`."""
    command = [sys.executable, "-c", SLOW_WRITER, str(tmp_path / "t")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process
        process.kill()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_writer_leaves_goes_with_the_next_write(
    writer: subprocess.Popen[str], tmp_path: Path, number: int
) -> None:
    write_atomic(tmp_path / "other", b"x")
    assert len(names_in(tmp_path)) == 2  # the writer lives: what it writes stays
    writer.send_signal(number)
    writer.wait()
    assert len(names_in(tmp_path)) == 2
    write_atomic(tmp_path / "other", b"x")
    assert names_in(tmp_path) == ["other"]


def test_without_locks_age_tells_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "fcntl", None)
    young, old = tmp_path / LEFT, tmp_path / LEFT.replace("0", "f")
    young.touch()
    old.touch()
    long_ago = time.time() - 2 * 86_400
    os.utime(old, (long_ago, long_ago))
    write_atomic(tmp_path / "t", b"x")
    assert names_in(tmp_path) == [LEFT, "t"]


def test_only_own_files_are_removed(tmp_path: Path) -> None:
    for name in (LEFT, ".wavecast-notes.tmp", "wavecast-0123456789abcdef.tmp", f"{LEFT}.json"):
        (tmp_path / name).touch()
    aside = tmp_path / LEFT.replace("0", "a")
    aside.mkdir()
    link = tmp_path / LEFT.replace("0", "b")
    link.symlink_to(tmp_path / ".wavecast-notes.tmp")
    pipe = tmp_path / LEFT.replace("0", "c")
    os.mkfifo(pipe)
    before = names_in(tmp_path)
    remove_left(tmp_path)
    before.remove(LEFT)
    assert names_in(tmp_path) == before
    remove_left(tmp_path / "missing")


def test_a_file_that_was_taken_for_left_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[Path] = []
    take_lock = replacing.take_lock

    def remove_first(descriptor: int) -> replacing.Lock:
        if not removed:
            removed.extend(tmp_path.glob(".wavecast-*.tmp"))
            removed[0].unlink()
        return take_lock(descriptor)

    monkeypatch.setattr(replacing, "take_lock", remove_first)
    write_atomic(tmp_path / "t", b"x")
    assert len(removed) == 1
    assert names_in(tmp_path) == ["t"]
    assert (tmp_path / "t").read_bytes() == b"x"


def test_many_writers_of_one_file_do_each_other_no_harm(tmp_path: Path) -> None:
    errors: list[OutputError] = []

    def write(number: int) -> None:
        try:
            for _ in range(20):
                write_atomic(tmp_path / "t", bytes([number]) * 1000)
        except OutputError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert names_in(tmp_path) == ["t"]
    assert len(set((tmp_path / "t").read_bytes())) == 1


def test_new_files_follow_the_umask_and_old_ones_keep_their_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "new", b"x")
        (tmp_path / "old").touch()
        (tmp_path / "old").chmod(0o604)
        write_atomic(tmp_path / "old", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o604


def test_other_names_of_a_file_keep_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    os.link(tmp_path / "a", tmp_path / "b")
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "b").read_bytes() == b"old"


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no limit on file sizes here")
def test_a_full_disk_is_a_failure_and_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    (tmp_path / "t").write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(WriteError, match=f"{tmp_path}/t: cannot be written: File too large"):
            write_atomic(tmp_path / "t", bytes(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names_in(tmp_path) == ["t"]
    assert (tmp_path / "t").read_bytes() == b"old"


def test_room_that_is_missed_at_the_end_is_a_failure_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WriteError, match="Disk quota exceeded"):
        write_atomic(tmp_path / "t", b"x")
    assert names_in(tmp_path) == []
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.EINVAL, "cannot sync")))
    write_atomic(tmp_path / "t", b"x")
    assert names_in(tmp_path) == ["t"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_device_without_room_is_a_failure() -> None:
    with pytest.raises(WriteError, match="/dev/full: cannot be written: No space left on device"):
        write_atomic("/dev/full", b"x")


def test_pipes_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_atomic(pipe, b"x")
    reader.join()
    assert read == [b"x"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_the_names_of_standard_output_append_to_it(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.write(1, b"before ")
    write_atomic(name, b"after")
    assert capfd.readouterr().out == "before after"


def test_open_pipes_are_written_to_by_their_number() -> None:
    reader, writer = os.pipe()
    write_atomic(f"/dev/fd/{writer}", b"x")
    assert os.read(reader, 9) == b"x"
    os.close(reader)
    os.close(writer)
    with pytest.raises(OutputError, match="Bad file descriptor"):
        write_atomic(f"/dev/fd/{writer}", b"x")
