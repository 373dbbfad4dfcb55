"""Hosts by name: those that public recordings were made on, and processors by their clock and generation."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Final

import numpy as np

from ...formats.files.constants import read_constants
from ...formats.measured.host_file import KIND_WEIGHTS, REFERENCE_HOST, host_ratios
from ...formats.trace.meta import HostTimes
from ...records import dataclass
from ...specs.hosts import Processor, find_processor, load_processors
from .costs import CONSTANTS, SPEEDS, unknown_host_half_width

ANCHOR: Final = "host_anchor"
PART_OF_KIND: Final = {
    "python": "lead",
    "module": "lead",
    "autograd": "lead",
    "optimizer": "lead",
    "dispatch": "own",
    "allocation": "own",
    "launch": "calls",
}
"""Parts of the table of costs, by kind of work."""


class HostBasis(StrEnum):
    """Say how a host's speed is known."""

    RECORDINGS = "recordings"
    PROCESSOR = "processor"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedHost:
    """Describe a host by how fast it is relative to the reference host: 2 is twice as fast."""

    name: str
    basis: HostBasis
    speed_ratio: float
    ops_ratio: float
    """By CPU ops alone, as `host_speed_of` measures it."""
    half_width: float
    """How far the ratio may be off in 90 % of the cases, natural log."""
    words: str
    """Recordings or processor."""
    machines: tuple[str, ...] = ()
    source: str = ""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnchor:
    """Hold a machine of which both are known: its measured times, and its speed relative to the reference host."""

    times: HostTimes
    ops_ratio: float
    half_width: float


@cache
def host_list() -> tuple[NamedHost, ...]:
    """Return every named host: first those of public recordings.

    >>> host_list()[0].name, host_list()[0].speed_ratio
    ('h100-node', 1.0)
    """
    table, speeds = read_constants(CONSTANTS), read_constants(SPEEDS)
    by_ops, named_width = speeds["ops_ratio"], speeds["named_host_half_width"]
    recorded = (
        NamedHost(
            name=name,
            basis=HostBasis.RECORDINGS,
            speed_ratio=entry["speed_ratio"],
            ops_ratio=by_ops[name],
            half_width=named_width,
            words=f"{entry['ops']:,} ops of {', '.join(entry['traces'])}",
            source="public profiler traces, docs/evidence/replay.md",
        )
        for name, entry in table["hosts"].items()
    )
    return (*recorded, *(_of_processor(item) for item in load_processors()))


def find_host(name: str) -> NamedHost | None:
    """Return the host that a name means: one of `host_list`, or a machine with such a processor; None for no host.

    >>> find_host("p4d.24xlarge").name
    'xeon-8275cl'
    """
    wanted = name.strip().casefold()
    for item in host_list():
        if item.name == wanted:
            return item
    found = find_processor(name)
    return None if found is None else _of_processor(found)


def usual_mix(ops_ratio: float) -> Mapping[str, float]:
    """Return how fast a host is at each kind of work where only its CPU ops tell, relative to the reference host.

    The time between ops goes as it does on the usual host of the public recordings, whose ops are as fast.

    >>> round(usual_mix(1.0)["dispatch"] / usual_mix(2.0)["dispatch"], 3)
    0.5
    """
    usual = read_constants(SPEEDS)["usual_over_reference"]
    return {kind: ops_ratio * usual["ops"] / usual[part] if part == "lead" else ops_ratio
            for kind, part in PART_OF_KIND.items()}  # fmt: skip


@cache
def load_anchor() -> HostAnchor:
    """Return the machine that measured hosts are compared with; mlp_weights/train/host_anchor.py measured it.

    >>> load_anchor().half_width > 0
    True
    """
    values = read_constants(ANCHOR)
    return HostAnchor(times=REFERENCE_HOST, ops_ratio=values["ops_ratio"], half_width=values["half_width"])


def reference_speed(host: HostTimes) -> float | None:
    """Return how fast a measured host is in all beside the reference host, on which shapes are replayed; None: unknown.

    By the machine of which both are known; within the factor that `load_anchor` says.

    >>> round(reference_speed(REFERENCE_HOST), 1)
    3.5
    """
    anchor = load_anchor()
    mix, ratios = usual_mix(anchor.ops_ratio), host_ratios(host, anchor.times)
    logs = {kind: np.log(ratio * mix[kind.removesuffix("_ns")]) for kind, ratio in ratios.items()}
    weights = [KIND_WEIGHTS[kind] for kind in logs]
    return float(np.exp(np.average(list(logs.values()), weights=weights))) if logs else None


def _of_processor(item: Processor) -> NamedHost:
    return NamedHost(
        name=item.name,
        basis=HostBasis.PROCESSOR,
        speed_ratio=item.speed_ratio,
        ops_ratio=item.speed_ratio,
        half_width=float(np.round(unknown_host_half_width(), 2)),
        words=f"{item.model}, {item.clock_hz / 1e9:g} GHz, {item.generation}",
        machines=item.machines,
        source=item.source.source + ("" if item.source.verified else " (not verified)"),
        note=item.note,
    )
