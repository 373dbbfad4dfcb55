"""The lines of an XLA profile, whichever file they come from: what ran on a thread or a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

KEPT: Final = frozenset({
    "correlation_id", "hlo_op", "hlo_module", "tf_op", "long_name", "kernel_details", "memcpy_details",
    "memset_details", "step_num", "cuda_graph_exec",
})  # fmt: skip
"""What is read of an event beside its name and times; nothing else is decoded."""
KEPT_OF_PLANES: Final = frozenset({"core_count", "memory_size", "compute_cap_major", "compute_cap_minor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaEvent:
    """Hold one event; times in picoseconds, which is what XPlane counts in."""

    name: str
    start_ps: int
    duration_ps: int
    told: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaLine:
    """Hold the events of one thread or stream; `plane` is its device or host, as in `/device:GPU:0`."""

    plane: str
    name: str
    events: list[XlaEvent]


@dataclass(slots=True, kw_only=True)
class XlaProfile:
    """Hold a file's lines, what it says of its devices, by plane, and how many events were not usable."""

    lines: list[XlaLine] = field(default_factory=list)
    devices: dict[str, dict[str, str]] = field(default_factory=dict)
    dropped_count: int = 0
