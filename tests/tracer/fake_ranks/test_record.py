"""`record --world-size`: which ranks are recorded, to which files, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.tracer.commands.ranks import read_ranks
from wavecast.tracer.fake_ranks.mail import RankPlace

SCRIPT = """
import os
import torch
import torch.distributed as dist
print(os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], torch.cuda.device_count())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, device = dist.get_rank(), torch.device("cuda", torch.cuda.current_device())
model = torch.nn.Linear(4, 4).to(device)
assert model.weight.device == device
told = [None] * dist.get_world_size()
dist.all_gather_object(told, rank)
optimizer = torch.optim.SGD(model.parameters())
for step in range(4):
    data = torch.ones(2, 4, device=device)
    if rank in (0, 3):
        dist.send(data, 3) if rank == 0 else dist.recv(data, 0)
    model(data).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
"""


def test_a_rank_is_recorded_as_one_of_many(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run("--shapes-only", "--world-size", "512", "--rank", "17", "script.py")
    assert (done.code, done.stdout) == (0, "17 1 512 8\n"), done.stderr
    trace = load_trace(tmp_path / "trace.json.gz")
    assert (trace.meta.rank, trace.meta.world_size) == (17, 512)
    assert trace.groups.size.tolist() == [512]
    assert trace.members.rank.tolist() == list(range(512))
    assert [trace.strings[name] for name in trace.collectives.name] == ["allreduce"]
    assert trace.collectives.in_element_count.tolist() == [16]


def test_ranks_that_differ_are_found(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run("--shapes-only", "--world-size", "5", "--rank", "distinct", "-o", "it.json", "script.py")
    assert done.code == 0, done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["it.rank0.json", "it.rank3.json"]
    sent, received = (load_trace(tmp_path / f"it.rank{rank}.json").collectives for rank in (0, 3))
    assert (sent.peer.tolist(), received.peer.tolist()) == ([3, -1], [0, -1])
    assert sent.sequence[0] == received.sequence[0]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--rank", "0", "script.py"], "Error: --rank needs --world-size"),
        (["--world-size", "2", "--rank", "2", "script.py"], "Error: --rank: expected 0 to 1, of --world-size 2, got 2"),
        (["--world-size", "0", "script.py"], "Error: --world-size: expected 1 or more, got 0"),
        (["--world-size", "2", "--timm", "resnet50"], "Error: --world-size: --timm takes no script and none of its"),
    ],
)
def test_what_cannot_be_is_refused(run: Callable[..., Any], tmp_path: Path, options: list[str], line: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run("--shapes-only", *options)
    assert done.code == 2
    assert done.ours[-1].startswith(line)


def test_ranks_are_read_as_given() -> None:
    assert read_ranks("4,0,4", 8) == (4, 0)
    assert read_ranks(None, 8) == (0,)
    assert read_ranks("distinct", 8) is None
    with pytest.raises(InputError, match="expected a rank, several"):
        read_ranks("first", 8)


def test_a_place_knows_its_node() -> None:
    told = RankPlace(rank=17, world_size=20).variables()
    assert (told["GROUP_RANK"], told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("2", "1", "8")
