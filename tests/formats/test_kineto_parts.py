"""Reading a part of a large profiler file, in two passes: equal to what is cut out of the whole, or refused."""

from __future__ import annotations

import gzip
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.errors import TraceError
from wavecast.formats.files import open as files
from wavecast.formats.files.open import load_trace
from wavecast.formats.kineto import part as kineto_part, read as kineto_read
from wavecast.formats.trace.tables import Quality, Trace
from wavecast.formats.trace.validate import validate
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

WINDOW = (20_000_000, 50_000_000)
OPEN_END = (41_000_000, None)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every file read in parts."""
    monkeypatch.setattr(kineto_part, "PART_BYTES", 0)


def comparable(trace: Trace) -> Trace:
    """Return the trace without the counts and the mode that tell of what was read, all or a part."""
    meta = replace(trace.meta, workload=replace(trace.meta.workload, mode=None))
    return replace(trace, meta=meta, quality=Quality(iterations_left_out=trace.quality.iterations_left_out))


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("a100_80gb_training", {"iteration": "median"}),
        ("v100_convnet_ddp_training", {"iteration": 1}),
        ("v100_convnet_ddp_training", {"window_ns": OPEN_END}),
        ("mi300x_resnet_checkpointed_training", {"iteration": "median"}),
        ("mi300x_resnet_checkpointed_training", {"window_ns": WINDOW}),
    ],
    ids=repr,
)
def test_a_part_equals_what_is_cut_out_of_the_whole(
    name: str, asked: dict[str, Any], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data_dir / "traces" / f"{name}.json.gz"
    whole = load_trace(path, **asked)
    monkeypatch.setattr(kineto_part, "PART_BYTES", 0)
    found = load_trace(path, **asked)
    assert comparable(found) == comparable(whole)
    assert len(found.kernels.name) > 0
    validate(found)


@pytest.mark.usefixtures("in_parts")
def test_packing_makes_no_difference(data_dir: Path, tmp_path: Path) -> None:
    packed = data_dir / "traces" / "mi300x_resnet_checkpointed_training.json.gz"
    plain, zipped = tmp_path / "t.json", tmp_path / "t.zip"
    plain.write_bytes(b"\xef\xbb\xbf \n" + gzip.decompress(packed.read_bytes()))
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(plain, "t.json")
    expected = load_trace(packed, iteration="longest")
    assert load_trace(plain, iteration="longest") == expected
    assert load_trace(zipped, iteration="longest") == expected


def steps(count: int = 4, *, kernels: bool = True, marks: bool = True) -> list[dict[str, Any]]:
    """Return the events of steps of 1 ms: an op, and its launch and kernel; the third one lasts longest."""
    found: list[dict[str, Any]] = []
    for step in range(count):
        span = {"ph": "X", "pid": 1, "tid": 1, "ts": 1000.5 + 1000 * step}
        found.append({**span, "cat": "cpu_op", "name": f"aten::op{step}", "dur": 100})
        if marks:
            found.append({**span, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "dur": 900})
        if kernels:
            call = {"correlation": step + 1}
            found.append({**span, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 10, "args": call})
            long = 400 if step == 2 else 200 + step
            found.append({**span, "cat": "kernel", "name": f"gemm{step}", "dur": long, "args": {**call, "stream": 7}})
    return found


def save(tmp_path: Path, events: list[dict[str, Any]], tail: str = "") -> Path:
    """Write a profile whose header stands on both sides of the events."""
    path = tmp_path / "t.json"
    devices = '[{"id": 0, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0}]'
    text = f'{{"deviceProperties": {devices}, "traceEvents": {json.dumps(events)}, '
    path.write_text(f'{text}"distributedInfo": {{"backend": "nccl", "rank": 3, "world_size": 8}}}}{tail}')
    return path


@pytest.mark.usefixtures("in_parts")
def test_of_a_large_file_no_step_is_chosen_that_evaluates_between_those_that_train(tmp_path: Path) -> None:
    def longest(*trained: tuple[str, str, float]) -> str:
        more = [
            {"ph": "X", "pid": 1, "tid": 1, "cat": cat, "name": name, "ts": 1500.5 + at, "dur": 50}
            for cat, name, at in trained
        ]
        trace = load_trace(save(tmp_path, steps() + more), iteration="longest")
        return trace.strings[int(trace.kernels.name[-1])]

    backward = ("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 1000.0)
    optimizer = ("user_annotation", "Optimizer.step#SGD.step", 3000.0)
    assert (longest(), longest(backward)) == ("gemm2", "gemm1")
    assert longest(backward, optimizer) == longest(optimizer, backward) != "gemm2"
    assert longest(optimizer) == "gemm2"


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_events_and_the_ends_of_chunks_make_no_difference(
    order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_read, "CHUNK_BYTES", 200)
    path = save(tmp_path, steps()[::order])
    found = load_trace(path, iteration="longest")
    assert [found.strings[name] for name in found.kernels.name] == ["gemm1", "gemm2"]
    assert found.kernels.call.tolist() == [0, 1]
    assert (found.meta.rank, found.meta.world_size, found.devices[0].name) == (3, 8, "NVIDIA A100")
    assert found.iterations.cpu_start_ns.tolist() == [1_000_000, 2_000_000]
    assert found.meta.iteration == 1
    assert found.quality.iterations_left_out == 2


@pytest.mark.usefixtures("in_parts")
def test_iterations_of_a_cpu_are_chosen_by_their_ops(tmp_path: Path) -> None:
    path = save(tmp_path, steps(kernels=False))
    found = load_trace(path, iteration=3)
    assert [found.strings[name] for name in found.ops.name] == ["aten::op2", "aten::op3"]
    with pytest.raises(TraceError, match="there is no iteration 4: the trace holds 4, number 0 to 3"):
        load_trace(path, iteration=4)


@pytest.mark.usefixtures("in_parts")
def test_strings_may_hold_what_looks_like_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_read, "CHUNK_BYTES", 200)
    events = steps()
    events.insert(5, {"ph": "X", "cat": "python_function", "name": '}, {"cat": "kernel", "ts": 1}, {' * 40, "ts": 2})
    path = save(tmp_path, events)
    assert np.isin(["aten::op2", "gemm2"], load_trace(path, iteration="longest").strings).all()


def limit(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Have the machine read no more than so many bytes whole."""
    monkeypatch.setattr(files, "_limit", lambda: size)


def test_the_median_iteration_is_read_of_a_file_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1000)
    path = save(tmp_path, steps())
    found = load_trace(path)
    assert [found.strings[name] for name in found.kernels.name] == ["gemm2", "gemm3"]
    assert found.quality.iterations_left_out == 2
    with pytest.raises(TraceError, match="too many to read all iterations of"):
        load_trace(path, iteration="all")


def test_files_over_the_limit_need_steps_or_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 500)
    path = save(tmp_path, steps(marks=False))
    with pytest.raises(TraceError, match=r"holds about .* bytes and no marks of steps: .* for example"):
        load_trace(path)
    found = load_trace(path, window_ns=(1_000_000, 1_500_000))
    assert [found.strings[name] for name in found.kernels.name] == ["gemm1"]
    with pytest.raises(TraceError, match=r"nothing began in the window .* the last event begins at 0.003 s"):
        load_trace(path, window_ns=(5_000_000_000, None))


@pytest.mark.parametrize("limited", [False, True])
def test_a_window_past_the_last_event_ends_with_the_recording(
    limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 500 if limited else 10**6)
    path = save(tmp_path, steps(marks=False))
    opened, far = (load_trace(path, window_ns=(1_000_000, end)).iterations.end_ns.tolist() for end in (None, 10**11))
    assert far == opened


@pytest.mark.parametrize("tail", ["x", "}"])
def test_damaged_files_over_the_limit_are_refused(tail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1000)
    with pytest.raises(TraceError, match="and is damaged, or not as the profiler writes it"):
        load_trace(save(tmp_path, steps(), tail))


@pytest.mark.usefixtures("in_parts")
def test_a_damaged_file_under_the_limit_is_mended_whole(tmp_path: Path) -> None:
    path = save(tmp_path, steps())
    path.write_bytes(path.read_bytes().replace(b'"aten::op0"', b'"aten::op\t0"'))
    assert load_trace(path, iteration="longest").quality.characters_repaired == 1


@pytest.mark.usefixtures("in_parts")
def test_progress_rises_over_both_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_read, "CHUNK_BYTES", 200)
    path, told = save(tmp_path, steps()), []
    monkeypatch.setattr(kineto_part, "tell", lambda _what, done, total: told.append((done, total)))
    load_trace(path, iteration="median")
    size = path.stat().st_size
    assert {total for _, total in told} == {2 * size}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == 2 * size


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ts", "soon", None),
        ("cat", 7, r"Expected `str \| null`, got `int` - at `\$.traceEvents\[1\].cat`"),
        ("args", {"correlation": [1]}, r"found a `list`, expected an integer"),
    ],
)
def test_hostile_values_are_dropped_or_refused(field: str, value: object, message: str | None, tmp_path: Path) -> None:
    events = steps()
    events[1 if field == "cat" else 3] |= {field: value}
    path = save(tmp_path, events)
    if message is None:
        assert len(load_trace(path, iteration="longest").kernels.name) == 2
        return
    with pytest.raises(TraceError, match=message):
        load_trace(path, iteration="longest")


@pytest.mark.data
@pytest.mark.parametrize("name", ["a100_80gb_training", "v100_convnet_ddp_training"])
def test_an_iteration_cut_out_is_predicted_as_in_the_whole(name: str, data_dir: Path) -> None:
    """Their GPUs are behind their hosts by more than an iteration's kernels take elsewhere."""
    path, catalog = data_dir / "traces" / f"{name}.json.gz", load_catalog()
    targets = [find_gpu(catalog, gpu) for gpu in ("H100 SXM5 80GB", "L4")]
    whole = run_analysis(load_trace(path), catalog, targets=targets, iteration=3).forecast
    part = run_analysis(load_trace(path, iteration=3), catalog, targets=targets).forecast
    assert part.iteration_ns == pytest.approx(whole.iteration_ns, rel=0.01)
    assert part.busy_ns == pytest.approx(whole.busy_ns, rel=0.03)
