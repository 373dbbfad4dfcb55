"""How fast a host is beside another, by kinds of work and in all."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from types import MappingProxyType
from typing import Final

from ..trace.meta import HostTimes
from .host_file import HOST_KINDS, is_host_time

REFERENCE_HOST: Final = HostTimes(
    python_version="3.11",
    processor="AMD EPYC",
    python_ns=5310.0,
    dispatch_ns=1120.0,
    autograd_ns=2920.0,
    module_ns=597.0,
    optimizer_ns=18300.0,
    allocation_ns=571.0,
)
"""What counts as a speed of 1: one virtual core of an AMD EPYC of family 26 (Zen 5), Python 3.11.7 and torch 2.13.0,
least of six turns of host_ratios.py at f56f3bcf on 2026-11-23. It has no GPU, so launches have no speed."""
KIND_WEIGHTS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "python_ns": 0.22,
        "dispatch_ns": 0.25,
        "autograd_ns": 0.18,
        "module_ns": 0.07,
        "optimizer_ns": 0.02,
        "allocation_ns": 0.06,
        "launch_ns": 0.20,
    }
)
"""What an eager iteration's host spends on each: mean over the 34 shipped recordings of shapes on the synthetic host,
half of them training. Of what passes before forward ops a quarter is taken to be module calls, of what passes in ops a
fifth to be allocation, as in the networks of that program."""


def host_ratios(host: HostTimes, base: HostTimes = REFERENCE_HOST) -> dict[str, float]:
    """Return how fast a host is relative to another, by kind of work that both were measured in; 2 is twice as fast.

    >>> host_ratios(HostTimes(python_ns=1000.0, module_ns=500.0), HostTimes(python_ns=2000.0))
    {'python_ns': 2.0}
    """
    found = {}
    for kind in HOST_KINDS:
        mine, other = getattr(host, kind), getattr(base, kind)
        if is_host_time(mine) and is_host_time(other):
            found[kind] = other / mine
    return found


def host_speed(host: HostTimes, base: HostTimes = REFERENCE_HOST) -> float | None:
    """Return how fast a host is in all: the weighted geometric mean over the kinds; None where none are common.

    >>> host_speed(HostTimes(python_ns=1000.0), HostTimes(python_ns=2000.0))
    2.0
    """
    ratios = host_ratios(host, base)
    weight = sum(KIND_WEIGHTS[kind] for kind in ratios)
    if not weight:
        return None
    return exp(sum(KIND_WEIGHTS[kind] * log(ratio) for kind, ratio in ratios.items()) / weight)
