"""Whatever is wrong with the input: one line on stderr, exit 2, no traceback, nothing half-written."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import HealthCheck, given, settings, strategies as st

Run = Callable[..., Result]
Document = dict[str, Any]


def kineto(**event: Any) -> bytes:
    """A profiler file of one kernel event with the given changes."""
    base = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 10.0,
        "dur": 5.0,
        "args": {"correlation": 1},
    }
    return json.dumps({"schemaVersion": 1, "traceEvents": [base | event]}).encode()


def assert_refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


BAD_CONTENT: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t ",
    "binary": bytes(range(256)) * 8,
    "elf": b"\x7fELF" + bytes(64),
    "no_trace": b'{"hello": "world"}',
    "list": b"[1, 2, 3]",
    "number": b"42",
    "text": b"Once upon a time",
    "truncated_json": kineto()[:-10],
    "truncated_wavecast": b'{"format": "wavecast.trace", "version": "1.0", "meta": {',
    "bad_utf8": b'{"format": "wavecast.trace", "version": "1.0", "strings": ["\xff\xfe"]}',
    "newer_major": b'{"format": "wavecast.trace", "version": "2.0"}',
    "no_version": b'{"format": "wavecast.trace"}',
    "version_of_another_type": b'{"format": "wavecast.trace", "version": 1}',
    "no_ops": b'{"format": "wavecast.trace", "version": "1.0"}',
    "no_events": b'{"schemaVersion": 1, "traceEvents": []}',
    "events_of_another_type": b'{"schemaVersion": 1, "traceEvents": {"a": 1}}',
    "deep_list": b"[" * 100_000,
    "deep_object": b'{"traceEvents":' * 100_000,
    "deep_within": b'{"schemaVersion": 1, "traceEvents": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
    "deep_wavecast": b'{"format": "wavecast.trace", "version": "1.0", "ops": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "gzip_of_nothing": gzip.compress(b""),
    "gzip_of_text": gzip.compress(b"Once upon a time"),
    "gzip_in_gzip": gzip.compress(gzip.compress(b"{}")),
    "truncated_gzip": gzip.compress(kineto() * 50)[:-20],
    "gzip_header_only": b"\x1f\x8b\x08\x00",
    "corrupt_gzip": gzip.compress(os.urandom(2000))[:500] + b"\x00" * 500,
}


@pytest.mark.parametrize("command", ["analyze", "show", "convert", "convert --to graph-json"])
@pytest.mark.parametrize("case", BAD_CONTENT)
def test_bad_content(command: str, case: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_bytes(BAD_CONTENT[case])
    target = tmp_path / "out" / "out.json"
    target.parent.mkdir()
    name, *words = command.split()
    arguments = (path, target) if name == "convert" else (path, "-o", target, "--format", "json")
    result = run(name, *arguments, *words)
    if case == "no_ops" and command in ("show", "convert"):
        assert result.exit_code == 0, result.output
        return
    assert_refused(result, "record" if case == "no_ops" else path.name)
    assert list(target.parent.iterdir()) == []


def change(trace_bytes: bytes, table: str, column: str, value: object) -> bytes:
    document = json.loads(trace_bytes)
    document[table][column] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        ("kernels", "duration_ns", [-5] * 6, ("$.kernels.duration_ns[0]", "-5")),
        ("kernels", "duration_ns", ["a"] * 6, ("$.kernels.duration_ns",)),
        ("kernels", "duration_ns", [1.5] * 6, ("$.kernels.duration_ns",)),
        ("kernels", "duration_ns", [1, 2], ("$.kernels",)),
        ("kernels", "name", [99] * 6, ("$.kernels.name[0]", "99")),
        ("kernels", "duration_ns", [10**30] * 6, ("$.kernels.duration_ns",)),
        ("ops", "parent", [5, 5, 5, 5, 5, 5], ("$.ops.parent",)),
        ("ops", "name", None, ("$.ops.name",)),
        ("iterations", "end_ns", [-7, -7], ("$.iterations",)),
    ],
)
def test_wrong_values_are_named_with_their_place(
    table: str, column: str, value: object, words: tuple[str, ...], run: Run, trace_bytes: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "changed.json"
    path.write_bytes(change(trace_bytes, table, column, value))
    for command in ("analyze", "show", "convert --to dot"):
        assert_refused(run(*command.split(), path), "changed.json", *words)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(literal: str, run: Run, trace_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "nan.json"
    path.write_bytes(change(trace_bytes, "kernels", "duration_ns", ["@"] * 6).replace(b'"@"', literal.encode()))
    assert_refused(run("analyze", path), "nan.json")
    path.write_bytes(kineto().replace(b"5.0", literal.encode()))
    assert run("analyze", path).exit_code == 2


@pytest.mark.parametrize("command", ["analyze", "show", "convert"])
def test_a_gzip_bomb_is_refused(command: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 50_000_000, 9))
    assert path.stat().st_size < 100_000
    target = (tmp_path / "out.json",) if command == "convert" else ()
    assert_refused(run(command, path, *target, WAVECAST_MAX_TRACE_BYTES=1_000_000), "bomb.json.gz")


@pytest.mark.parametrize("command", ["analyze", "show", "convert"])
def test_paths_that_cannot_be_read(command: str, run: Run, trace_file: Path, tmp_path: Path) -> None:
    target = (tmp_path / "out.json",) if command == "convert" else ()
    assert_refused(run(command, tmp_path, *target), "directory")
    assert_refused(run(command, tmp_path / "tiny.jsn", *target), "no such file", "tiny.json")
    assert_refused(run(command, tmp_path / "nowhere" / "a.json", *target), "no such file")
    assert_refused(run(command, "", *target))
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("command", ["analyze", "show", "catalog"])
def test_outputs_that_cannot_be_written(command: str, run: Run, trace_file: Path, tmp_path: Path) -> None:
    source = () if command == "catalog" else (trace_file,)
    before = sorted(tmp_path.rglob("*"))
    assert_refused(run(command, *source, "-o", tmp_path), "cannot be written", "directory")
    assert_refused(run(command, *source, "-o", tmp_path / "missing" / "out.json"), "its directory does not exist")
    assert_refused(run(command, *source, "-o", trace_file / "out.json"), "cannot be written")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_read_only_output_is_left_alone(run: Run, trace_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("mine")
    target.chmod(0o400)
    if os.access(target, os.W_OK):
        pytest.skip("this user may write everything")
    assert_refused(run("show", trace_file, "-o", target), "read-only")
    assert target.read_text() == "mine"


def test_convert_refuses_a_strange_ending(run: Run, trace_file: Path, tmp_path: Path) -> None:
    assert_refused(run("convert", trace_file, tmp_path / "out.xyz"), "out.xyz", ".json.gz")
    assert_refused(run("convert", trace_file, tmp_path / "no" / "out.json"), "its directory does not exist")


@pytest.mark.parametrize("option", ["--to", "--from"])
def test_an_unknown_gpu_gets_a_suggestion(option: str, run: Run, trace_file: Path) -> None:
    assert_refused(run("analyze", trace_file, option, "H100 SXM5 8GB"), "H100 SXM5 8GB", "H100 SXM5 80GB")
    assert_refused(run("catalog", "Instinct MI300Y"), "Instinct MI300X")
    assert_refused(run("analyze", trace_file, option, ""))


def test_a_source_must_be_one_gpu(run: Run, trace_file: Path) -> None:
    assert_refused(run("analyze", trace_file, "--from", "H100"), "H100 PCIe 80GB")


def test_a_target_may_mean_several_gpus(run: Run, trace_file: Path) -> None:
    result = run("analyze", trace_file, "--to", "h100", "--format", "json")
    assert result.exit_code == 0, result.output
    assert {"H100 PCIe 80GB", "H100 SXM5 80GB"} <= {row["gpu"] for row in json.loads(result.output)["predictions"]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not toml [",
        "[gpu]",
        "gpu = 3",
        "[[gpu]]",
        '[[gpu]]\nname = ""',
        '[[gpu]]\nname = "X"',
        '[[gpu]]\nname = "X"\nbased_on = "nothing like it"',
        '[[gpu]]\nname = "X"\nbased_on = "H100 SXM5 80GB"\nclocks = { sm_count = -1 }',
        '[[gpu]]\nname = "X"\nbased_on = "H100 SXM5 80GB"\nmemory = { bandwidth_gb_per_s = nan }',
        '[[gpu]]\nname = "X"\nbased_on = "H100 SXM5 80GB"\nmemory = { bandwidth_gb_per_s = "fast" }',
        '[[gpu]]\nname = "X"\nbased_on = "H100 SXM5 80GB"\nspeed = 3',
    ],
)
def test_a_broken_gpu_file(text: str, run: Run, trace_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    words = "nothing like it" if "nothing" in text else "mine.toml"
    assert_refused(run("analyze", trace_file, "--gpu-file", path), words)
    assert_refused(run("catalog", "--gpu-file", path), words)


def test_gpu_files_that_cannot_be_read(run: Run, trace_file: Path, tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(bytes(range(128, 256)))
    for path in (tmp_path, tmp_path / "missing.toml", binary):
        assert_refused(run("analyze", trace_file, "--gpu-file", path), path.name)


def test_usage_errors_exit_with_2(run: Run, trace_file: Path) -> None:
    for arguments in ((), (trace_file, "--top", "-1"), (trace_file, "--format", "xml"), (trace_file, "--nonsense")):
        result = run("analyze", *arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
    assert run("frobnicate").exit_code == 2


def test_a_truncated_profiler_file_can_be_recovered(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(json.dumps(KINETO_SEED).encode()[:-30])
    assert_refused(run("analyze", path), "cut.json", "recover")
    result = run("analyze", path, "--recover")
    assert result.exit_code == 0, result.output
    assert (
        f"Warning: the file ends early: 138 of its {path.stat().st_size:,} bytes (13.5%) are unreadable"
        in result.stdout
    )
    assert "lost" in run("show", path, "--recover").stdout


def test_a_limit_that_is_no_number(run: Run, trace_file: Path) -> None:
    assert_refused(run("show", trace_file, WAVECAST_MAX_TRACE_BYTES="much"), "WAVECAST_MAX_TRACE_BYTES", "much")


def test_an_interruption_is_quiet(run: Run, trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wavecast.formats.files.open.load_trace", interrupt)
    result = run("analyze", trace_file)
    assert (result.exit_code, result.output) == (130, "")


def test_a_hostile_file_name_stays_on_one_line(run: Run, tmp_path: Path) -> None:
    result = run("analyze", tmp_path / "a\nb\x1b[31mc.json")
    assert_refused(result)
    assert "\x1b" not in result.stderr


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a JSON document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def replaced(document: Any, path: tuple[str | int, ...], value: object) -> Any:
    """The document with another value at a place."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = replaced(document[path[0]], path[1:], value)  # type: ignore[index]
    return copy


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.integers(-3, 2**40), max_size=8),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)
MUTATION = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def assert_survives(run: Run, path: Path, data: bytes) -> None:
    path.write_bytes(data)
    for command in ("analyze", "show", "convert --to dot"):
        result = run(*command.split(), path)
        assert result.exit_code in (0, 2), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        if result.exit_code == 2:
            assert_refused(result)


@MUTATION
@given(data=st.data())
def test_other_values_never_crash(data: st.DataObject, run: Run, trace_bytes: bytes, tmp_path: Path) -> None:
    document = json.loads(trace_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(list(places(document))))
        document = replaced(document, place, data.draw(VALUES))
    assert_survives(run, tmp_path / "mutant.json", json.dumps(document).encode())


@MUTATION
@given(data=st.data())
def test_other_bytes_never_crash(data: st.DataObject, run: Run, trace_bytes: bytes, tmp_path: Path) -> None:
    packed = data.draw(st.booleans())
    content = bytearray(gzip.compress(trace_bytes, mtime=0) if packed else trace_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        end = start + data.draw(st.integers(0, 40))
        content[start:end] = data.draw(st.binary(max_size=8))
    assert_survives(run, tmp_path / "mutant.json", bytes(content))


MATMUL_ARGUMENTS = {
    "External id": 1,
    "Input Dims": [[8, 8], [8, 8]],
    "Input type": ["float", "float"],
    "Concrete Inputs": ["", ""],
}
LAUNCH = {"grid": [8, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024}
KINETO_SEED: Document = {
    "schemaVersion": 1,
    "deviceProperties": [
        {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
    ],
    "traceEvents": [
        {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        for cat, name, pid, tid, ts, dur, args in (
            ("user_annotation", "ProfilerStep#1", 1, 1, 0.5, 100.0, {}),
            ("cpu_op", "aten::mm", 1, 1, 1.0, 20.0, MATMUL_ARGUMENTS),
            ("cuda_runtime", "cudaLaunchKernel", 1, 1, 5.0, 2.0, {"correlation": 7, "External id": 1}),
            ("kernel", "sgemm", 0, 7, 9.0, 30.25, {"correlation": 7, "device": 0, "stream": 7} | LAUNCH),
            ("gpu_memcpy", "Memcpy HtoD", 0, 7, 50, 3, {"bytes": 4096, "correlation": 9, "device": 0, "stream": 7}),
        )
    ],
}


def test_the_profiler_file_that_is_mutated_is_valid(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "seed.json"
    path.write_text(json.dumps(KINETO_SEED))
    assert run("analyze", path).exit_code == 0


def test_a_profiler_file_with_launches_and_no_kernels(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "no_kernels.json"
    path.write_text(json.dumps(KINETO_SEED | {"traceEvents": KINETO_SEED["traceEvents"][:3]}))
    for command in ("analyze", "show", "convert --to dot"):
        assert run(*command.split(), path).exit_code == 0


@MUTATION
@given(data=st.data())
def test_other_values_in_a_profiler_file_never_crash(data: st.DataObject, run: Run, tmp_path: Path) -> None:
    document = KINETO_SEED
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(list(places(document))))
        document = replaced(document, place, data.draw(VALUES))
    assert_survives(run, tmp_path / "mutant.json", json.dumps(document).encode())


GPU_FILE_VALUES = (
    "0", "-1", "1e9", "-0.0", "inf", "nan", "2026-01-01", '"text"', "[]", "[1]", "{}", "{ x = 1 }", "true",
    "100000", "0.001", "80",
)  # fmt: skip
GPU_FILE_KEYS = (
    "aliases", "vendor", "architecture", "compute_capability", "release_date", "source", "note", "clocks", "memory",
    "l2", "vector", "matrix", "occupancy", "links", "power", "clocks.sm_count", "clocks.boost_mhz", "memory.size_gib",
    "memory.bandwidth_gb_per_s", "memory.bus_bits", "l2.size_mib", "vector.fp32_tflops", "matrix.fp16_tflops",
    "links.pcie_generation", "links.pcie_lanes", "power.tdp_w", "occupancy.blocks_per_sm",
    "occupancy.shared_memory_per_sm_kib", "based_on", "name",
)  # fmt: skip


@MUTATION
@given(
    changes=st.dictionaries(st.sampled_from(GPU_FILE_KEYS), st.sampled_from(GPU_FILE_VALUES), max_size=3),
    has_base=st.booleans(),
)
def test_other_gpu_files_never_crash(
    changes: dict[str, str], has_base: bool, run: Run, trace_file: Path, tmp_path: Path
) -> None:
    lines = {"name": '"Mine"'} | ({"based_on": '"H100 SXM5 80GB"'} if has_base else {}) | changes
    path = tmp_path / "mine.toml"
    path.write_text("[[gpu]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items()))
    for result in (run("analyze", trace_file, "--gpu-file", path), run("catalog", "Mine", "--gpu-file", path)):
        assert result.exit_code in (0, 2), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        if result.exit_code == 2:
            assert_refused(result)
