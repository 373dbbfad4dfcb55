"""`wavecast record` on scripts that know nothing of it, run as users run them."""

from __future__ import annotations

import gzip
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from wavecast import Trace, load_trace
from wavecast.formats.trace.tables import Phase

SCRIPTS = Path(__file__).parents[1] / "scripts"


Run = Callable[..., Any]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write a script."""

    def write(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


LOOP = """
import sys, torch
layer = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    layer(torch.ones(3, 4)).sum().backward()
    optimizer.step()
{end}
"""


def count_phases(trace: Trace, iteration: int) -> dict[Phase, int]:
    low, high = trace.iterations.cpu_start_ns[iteration], trace.iterations.cpu_end_ns[iteration]
    inside = (trace.ops.start_ns >= low) & (trace.ops.start_ns < high)
    return {phase: int((trace.ops.phase[inside] == phase).sum()) for phase in Phase}


def check(trace: Trace, *, captured: int, timed: int, modules: set[str]) -> None:
    """The iterations are those, the captured ones have all phases, and their ops lie in those modules."""
    iterations = trace.iterations
    assert list(iterations.profiled) == [False] * timed + [True] * captured
    assert (iterations.end_ns > iterations.start_ns).all()
    first, *others = (count_phases(trace, row) for row in range(timed, timed + captured))
    training = trace.meta.workload.mode == "training"
    for counts in (first, *others):
        assert counts[Phase.FORWARD] > 0
        assert (counts[Phase.BACKWARD] > 0) == (counts[Phase.OPTIMIZER] > 0) == training
        for phase in (Phase.BACKWARD, Phase.OPTIMIZER):
            assert counts[phase] == first[phase]
    found = {trace.strings[row] for row in set(trace.ops.module.tolist()) - {-1}}
    assert modules <= found


@pytest.fixture(scope="module")
def private_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The training script in a folder, with an environment and under a host name that are nobody's business."""
    folder = tmp_path_factory.mktemp("home") / "jane_mustnotleave" / "confidential_project"
    folder.mkdir(parents=True)
    script = shutil.copy(SCRIPTS / "train.py", folder / "secretive_name.py")
    private = {"HF_TOKEN": "hf_Kq7ThisMustNotLeave", "USER": "jane_mustnotleave", "HOSTNAME": "node_mustnotleave"}
    command = [sys.executable, "-m", "wavecast", "record", script, "--steps", "40", "--lr", "0.02"]
    environment = {**os.environ, **private, "HOME": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done, folder / "trace.json.gz"


def test_a_training_script_is_recorded_as_it_is(private_run: Any) -> None:
    done, path = private_run
    trace = load_trace(path)
    modules = {"Classifier", "Classifier.stem", "Classifier.norm", "Classifier.head"}
    check(trace, captured=5, timed=10, modules=modules)
    assert trace.meta.workload.mode == "training"
    assert re.search(
        r"^wavecast: \S+/trace\.json\.gz: 5 iterations captured, \S+ ms each under the profiler; 10 timed without "
        r"it, \S+ ms each \(\S+ times\); \d+ ops, 0 kernels$",
        done.stderr,
        flags=re.MULTILINE,
    )


def test_the_scripts_results_are_its_own(private_run: Any) -> None:
    plain = [sys.executable, str(SCRIPTS / "train.py"), "--steps", "40", "--lr", "0.02"]
    expected = subprocess.run(plain, capture_output=True, text=True, check=True).stdout
    assert private_run[0].stdout == expected
    assert "checksum" in expected


def test_nothing_private_is_in_the_file(private_run: Any) -> None:
    data = gzip.decompress(private_run[1].read_bytes()).lower()
    for word in (b"mustnotleave", b"confidential", b"secretive", b"train.py", b"0.02", b"--steps", b"/home", b"/tmp"):
        assert word not in data
    assert socket.gethostname().lower().encode() not in data


def test_an_inference_script_is_recorded_by_forwards(run: Run, tmp_path: Path) -> None:
    done = run("-o", "inference.json", "--batch-size", "2", "--name", "encoder", SCRIPTS / "infer.py")
    trace = load_trace(tmp_path / "inference.json")
    check(trace, captured=5, timed=10, modules={"Encoder", "Encoder.head", "Encoder.layers.layers.1"})
    workload = trace.meta.workload
    assert (workload.mode, workload.batch_size, workload.name) == ("inference", 2, "encoder")
    assert done.code == 0


def check_gradients_reduced(trace: Trace) -> None:
    """In each iteration, in backward, all gradients are reduced once, by the two ranks together."""
    found = trace.collectives
    assert {trace.strings[name] for name in found.name} == {"allreduce"}
    assert {trace.strings[dtype] for dtype in found.dtype} == {"float32"}
    assert (found.in_element_count == found.out_element_count).all()
    assert len(set(found.in_element_count.tolist())) == 1
    assert set(found.group_size.tolist()) == {2}
    assert set(found.group.tolist()) == {0}
    assert len(found.op) == trace.iterations.profiled.sum()


def test_each_rank_of_torchrun_writes_its_own_file(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "wavecast", "record"]
    command = [sys.executable, *launcher, "--iterations", "5:8", str(SCRIPTS / "distributed.py")]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.rank0.json.gz", "trace.rank1.json.gz"]
    for rank in (0, 1):
        trace = load_trace(tmp_path / f"trace.rank{rank}.json.gz")
        check(trace, captured=3, timed=8, modules={"DistributedDataParallel.module.0"})
        assert (trace.meta.rank, trace.meta.world_size) == (rank, 2)
        check_gradients_reduced(trace)


@pytest.mark.skipif(not (find_spec("transformers") and find_spec("accelerate")), reason="needs transformers")
def test_the_trainer_of_hugging_face_is_recorded(run: Run, tmp_path: Path) -> None:
    done = run(SCRIPTS / "hugging_face.py", tmp_path / "out")
    assert done.stdout.splitlines()[-1] == "24"
    trace = load_trace(tmp_path / "trace.json.gz")
    check(trace, captured=5, timed=10, modules={"GPT2LMHeadModel.transformer.h.1.mlp.c_fc"})


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning")
def test_the_trainer_of_lightning_is_recorded(run: Run, tmp_path: Path) -> None:
    done = run(SCRIPTS / "lightning_module.py")
    assert done.stdout.splitlines()[-1] == "24"
    check(load_trace(tmp_path / "trace.json.gz"), captured=5, timed=10, modules={"Sequential.0", "Sequential.2"})


def test_killed_at_any_time_no_broken_file_is_left(run: Run, tmp_path: Path) -> None:
    arguments, chance = (SCRIPTS / "train.py", "--steps", "1000000"), random.Random(0)  # noqa: S311
    first = run("-o", "first.json", *arguments, until="first.json", signal=signal.SIGKILL)
    assert first.appeared_s is not None
    for number in range(4):
        sent = signal.SIGINT if number % 2 else signal.SIGKILL
        delay_s = first.appeared_s * chance.uniform(0.5, 1.3)
        done = run("-o", f"{number}.json", *arguments, signal=sent, delay_s=delay_s)
        assert done.code in ((130, 1) if sent == signal.SIGINT else (-signal.SIGKILL,))
        path = tmp_path / f"{number}.json"
        if path.exists():
            assert 1 <= load_trace(path).iterations.profiled.sum() <= 5
        else:
            assert not any(line.startswith("wavecast") for line in done.ours)
    hidden = [path for path in tmp_path.iterdir() if path.suffix != ".json"]
    assert all(path.name.startswith(".") and path.suffix == ".tmp" for path in hidden)


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("sys.exit(7)", 7, None),
        ("sys.exit('no data')", 1, "no data"),
        ("raise KeyError('labels')", 1, "KeyError: 'labels'"),
        ("raise EOFError", 1, "EOFError"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("sys.exit()", 0, None),
    ],
)
def test_how_a_script_ends_is_passed_on(run: Run, write: Any, tmp_path: Path, end: str, code: int, last: Any) -> None:
    script = write(LOOP.format(steps=20, end=end))
    done = run(script)
    assert done.code == code
    assert load_trace(tmp_path / "trace.json.gz").iterations.profiled.sum() == 5
    assert last is None or last in done.stderr.splitlines()
    if last and "Error:" in last:
        frames = re.findall(r'File "([^"]+)"', done.stderr)
        assert frames == [str(script)]


def test_a_script_that_fails_within_the_capture_leaves_the_whole_iterations(
    run: Run, write: Any, tmp_path: Path
) -> None:
    done = run(write(LOOP.format(steps=13, end="layer(torch.ones(3, 4)).sum(); raise RuntimeError('mine')")))
    assert done.code == 1
    assert "RuntimeError: mine" in done.stderr
    assert load_trace(tmp_path / "trace.json.gz").iterations.profiled.sum() == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LOOP.format(steps=1, end=""),
            "the code ended after 1 iteration, before iteration 10 (counted from 0) had ended",
        ),
        ("print('no torch here')", "no torch optimizer stepped and no torch.nn.Module ran"),
        (
            "import torch; m = torch.nn.Linear(2, 2)\nfor _ in range(20): m(torch.ones(2))",
            "20 forward passes in training",
        ),
    ],
)
def test_where_nothing_was_recorded_it_says_why(run: Run, write: Any, tmp_path: Path, text: str, message: str) -> None:
    done = run(write(text))
    assert done.code == 1
    assert len(done.ours) == 1
    assert message in done.ours[0]
    assert not (tmp_path / "trace.json.gz").exists()


@pytest.mark.parametrize(("steps", "timed"), [(3, 0), (6, 3), (10, 6), (11, 6)])
def test_a_script_of_few_iterations_is_recorded_with_what_it_has(
    run: Run, write: Any, tmp_path: Path, steps: int, timed: int
) -> None:
    done = run(write(LOOP.format(steps=steps, end="")))
    assert done.code == 0
    assert (f"the code ended after {steps} iterations: one of its first was captured" in done.ours[0]) == (steps < 11)
    check(load_trace(tmp_path / "trace.json.gz"), captured=1, timed=timed, modules={"Linear"})


def test_the_script_goes_on_unless_told_to_stop(run: Run, write: Any, tmp_path: Path) -> None:
    script = write(LOOP.format(steps=100, end="print(step)"))
    assert run(script).stdout == "99\n"
    stopped = run("--stop", "--iterations", "3:5", "-o", "short.json", script)
    assert (stopped.code, stopped.stdout) == (0, "")
    check(load_trace(tmp_path / "short.json"), captured=2, timed=10, modules={"Linear"})


def test_modules_run_as_with_python_m(run: Run, write: Any, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    write("print(__name__, __package__, sys.argv[1:])".join(["import sys\n", "\n"]) + LOOP.format(steps=20, end=""),
          "project/train.py")  # fmt: skip
    done = run("-m", "project.train", "--output", "mine", "-o")
    assert done.stdout == "__main__ project ['--output', 'mine', '-o']\n"
    assert (tmp_path / "trace.json.gz").exists()


def test_a_script_sees_its_own_folder_and_arguments(run: Run, write: Any, tmp_path: Path) -> None:
    write("answer = 42", "formats.py")  # a name that wavecast has too
    done = run(write("import sys, formats\nprint(formats.answer, sys.argv, __name__, __file__)"), "--iterations", "x")
    script = str(tmp_path / "script.py")
    assert done.stdout == f"42 {[script, '--iterations', 'x']} __main__ {script}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "missing.py: no such file; expected a Python script"),
        (["trace.json.gz"], "trace.json.gz: expected a Python script; 'wavecast analyze' reads traces"),
        (["--iterations", "5", "x.py"], "--iterations: expected FIRST:END, for example 10:15, got '5'"),
        (["--iterations", "7:7", "x.py"], "iterations: expected FIRST:END with 2 <= FIRST < END, got 7:7"),
        (["--iterations", "1:7", "x.py"], "iterations: expected FIRST:END with 2 <= FIRST < END, got 1:7"),
        (["-o", "nowhere/trace.json", "x.py"], "nowhere/trace.json: cannot be written: its directory does not exist"),
        (["-o", "trace.pt", "x.py"], "trace.pt: expected a name that ends in .json or .json.gz"),
        (["--batch-size", "0", "x.py"], "batch_size: expected 1 or more, got 0"),
    ],
)
def test_bad_arguments_are_one_line_and_status_2(run: Run, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.code, done.stdout, done.stderr) == (2, "", f"Error: {message}\n")


def test_a_script_that_profiles_itself_is_left_alone(run: Run, write: Any) -> None:
    text = "import torch.profiler\nwith torch.profiler.profile() as mine:\n"
    body = "".join(f"    {line}\n" for line in LOOP.format(steps=20, end="").splitlines() if line)
    done = run(write(text + body + "print(len(mine.events()) > 100)"))
    assert (done.stdout, done.code) == ("True\n", 1)
    assert "another profiler is running" in done.ours[0]


def test_a_forked_child_does_not_touch_the_recording(run: Run, write: Any, tmp_path: Path) -> None:
    fork = "import os\nif os.fork() == 0: sys.exit(0)\nos.wait()"
    done = run(write(LOOP.format(steps=16, end=fork)))
    assert done.code == 0
    assert len([line for line in done.ours if line.startswith("wavecast")]) == 1
    assert load_trace(tmp_path / "trace.json.gz").iterations.profiled.sum() == 5


def test_what_a_script_does_at_exit_still_works(run: Run, write: Any) -> None:
    script = write(
        LOOP.format(steps=20, end="import atexit\natexit.register(lambda: print('bye', step, layer.bias.shape))")
    )
    assert run(script, at_exit=True).stdout == "bye 19 torch.Size([2])\n"
