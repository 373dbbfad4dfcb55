"""The file of a measured host: what is written is read, and what is no such file is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wavecast.errors import InputError, OutputError
from wavecast.formats.measured.host_file import (
    HOST_KINDS,
    KIND_WEIGHTS,
    REFERENCE_HOST,
    HostFile,
    host_ratios,
    host_speed,
    read_host,
    read_host_file,
    save_host,
)
from wavecast.formats.trace.meta import HostTimes

HOST = HostTimes(python_version="3.13", processor="AMD EPYC 7763", python_ns=2000.0, launch_ns=3000.5, spread=0.04)


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "host.json"
    save_host(path, HostFile(producer="wavecast 0.1.0", date="2026-11-23", framework="torch 2.13.0", host=HOST))
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["host.json", "host.json.gz"])
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    found = HostFile(producer="wavecast 0.1.0", date="2026-11-23", framework="torch 2.13.0", host=HOST)
    save_host(tmp_path / name, found)
    assert read_host_file(tmp_path / name) == found
    assert read_host(tmp_path / name) == HOST


def test_unknown_fields_and_minor_versions_are_read(tmp_path: Path) -> None:
    assert read_host(written(tmp_path, version="1.7", more={"a": [1]})) == HOST


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "wavecast.trace"}, "expected the format 'wavecast.host', found 'wavecast.trace'"),
        ({"format": 7}, "found none"),
        ({"version": "2.0"}, "2.0 is newer than this wavecast reads"),
        ({"version": 1}, r"\$\.version: expected a version like '1.0', found 1"),
        ({"host": None}, r"\$\.host: expected an object, found null"),
        ({"host": {}}, "expected one of python_ns, .* at least, found none"),
        ({"host": {"python_ns": -1.0}}, r"\$\.host\.python_ns: expected a number ≥ 0"),
        ({"host": {"python_ns": 0.0}}, r"\$\.host\.python_ns: expected 0.001 to 1e\+09 ns, found 0"),
        ({"host": {"python_ns": 1e300}}, r"found 1e\+300"),
        ({"host": {"python_ns": "fast"}}, 'found the string "fast"'),
        ({"host": {"python_ns": True}}, "expected a number or null, found true"),
        ({"host": {"python_ns": 10**80}}, "python_ns: expected"),
        ({"host": {"python_ns": 1.0, "spread": -0.1}}, r"\$\.host\.spread"),
        ({"host": {"python_ns": 1.0, "spread": 1e300}}, r"\$\.host\.spread: expected up to 3, found 1e\+300"),
        ({"host": {"python_ns": 1.0, "processor": ["x"]}}, r"\$\.host\.processor: expected a string"),
        ({"date": 3}, r"\$\.date: expected a string"),
    ],
)
def test_wrong_content_is_refused_in_a_line(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(InputError, match=said) as caught:
        read_host(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\x00\xff\x00", b"[]", b"null", b'{"format": NaN}', b"[" * 60_000, b'{"format":"wavecast.host"}'],
)
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"host\.json: "):
        read_host(path)


def test_large_files_directories_and_missing_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_bytes(b" " * 100_000)
    for name in ("large.json", "", "missing.json"):
        with pytest.raises(InputError):
            read_host(tmp_path / name)
    with pytest.raises(OutputError):
        save_host(tmp_path / "nowhere" / "host.json", HostFile(host=HOST))


def test_speeds_are_ratios_of_times() -> None:
    halves: dict[str, Any] = {kind: (getattr(REFERENCE_HOST, kind) or 0.0) / 2 or None for kind in HOST_KINDS}
    twice = HostTimes(**halves)
    assert host_ratios(twice) == {kind: 2.0 for kind in HOST_KINDS if kind != "launch_ns"}
    assert host_speed(twice) == pytest.approx(2.0)
    assert host_speed(REFERENCE_HOST, twice) == pytest.approx(0.5)


def test_kinds_that_one_host_lacks_do_not_count() -> None:
    only_python = HostTimes(python_ns=1000.0, module_ns=0.0)
    assert host_ratios(only_python, HostTimes(python_ns=500.0, module_ns=3.0, launch_ns=1.0)) == {"python_ns": 0.5}
    assert host_speed(HostTimes(launch_ns=5.0)) is None
    assert host_speed(HostTimes()) is None


def test_every_kind_has_a_weight() -> None:
    assert set(KIND_WEIGHTS) == set(HOST_KINDS)
    assert sum(KIND_WEIGHTS.values()) == pytest.approx(1.0)
