"""What an object store refuses, or does not have, is one line without secrets."""

from __future__ import annotations

import sys

import pytest
from wavecast.errors import InputError, OutputError, WavecastError
from wavecast.formats.archive import init_archive, open_archive
from wavecast.formats.archive.store import open_store


@pytest.mark.parametrize(
    "bad",
    ["s3://user:secret@bucket/x", "s3://bucket/x?token=secret", "ftp://host/x", "s3://", "s3://b/../x",
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
        open_store("memory://b/x").write("archive.json", b"{}")
    assert "secret" not in str(caught.value)
