"""The parallel plan and the machines that a measured iteration ran with."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from .....specs.fabric import usual_node
from .....specs.gpu import Gpu
from .....specs.nodes import Node
from ....whatif.parallel.plan import ExpertDispatch, ParallelPlan, RecomputeMode
from .rows import PAX, XLA, IterationRow

GIGABIT: Final = 1e9 / 8
_FAST: Final = ("compute", "ib", "infiniband", "ndr", "hdr", "edr", "roce", "connectx", "omni", "per gpu", "per node")
"""Words of a network that gradients go over, rather than of one for storage and management."""
ACTIVATION_BYTES: Final = 34.0
"""Per token, layer and hidden feature, in 16 bits and with fused attention (Korthikanti et al. 2022, section 4.1)."""
_IDLE: Final = ("storage", "management")


def plan_of(row: IterationRow, gpu: Gpu) -> ParallelPlan:
    """Return the plan. Megatron's distributed optimizer shards it among replicas; groups of FSDP ranks are replicated.

    Megatron's tensor-parallel collectives run beside products (user buffers) where its recipes say so: on H100 all of
    them with tensor parallelism but the adapters'. `none/selective` recomputes nothing with fused attention;
    experts are reached as the row's recipe says, by all-to-all without one (Megatron-Core's default);
    what XLA recomputes the pages do not say: all, where the activations of a micro batch would not fit. PaxML's own
    configuration of such models (`GPT5BSynthetic` in paxml) saves nothing in fp8, and products' results in 16 bits.
    """
    is_fsdp = "fsdp" in row.sharding or row.sharding == "hsdp"
    group = min(row.fsdp_group or row.dp, row.dp) if is_fsdp else 1
    zero = 2 if row.sharding.endswith("shard_grad_op") else 1
    shards = is_fsdp and zero == 1
    activation_bytes = ACTIVATION_BYTES * row.hidden * row.layers * row.micro_batch * row.seq_len
    is_pax, is_xla = row.framework.startswith(PAX), row.framework.startswith(XLA)
    recomputes = row.recompute == "full" or (is_xla and activation_bytes > gpu.memory_bytes) or (is_pax and row.is_fp8)
    kept = RecomputeMode.SELECTIVE if is_pax else RecomputeMode.NONE
    return ParallelPlan(
        dp=row.dp // group if shards else row.dp,
        fsdp=group if shards else 1,
        zero=0 if shards else zero,
        tp=row.tp,
        cp=row.cp,
        pp=row.pp,
        vp=row.vp,
        ep=min(row.ep, row.dp * row.cp * row.tp),
        micro_batch=row.micro_batch,
        micro_batches=row.microbatches,
        recompute=RecomputeMode.FULL if recomputes else kept,
        dispatch=ExpertDispatch.ONCE if row.dispatcher.startswith("flex") else ExpertDispatch.ALL_TO_ALL,
        overlap_experts=row.overlaps_experts,
        overlap_tensor=row.tp > 1 and not row.task.endswith("lora"),
    )


def node_of(row: IterationRow, gpu: Gpu) -> Node:
    """Return the machine: the GPU's usual one, with as many GPUs and the network that the row names.

    Links within are taken from the row where it says that there are none but PCIe.
    """
    return described_node(
        gpu, min(row.gpus_per_node or usual_node(gpu).gpu_count, row.gpus), row.intra_link, row.inter_link
    )


def described_node(gpu: Gpu, gpu_count: int, intra_link: str, inter_link: str) -> Node:
    """Return a GPU's usual machine with what a system's description says otherwise."""
    usual = usual_node(gpu)
    count = max(1, gpu_count)
    rate = nic_bytes_per_s(inter_link, count)
    changes: dict[str, object] = {"gpu_count": count}
    if rate:
        changes |= {"nic": inter_link, "nic_bandwidth_bytes_per_s": rate}
    if "pcie" in intra_link.lower() and "nvlink" not in intra_link.lower():
        changes |= {
            "link": "PCIe",
            "link_bandwidth_bytes_per_s": 2 * gpu.pcie_bandwidth_bytes_per_s,
            "domain_gpu_count": 1,
        }
    else:
        changes["domain_gpu_count"] = count if usual.domain_gpu_count > 1 else usual.domain_gpu_count
    return replace(usual, **changes)  # type: ignore[arg-type]


def nic_bytes_per_s(text: str, gpus_per_node: int) -> float:
    """Return a GPU's share of the network that a system's description names, one direction; 0: it names no rate.

    >>> nic_bytes_per_s("IB NDR 400 Gb/s per GPU", 8) / 1e9, nic_bytes_per_s("2x ConnectX-6 IB HDR 200Gb/Sec", 4) / 1e9
    (50.0, 12.5)
    """
    best = 0.0
    for part in re.split(r"[,+;]", text.replace("Gb / Sec", "Gb/s").replace("ConnectX - 6", "ConnectX-6")):
        words = part.lower()
        found = re.search(r"(\d+(?:\.\d+)?) ?gb(?:it)?(?:/s|/sec|s)?", words)
        if found is None or any(word in words for word in _IDLE) or not any(word in words for word in _FAST):
            continue
        several = re.search(r"(\d+) ?x ", words)
        count = gpus_per_node if "per gpu" in words else int(several[1]) if several else 1
        best = max(best, float(found[1]) * count)
    return best * GIGABIT / gpus_per_node
