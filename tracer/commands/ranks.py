"""Records several ranks of a script on shapes, each in a process of its own; finds which of them differ."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import InputError, WavecastError

if TYPE_CHECKING:
    from ...formats.trace.tables import Trace

DISTINCT: Final = "distinct"
"""What is asked for where one of each rank that differs is wanted."""
Start = Callable[[int, Path], Sequence[str]]
"""Gives what Python is called with to record a rank to a file."""


class RankFailedError(WavecastError):
    """Tell that a rank's own process has said why it recorded nothing."""


def read_ranks(text: str | None, world_size: int) -> tuple[int, ...] | None:
    """Return the ranks that `0,4,7` names; None for those that differ.

    Raises InputError where they are none of the world's.
    """
    if text == DISTINCT:
        return None
    parts = (text or "0").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--rank: expected a rank, several (0,4,7) or {DISTINCT!r}, got {text!r}")
    ranks = tuple(dict.fromkeys(int(part) for part in parts))
    outside = [rank for rank in ranks if rank >= world_size]
    if outside:
        raise InputError(f"--rank: expected 0 to {world_size - 1}, of --world-size {world_size}, got {outside[0]}")
    return ranks


def record_ranks(ranks: Sequence[int] | None, name: Callable[[int], Path], start: Start) -> None:
    """Record ranks, or one of each that differ, to files that `name` names; raises RankFailedError where one fails."""
    from ..fake_ranks.mail import FOLDER

    with tempfile.TemporaryDirectory(prefix="wavecast-") as folder:
        environment = {**os.environ, FOLDER: folder, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

        def record(rank: int) -> None:
            done = subprocess.run([sys.executable, *start(rank, name(rank))], env=environment, check=False)  # noqa: S603
            if done.returncode:
                raise RankFailedError(f"rank {rank} was not recorded, as said above")

        if ranks is None:
            _record_distinct(record, name)
        else:
            for rank in ranks:
                record(rank)


def _record_distinct(record: Callable[[int], None], name: Callable[[int], Path]) -> None:
    """Record rank 0 and whom it sends to or receives from, these likewise, and keep one file of those that are equal.

    Ranks that meet in collectives alone run the same.
    """
    from ...formats.files.open import load_trace

    kept: list[Trace] = []
    seen, queue = {0}, [0]
    while queue:
        rank = queue.pop(0)
        record(rank)
        trace = load_trace(name(rank))
        peers = sorted({int(peer) for peer in trace.collectives.peer if peer >= 0} - seen)
        seen.update(peers)
        queue += peers
        if any((_ops(trace) == _ops(other)) for other in kept):
            name(rank).unlink()
        else:
            kept.append(trace)


def _ops(trace: Trace) -> list[tuple[str, object]]:
    numbers = zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True)
    return [
        (trace.strings[name], trace.signatures[signature] if signature >= 0 else None) for name, signature in numbers
    ]
