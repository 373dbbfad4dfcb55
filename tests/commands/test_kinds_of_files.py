"""What `analyze` answers to files that lack something: kernels, ops, shapes, a name, or their end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wavecast
from click.testing import Result
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace

Run = Callable[..., Result]
Event = dict[str, Any]

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
MI300X = {
    "id": 0, "name": "", "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "numSms": 304,
    "warpSize": 64, "maxSharedMemoryPerMultiProcessor": 65536,
}  # fmt: skip
MI2XX = MI300X | {"name": "AMD Radeon Graphics", "totalGlobalMem": 68702699520, "computeMinor": 0, "numSms": 104}
MTIA = {"id": 17, "name": "ARTEMIS", "maxGridHeight": 8}
SHAPES = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["float", "float"]}


def span(cat: str, name: str, ts: float, dur: float, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def product(ts: float, **args: Any) -> Event:
    return span("cpu_op", "aten::mm", ts, 20, **args)


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    return span("cuda_runtime", name, ts, 5, correlation=correlation)


def kernel(ts: float, dur: float, correlation: int, name: str = "sgemm", **args: Any) -> Event:
    where = {"device": 0, "stream": 7, "correlation": correlation, "grid": [64, 1, 1], "block": [128, 1, 1]}
    return span("kernel", name, ts, dur, **where, **args)


def step(number: int, ts: float, dur: float) -> Event:
    return span("user_annotation", f"ProfilerStep#{number}", ts, dur)


MEASURED = [product(10, **SHAPES), launch(15, 1), kernel(40, 50, 1)]


@pytest.fixture
def analyze(run: Run, tmp_path: Path) -> Callable[..., Result]:
    """Run `analyze` on a profiler file of these events and devices; `cut` takes bytes off its end."""

    def write_and_run(*words: str, events: list[Event], devices: list[Any] | None = None, cut: int = 0) -> Result:
        head = {} if devices is None else {"deviceProperties": devices}
        data = json.dumps({**head, "traceEvents": events}).encode()
        path = tmp_path / "file.json"
        path.write_bytes(data[: len(data) - cut])
        return run("analyze", path, *(words or ("--to", "H100 SXM5 80GB")))

    return write_and_run


def refusal(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert "on a CPU" not in result.stderr
    return result.stderr


def answer(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_gpu_whose_kernels_are_missing_is_predicted_from_shapes_and_says_so(analyze: Callable[..., Result]) -> None:
    text = answer(analyze(events=[product(10, **SHAPES), launch(15, 1)], devices=[A100]))
    assert "The kernels of the GPU that was recorded are not in the file" in text
    assert "a GPU ('NVIDIA A100-SXM4-80GB', CUDA) and holds 1 op (aten::mm) of its host and 1 launch" in text
    assert "all times come from shapes alone; record with activities=[ProfilerActivity.CPU" in text
    assert "on a CPU" not in text
    asked = ("--to", "L4", "--format", "json")
    report = json.loads(answer(analyze(*asked, events=[product(10, **SHAPES)], devices=[A100])))
    assert report["trace"]["capture"] == "host"
    assert any("holds 1 op (aten::mm) of its host but no kernel" in warning for warning in report["warnings"])


def test_show_says_whose_host_it_was(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(json.dumps({"deviceProperties": [A100], "traceEvents": [product(10, **SHAPES)]}).encode())
    text = answer(run("show", path))
    assert "timed on the host of an accelerator, whose kernels are missing (cuda)" in text
    assert "device 0" in text


def test_a_recording_of_a_cpu_is_called_one(analyze: Callable[..., Result]) -> None:
    assert "The ops were timed on a CPU" in answer(analyze(events=[product(10, **SHAPES)], devices=[]))


def test_nothing_is_ranked_where_all_ops_count_0(analyze: Callable[..., Result]) -> None:
    ranges = [span("cuda_profiler_range", "gemm", 20, 5)]
    text = refusal(analyze(events=[product(10), launch(15, 1), *ranges], devices=[A100]))
    for words in ("nothing to predict", "NVIDIA A100-SXM4-80GB", "1 launch", "1 event with counters in place of times"):
        assert words in text
    assert "no op tells any GPU time (no shapes are recorded of 1)" in text
    assert "ProfilerActivity.CUDA] and record_shapes=True, without profiling counters" in text
    text = refusal(analyze(events=[span("cpu_op", "aten::empty", at, 1, **SHAPES) for at in range(4)]))
    assert "the iteration holds 4 ops (aten::empty), and no op tells any GPU time" in text
    assert text.endswith("record at least one whole iteration\n")


def test_what_lies_outside_of_the_iteration_is_named(analyze: Callable[..., Result]) -> None:
    empty = [span("cpu_op", "aten::empty", 500 + at, 1) for at in range(4)]
    text = refusal(analyze(events=[step(5, 0, 100), *empty], devices=[]))
    assert "4 ops (aten::empty)" in text


def test_another_accelerator_is_refused_by_name(analyze: Callable[..., Result]) -> None:
    events = [product(10, **SHAPES), span("mtia_runtime", "run", 15, 5), span("mtia_ccp_events", "pe_exe", 15, 5)]
    text = refusal(analyze(events=events, devices=[MTIA]))
    assert "an accelerator ('ARTEMIS', mtia), no GPU of NVIDIA or AMD: it holds 1 op (aten::mm) of its host" in text
    assert "1 event of the device in a form that is not read" in text
    assert "wavecast record --shapes-only" in text


def test_kernels_without_ops_say_what_is_lost(analyze: Callable[..., Result]) -> None:
    events = [launch(15, 1), kernel(40, 50, 1)]
    text = answer(analyze(events=events, devices=[A100]))
    assert "Warning: the iteration holds kernels and no ops: without their names, shapes and phases" in text
    assert "--batch, --precision and --fuse-elementwise have nothing to change" in text
    asked = ("--to", "L4", "--batch", "64", "--from-batch", "32")
    assert "--batch changes the shapes of ops" in refusal(analyze(*asked, events=events, devices=[A100]))


def test_an_iteration_outside_of_which_the_kernels_lie_is_refused(analyze: Callable[..., Result]) -> None:
    events = [step(1, 0, 100), product(10, **SHAPES), launch(500, 1), kernel(520, 50, 1)]
    text = refusal(analyze(events=events, devices=[A100]))
    assert "1 op (aten::mm) and no kernel, while the kernels of the file, 1, lie outside of it" in text
    assert "--iteration" in text


def cut_of(events: list[Event]) -> int:
    """How many bytes to take off so that the last of these events, and the end, are lost."""
    return len(json.dumps(events)) + 1


def test_the_lost_end_of_a_file_takes_its_kernels_with_it(analyze: Callable[..., Result]) -> None:
    asked = ("--to", "L4", "--recover")
    text = refusal(analyze(*asked, events=MEASURED, devices=[A100], cut=cut_of(MEASURED[1:])))
    assert "the file ends early" in text
    assert "with it every kernel of a GPU ('NVIDIA A100-SXM4-80GB', CUDA): 1 op (aten::mm)" in text
    assert "copy or export it again" in text
    text = refusal(analyze(*asked, events=MEASURED, cut=cut_of(MEASURED[1:])))
    assert "every kernel that it may have held" in text


@pytest.mark.parametrize(("kept", "is_refused"), [(9, False), (4, True)])
def test_ops_that_lost_their_kernels_are_counted(analyze: Callable[..., Result], kept: int, is_refused: bool) -> None:
    ops = [product(100 * at, **SHAPES) for at in range(10)]
    calls = [launch(100 * at + 5, at + 1) for at in range(10)]
    kernels = [kernel(100 * at + 30, 50, at + 1) for at in range(kept)]
    events = [*ops, *calls, *kernels, span("cpu_op", "aten::view", 2000, 1)]
    result = analyze("--to", "L4", "--recover", events=events, devices=[A100], cut=10)
    if is_refused:
        assert "the kernels of 6 of the iteration's 10 matrix products and convolutions" in refusal(result)
    else:
        text = answer(result)
        assert "Warning: the file ends early: " in text
        assert "1 of the iteration's 10 matrix products and convolutions have no kernels" in text


def test_a_lost_end_is_in_the_json(analyze: Callable[..., Result]) -> None:
    asked = ("--to", "L4", "--recover", "--format", "json")
    events = [*MEASURED, span("cpu_op", "aten::view", 2000, 1)]
    report = json.loads(answer(analyze(*asked, events=events, devices=[A100], cut=10)))
    assert any("the file ends early" in warning and "%" in warning for warning in report["warnings"])


def test_launches_without_kernels_are_pointed_out(analyze: Callable[..., Result]) -> None:
    text = answer(analyze(events=[*MEASURED, launch(16, 2), launch(17, 3)], devices=[A100]))
    assert "2 of the file's 3 launches have no kernel" in text


def test_a_gpu_without_a_name_is_known_by_its_size(analyze: Callable[..., Result]) -> None:
    text = answer(analyze(events=MEASURED, devices=[MI300X]))
    assert "Measured on Instinct MI300X" in text
    assert "does not name its GPU (''): it is taken for Instinct MI300X, the only one of the catalogue with" in text
    assert "304 SMs, 192 GiB, capability 9.4" in text
    named = answer(analyze("--from", "MI325X", "--to", "H100 SXM5 80GB", events=MEASURED, devices=[MI300X]))
    assert "Measured on Instinct MI325X" in named
    assert "it is taken for" not in named


def test_of_several_gpus_that_fit_all_are_named(analyze: Callable[..., Result]) -> None:
    text = refusal(analyze(events=MEASURED, devices=[MI2XX]))
    assert "does not name its GPU ('AMD Radeon Graphics': 104 SMs, 64 GiB, capability 9.0)" in text
    assert "may be Instinct MI210 or Instinct MI250 (1 GCD): name the one with --from" in text
    text = refusal(analyze(events=MEASURED, devices=[MI300X | {"numSms": 77}]))
    assert "no entry of the catalogue fits" in text
    assert "--gpu-file" in text


def test_a_file_without_a_device_needs_from(analyze: Callable[..., Result]) -> None:
    assert "name it with --from" in refusal(analyze(events=MEASURED))
    assert "Measured on Tesla V100 SXM2 16GB" in answer(
        analyze("--to", "L4", "--from", "V100 SXM2 16GB", events=MEASURED)
    )


def test_kernels_that_nothing_moves_are_named_with_their_share(analyze: Callable[..., Result]) -> None:
    reduce = kernel(100, 50, 2, name="ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)")
    events = [*MEASURED, launch(30, 2), reduce]
    linked = answer(analyze("--to", "H100 SXM5 80GB", events=events, devices=[A100]))
    assert "keep their measured time there" not in linked
    text = answer(analyze("--to", "L4", events=events, devices=[A100]))
    assert "of the GPU time on L4: ncclKernel_AllReduce_RING_LL_Sum_float\n" in text


def test_kernels_that_no_formula_explains_are_named_by_what_is_missing(analyze: Callable[..., Result]) -> None:
    events = [
        *MEASURED,
        launch(30, 2),
        kernel(100, 50, 2, name="void lone<int>(int*)"),
        span("cpu_op", "mine::op", 40, 10, **SHAPES),
        launch(45, 3),
        kernel(160, 50, 3),
        product(60),
        launch(65, 4),
        kernel(220, 50, 4),
    ]
    text = answer(analyze(events=events, devices=[A100]))
    assert "25% of the GPU time is in kernels that no recorded op launched (lone)" in text
    assert "25% of the GPU time is in kernels whose op has no recorded shapes (aten::mm)" in text
    assert (
        "25% of the GPU time is in kernels whose op has no formula, or lacks arguments that it needs (mine::op)" in text
    )


def test_a_long_stretch_without_anything_says_where_the_host_was(analyze: Callable[..., Result]) -> None:
    around = span("cpu_op", "aten::copy_", 105, 890)
    copy = span("cuda_runtime", "cudaMemcpyAsync", 110, 880, correlation=3)
    text = answer(analyze(events=[*MEASURED, launch(100, 2), kernel(985, 50, 2), around, copy], devices=[A100]))
    assert "without anything recorded" in text
    assert "the longest stretch lasts 0.895 ms, while the host is in cudaMemcpyAsync of aten::copy_" in text


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e3])
def test_kernels_faster_or_far_slower_than_their_gpu_can_be_are_pointed_out(
    analyze: Callable[..., Result], unit: float
) -> None:
    text = answer(analyze(events=[product(10, **SHAPES), launch(15, 1), kernel(40, 50 * unit, 1)], devices=[A100]))
    assert ("times are in another unit" in text) == (unit != 1)


def test_ops_of_an_unknown_dtype_are_counted(analyze: Callable[..., Result]) -> None:
    shapes = SHAPES | {"Input type": ["c10::Posit16"] * 2}
    text = answer(analyze(events=[product(10, **shapes), launch(15, 1), kernel(40, 50, 1)], devices=[A100]))
    assert "1 ops have tensors of dtype 'unknown', which is not known" in text


@pytest.mark.parametrize("gap", [5, 50])
def test_kernels_without_launches_that_the_gpu_waits_for_are_pointed_out(
    analyze: Callable[..., Result], gap: int
) -> None:
    text = answer(analyze(events=[kernel(at * (50 + gap), 50, 0) for at in range(4)], devices=[A100]))
    assert ("before 3 kernels whose launches are not recorded" in text) == (gap > 20)


@pytest.mark.parametrize("gpu", ["H200 SXM 141GB", "Tesla T4", "A100 SXM4 40GB", "A100 SXM4 80GB"])
def test_an_interval_holds_the_waits_before_kernels_without_launches_kept_and_gone(analyze: Run, gpu: str) -> None:
    """Of 40 kernels of 50 us every 100 us; where they were recorded, nothing is untold."""
    events = [kernel(at * 100, 50, 0) for at in range(40)]
    rows = json.loads(answer(analyze("--to", gpu, "--format", "json", events=events, devices=[A100])))["predictions"]
    row = next(row for row in rows if gpu in row["gpu"])
    low_ns, busy_ns, high_ns = row["iteration_low_ns"], row["gpu_busy_ns"], row["iteration_high_ns"]
    if gpu == "A100 SXM4 80GB":
        assert low_ns == high_ns == 3_950_000
    else:
        assert low_ns <= busy_ns < busy_ns + 39 * 50_000 <= high_ns


def test_an_iteration_of_no_time_is_refused(analyze: Callable[..., Result]) -> None:
    seconds = [event | {"ts": event["ts"] * 1e-6, "dur": event["dur"] * 1e-6} for event in MEASURED]
    assert "the iteration takes no time: " in refusal(analyze(events=seconds, devices=[A100]))


def test_an_iteration_that_takes_no_time_where_it_ran_is_refused(analyze: Run, tmp_path: Path) -> None:
    """Though its kernels do: elsewhere it would be replayed, and compared with nothing."""
    assert "H100" in answer(analyze(events=[step(0, 0, 100), *MEASURED], devices=[A100]))
    trace = load_trace(tmp_path / "file.json")
    trace = replace(trace, iterations=replace(trace.iterations, end_ns=trace.iterations.start_ns))
    with pytest.raises(InputError, match="the iteration takes no time: "):
        wavecast.analyze(trace, to=["L40S"])


CHAKRA = [
    {"Id": at, "Name": "aten::mm" if at % 2 else "sgemm", "NodeType": 4, "runtime": 50, "is_cpu_op": bool(at % 2)}
    | {"data_deps": [at - 1] if at > 1 else []}
    for at in range(1, 9)
]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"data_deps": [99]}, "1 dependencies are lost"),
        ({"NodeType": 9}, "1 nodes are of kinds that are not read"),
        ({"runtime": 0}, None),
    ],
)
def test_what_is_missing_of_a_chakra_trace_is_said(
    run: Run, tmp_path: Path, change: dict[str, Any], said: str | None
) -> None:
    path = tmp_path / "chakra.json"
    path.write_text(json.dumps({"workload_graph": [*CHAKRA[:-1], CHAKRA[-1] | change]}))
    text = answer(run("analyze", path, "--from", "A100 SXM4 80GB", "--to", "L40S"))
    for sentence in ("dependencies are lost", "are of kinds that are not read", "kernels take 0 ns"):
        assert (sentence in text) == (said is not None and sentence in said)


def test_kernels_without_times_are_pointed_out(analyze: Run) -> None:
    times = (50, 0, 50, 0)
    text = answer(analyze(events=[kernel(100 * at, times[at], 0) for at in range(4)], devices=[A100]))
    assert "2 of 4 kernels take 0 ns: their times are missing in the file" in text


@pytest.mark.parametrize(("length_us", "said"), [(10, "together they may take 10% more"), (100, None), (10.25, None)])
def test_short_kernels_in_whole_microseconds_are_pointed_out(analyze: Run, length_us: float, said: str | None) -> None:
    text = answer(analyze(events=[kernel(200 * at, length_us, 0) for at in range(4)], devices=[A100]))
    assert ("cut to whole microseconds" in text) == (said is not None)
    assert said is None or said in text
