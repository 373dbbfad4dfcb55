"""One script, recorded by shapes on an idle machine and beside other work: the same answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import wavecast

SCRIPTS = {
    "plain": "",
    "tokenizing": '    words = [" ".join(sorted(f"w{i * 7 % 131}".split("7"))) for i in range(6_000)]\n',
}
"""What a loop does beside its model's own code: nothing, and 2 to 4 ms of Python, a fifth of the iteration."""
LOOP = """\
import torch
layers = [torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU()) for _ in range(8)]
model = torch.nn.Sequential(*layers).cuda()
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
{own}    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(16384, 4096, device="cuda")).square().mean()
    loss.backward()
    sgd.step()
    sgd.zero_grad()
"""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Let so many processes compute beside."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10_000))"]) for _ in range(count)]
    try:
        yield
    finally:
        for item in others:
            item.kill()
            item.wait()


@pytest.mark.kinds
@pytest.mark.parametrize("own", SCRIPTS)
def test_a_busy_machine_does_not_change_the_answer(own: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP.format(own=SCRIPTS[own]))
    lengths = {}
    for count in (0, 2, 4):
        path = tmp_path / f"{count}.json.gz"
        with busy(count):
            command = [sys.executable, "-m", "wavecast", "record", "--shapes-only", "-o", str(path), str(script)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        lengths[count] = wavecast.analyze(path, to="H100-SXM").report.predictions[0].iteration_ns
        change = wavecast.compare(tmp_path / "0.json.gz", path, on="H100-SXM", max_slowdown="3%").report.gpus[0]
        assert change.change is not None
        assert abs(change.change) < 0.05
    assert max(lengths.values()) < 1.05 * min(lengths.values()), lengths
    assert (sum(wavecast.load_trace(tmp_path / "0.json.gz").ops.lead_ns > 1e6) == 1) == (own != "plain")
