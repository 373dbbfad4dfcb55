"""Inputs that once came out wrong, each with its right value; small ones like them are made here."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from wavecast.analyzer.questions.batch.parts import PartFolder, TracePart, encode_part

PROGRAM = (sys.executable, "-m", "wavecast")
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


def event(cat: str, name: str, ts: float, dur: float, pid: Any = 100, tid: int = 100, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def product(at: int, begin: float, *, dur: float = 100, **more: Any) -> list[dict[str, Any]]:
    inputs: dict[str, Any] = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
    return [
        event("cpu_op", "aten::mm", 1e9 + 10 + 30 * at, 20, **inputs),
        event("cuda_runtime", "cudaLaunchKernel", 1e9 + 15 + 30 * at, 5, correlation=at + 1),
        event("kernel", GEMM, begin, dur, 0, 7, **{"device": 0, "stream": 7, "correlation": at + 1, **more}),
    ]


def products(count: int = 10, first: float = 1e9 + 60) -> list[dict[str, Any]]:
    return [item for at in range(count) for item in product(at, first + 100 * at)]


@pytest.fixture
def analyzed(run: Any, tmp_path: Path) -> Any:
    """Predict a file of events on the GPU that is said to have recorded it, and return the document."""

    def analyze(events: list[dict[str, Any]] | bytes, *options: str, name: str = "t.json", **top: Any) -> Any:
        path = tmp_path / name
        is_text = isinstance(events, bytes)
        path.write_bytes(events if is_text else json.dumps({"traceEvents": events, **top}).encode())  # type: ignore[arg-type]
        result = run("analyze", str(path), "--from", "H100-SXM", "--to", "H100-SXM,H200", "--format", "json", *options)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return analyze


def iteration_us(document: Any) -> float:
    return float(document["source"]["iteration_ns"]) / 1e3


def test_a_kernel_without_a_time_is_left_out_and_counted(analyzed: Any) -> None:
    lost = [event("cuda_runtime", "cudaLaunchKernel", 1e9 + 390, 5, correlation=99),
            event("kernel", "some_kernel", 0.0, 0, 0, 7, device=0, stream=7, correlation=99)]  # fmt: skip
    document = analyzed([*products(), *lost])
    assert iteration_us(document) == pytest.approx(1050)
    assert any("without usable times" in text for text in document["warnings"])


def test_a_kernel_long_before_its_launch_is_left_out(analyzed: Any) -> None:
    document = analyzed([*products(9), *product(9, 1e9 - 5e6)])
    assert iteration_us(document) == pytest.approx(950)


@pytest.mark.parametrize("ts", [-5.0, 0, 1.0, 1e9 + 1e9, 9e18])
@pytest.mark.parametrize("cat", ["cpu_op", "cuda_runtime"])
def test_a_call_or_op_whose_time_is_unset_or_far_off_is_left_out_and_counted(
    analyzed: Any, ts: float, cat: str
) -> None:
    document = analyzed([*products(), event(cat, "aten::add", ts, 1)])
    assert iteration_us(document) == pytest.approx(1050)
    assert any("1 events without usable times, or" in text for text in document["warnings"])


def test_several_optimizer_steps_in_one_step_of_the_profiler_are_pointed_out(analyzed: Any) -> None:
    marks = [event("user_annotation", "Optimizer.step#SGD", 1e9 + 38 + 60 * at, 1) for at in range(5)]
    steps = [event("user_annotation", "ProfilerStep#1", 1e9, 400)]
    document = analyzed([*products(), *marks, *steps])
    assert any("holds 5 optimizer steps" in text for text in document["warnings"])
    assert not any("optimizer steps" in text for text in analyzed([*products(), *marks[-1:], *steps])["warnings"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_without_a_writer_is_not_waited_for(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace_file: Path
) -> None:
    monkeypatch.setattr("wavecast.formats.files.open.PIPE_PATIENCE_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    result = run("show", str(tmp_path / "pipe"))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "a pipe that nothing wrote to" in result.stderr
    late = "import sys, time; f = open(sys.argv[1], 'wb'); time.sleep(0.6); f.write(open(sys.argv[2], 'rb').read())"
    writer = subprocess.Popen([sys.executable, "-c", late, str(tmp_path / "pipe"), str(trace_file)])
    monkeypatch.setattr("wavecast.formats.files.open.PIPE_PATIENCE_S", 5.0)
    assert run("show", str(tmp_path / "pipe")).exit_code == 0
    assert writer.wait(10) == 0


def test_a_served_model_whose_heads_are_wider_than_it_is_refused(run: Any, tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 2,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    result = run("serve", str(tmp_path / "config.json"), "--to", "h100sxm")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "hidden_size" in result.stderr


def test_a_duration_over_later_kernels_of_a_stream_ends_where_they_begin(analyzed: Any) -> None:
    events = [item for at in range(20) for item in product(at, 1e9 + 60 + 100 * at, dur=1.6e6 if at == 5 else 100)]
    document = analyzed(events)
    assert iteration_us(document) == pytest.approx(2050)
    assert any("1 activity recorded as running on over later ones" in text for text in document["warnings"])


def test_a_gpu_behind_its_host_counts_from_its_first_kernel(analyzed: Any) -> None:
    document = analyzed(products(first=1e9 + 150_000))
    rows = [row["iteration_ns"] / 1e3 for row in document["predictions"]]
    assert [iteration_us(document), *rows] == pytest.approx([1000] * 3, rel=0.02)
    assert any("behind its host" in text for text in document["warnings"])


def test_activities_of_other_devices_count_nowhere(analyzed: Any) -> None:
    events = [event("user_annotation", "ProfilerStep#1", 1e9, 1000), *product(0, 1e9 + 50),
              *product(1, 1e9 + 300, dur=500, device=1), *product(2, 1e9 + 160)]  # fmt: skip
    source = analyzed(events)["source"]
    assert source["gpu_busy_ns"] == pytest.approx(500e3)


@pytest.mark.parametrize("text", ["200us..5e2us", "0.2ms..500 µs", "200,000ns..0.0005S"])
def test_a_window_takes_amounts_as_other_options_do(text: str, analyzed: Any) -> None:
    assert iteration_us(analyzed(products(), "--window", text)) == pytest.approx(850)


def test_a_window_holds_its_own_errors_alone(analyzed: Any) -> None:
    kernels = [
        event("kernel", "at::native::vectorized_elementwise_kernel<4>", 1e9 + 1000 * at, 400, 0, 7, device=0, stream=7)
        for at in range(200)
    ]
    for row in analyzed(kernels, "--window", "190ms..200ms")["predictions"]:
        assert row["iteration_ns"] == pytest.approx(10e6, rel=0.01)
        assert row["iteration_low_ns"] is None or 9.9e6 <= row["iteration_low_ns"] <= row["iteration_high_ns"] <= 10.1e6


@pytest.mark.parametrize(
    "text",
    [
        rb'{"ph": "X", "cat": "x", "name": "torch\utils\__init__.py(219): init", "ts": 1, "dur": 1},',
        b'{"ph": "X", "cat": "x", "name": "{"device": "cpu", "dtype": "f32"}: run", "ts": 1, "dur": 1},',
        b'{"ph": "X", "cat": "x", "name": "x", "args": {"note": "say "hi" to", "more": "x"}, "ts": 1, "dur": 1},',
        b'{"ph": "X", "cat": "x", "name": "x", "args": {"est. achieved occupancy %": -nan(ind)}, "ts": 1, "dur": 1},',
    ],
)
def test_texts_that_were_not_escaped_are_mended_or_left_out(text: bytes, analyzed: Any) -> None:
    rest = json.dumps(products())[1:].encode()
    assert iteration_us(analyzed(b'{"traceEvents": [' + text + rest + b"}")) == pytest.approx(1050)
    assert iteration_us(analyzed(b"[" + text + rest[:-1] + b",\n")) == pytest.approx(1050)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([{"name": "aten::mm", "ph": "X", "ts": 1, "dur": 2, "tid": 1, "pid": "CPU functions", "args": {}}],
         "torch.autograd.profiler's legacy form"),
        ([event("cpu_op", "aten::mm", 1, 2),
          {**event("x", "MatMulV2", 3, 4), "cat": None, "args": {"Task Type": "AI_CORE"}}],
         "Ascend's profiler"),
        ([{**event("x", "k", 3, 4), "cat": None, "args": {"BeginNs": "1", "EndNs": "2"}}], "rocprof (v1)"),
    ],
)  # fmt: skip
def test_forms_that_are_not_read_are_named(events: Any, words: str, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events))
    result = run("analyze", str(path), "--from", "H100-SXM")
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_csv_of_rocprof_v1_is_named(run: Any, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text('"Index","KernelName","grd","wgr","BeginNs","EndNs"\n0,"k",64,64,1,2\n')
    result = run("analyze", str(tmp_path / "results.csv"), "--from", "MI300X")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "rocprof (v1)" in result.stderr


def test_a_plan_of_a_recording_without_ops_is_refused(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps([event("kernel", f"gemm_{at}", 1e9 + 10 * at, 9, 0, 7, device=0, stream=7) for at in range(3)])
    )
    result = run(
        "scale",
        str(path),
        "--from",
        "H100-SXM",
        "--to",
        "H100-SXM",
        "--gpus",
        "8",
        "--plan",
        "fsdp=8",
        "--from-batch",
        "4",
    )
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "holds kernels and no ops" in result.stderr


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-"])
def test_closed_streams_give_no_traceback(closed: str, root_dir: Path) -> None:
    sample = "-" if closed == "<&-" else "samples/vit_small-inference-bf16-b4-h100.json.gz"
    command = f"{' '.join(PROGRAM)} analyze {sample} --to l40s {closed}"
    found = subprocess.run(command, shell=True, cwd=root_dir, capture_output=True, text=True, check=False)  # noqa: S602
    assert "Traceback" not in found.stderr
    assert ("L40S" in found.stdout) == (closed == "2>&-")


def test_a_part_of_a_batch_that_was_damaged_is_done_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = PartFolder(tmp_path / "r.csv.parts", {})
    folder.open(restart=False)
    folder.write("id", encode_part(TracePart(trace_id="id", facts={"gpus": 1}, answers=[], refusals=[])))
    assert folder.read("id") is not None
    (path,) = (tmp_path / "r.csv.parts").glob("*.part")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert folder.read("id") is None
    assert "damaged; it is done again" in caplog.text


CASES = {
    "01-two-ranks-in-one-file.json": 1150, "02-kernel-at-ts-0.json": 1050, "04-steps-with-pauses.json": 1060,
    "05-five-optimizer-steps.json": 1200, "07-gpu-behind-its-host.json": 1000,
    "08-duration-runs-over-the-next-kernels.json": 2200, "09-unescaped-backslashes.json": 1150,
    "10-unescaped-quotes.json": 1150, "12-open-array.json": 1150,
}  # fmt: skip


@pytest.mark.data
@pytest.mark.parametrize(("name", "length_us"), CASES.items())
def test_the_files_at_hand(name: str, length_us: float, data_dir: Path, analyzed: Any) -> None:
    path = data_dir.parent / "cases" / name
    if not path.is_file():
        pytest.skip("the cases are not here")
    assert iteration_us(analyzed(path.read_bytes())) == pytest.approx(length_us, rel=1e-3)


def test_an_iteration_that_takes_no_time_has_nothing_to_vary(run: Any, tmp_path: Path) -> None:
    events = [item | {"ts": 10, "dur": 0} for item in product(0, 10)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    result = run("sweep", str(tmp_path / "t.json"), "--from", "H100-SXM", "--on", "H200", "--vary", "host=1,2")
    assert result.exit_code == 2
    assert (
        result.stderr.strip()
        == "Error: nothing of the iteration takes time on H200 SXM 141GB: there is nothing to vary"
    )


def test_a_new_archive_leaves_an_index_of_somebody_else_alone(run: Any, tmp_path: Path) -> None:
    foreign = tmp_path / "index.sqlite"
    with closing(sqlite3.connect(foreign)) as users, users:
        users.execute("create table users(name)")
    before = foreign.read_bytes()
    assert run("archive", "init", str(tmp_path)).exit_code == 0
    assert run("archive", "list", str(tmp_path)).exit_code == 0
    assert foreign.read_bytes() == before


def test_numbers_that_no_entry_holds_are_damage_that_is_counted_and_repaired(
    run: Any, tmp_path: Path, trace_file: Path
) -> None:
    folder = tmp_path / "traces"
    run("archive", "init", str(folder))
    run("archive", "add", str(folder), str(trace_file))
    (path,) = (folder / "entries").rglob("*.json")
    forged = re.sub(r'"op_count":\d+', '"op_count":18446744073709551615', path.read_text())
    path.unlink()
    name = f"{path.stem.rpartition('-')[0]}-{hashlib.sha256(forged.encode()).hexdigest()[:16]}.json"
    path.with_name(name).write_text(forged)
    listed, verified = run("archive", "list", str(folder)), run("archive", "verify", str(folder))
    assert (listed.exit_code, verified.exit_code) == (0, 1)
    assert "1 entries are damaged" in listed.stderr
    assert run("archive", "repair", str(folder)).exit_code == 0
    assert run("archive", "verify", str(folder)).exit_code == 0


@pytest.mark.parametrize("begun", [1500, 5000])
def test_a_duration_past_a_wait_for_the_device_ends_there(begun: float, analyzed: Any) -> None:
    """A wait that begins while the kernel runs, or after it was recorded as begun; not one before its launch."""
    first = event("cuda_runtime", "cudaDeviceSynchronize", 1e9 + 1, 2)
    wait = event("cuda_runtime", "cudaDeviceSynchronize", 1e9 + begun, 500)
    events = [first, *products(9), *product(9, 1e9 + 960, dur=1.6e6), wait]
    document = analyzed(events)
    assert iteration_us(document) == pytest.approx(begun + 500, abs=60)
    assert any("1 activity recorded as running on" in text for text in document["warnings"])


def test_a_long_kernel_that_nothing_waits_for_keeps_its_duration(analyzed: Any) -> None:
    first = event("cuda_runtime", "cudaDeviceSynchronize", 1e9 + 1, 2)
    assert iteration_us(analyzed([first, *products(9), *product(9, 1e9 + 960, dur=1.6e4)])) > 1.6e4


def test_kernels_that_begin_after_a_wait_keep_their_durations(analyzed: Any) -> None:
    """Of another device, or by a clock that is late; or their launch lasted longer than another thread's wait."""
    wait = event("cuda_runtime", "cudaDeviceSynchronize", 1e9 + 400, 600)
    late = analyzed([*products(first=1e9 + 4060), wait])
    assert late["source"]["gpu_busy_ns"] == pytest.approx(1e6)
    op, launch, kernel = product(9, 1e9 + 8000)
    slow = [{**op, "tid": 200, "dur": 7500}, {**launch, "tid": 200, "dur": 7000}, kernel]
    assert analyzed([*products(9), *slow, wait])["source"]["gpu_busy_ns"] == pytest.approx(1e6)


def test_a_comma_among_the_digits_of_a_number_of_gpus_is_refused(run: Any) -> None:
    result = run("scale", "samples/gpt2_small-training-bf16-b4-shapes.json.gz", "--to", "h100-sxm", "--gpus", "1,024")
    assert result.exit_code == 2
    assert "'024': expected a number of GPUs" in result.stderr
