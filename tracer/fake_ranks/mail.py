"""Hands on Python objects that ranks send to one another, such as a pipeline's stages the shapes of what they pass.

Who receives something that nobody has sent yet runs the sender, alone, until it sends it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from ...errors import CaptureError, InputError, parameter
from ...records import dataclass
from ..hooks.patches import patched

FOLDER: Final = "WAVECAST_MAIL"
"""Variable that names the folder in which processes of one recording leave what they send."""
_WANTED: Final = "WAVECAST_MAIL_WANTED"
"""Variable that names the message after which a process has done its part."""
_WAITING: Final = "WAVECAST_MAIL_WAITING"
"""Variable that lists the ranks that wait for this process's message, for one another's in turn."""
_TIMEOUT_S: Final = 600


@contextmanager
def objects_handed_on(place: RankPlace) -> Iterator[None]:
    """Let `send_object_list` and `recv_object_list` reach ranks that do not run."""
    groups: Any = torch.distributed
    with ExitStack() as stack:
        if not groups.is_available():
            yield
            return
        folder = os.environ.get(FOLDER) or stack.enter_context(tempfile.TemporaryDirectory(prefix="wavecast-"))
        mail = _Mail(place, Path(folder))
        for owner in (groups, groups.distributed_c10d):
            stack.enter_context(patched(owner, "send_object_list", mail.send))
            stack.enter_context(patched(owner, "recv_object_list", mail.receive))
        yield


class _Mail:
    """Keep what ranks send in files, by sender, receiver and number."""

    def __init__(self, place: RankPlace, folder: Path) -> None:
        self._place, self._folder = place, folder
        self._counts: Counter[tuple[str, int]] = Counter()

    def send(
        self, object_list: Sequence[Any], dst: int | None = None, group: Any = None, *rest: Any, **options: Any
    ) -> None:
        peer = _world_rank(dst, group, options.get("group_dst", rest[1] if len(rest) > 1 else None))
        path = self._path(self._place.rank, peer, self._number("to", peer))
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps(list(object_list)))
        part.replace(path)
        if os.environ.get(_WANTED) == path.name:
            raise SystemExit(0)

    def receive(
        self, object_list: list[Any], src: int | None = None, group: Any = None, *rest: Any, **options: Any
    ) -> int:
        peer = _world_rank(src, group, options.get("group_src", rest[1] if len(rest) > 1 else None))
        path = self._path(peer, self._place.rank, self._number("from", peer))
        if not path.exists():
            self._ask(peer, path)
        object_list[:] = pickle.loads(path.read_bytes())  # noqa: S301 - our own, in a folder of our own
        return peer

    def _number(self, direction: str, peer: int) -> int:
        self._counts[direction, peer] += 1
        return self._counts[direction, peer] - 1

    def _path(self, sender: int, receiver: int, number: int) -> Path:
        return self._folder / f"{sender}-{receiver}-{number}.pickle"

    def _ask(self, peer: int, path: Path) -> None:
        """Run the rank that sends a message until it has."""
        waiting = [*filter(None, os.environ.get(_WAITING, "").split(",")), str(self._place.rank)]
        lacks = f"rank {self._place.rank} waits for an object from rank {peer}"
        if str(peer) in waiting or self._place.start is None:
            raise CaptureError(f"{lacks}, which a recording of one rank at a time cannot give")
        variables = {FOLDER: str(self._folder), _WANTED: path.name, _WAITING: ",".join(waiting)}
        done = subprocess.run(  # noqa: S603 - this program itself
            [sys.executable, *self._place.start(peer, self._folder / f"rank{peer}.json.gz")],
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if not path.exists():
            said = done.stderr.strip().splitlines()
            raise CaptureError(f"{lacks}, which ended without sending it{f': {said[-1]}' if said else ''}")


def _world_rank(rank: int | None, group: Any, group_rank: int | None) -> int:
    if rank is not None:
        return rank
    ranks: Callable[[Any], Sequence[int]] = torch.distributed.get_process_group_ranks
    return ranks(group)[group_rank or 0]


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
