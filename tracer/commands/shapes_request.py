"""What `record` is asked to run, and how another process is asked for one rank of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...formats.trace.tables import Workload


@dataclass(frozen=True, slots=True)
class Script:
    """Name a file, or a module, and what it is called with."""

    target: str
    arguments: Sequence[str]
    is_module: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapesRequest:
    """Hold what was asked of a script that is recorded on shapes."""

    script: Script
    workload: Workload
    ends: str | None
    world_size: int | None
    ranks: str | None
    host_times: bool

    def rank_command(self, rank: int, path: Path) -> list[str]:
        """Return what Python is called with to record one rank as this command records its own."""
        given = {
            "--world-size": self.world_size,
            "--rank": rank,
            "--mode": self.workload.mode,
            "--name": self.workload.name,
            "--batch-size": self.workload.batch_size,
            "--iteration-ends": self.ends,
        }
        options = [text for option, value in given.items() if value is not None for text in (option, str(value))]
        options += [] if self.host_times else ["--no-host-times"]
        script = self.script
        target = ["-m", script.target] if script.is_module else [script.target]
        return ["-m", "wavecast", "record", "--shapes-only", "-o", str(path), *options, *target, *script.arguments]
