"""Says which of how many processes a script is to believe that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import InputError, parameter

_NODE_GPU_COUNT: Final = 8
"""GPUs of a node, as of nearly all that train: what `LOCAL_RANK` counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Hold a rank among others; without a world size there is one process, and only who asks is told."""

    rank: int = 0
    world_size: int | None = None
    start: Callable[[int, Path], Sequence[str]] | None = None
    """What Python is called with to record another rank in the same way, to a file."""

    def __post_init__(self) -> None:
        if self.world_size is not None and self.world_size < 1:
            raise InputError(f"{parameter('world_size')}: expected 1 or more, got {self.world_size}")
        if not 0 <= self.rank < self.size:
            raise InputError(
                f"{parameter('rank')}: expected 0 to {self.size - 1}, of {parameter('world_size', self.size)}, got "
                f"{self.rank}"
            )

    @property
    def size(self) -> int:
        """Return the number of processes."""
        return self.world_size or 1

    @property
    def node_size(self) -> int:
        """Return the number of processes of a node."""
        return min(self.size, _NODE_GPU_COUNT)

    def variables(self) -> Mapping[str, str]:
        """Return what torchrun sets for this process."""
        node, local = divmod(self.rank, self.node_size)
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(local),
            "GROUP_RANK": str(node),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.node_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }
