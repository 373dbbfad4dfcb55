"""What `wavecast record` makes of scripts without an optimizer, and of such that end before anything is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from wavecast import load_trace
from wavecast.errors import InputError
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.tracer import record

Run = Callable[..., Any]
AS_FUNCTION = "record one iteration as a function"
BY_HAND = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).to(device)
for step in range({steps}):
    {backward}
    with torch.no_grad():
        for weight, gradient in zip(model.parameters(), gradients):
            weight -= 0.1 * gradient
"""
BACKWARD = """model.zero_grad()
    model(torch.ones(3, 8, device=device)).sum().backward()
    gradients = [weight.grad for weight in model.parameters()]"""
GRAD = "gradients = torch.autograd.grad(model(torch.ones(3, 8, device=device)).sum(), list(model.parameters()))"
CHECKPOINTED = BACKWARD.replace(
    "model(torch.ones(3, 8, device=device))",
    "torch.utils.checkpoint.checkpoint(model, torch.ones(3, 8, device=device, requires_grad=True), use_reentrant=True)",
)
VALIDATES = BY_HAND.format(steps=2, backward=BACKWARD) + (
    "model.eval()\nwith torch.no_grad():\n    for step in range(30): model(torch.ones(5, 8, device=device))"
)


def phases(trace: Trace, name: str) -> Counter[Phase]:
    rows = [row for row, op in enumerate(trace.ops.name) if trace.strings[op] == name]
    return Counter(Phase(trace.ops.phase[row]) for row in rows)


@pytest.mark.parametrize("backward", [BACKWARD, GRAD, CHECKPOINTED], ids=["backward", "grad", "recomputed"])
@pytest.mark.parametrize("options", [("--shapes-only",), ("--iterations", "3:5")], ids=["shapes", "measured"])
def test_iterations_end_with_each_backward_pass_if_asked(
    run: Run, tmp_path: Path, options: tuple[str, ...], backward: str
) -> None:
    (tmp_path / "script.py").write_text("import torch.utils.checkpoint\n" + BY_HAND.format(steps=20, backward=backward))
    done = run(*options, "--iteration-ends", "backward", "script.py")
    assert done.code == 0, done.stderr
    trace = load_trace(tmp_path / "trace.json.gz")
    assert trace.meta.workload.mode == "training"
    count = 1 if trace.meta.capture == "shapes" else 2
    assert sum(phases(trace, "aten::sub_").values()) == 4 * count
    assert phases(trace, "aten::relu")[Phase.FORWARD] == count
    assert set(phases(trace, "aten::threshold_backward")) == {Phase.BACKWARD}


@pytest.mark.parametrize("options", [("--shapes-only",), ()], ids=["shapes", "measured"])
def test_training_without_an_optimizer_is_told_the_option(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "script.py").write_text(BY_HAND.format(steps=15, backward=BACKWARD))
    done = run(*options, "script.py")
    assert done.code == 1
    assert done.ours[0].startswith(
        "Error: nothing was recorded: 15 backward passes but no step of a torch optimizer were seen: where the code"
    )
    assert done.ours[0].endswith("(--iteration-ends backward)")


@pytest.mark.parametrize("options", [("--shapes-only",), ()], ids=["shapes", "measured"])
def test_validation_recorded_instead_of_training_says_so(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "script.py").write_text(VALIDATES)
    done = run(*options, "script.py")
    assert load_trace(tmp_path / "trace.json.gz").meta.workload.mode == "inference"
    assert "; 2 backward passes but no step of a torch optimizer were seen: " in done.ours[0]
    chosen = run(*options, "--mode", "inference", "script.py")
    assert "backward passes" not in chosen.ours[0]


def test_a_loop_in_code_may_end_iterations_with_backward(tmp_path: Path) -> None:
    layer, run = torch.nn.Linear(4, 2), torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    with record(tmp_path / "loop.json", iterations=(2, 4), iteration_ends="backward") as recorder:
        for _ in range(20):
            layer(torch.ones(3, 4)).sum().backward()
    assert recorder.error is None
    trace = load_trace(tmp_path / "loop.json")
    assert (int(trace.iterations.profiled.sum()), trace.meta.workload.mode) == (2, "training")
    assert torch.autograd._engine_run_backward is run  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iteration_ends": "forward"}, "iteration_ends: expected 'backward' or None, got 'forward'"),
        (
            {"iteration_ends": "backward", "mode": "inference"},
            "iteration_ends: 'backward' is training, and the mode says inference",
        ),
    ],
)
def test_ends_that_make_no_sense_are_refused(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"), record(tmp_path / "loop.json", **options):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--shapes-only", "--mode", "inference", "--iteration-ends", "backward", "script.py"),
            "iteration_ends: 'backward' is training, and the mode says inference",
        ),
        (
            ("--shapes-only", "--timm", "resnet50", "--iteration-ends", "backward"),
            "--iteration-ends: --timm takes no script and none of its options",
        ),
    ],
)
def test_the_option_is_refused_where_it_makes_no_sense(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "script.py").write_text("")
    done = run(*arguments)
    assert (done.code, done.ours) == (2, [f"Error: {message}"])


READS = "import torch\nlayer = torch.nn.Linear(2, 2).cuda()\nfound = layer(torch.ones(2, 2).cuda()).sum().item()\n"
FAILED = "Error: nothing was recorded: the script failed after 0 iterations, as shown above"
ENDED = "Error: nothing was recorded: the script ended itself with exit status"


@pytest.mark.parametrize(
    ("text", "code", "line", "is_hinted"),
    [
        pytest.param("import not_there", 1, FAILED, False, id="a missing module"),
        pytest.param("open('not_there')", 1, FAILED, False, id="a missing file"),
        pytest.param("import os, sys\nsys.stdin = open(os.devnull)\nprint(input())", 1, FAILED, False, id="a question"),
        pytest.param("import sys\nsys.exit(3)", 3, f"{ENDED} 3 after 0 iterations", False, id="its own status"),
        pytest.param("raise SystemExit('no data')", 1, f"{ENDED} 1 after 0 iterations", False, id="its own words"),
        pytest.param(
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()",
            2,
            f"{ENDED} 2 after 0 iterations",
            False,
            id="a missing argument",
        ),
        pytest.param("import torch\nraise ValueError('labels')", 1, FAILED, False, id="nothing assumed yet"),
        pytest.param(READS + "raise KeyError('labels')", 1, FAILED, False, id="a missing key"),
        pytest.param(READS + "import not_there", 1, FAILED, False, id="a missing module, later"),
        pytest.param(READS + "assert found == 7", 1, FAILED, True, id="a value that was assumed"),
        pytest.param(
            "import torch\ntorch.ones(2, device='meta').untyped_storage().tolist()", 1, FAILED, True, id="no storage"
        ),
    ],
)
def test_a_script_that_ends_early_keeps_its_status_and_is_advised_where_it_helps(
    run: Run, tmp_path: Path, text: str, code: int, line: str, is_hinted: bool
) -> None:
    (tmp_path / "script.py").write_text(text)
    done = run("--shapes-only", "script.py")
    assert (done.code, len(done.ours)) == (code, 1), done.stderr
    assert done.ours[0].startswith(line)
    assert (AS_FUNCTION in done.ours[0]) == is_hinted
    assert not (tmp_path / "trace.json.gz").exists()


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        (READS + "while found: raise KeyboardInterrupt", f"{AS_FUNCTION} (docs/reference/recording.md)"),
        ("raise KeyboardInterrupt", "after 0 iterations and 0 reads of values that shapes do not have"),
        (
            BY_HAND.format(steps=9, backward=BACKWARD) + "    if step == 5: raise KeyboardInterrupt",
            "(--iteration-ends backward)",
        ),
    ],
)
def test_an_interrupted_script_is_advised_where_it_helps(run: Run, tmp_path: Path, text: str, ending: str) -> None:
    (tmp_path / "script.py").write_text(text)
    done = run("--shapes-only", "script.py")
    assert (done.code, len(done.ours)) == (130, 1)
    assert done.ours[0].endswith(ending)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("import not_there", 1, "the script failed after 0 iterations, as shown above"),
        ("import sys\nsys.exit(2)", 2, "the script ended itself with exit status 2 after 0 iterations"),
        (
            "raise RuntimeError('Found no NVIDIA driver on your system.')",
            1,
            "the script failed after 0 iterations, as shown above; where there is no GPU, --shapes-only records the "
            "script without one",
        ),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the advice is for machines without a GPU")
def test_where_timing_recorded_nothing_it_says_how_the_script_ended(
    run: Run, tmp_path: Path, text: str, code: int, message: str
) -> None:
    (tmp_path / "script.py").write_text(text)
    done = run("script.py")
    assert (done.code, done.ours) == (code, [f"Error: nothing was recorded: {message}"])


WORKERS = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    layer = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(layer.parameters())
    data = TensorDataset(torch.ones(40, 4))
    loader = DataLoader(data, 4, num_workers=2, multiprocessing_context=sys.argv[1], pin_memory=True)
    for (batch,) in loader:
        layer(batch.cuda(non_blocking=True)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_loaders_with_workers_feed_shapes(run: Run, tmp_path: Path, context: str) -> None:
    (tmp_path / "script.py").write_text(WORKERS)
    done = run("--shapes-only", tmp_path / "script.py", context)
    assert (done.code, len(done.ours)) == (0, 1), done.stderr
    assert phases(load_trace(tmp_path / "trace.json.gz"), "aten::addmm") == {Phase.FORWARD: 1}
