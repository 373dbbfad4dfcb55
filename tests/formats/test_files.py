"""Reading and writing files: every way it can go wrong ends in one clear line, and nothing is left half-written."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
from pathlib import Path

import pytest
from wavecast import load_trace, save_trace
from wavecast.errors import InputError, OutputError, TraceError, WriteError
from wavecast.formats.files import unpack
from wavecast.formats.files.importers import IMPORTERS
from wavecast.formats.files.open import pack_gzip, read_bytes, write_atomic
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.tables import Trace


@pytest.fixture
def packed(small_trace: Trace) -> bytes:
    return pack_gzip(encode(small_trace))


def refusal(path: Path, error: type[InputError] = TraceError) -> str:
    """Return what `load_trace` says about a file, after its name."""
    with pytest.raises(error) as caught:
        load_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace"])
def test_a_saved_trace_is_loaded_again(small_trace: Trace, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    save_trace(small_trace, path)
    assert load_trace(str(path)) == small_trace
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert names_in(tmp_path) == [name]


def test_the_name_does_not_matter_when_reading(packed: bytes, small_trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(packed)
    assert load_trace(path) == small_trace


def test_the_same_trace_gives_the_same_bytes(small_trace: Trace, tmp_path: Path) -> None:
    save_trace(small_trace, tmp_path / "a.json.gz")
    save_trace(small_trace, tmp_path / "b.json.gz")
    first = (tmp_path / "a.json.gz").read_bytes()
    assert first == (tmp_path / "b.json.gz").read_bytes()
    assert first[3:10] == b"\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, no system
    assert gzip.decompress(first) == encode(small_trace)


def test_members_that_follow_each_other_are_one_file(small_trace: Trace, tmp_path: Path) -> None:
    text = encode(small_trace)
    path = tmp_path / "t"
    path.write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]) + b"\x00" * 7)
    assert load_trace(path) == small_trace


def test_standard_input_is_read(packed: bytes, small_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert load_trace("-") == small_trace


def test_standard_output_is_written(small_trace: Trace, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    save_trace(small_trace, "-")
    assert capfdbinary.readouterr().out == encode(small_trace)


def test_a_pipe_is_read(packed: bytes, small_trace: Trace) -> None:
    reader, writer = os.pipe()
    os.write(writer, packed)
    os.close(writer)
    assert load_trace(f"/dev/fd/{reader}") == small_trace
    os.close(reader)


NAMES = [item.name for item in IMPORTERS]
FOUND = "no trace: found "
EXPECTED = f"; expected {', '.join(NAMES[:-1])} or {NAMES[-1]}"


def packed_thrice(data: bytes) -> bytes:
    """Return gzip in gzip in gzip, the same bytes at any time: they name the test in every process that runs some."""
    for _ in range(3):
        data = gzip.compress(data, mtime=0)
    return data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", FOUND + "an empty file"),
        (gzip.compress(b"", mtime=0), FOUND + "an empty file"),
        (b"\x7fELF\x02", FOUND + "an ELF program or library"),
        (
            gzip.compress(b"PK\x03\x04abc", mtime=0),
            FOUND + "a zip archive (a model or checkpoint saved by torch.save looks",
        ),
        (b"hello\n", FOUND + "text"),
        (b'{"loss": 1}', FOUND + "JSON that is no trace (first keys: loss)"),
        (packed_thrice(b"{}"), FOUND + "gzip"),
        (b'{"format": "wavecast.trace", "version": "2.0"}', "trace format 2.0 is not supported (this wavecast reads"),
        (b'{"format": "wavecast.trace", "version": "1.0", "ops"', "truncated JSON: the text ends after 52 bytes"),
        (b"\x1f\x8bnonsense", "damaged gzip: unknown compression method"),
        (b"\x1f\x8b", "truncated gzip: the data ends before its last block"),
        (gzip.compress(b"{}", mtime=0) + b"tail", "damaged gzip: 4 foreign bytes after the last member"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    assert refusal(path).startswith(message)
    assert refusal(path).endswith(EXPECTED) is message.startswith(FOUND)


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json.gz").write_bytes(b"")
    suggestion = f"no such file; did you mean {tmp_path / 'trace.json.gz'}?"
    assert refusal(tmp_path / "trace.json", InputError) == suggestion
    for name in ("zzz", "missing.json.gz"):
        assert refusal(tmp_path / name, InputError) == "no such file"
    missing = tmp_path / "no" / "t.json"
    assert refusal(missing, InputError) == f"no such file (the directory {missing.parent} does not exist)"
    assert refusal(tmp_path, InputError) == (
        "expected a trace file, found a directory; name a file in it "
        "(ranks of one job: wavecast ranks; any traces: wavecast batch)"
    )
    below = tmp_path / "trace.json.gz" / "t.json"
    assert refusal(below, InputError) == "cannot be read: Not a directory"


@pytest.mark.parametrize("cut", [20, 100, -1, -9])
def test_truncated_gzip_is_refused_or_recovered(small_trace: Trace, packed: bytes, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed[:cut])
    assert refusal(path).startswith("truncated gzip: the data ends before its last block")
    if cut != 20:
        assert encode(small_trace).startswith(read_bytes(path, recover=True))


def test_damaged_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    text = os.urandom(1 << 20).hex().encode()
    packed = bytearray(pack_gzip(text))
    packed[-6] ^= 1  # the checksum
    path = tmp_path / "t.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceError, match=r"damaged gzip: .*; a profiler file can be .* \(\d+ bytes\) with recover"):
        read_bytes(path)
    recovered = read_bytes(path, recover=True)
    assert len(recovered) >= len(text) - (1 << 16)
    assert text.startswith(recovered)


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(pack_gzip(b" " * (unpack.RATIO_FREE_BYTES + (4 << 20))))
    assert "unpack to over 300 times as much, as no trace does" in refusal(path)


def test_limits_are_named_and_can_be_raised(
    small_trace: Trace, packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    monkeypatch.setenv("WAVECAST_MAX_TRACE_BYTES", "1000")
    advice = "to read it nevertheless, set WAVECAST_MAX_TRACE_BYTES to a larger number of bytes"
    path.write_bytes(packed)
    assert refusal(path) == f"unpacks to more than 1000 bytes: {advice}"
    path.write_bytes(encode(small_trace))
    assert refusal(path) == f"holds {path.stat().st_size} bytes, more than the limit of 1000: {advice}"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(encode(small_trace))))
    with pytest.raises(TraceError, match="standard input: holds more than 1000 bytes"):
        load_trace("-")
    assert read_bytes(path, max_bytes=10_000) == encode(small_trace)
    monkeypatch.setenv("WAVECAST_MAX_TRACE_BYTES", "10000")
    assert load_trace(path) == small_trace
    monkeypatch.setenv("WAVECAST_MAX_TRACE_BYTES", "lots")
    with pytest.raises(InputError, match="WAVECAST_MAX_TRACE_BYTES: expected a number of bytes, found 'lots'"):
        load_trace(path)


def test_unwritable_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written: it is a directory"):
        write_atomic(tmp_path, b"x")
    with pytest.raises(OutputError, match="cannot be written: its directory does not exist"):
        write_atomic(tmp_path / "no" / "x", b"x")
    with pytest.raises(OutputError, match=r"cannot be written: .*[Tt]oo long"):
        write_atomic(tmp_path / ("x" * 300), b"x")
    assert names_in(tmp_path) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"old")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(WriteError, match="cannot be written: No space left on device"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["t"]


def test_an_invalid_trace_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"old")
    with pytest.raises(TraceError):
        save_trace(Trace(strings=(1,)), path)  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"


def test_links_are_followed_and_permissions_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_odd_links_are_written_through(tmp_path: Path) -> None:
    dangling, loop = tmp_path / "dangling", tmp_path / "loop"
    dangling.symlink_to(tmp_path / "target")
    loop.symlink_to(loop)
    write_atomic(dangling, b"x")
    assert (tmp_path / "target").read_bytes() == b"x"
    write_atomic(loop, b"y")
    assert loop.read_bytes() == b"y"
    other = tmp_path / "other"
    other.symlink_to(other)
    assert refusal(other, InputError).startswith("cannot be read: ")


def test_a_byte_order_mark_does_no_harm(small_trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbf" + encode(small_trace))
    assert load_trace(path) == small_trace


def test_devices_are_written_to_not_replaced() -> None:
    write_atomic(os.devnull, b"x")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_missing_permissions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"old")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read and write everything")
    assert refusal(path, InputError) == "cannot be read: Permission denied"
    with pytest.raises(OutputError, match="the file is read-only"):
        write_atomic(path, b"new")
