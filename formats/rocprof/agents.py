"""Numbers the GPUs that rocprofv3 calls agents, and says what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...arrays import Rows
from ..trace.limits import MAX_INTEGER
from ..trace.privacy import hide_private
from ..trace.tables import Device

_KIB: Final = 1024
_MHZ: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Describe a processor: `node` counts all that there are, `logical` those that the process may use."""

    key: int
    """The number by which other records mean it, in JSON and SQLite."""
    node: int
    logical: int
    is_gpu: bool
    name: str = ""
    """The architecture, `gfx942`."""
    product_name: str = ""
    cu_count: int = 0
    wave_size: int = 0
    most_waves_per_cu: int = 0
    lds_kib: int = 0
    largest_workgroup: int = 0
    clock_mhz: int = 0
    memory_bytes: int = 0


def gpu_indices(agents: Sequence[Agent], used: Rows, keys: Sequence[str]) -> Mapping[int, int]:
    """Return the index of each GPU among them by the number that records give it.

    `keys` names what that number may be, `logical` or `node`: the first under which all that ran kernels are GPUs.
    Without a list, or where none fits, those used are numbered.
    """
    gpus = sorted((agent for agent in agents if agent.is_gpu), key=lambda agent: (agent.node, agent.key))
    for key in keys:
        found = {int(getattr(agent, key)): index for index, agent in enumerate(gpus)}
        if len(found) == len(gpus) and set(used.tolist()) <= found.keys():
            return found
    return {number: index for index, number in enumerate(np.unique(used).tolist())}


def read_devices(agents: Sequence[Agent], used: Sequence[int]) -> tuple[Device, ...]:
    """Return the GPUs that ran something, by their index; the first one where none did."""
    gpus = sorted((agent for agent in agents if agent.is_gpu), key=lambda agent: (agent.node, agent.key))
    found = [_device(agent, index) for index, agent in enumerate(gpus) if index in used or not used]
    return tuple(found if used else found[:1])


def _device(agent: Agent, index: int) -> Device:
    return Device(
        index=index,
        name=hide_private(agent.product_name or agent.name or "unknown GPU"),
        compute_capability=agent.name if agent.name.startswith("gfx") and agent.name.isalnum() else None,
        sm_count=_possible(agent.cu_count),
        memory_bytes=_possible(agent.memory_bytes),
        warp_size=_possible(agent.wave_size),
        max_threads_per_block=_possible(agent.largest_workgroup),
        max_threads_per_sm=_possible(agent.most_waves_per_cu * agent.wave_size),
        shared_memory_per_sm_bytes=_possible(agent.lds_kib * _KIB),
        sm_clock_hz=(_possible(agent.clock_mhz) or 0) * _MHZ or None,
    )


def _possible(value: int) -> int | None:
    """Return what a trace can hold; 0 stands for what is not known."""
    return value if 0 < value <= MAX_INTEGER else None
