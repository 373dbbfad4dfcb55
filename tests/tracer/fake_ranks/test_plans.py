"""Recordings on a fake process group beside real runs of the same code by gloo: what is moved, what is multiplied."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from wavecast.formats.trace.signature import TensorSpec
from wavecast.formats.trace.tables import Trace, Workload
from wavecast.tracer.commands.script import ScriptStopped, stop_script
from wavecast.tracer.fake_cuda.session import ScriptShapes
from wavecast.tracer.fake_ranks.mail import FOLDER, RankPlace

SCRIPTS: Final = Path(__file__).parent / "scripts"
KINDS: Final = ("ddp", "fsdp", "fsdp_tp", "fsdp1", "sequence", "megatron", "pipeline", "experts")
UNEQUAL: Final = ("fsdp_tp", "megatron", "pipeline")
"""Of these plans, the first two ranks do not do the same."""
WORLD_SIZE: Final = 4
IN_ONE: Final = {"c10d::allgather_": "c10d::_allgather_base_"}
"""FullyShardedDataParallel gathers into parts on a host, and into one tensor on GPUs."""
PRODUCTS: Final = ("aten::mm", "aten::addmm", "aten::bmm")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what each rank did by gloo: by rank, by kind of plan."""
    folder = tmp_path_factory.mktemp("gloo")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(SCRIPTS / "real.py"), str(rank), str(WORLD_SIZE), str(folder), *KINDS],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD_SIZE)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=300)
        assert not process.returncode, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let recordings share what ranks send one another, as those of one command do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("mail")))
        yield


def record(kind: str, rank: int, monkeypatch: pytest.MonkeyPatch) -> Trace:
    import runpy

    def start(peer: int, path: Path) -> list[str]:
        place = ["--world-size", str(WORLD_SIZE), "--rank", str(peer)]
        return ["-m", "wavecast", "record", "--shapes-only", *place, "-o", str(path), str(SCRIPTS / "plans.py"), kind]

    session = ScriptShapes(Workload(), stop_script, None, RankPlace(rank=rank, world_size=WORLD_SIZE, start=start))
    monkeypatch.setattr(sys, "argv", ["plans.py", kind])
    with session, suppress(ScriptStopped):
        runpy.run_path(str(SCRIPTS / "plans.py"), run_name="__main__")
    assert session.trace is not None
    return session.trace


def collectives_of(trace: Trace) -> list[list[Any]]:
    """Return op, elements sent and received, and ranks of each collective."""
    table, members = trace.collectives, trace.members
    ranks = [members.rank[members.group == group].tolist() for group in range(len(trace.groups.size))]
    columns = zip(table.op, table.in_element_count, table.out_element_count, table.group, strict=True)
    return [
        [
            IN_ONE.get(trace.strings[trace.ops.name[op]], trace.strings[trace.ops.name[op]]),
            int(sent),
            int(received),
            ranks[group],
        ]
        for op, sent, received, group in columns
    ]


def products_of(trace: Trace) -> list[list[Any]]:
    """Return the matrix products with the shapes of what they multiply."""
    return [
        [
            trace.strings[name],
            [list(item.shape) for item in trace.signatures[number].arguments if isinstance(item, TensorSpec)],
        ]
        for name, number in zip(trace.ops.name, trace.ops.signature, strict=True)
        if trace.strings[name] in PRODUCTS
    ]


@pytest.mark.usefixtures("mail")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "rank"), [*((kind, 0) for kind in KINDS), *((kind, 1) for kind in UNEQUAL)])
def test_a_fake_group_shows_what_a_real_one_runs(
    real: Any, kind: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = record(kind, rank, monkeypatch)
    assert real[rank][kind]["collectives"]
    assert collectives_of(trace) == [[IN_ONE.get(name, name), *rest] for name, *rest in real[rank][kind]["collectives"]]
    assert products_of(trace) == real[rank][kind]["products"]
    assert (trace.meta.rank, trace.meta.world_size) == (rank, WORLD_SIZE)
