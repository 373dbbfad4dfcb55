"""Folders for recordings go with their process, or with the next recording."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from wavecast.tracer.measured.profiled import scratch_folder

WAIT = """
import time
from wavecast.tracer.measured.profiled import scratch_folder
with scratch_folder() as folder:
    (folder / "recording").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(parent: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has such a folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(parent)}
    command = [sys.executable, "-c", WAIT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert Path(process.stdout.readline().strip()).parent == parent
        yield process
        process.kill()


def test_a_folder_goes_at_the_end(parent: Path) -> None:
    with scratch_folder() as folder:
        assert folder.parent == parent
        (folder / "recording").touch()
    assert list(parent.iterdir()) == []


def test_that_of_a_killed_process_goes_at_once_with_the_next(owner: subprocess.Popen[str], parent: Path) -> None:
    with scratch_folder():
        assert len(list(parent.iterdir())) == 2
    assert len(list(parent.iterdir())) == 1
    owner.kill()
    owner.wait()
    with scratch_folder():
        assert len(list(parent.iterdir())) == 1


def test_where_users_have_no_numbers_folders_of_others_stay(
    owner: subprocess.Popen[str], parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "getuid")  # as on Windows
    with scratch_folder():
        assert len(list(parent.iterdir())) == 2


@pytest.mark.parametrize(("mode", "age_s", "stays"), [(0o700, 0, True), (0o700, 90, False), (0o755, 90, True)])
def test_one_whose_owner_was_killed_before_the_lock_goes_later(
    mode: int, age_s: int, stays: bool, parent: Path
) -> None:
    folder = parent / "wavecast-12345678"
    folder.mkdir(mode=mode)
    (folder / "lock.new").touch()
    folder.chmod(mode)
    os.utime(folder, (time.time() - age_s,) * 2)
    with scratch_folder():
        assert folder.exists() == stays


def test_what_holds_other_things_stays(parent: Path) -> None:
    folder = parent / "wavecast-12345678"
    folder.mkdir(mode=0o700)
    (folder / "mine").touch()
    os.utime(folder, (0, 0))
    (parent / "wavecast-notes").touch()
    named = parent / "wavecast-of-mine"
    named.mkdir(mode=0o700)
    os.utime(named, (0, 0))
    with scratch_folder():
        assert len(list(parent.iterdir())) == 4
