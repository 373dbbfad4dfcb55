"""Scripts made for torchrun, and such that shard their model, where there is one process and no GPU."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from wavecast.tracer.fake_ranks.group import launched_on_demand, sharding_refused
from wavecast.tracer.fake_ranks.mail import RankPlace

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TRAIN = """
optimizer = torch.optim.SGD(model.parameters())
for step in range(4):
    model(torch.ones(2, 4).cuda()).sum().backward()
    optimizer.step()
"""
LAUNCHED = """
import os
import torch
import torch.distributed as dist
local_rank, world_size = int(os.environ["LOCAL_RANK"]), int(os.getenv("WORLD_SIZE"))
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
print(dist.get_rank(), dist.get_world_size(), local_rank, world_size, dist.get_backend(), os.environ["MASTER_PORT"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda(local_rank), device_ids=[local_rank])
"""
GROUP_FIRST = """
import os
import torch
torch.distributed.init_process_group(backend="gloo")
print(os.getenv("RANK"), os.environ.get("MASTER_ADDR"), torch.distributed.get_backend())
model = torch.nn.Linear(4, 4).cuda()
"""
WITHOUT_DEFAULTS = """
import os
import torch
print(int(os.environ.get("LOCAL_RANK")), os.getenv("WORLD_SIZE"))
model = torch.nn.Linear(4, 4).cuda()
"""
ALONE_OR_NOT = """
import os
import torch
print(int(os.environ.get("RANK", -1)), "LOCAL_RANK" in os.environ, os.environ.pop("WORLD_SIZE", None))
model = torch.nn.Linear(4, 4).cuda()
"""


@pytest.fixture(autouse=True)
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        pytest.param(LAUNCHED, "0 1 0 1 nccl 29500", id="made for torchrun alone"),
        pytest.param(WITHOUT_DEFAULTS, "0 1", id="asks without a default"),
        pytest.param(GROUP_FIRST, "0 127.0.0.1 gloo", id="a process group says so"),
        pytest.param(ALONE_OR_NOT, "-1 False None", id="runs without torchrun too, and does"),
    ],
)
def test_scripts_for_torchrun_run_as_one_process(
    run: Callable[..., Any], tmp_path: Path, text: str, printed: str
) -> None:
    (tmp_path / "script.py").write_text(text + TRAIN)
    done = run("--shapes-only", "script.py")
    assert (done.code, done.stdout) == (0, f"{printed}\n"), done.stderr
    data = gzip.decompress((tmp_path / "trace.json.gz").read_bytes())
    assert b"29500" not in data
    assert b"127.0.0.1" not in data
    assert b"MASTER" not in data


def test_what_a_launcher_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("HOST", raising=False)
    with launched_on_demand(RankPlace()):
        assert (os.environ["WORLD_SIZE"], os.environ.get("RANK", "-1"), os.getenv("HOST")) == ("4", "-1", None)
        assert (os.environ["RANK"], os.environ.get("RANK", "-1"), os.environ["WORLD_SIZE"]) == ("0", "0", "4")
        os.environ["WORLD_SIZE"] = "2"
    assert [os.environ.get(name) for name in NAMES] == [None, None, "4", None, None, None]


def test_the_environment_is_pythons_own_again_whatever_raises() -> None:
    kind = type(os.environ)
    with suppress(ZeroDivisionError), launched_on_demand(RankPlace()):
        assert "RANK" not in os.environ
        assert os.environ.setdefault("LOCAL_RANK", "3") == "3"
        with pytest.raises(KeyError, match="RANK"):
            os.environ.pop("RANK")
        assert os.environ.pop("LOCAL_RANK") == "3"
        assert os.environ["MASTER_ADDR"] == "127.0.0.1"
        raise ZeroDivisionError
    assert type(os.environ) is kind
    assert not any(name in os.environ for name in NAMES)


SHARDED = [
    pytest.param("import deepspeed", "DeepSpeed", id="DeepSpeed that is not installed"),
    pytest.param("import sharder\nsharder.initialize(model=layer)", "initialize", id="DeepSpeed"),
    pytest.param(
        "try:\n    import deepspeed.ops\nexcept ImportError as error:\n    raise RuntimeError('wrapped') from error",
        "DeepSpeed",
        id="an error that comes of DeepSpeed's",
    ),
]


@pytest.mark.parametrize(("text", "name"), SHARDED)
def test_a_script_that_shards_gets_one_line(run: Callable[..., Any], tmp_path: Path, text: str, name: str) -> None:
    if "sharder" in text:
        (tmp_path / "deepspeed.py").write_text("def initialize(**options):\n    print('sharding')")
        text = text.replace("sharder", "deepspeed")
    (tmp_path / "script.py").write_text(f"import torch\nlayer = torch.nn.Linear(2, 2).cuda()\n{text}")
    done = run("--shapes-only", "script.py")
    assert (done.code, done.stdout) == (2, "")
    assert len(done.ours) == 1
    assert done.ours[0].startswith(f"Error: {name}: a recording of shapes runs torch's own ways of sharding alone")
    assert "Traceback" not in done.stderr


def test_what_a_script_does_without_deepspeed_is_its_own(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("try:\n    import deepspeed\nexcept ImportError:\n    import not_there")
    done = run("--shapes-only", "script.py")
    assert done.code == 1
    assert done.ours[0].startswith("Error: nothing was recorded: the script failed after 0 iterations")


def test_deepspeed_that_is_only_imported_is_no_matter(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("VERSION = 1")
    (tmp_path / "script.py").write_text("import torch, deepspeed\nmodel = torch.nn.Linear(4, 4)" + TRAIN)
    assert run("--shapes-only", "script.py").code == 0


def test_what_looks_for_deepspeed_is_gone_afterwards() -> None:
    finders = list(sys.meta_path)
    with sharding_refused():
        assert sys.meta_path != finders
    assert sys.meta_path == finders
