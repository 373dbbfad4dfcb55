"""The host's times: which pieces are timed, what is made of the rounds, and that nothing else notices."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
import wavecast
from click.testing import CliRunner
from torch import nn
from wavecast.__main__ import wavecast as command
from wavecast.formats.measured.host_file import HOST_KINDS, read_host_file
from wavecast.formats.trace.meta import HostTimes
from wavecast.tracer.host_times import measure, measure as rounds
from wavecast.tracer.host_times.measure import clean_name, processor_name, read_cpuinfo
from wavecast.tracer.host_times.pieces import HostPiece, pieces_here

ON_CPU = {kind for kind in HOST_KINDS if kind != "launch_ns"}


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time passes only where a piece says so."""
    now = [0.0]
    monkeypatch.setattr(rounds, "_clock_ns", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", count().__next__)

    def spend(time_ns: float) -> None:
        now[0] += time_ns

    return spend


@pytest.fixture
def measured_anew() -> Iterator[None]:
    measure._brief.cache_clear()
    yield
    measure._brief.cache_clear()


def test_a_piece_takes_what_one_of_its_units_takes(fake_clock: Callable[[float], None]) -> None:
    pieces = (
        HostPiece(kind="python_ns", unit_count=1, run=lambda turns: fake_clock(turns * 2000)),
        HostPiece(
            kind="autograd_ns",
            unit_count=4,
            run=lambda turns: fake_clock(turns * 9000),
            without=lambda turns: fake_clock(turns * 1000),
        ),
    )
    found = rounds.time_pieces(pieces, 30)
    assert [(item.kind, item.time_ns, item.spread) for item in found] == [
        ("python_ns", 2000.0, 0.0),
        ("autograd_ns", 2000.0, 0.0),
    ]


def test_rounds_that_others_disturb_do_not_count(fake_clock: Callable[[float], None]) -> None:
    turn = count()

    def run(turns: int) -> None:
        fake_clock(turns * (1000 if next(turn) % 3 else 5000))

    (found,) = rounds.time_pieces((HostPiece(kind="python_ns", unit_count=1, run=run),), 60)
    assert found.time_ns == 1000
    assert found.spread > 0.5


def test_garbage_is_collected_again_afterwards(fake_clock: Callable[[float], None]) -> None:
    def fail(_turns: int) -> None:
        assert not gc.isenabled()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        rounds.time_pieces((HostPiece(kind="python_ns", unit_count=1, run=fail),), 1)
    assert gc.isenabled()


def test_every_kind_has_a_piece_on_the_cpu() -> None:
    pieces = pieces_here(has_optimizer=True, gpu=None)
    assert {item.kind for item in pieces} == ON_CPU
    for item in pieces:
        for run in filter(None, (item.run, item.without)):
            run(2)


@pytest.mark.usefixtures("measured_anew")
def test_a_script_in_an_odd_state_is_measured_and_left_so() -> None:
    trace = wavecast.record(lambda: torch.ones(2) + 1, device="cpu", host_times=False)
    random_state = torch.get_rng_state()
    with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        host = measure.add_host_times(trace).meta.host
        assert torch.is_inference_mode_enabled()
    assert host.dispatch_ns is not None
    assert host.autograd_ns is not None
    assert host.python_version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.usefixtures("measured_anew")
def test_a_process_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def time_pieces(*_arguments: object) -> object:
        calls.append(1)
        return _NO_TIMES

    monkeypatch.setattr(measure, "time_pieces", time_pieces)
    layer = nn.Linear(2, 2)
    for _ in range(3):
        trace = wavecast.record(lambda: layer(torch.ones(1, 2)), device="cpu", warmup=0, repeats=0)
    assert trace.meta.host.python_ns == 7.0
    assert calls == [1]


_NO_TIMES = (rounds.PieceTime(kind="python_ns", time_ns=7.0, spread=0.0),)


@pytest.mark.usefixtures("measured_anew")
def test_a_recording_stands_without_the_hosts_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(**_options: object) -> None:
        raise RuntimeError("no such op")

    monkeypatch.setattr(measure, "pieces_here", fail)
    layer = nn.Linear(2, 2)
    with wavecast.record(tmp_path / "steps.json.gz", iterations=(2, 3), mode="inference") as recorder:
        for _ in range(4):
            layer(torch.ones(1, 2))
    assert recorder.error is None
    assert recorder.trace is not None
    assert recorder.trace.meta.host == HostTimes()


def test_a_loop_is_written_with_its_hosts_times_unless_told_otherwise(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    for is_wanted in (True, False):
        path = tmp_path / f"{is_wanted}.json.gz"
        with wavecast.record(path, iterations=(2, 3), mode="inference", host_times=is_wanted):
            for _ in range(4):
                layer(torch.ones(1, 2))
        assert (wavecast.load_trace(path).meta.host.module_ns is not None) == is_wanted


def test_the_command_shows_and_writes_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    result = CliRunner().invoke(command, ["measure", "--host", "--seconds", "0.1", "-o", str(path)])
    assert result.exit_code == 0, result.output
    for words in ("plain Python", "dispatch", "autograd", "modules", "optimizer", "allocation", "in all"):
        assert words in result.stdout
    found = read_host_file(path)
    assert {kind for kind in ON_CPU if getattr(found.host, kind)} == ON_CPU
    assert set(json.loads(path.read_bytes())) == {"format", "version", "producer", "date", "framework", "host"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["trace.json"], "TRACE: not with --host"),
        (["--gpu", "H100"], "--gpu: not with --host"),
        (["--seconds", "nan"], "--seconds nan: expected at most 600"),
        (["--seconds", "0"], "0.0 is not in the range"),
        (["-o", "nowhere/host.json"], "its directory does not exist"),
        (["-o", "host.txt"], "expected a name that ends in .json"),
        (["-o", "."], "a directory; --host writes one file"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "measure_host", lambda *_arguments: pytest.fail("measured"))
    result = CliRunner().invoke(command, ["measure", "--host", *options])
    assert result.exit_code == 2
    assert said in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz\n", "Intel Xeon Platinum 8480C"),
        ("model name : AMD EPYC 7763 64-Core Processor\n", "AMD EPYC 7763 64-Core Processor"),
        ("CPU implementer : 0x41\nCPU part : 0xd4f\n", "Arm Neoverse-V2"),
        ("CPU implementer : 0xc0\nCPU part : 0xac3\n", "Ampere 0xac3"),
        ("processor : 0\ncpu : POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("nothing here", None),
    ],
)
def test_processors_are_named_as_the_system_has_them(text: str, name: str | None) -> None:
    assert clean_name(read_cpuinfo(text)) == name


def test_a_processors_name_tells_of_no_person_and_breaks_no_line() -> None:
    assert clean_name("QEMU of ann@host.example\x1b[2J\nKVM") == "QEMU of <address> [2J KVM"
    assert len(clean_name("y" * 500) or "") == 80


def test_this_processor_has_a_name_or_none() -> None:
    found = processor_name()
    assert found is None or (found and found.isprintable())
