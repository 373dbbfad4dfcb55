"""Files packed in any way are read as if they were plain, within the same limits, and cut where that is asked for."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from wavecast import load_trace
from wavecast.errors import TraceError
from wavecast.formats.files.open import read_bytes
from wavecast.formats.files.source import ImportSource
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.tables import Trace
from wavecast.formats.trace.validate import validate

Pack = Callable[[bytes], bytes]


def pack_zstd(data: bytes) -> bytes:
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    packed: bytes = zstd.compress(data)
    return packed


def pack_zip(data: bytes, *names: str) -> bytes:
    target = BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("folder/", "folder/trace.json", "__MACOSX/._trace.json", "README"):
            archive.writestr(name, data if name.endswith("json") else b"words")
    return target.getvalue()


STREAMS = {"gzip": gzip.compress, "zstd": pack_zstd, "xz": lzma.compress, "bzip2": bz2.compress}


@pytest.mark.parametrize("pack", [*STREAMS.values(), pack_zip])
def test_every_packing_is_read_and_lies_on_disk_unpacked(pack: Pack, small_trace: Trace, tmp_path: Path) -> None:
    text, path = encode(small_trace), tmp_path / "t"
    path.write_bytes(pack(text))
    assert load_trace(path) == small_trace
    path.write_bytes(gzip.compress(pack(text)) if pack is not pack_zip else pack_zip(gzip.compress(text), "t.gz.json"))
    assert load_trace(path) == small_trace
    with ImportSource("t", pack(text)).on_disk() as place:
        assert place.read_bytes() == text
    assert not place.exists()


def test_skippable_frames_of_zstd_say_nothing(small_trace: Trace, tmp_path: Path) -> None:
    text, path = encode(small_trace), tmp_path / "t.json.zst"
    first, second = pack_zstd(text[:99]), pack_zstd(text[99:])
    empty, long = (b"\x5a\x2a\x4d\x18" + len(held).to_bytes(4, "little") + held for held in (b"", bytes(1 << 17)))
    path.write_bytes(long + empty + first + empty + long + second + long)
    assert load_trace(path) == small_trace
    path.write_bytes(first + second + long[:-1])
    with pytest.raises(TraceError, match="truncated zstd"):
        load_trace(path)


@pytest.mark.parametrize("name", STREAMS)
def test_damage_and_bombs_are_refused(name: str, tmp_path: Path) -> None:
    text, pack, path = b'{"format": "wavecast.trace"}' * 40_000, STREAMS[name], tmp_path / "t"
    path.write_bytes(pack(text)[:-9])
    with pytest.raises(TraceError, match=f"truncated {name}: the data ends before its last block"):
        read_bytes(path)
    path.write_bytes(pack(text) + b"tail")
    with pytest.raises(TraceError, match=f"damaged {name}: 4 foreign bytes after the last member"):
        read_bytes(path)
    path.write_bytes(pack(b" " * (48 << 20)))
    with pytest.raises(TraceError, match=rf"bytes of {name} unpack to over \d+ times as much, as no trace does"):
        read_bytes(path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a.json", "b.json"), r"the zip archive holds 2 files \(may be traces: a.json, b.json\): unpack the one"),
        (("a/",), "the zip archive holds no file"),
        (("model/data.pkl", "model/a.json"), "found a zip archive .a model or checkpoint saved by torch.save"),
    ],
)
def test_archives_without_one_trace_are_refused(names: tuple[str, ...], message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    path.write_bytes(pack_zip(b"{}", *names))
    with pytest.raises(TraceError, match=message):
        load_trace(path)


def test_one_iteration_is_cut_out_of_a_real_recording(data_dir: Path) -> None:
    path = data_dir / "traces" / "v100_convnet_ddp_training.json.gz"
    whole, part = load_trace(path), load_trace(path, iteration=1)
    validate(part)
    first, asked = whole.iterations.cpu_start_ns[0], 1
    during = whole.kernels.start_ns < whole.iterations.end_ns[asked]
    last = max(whole.iterations.cpu_end_ns[asked], whole.calls.start_ns[whole.kernels.call[during]].max())
    assert part.iterations.start_ns.tolist() == whole.iterations.start_ns[:2].tolist()
    assert part.meta.iteration == 1
    assert len(part.ops.name) == ((whole.ops.start_ns >= first) & (whole.ops.start_ns <= last)).sum()
    assert part.quality.iterations_left_out == 3
    with pytest.raises(TraceError, match="there is no iteration 9: the trace holds 5, number 0 to 4"):
        load_trace(path, iteration=9)
