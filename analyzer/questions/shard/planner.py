"""Asks TorchRec's planner, where it is installed, how it would share the tables; in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import gcd
from typing import Any, Final

from ....errors import InputError, parameter
from ....formats.trace.printable import clean_text
from ....specs.fleet import build_fleet
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from .plan import TablePlacement, read_entries
from .plan_file import plain_entries
from .tables import EmbeddingTable

_PROGRAM: Final = "tracer.torchrec_planner"
_NAME: Final = "TorchRec's plan"
_LONGEST_S: Final = 600.0
_INSTALL: Final = (
    "pip install torchrec with the fbgemm-gpu (or fbgemm-gpu-cpu) that is made for your torch, or leave it out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerAnswer:
    """Hold the plan of TorchRec's planner, or why there is none."""

    placements: tuple[TablePlacement, ...] | None
    version: str | None
    failure: str


def ask_torchrec(
    tables: Sequence[EmbeddingTable],
    gpu: Gpu,
    node: Node,
    *,
    gpu_count: int,
    batch: int,
    memory_bytes: float,
    state_ratio: float,
) -> PlannerAnswer:
    """Return what TorchRec's planner proposes for the same tables, GPUs and links.

    `batch` is that of a GPU, `memory_bytes` what a GPU has for tables. Raises InputError where TorchRec is not
    installed or cannot be loaded; that it finds no plan is an answer.
    """
    if find_spec("torchrec") is None:
        raise InputError(f"{parameter('torchrec')}: TorchRec is not installed here: {_INSTALL}")
    fabric = build_fleet([gpu], [node]).fabric
    near = int(max(fabric.domain_gpu_count[0], fabric.node_gpu_count[0], 1))
    answer = _run(
        {
            "tables": [_describe(table, batch * gpu_count) for table in tables],
            "gpus": gpu_count,
            "gpus_per_node": gcd(gpu_count, min(near, gpu_count)),
            "batch": batch,
            "memory_bytes": max(memory_bytes, 1.0),
            "state_ratio": state_ratio,
            "memory_bandwidth": gpu.memory_bandwidth_bytes_per_s,
            # TorchRec's own figures count both directions of a GPU's links, and one of the network's.
            "link_bandwidth": 2.0 * float(max(fabric.link_bytes_per_s[0], fabric.pair_bytes_per_s[0])),
            "node_bandwidth": float(fabric.nic_bytes_per_s[0] or fabric.host_bytes_per_s[0]),
        }
    )
    if "error" in answer:
        said = clean_text(str(answer["error"]))[:200].strip().rstrip(".")
        if answer.get("kind") == "PlannerError":
            return PlannerAnswer(placements=None, version=None, failure=f"TorchRec's planner finds no plan: {said}")
        raise InputError(f"{parameter('torchrec')}: {said}: {_INSTALL}")
    named = {table.name: entry for table, entry in zip(tables, answer["tables"], strict=True)}
    entries = plain_entries(_NAME, {"": named}, tables)
    return PlannerAnswer(
        placements=read_entries(_NAME, entries, tables, gpu_count), version=str(answer.get("version")), failure=""
    )


def _describe(table: EmbeddingTable, samples: int) -> dict[str, Any]:
    return {
        "rows": table.rows,
        "width": table.width,
        "dtype": table.dtype,
        "pooling": table.lookups / max(samples, 1),
        "is_bag": table.is_bag,
    }


def _run(question: dict[str, Any]) -> dict[str, Any]:
    program = f"{__name__.partition('.')[0]}.{_PROGRAM}"
    try:
        done = subprocess.run(  # noqa: S603 - this program itself
            [sys.executable, "-m", program],
            input=json.dumps(question).encode(),
            capture_output=True,
            check=False,
            timeout=_LONGEST_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"{parameter('torchrec')}: its planner did not answer: {type(error).__name__}; leave it out"
        ) from error
    try:
        found = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise InputError(
            f"{parameter('torchrec')}: its planner failed: {clean_text(lines[-1])[:200]}; leave it out"
        ) from None
    return found if isinstance(found, dict) else {"error": "its planner gave no plan"}
