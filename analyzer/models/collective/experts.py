"""Tokens to their experts and back by a library's own kernels, DeepEP's among them."""

from typing import Final

import numpy as np

from ....arrays import Floats
from ....specs.fabric import Fabric
from ...work.communication import CollectiveKind, Implementation
from ..frame.parameters import Values, priors
from .problems import CollectiveProblems, is_kind

PARAMETERS: Final = priors("collective, experts")
"""`later_ratio`: what waiting for other ranks takes over links newer than NVLink 4, over what it takes there: prior of
B200 and B300 beside H100, in sight (NCCL's, frameworks' and DeepEP's kernels, 1.6 to 1.7). `machine_copies`: between
machines a token crosses once for each machine, not for each rank there; what share of the copies that leaves, from 2 to
8 machines."""
MICRO: Final = 1e-6
COPIED_BYTES_PER_S: Final = 450e9
"""Of a link, that the few multiprocessors of DeepEP's kernels for many tokens keep busy, or of a framework's
all-reduce: theirs is the rate, where a link has more. 20 of H100 and H200 move 279 to 289 GB/s (dispatch) and 351
(combine) over 450 GB/s, 20 of B300 261 and 362 over 900 (the tables' longest). B300 in sight."""
HYBRID_LINK_SHARE: Final = 0.73
HYBRID_START_US: Final = 140.0
"""HybridEP's kernels move 764 GB/s (dispatch) and 737 (combine) of 16-bit tokens among 8 GB200, an eighth of which
stays at home, over links of 900; calls take 161 and 123 us more (deepseek-ai/DeepEP, Hybrid-EP_Implementation.md)."""
FITTED_GENERATION: Final = 4


def exchange_s(p: CollectiveProblems, fabric: Fabric, v: Values, here: Floats, link_bytes_per_s: Floats) -> Floats:
    """Return times of dispatch and combine: links and NICs work at once, the slower decides.

    t = start + machines + max(copies that stay / links * (1 + sqrt(fill / copies that stay)), copies that leave / NIC)
    """
    is_few = p.implementation == Implementation.LOW_LATENCY
    is_combine = is_kind(p, CollectiveKind.COMBINE)
    whole = np.where(is_combine, v["combine_us"], v["dispatch_us"])
    is_hybrid = p.implementation == Implementation.HYBRID
    start = np.select([is_few, is_hybrid], [v["low_latency_us"], HYBRID_START_US], whole)
    start = start + v["low_latency_us"] * (later_ratio(fabric, v) - 1.0)
    levels = np.log2(np.maximum(p.ranks / here, 1.0))
    machines = levels * np.where(is_few, v["low_latency_machine_us"], v["exchange_machine_us"])
    efficiency = np.where(is_combine, v["combine_efficiency"], v["dispatch_efficiency"])
    few = np.where(is_combine, v["low_latency_efficiency"], v["cast_efficiency"])
    efficiency = np.select([is_few, is_hybrid], [few, HYBRID_LINK_SHARE], efficiency)
    stay = p.message_bytes * np.where(is_few, (here - 1.0) / p.ranks, (p.ranks - 1.0) / p.ranks)
    leave = p.message_bytes * (p.ranks - here) / p.ranks * np.where(is_few, 1.0, v["machine_copies"])
    nic = nic_bytes_per_s(fabric, here) * v["exchange_nic_efficiency"]
    is_many = ~is_few & ~is_hybrid
    rate = np.where(is_many, np.minimum(link_bytes_per_s, COPIED_BYTES_PER_S), link_bytes_per_s) * efficiency
    filling = np.where(is_many, np.sqrt(1e6 * v["copies_fill_mb"] / np.maximum(stay, 1.0)), 0.0)
    moving = np.maximum(stay / rate * (1.0 + filling), leave / nic)
    return np.asarray(MICRO * (start + machines * fabric.nic_latency_ratio) + moving)


def later_ratio(fabric: Fabric, v: Values) -> Floats:
    """Return the parameter of this name where links are newer than NVLink 4, else 1."""
    return np.where(fabric.link_generation > FITTED_GENERATION, v["later_ratio"], 1.0)


def nic_bytes_per_s(fabric: Fabric, here: Floats) -> Floats:
    """Return the NIC rate of each of `here` ranks of a machine, or of the machines that links join: NICs that other
    GPUs leave idle are theirs."""
    port = fabric.nic_bytes_per_s * fabric.node_gpu_count / np.maximum(fabric.nic_count, 1.0)
    together = fabric.nic_bytes_per_s * np.maximum(fabric.node_gpu_count, fabric.domain_gpu_count)
    share = np.minimum(port, together / np.maximum(here, 1.0))
    return np.asarray(np.maximum(share * fabric.nic_bandwidth_ratio, 1e6))
