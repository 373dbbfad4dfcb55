"""`--iteration` and `--capture`, and what is said of cold starts and of graphs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from wavecast.analyzer.asking.keywords import ITERATION_RULES
from wavecast.analyzer.recorded.choice import RULES
from wavecast.formats.trace.codec import encode

EXPECTED = "a number, median, longest, prefill, decode, mixed or all"

Run = Callable[..., Result]
Files = Callable[[], Any]
MS = 1_000_000
ON_A100 = ("--from", "A100 SXM4 80GB", "--to", "H100 SXM5 80GB")


@pytest.fixture
def steps_file(recording: Any, tmp_path: Path) -> Path:
    """Three steps: a cold start, a usual one, an empty one."""
    for start, end, cpu_start, cpu_end in (
        (0, 1_977, 0, 1_960),
        (1_977, 2_029, 2_001, 2_028),
        (2_029, 2_033, 2_032, 2_033),
    ):
        recording.iteration(start * MS, end * MS, cpu_start * MS, cpu_end * MS)
        recording.op(cpu_start * MS + 1_000, 5_000)
    recording.call("cudaFree", 10 * MS, 1_900 * MS)
    recording.launch(1_950 * MS, MS, 1_952 * MS, 25 * MS)
    recording.launch(2_002 * MS, MS, 2_004 * MS, 25 * MS)
    path = tmp_path / "steps.json"
    path.write_bytes(encode(recording.trace()))
    return path


def told(run: Run, *arguments: object) -> Any:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("asked", "index", "choice", "measured_ms"),
    [
        ((), 1, "median", 52),
        (("--iteration", "median"), 1, "median", 52),
        (("--iteration", 1), 1, "number", 52),
        (("--iteration", "longest"), 0, "longest", 1_977 - 1_900),
        (("--iteration", "all"), None, "all", 2_033 - 1_900),
    ],
)
def test_json_says_which_iteration(
    asked: tuple[object, ...], index: int | None, choice: str, measured_ms: float, run: Run, steps_file: Path
) -> None:
    document = told(run, "analyze", steps_file, *ON_A100, *asked)
    trace = document["trace"]
    assert (trace["iteration_index"], trace["iteration_choice"], trace["recorded_iteration_count"]) == (
        index,
        choice,
        3,
    )
    assert document["source"]["iteration_ns"] == pytest.approx(measured_ms * MS)
    assert set(trace["left_out_ns"]) == ({"set_up"} if choice in ("longest", "all") else set())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (9, "Error: there is no iteration 9: the trace holds 3 iterations, numbers 0 to 2"),
        (10**30, "Error: there is no iteration 100000000000000000: the trace holds 3 iterations, numbers 0 to 2"),
        (2, "Error: iteration 2 put nothing on the GPU: give another (0, 1)"),
        (
            "first",
            f"Error: Invalid value for '--iteration': 'first': expected {EXPECTED}",
        ),
        (
            "-1",
            f"Error: Invalid value for '--iteration': '-1': expected {EXPECTED}",
        ),
        (
            "",
            f"Error: Invalid value for '--iteration': '': expected {EXPECTED}",
        ),
    ],
)
@pytest.mark.parametrize("command", ["analyze", "replay", "validate"])
def test_what_there_is_not_is_one_line(command: str, asked: object, words: str, run: Run, steps_file: Path) -> None:
    traces = (steps_file, steps_file) if command == "validate" else (steps_file,)
    result = run(command, *traces, "--from", "A100 SXM4 80GB", "--iteration", asked)
    assert result.exit_code == 2
    assert words.replace("Error: ", "Error: the first trace: ") in result.stderr or words in result.stderr
    assert not result.stdout


def test_what_is_said_of_a_cold_start(run: Run, steps_file: Path) -> None:
    text = run("analyze", steps_file, *ON_A100, "--iteration", "longest").output
    assert "iteration 77.00 ms (number 0, the longest of 3)" in text
    assert "a cold start: for 1.90 s of this iteration the GPU stood still" in text
    assert "cudaFree, 1.90 s" in text
    assert "which leaves 77.0 ms; --iteration 1 predicts another one" in text
    assert "iteration 2 of 3 does next to nothing" in text
    usual = run("analyze", steps_file, *ON_A100).output
    assert "cold start" not in usual
    assert "(the median of 2)" in usual
    assert "(number 1 of 3 recorded)" in run("analyze", steps_file, *ON_A100, "--iteration", 1).output
    whole = run("analyze", steps_file, *ON_A100, "--iteration", "all").output
    assert "(all 3 recorded as one)" in whole
    assert "--iteration 1 predicts one without it" in whole


def test_the_command_line_knows_the_rules() -> None:
    assert ITERATION_RULES == RULES


def test_replay_compares_the_one_that_is_asked_for(run: Run, steps_file: Path) -> None:
    def rows(*asked: object) -> list[int]:
        return [item["index"] for item in told(run, "replay", steps_file, *asked)["iterations"]]

    assert rows() == [0, 1, 2]
    assert rows("--iteration", "median") == [1]
    assert rows("--iteration", 0) == [0]
    assert rows("--iteration", "all") == [0]
    document = told(run, "replay", steps_file, "--iteration", "all")
    assert (document["iteration_choice"], document["recorded_iteration_count"]) == ("all", 3)
    assert told(run, "replay", steps_file)["iteration_choice"] is None


def test_validate_compares_the_one_that_is_asked_for(run: Run, steps_file: Path, recording: Any) -> None:
    options = ("--from", "A100 SXM4 80GB", "--to", "A100 SXM4 80GB", "--top", 0)
    document = told(run, "validate", steps_file, steps_file, *options, "--iteration", 1)
    for side in ("source", "target"):
        assert (document[side]["iteration_index"], document[side]["iteration_choice"]) == (1, "number")
    cold = told(run, "validate", steps_file, steps_file, *options, "--iteration", "longest")
    assert cold["iteration"]["measured_ns"] == pytest.approx(77 * MS)
    assert any(text.startswith("the trace of the target: a cold start") for text in cold["warnings"])
    single = steps_file.with_name("single.json")
    recording.rows[next(table for table in recording.rows if table.__name__ == "IterationTable")][1:] = []
    single.write_bytes(encode(recording.trace()))
    assert told(run, "validate", single, steps_file, *options, "--iteration", 1)["source"]["iteration_index"] == 0
    refused = run("validate", single, steps_file, *options, "--iteration", "all")
    assert refused.exit_code == 2
    assert "all iterations as one do not compare: 1 in the first trace, 3 in the second" in refused.stderr


@pytest.fixture
def pair(graph_files: Files, tmp_path: Path) -> tuple[Path, Path]:
    """An execution and a capture of the same graph."""
    launch, capture = graph_files(), graph_files()
    paths = tmp_path / "execution.json", tmp_path / "capture.json"
    paths[0].write_bytes(launch.execution(launch.work(2048), inputs=[2048, 64]))
    paths[1].write_bytes(capture.capture(capture.work(2048)))
    return paths


def test_a_capture_explains_an_execution(pair: tuple[Path, Path], run: Run) -> None:
    execution, capture = pair
    alone = told(run, "analyze", execution, "--to", "L40S", "--ops")
    assert any("6 of the 6 kernels in it" in text and "--capture FILE" in text for text in alone["warnings"])
    assert alone["trace"]["graph_kernels_explained"] == 0
    joined = told(run, "analyze", execution, "--to", "L40S", "--ops", "--capture", capture)
    counts = ("graph_launch_count", "graph_kernel_count", "graph_kernels_explained")
    assert [joined["trace"][name] for name in counts] == [1, 6, 6]
    assert not any("graph" in text for text in joined["warnings"])
    methods = {row["op"]: row["method"] for row in joined["ops"]}
    assert methods["aten::mm"] == "anchored_model"
    assert all(row["method"] != "anchored_model" for row in alone["ops"] if row["op"] != "aten::copy_")
    text = run("analyze", execution, "--to", "L40S", "--capture", capture).output
    assert "6 of them from 1 launch of a CUDA graph (6 explained)" in text
    compared = told(run, "validate", execution, execution, "--capture", capture)
    assert "aten::mm" in {row["op"] for row in compared["ops"]}


@pytest.mark.parametrize("command", ["analyze", "replay"])
def test_a_capture_alone_is_refused(command: str, pair: tuple[Path, Path], run: Run) -> None:
    result = run(command, pair[1])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: this is the recording of a CUDA graph's capture, not of an iteration: 6 ")
    assert result.stderr.count("\n") == 1
    assert not result.stdout


@pytest.mark.parametrize("command", ["analyze", "replay", "validate"])
def test_files_that_do_not_belong_together_are_one_line(command: str, pair: tuple[Path, Path], run: Run) -> None:
    execution, capture = pair
    traces = (capture, capture) if command == "validate" else (capture,)
    result = run(command, *traces, "--capture", execution)
    assert result.exit_code == 2
    assert "give the one that launches the graph first" in result.stderr
    assert result.stderr.count("\n") == 1


def test_show_says_what_is_captured_and_what_ran_from_a_graph(pair: tuple[Path, Path], run: Run) -> None:
    assert "1 launch of a CUDA graph; 6 kernels from graphs" in run("show", pair[0]).output
    assert "6 launches into a graph that is captured: they ran nothing" in run("show", pair[1]).output


def test_an_empty_step_is_said_of_a_file_without_kernels(data_dir: Path, tmp_path: Path, run: Run) -> None:
    file = json.loads(gzip.decompress((data_dir / "traces" / "odd" / "mi250_two_iterations.json.gz").read_bytes()))
    file["traceEvents"] = [event for event in file["traceEvents"] if event.get("cat") not in ("kernel", "gpu_memcpy")]
    path = tmp_path / "host.json"
    path.write_text(json.dumps(file))
    words = " ".join(told(run, "analyze", path, "--from", "MI250X", "--to", "L40S")["warnings"])
    assert "iteration 1 of 2 does next to nothing" in words
    assert "but no kernel" in words


def test_the_public_files(data_dir: Path, run: Run) -> None:
    folder = data_dir / "traces" / "odd"
    to = ("--to", "H100 SXM5 80GB", "--top", 0)

    def warned(name: str, *more: object) -> tuple[Any, str]:
        document = told(run, "analyze", folder / f"{name}.json.gz", *to, *more)
        return document, " ".join(document["warnings"])

    cold, words = warned("cold_start")
    assert "a cold start: for 40.35 s" in words
    assert "record after a few iterations of warm-up" in words
    assert cold["source"]["iteration_ns"] < 1e9
    two, words = warned("mi250_two_iterations", "--from", "MI250X")
    assert (two["trace"]["iteration_index"], two["trace"]["kernel_count"]) == (0, 16)
    assert "iteration 1 of 2 does next to nothing" in words
    alone, words = warned("sglang_decode_execution")
    assert "544 of the 544 kernels in it, 99% of the GPU time, are not known" in words
    joined, words = warned("sglang_decode_execution", "--capture", folder / "sglang_decode_capture.json.gz")
    assert joined["trace"]["graph_kernels_explained"] == 544
    moved = [next(row for row in item["predictions"] if not row["is_source"])["methods"] for item in (alone, joined)]
    assert moved[0].get("anchored_model", 0.0) < 0.01
    assert moved[1]["anchored_model"] > 0.5
    _, words = warned("mi300x_vllm_graph_execution", "--from", "MI300X")
    assert "421 of the 421 kernels in it, 97% of the GPU time, are not known" in words
    capture = run("analyze", folder / "sglang_decode_capture.json.gz")
    assert (capture.exit_code, capture.stdout) == (2, "")
    assert "544 launches went into the graph and ran nothing" in capture.stderr
