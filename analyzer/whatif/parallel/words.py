"""What the words of a plan mean: Megatron's, torchtitan's, DeepSpeed's and JAX's names of the same things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REST: Final = ("*", "-1", "rest", "auto")
"""In place of a number: as many as the other axes leave of the GPUs."""


def _by_word(words: Mapping[str, str]) -> dict[str, str]:
    """Return what each word stands for, from the words of each meaning."""
    return {word: meaning for meaning, names in words.items() for word in names.split()}


NUMBERS: Final = _by_word(
    {
        "dp": "dp ddp data dp_replicate data_parallel data_parallel_size data_parallel_replicate_degree",
        "fsdp": "fsdp fsdp2 dp_shard data_parallel_shard_degree",
        "zero": "zero zero_stage",
        "tp": "tp tensor tensor_parallel tensor_parallel_degree tensor_model_parallel_size",
        "cp": "cp context context_parallel_degree context_parallel_size",
        "pp": "pp pipeline stage pipeline_parallel_degree pipeline_model_parallel_size",
        "vp": "vp vpp virtual_pipeline virtual_stages",
        "ep": "ep expert expert_parallel_degree expert_model_parallel_size",
        "micro_batch": "mb mbs micro_batch micro_batch_size",
        "micro_batches": "ga micro_batches gradient_accumulation_steps",
        "prefetch": "prefetch",
    }
)
"""Word → field of the plan that takes a whole number."""
SWITCHES: Final = _by_word(
    {
        "sp": "sp sequence_parallel",
        "overlap_gradients": "overlap overlap_gradients overlap_grad_reduce",
        "overlap_tensor": "overlap_tensor async_tp tp_comm_overlap",
        "overlap_experts": "overlap_experts overlap_moe_expert_parallel_comm",
    }
)
"""Word → field of the plan that is on or off."""
CHOICES: Final = _by_word(
    {
        "schedule": "schedule pipeline_schedule",
        "recompute": "recompute recompute_granularity activation_checkpoint",
        "dispatch": "dispatch moe_token_dispatcher_type",
    }
)
"""Word → field of the plan that is one of several names."""
CHOICE_NAMES: Final = {
    "schedule": _by_word(
        {"1f1b": "1f1b", "interleaved": "interleaved interleaved1f1b interleaved_1f1b", "gpipe": "gpipe afab"}
    ),
    "recompute": _by_word({"none": "none off no", "selective": "selective", "full": "full on"}),
    "dispatch": _by_word({"alltoall": "alltoall", "deepep": "deepep hybridep flex"}),
}
"""Field → what may stand there → what it is called here."""
ON: Final = ("on", "true", "yes", "1")
OFF: Final = ("off", "false", "no", "0")

UNSUPPORTED: Final = _by_word(
    {
        "DualPipe is not modelled; schedule=interleaved is the nearest that is": "dualpipe dualpipev",
        "zero-bubble schedules are not modelled; schedule=interleaved is the nearest that is": (
            "zero_bubble zerobubble zb zb_h1 zbv zbvzerobubble interleavedzerobubble"
        ),
        "breadth-first schedules are not modelled; schedule=interleaved is the nearest that is": "loopedbfs",
        "what is kept in the host's memory or on its disks is not modelled; leave it out": (
            "offload cpu_offload optimizer_offload nvme"
        ),
        "experts sharded as tensors (expert tensor parallel) are not modelled; ep=N gives each rank whole experts": (
            "etp"
        ),
        "ZeRO++ (quantized or hierarchical gathering) is not modelled; dp=R,fsdp=S shards within S ranks alone": (
            "zero++ hpz"
        ),
        "gathering parameters in another precision is not modelled; leave it out": "fp8_all_gather",
        "replicas that step apart (DiLoCo, local SGD) are not modelled; leave it out": "local_sgd diloco",
        "pipelines without a flush at the optimizer's step are not modelled; schedule=1f1b has one": "pipedream",
    }
)
"""What users of other programs may ask for, and what to do instead."""
ELSEWHERE: Final = {
    word: (said, asked)
    for words, said, asked in (
        ("gpus world_size", "how many GPUs there are is asked with", "gpus"),
        ("global_batch global_batch_size gbs", "samples of an iteration are asked with", "global_batch"),
        ("node nodes", "machines are asked with", "node"),
        ("precision", "another precision is asked with", "precision"),
    )
    for word in words.split()
}
"""What is asked, but not in a plan: words, and the parameter."""
PLAN_WORDS: Final = (
    *("dp", "fsdp", "zero", "tp", "sp", "cp", "pp", "vp", "ep", "mb", "ga", "schedule", "recompute"),
    *("overlap", "overlap_tensor", "overlap_experts", "dispatch", "prefetch"),
)
"""What they are called here, in the order in which a plan is written."""
