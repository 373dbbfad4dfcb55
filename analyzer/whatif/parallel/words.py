"""What the words of a plan mean: Megatron's, torchtitan's, DeepSpeed's and JAX's names of the same things."""

from __future__ import annotations

from typing import Final

REST: Final = ("*", "-1", "rest", "auto")
"""In place of a number: as many as the other axes leave of the GPUs."""

NUMBERS: Final = {
    "dp": "dp",
    "ddp": "dp",
    "data": "dp",
    "dp_replicate": "dp",
    "data_parallel": "dp",
    "data_parallel_size": "dp",
    "data_parallel_replicate_degree": "dp",
    "fsdp": "fsdp",
    "fsdp2": "fsdp",
    "dp_shard": "fsdp",
    "data_parallel_shard_degree": "fsdp",
    "zero": "zero",
    "zero_stage": "zero",
    "tp": "tp",
    "tensor": "tp",
    "tensor_parallel": "tp",
    "tensor_parallel_degree": "tp",
    "tensor_model_parallel_size": "tp",
    "cp": "cp",
    "context": "cp",
    "context_parallel_degree": "cp",
    "context_parallel_size": "cp",
    "pp": "pp",
    "pipeline": "pp",
    "stage": "pp",
    "pipeline_parallel_degree": "pp",
    "pipeline_model_parallel_size": "pp",
    "vp": "vp",
    "vpp": "vp",
    "virtual_pipeline": "vp",
    "virtual_stages": "vp",
    "ep": "ep",
    "expert": "ep",
    "expert_parallel_degree": "ep",
    "expert_model_parallel_size": "ep",
    "mb": "micro_batch",
    "mbs": "micro_batch",
    "micro_batch": "micro_batch",
    "micro_batch_size": "micro_batch",
    "ga": "micro_batches",
    "micro_batches": "micro_batches",
    "gradient_accumulation_steps": "micro_batches",
    "prefetch": "prefetch",
}
"""Word → field of the plan that takes a whole number."""

SWITCHES: Final = {
    "sp": "sp",
    "sequence_parallel": "sp",
    "overlap": "overlap_gradients",
    "overlap_gradients": "overlap_gradients",
    "overlap_grad_reduce": "overlap_gradients",
    "overlap_tensor": "overlap_tensor",
    "async_tp": "overlap_tensor",
    "tp_comm_overlap": "overlap_tensor",
    "overlap_experts": "overlap_experts",
    "overlap_moe_expert_parallel_comm": "overlap_experts",
}
"""Word → field of the plan that is on or off."""

CHOICES: Final = {
    "schedule": "schedule",
    "pipeline_schedule": "schedule",
    "recompute": "recompute",
    "recompute_granularity": "recompute",
    "activation_checkpoint": "recompute",
    "dispatch": "dispatch",
    "moe_token_dispatcher_type": "dispatch",
}
"""Word → field of the plan that is one of several names."""

CHOICE_NAMES: Final = {
    "schedule": {
        "1f1b": "1f1b",
        "interleaved": "interleaved",
        "interleaved1f1b": "interleaved",
        "interleaved_1f1b": "interleaved",
        "gpipe": "gpipe",
        "afab": "gpipe",
    },
    "recompute": {"none": "none", "off": "none", "no": "none", "selective": "selective", "full": "full", "on": "full"},
    "dispatch": {"alltoall": "alltoall", "deepep": "deepep", "hybridep": "deepep", "flex": "deepep"},
}
"""Field → what may stand there → what it is called here."""

ON: Final = ("on", "true", "yes", "1")
OFF: Final = ("off", "false", "no", "0")

UNSUPPORTED: Final = {
    "dualpipe": "DualPipe is not modelled; schedule=interleaved is the nearest that is",
    "dualpipev": "DualPipe is not modelled; schedule=interleaved is the nearest that is",
    "zero_bubble": "zero-bubble schedules are not modelled; schedule=interleaved is the nearest that is",
    "zerobubble": "zero-bubble schedules are not modelled; schedule=interleaved is the nearest that is",
    "zb": "zero-bubble schedules are not modelled; schedule=interleaved is the nearest that is",
    "zb_h1": "zero-bubble schedules are not modelled; schedule=interleaved is the nearest that is",
    "zbv": "zero-bubble schedules are not modelled; schedule=interleaved is the nearest that is",
    "zbvzerobubble": "zero-bubble schedules are not modelled; schedule=interleaved is the nearest that is",
    "interleavedzerobubble": "zero-bubble schedules are not modelled; schedule=interleaved is the nearest that is",
    "loopedbfs": "breadth-first schedules are not modelled; schedule=interleaved is the nearest that is",
    "offload": "what is kept in the host's memory or on its disks is not modelled; leave it out",
    "cpu_offload": "what is kept in the host's memory or on its disks is not modelled; leave it out",
    "optimizer_offload": "what is kept in the host's memory or on its disks is not modelled; leave it out",
    "nvme": "what is kept in the host's memory or on its disks is not modelled; leave it out",
    "etp": "experts sharded as tensors (expert tensor parallel) are not modelled; ep=N gives each rank whole experts",
    "zero++": "ZeRO++ (quantized or hierarchical gathering) is not modelled; dp=R,fsdp=S shards within S ranks alone",
    "hpz": "ZeRO++ (quantized or hierarchical gathering) is not modelled; dp=R,fsdp=S shards within S ranks alone",
    "fp8_all_gather": "gathering parameters in another precision is not modelled; leave it out",
    "local_sgd": "replicas that step apart (DiLoCo, local SGD) are not modelled; leave it out",
    "diloco": "replicas that step apart (DiLoCo, local SGD) are not modelled; leave it out",
    "pipedream": "pipelines without a flush at the optimizer's step are not modelled; schedule=1f1b has one",
}
"""What users of other programs may ask for, and what to do instead."""

ELSEWHERE: Final = {
    "gpus": ("how many GPUs there are is asked with", "gpus"),
    "world_size": ("how many GPUs there are is asked with", "gpus"),
    "global_batch": ("samples of an iteration are asked with", "global_batch"),
    "global_batch_size": ("samples of an iteration are asked with", "global_batch"),
    "gbs": ("samples of an iteration are asked with", "global_batch"),
    "node": ("machines are asked with", "node"),
    "nodes": ("machines are asked with", "node"),
    "precision": ("another precision is asked with", "precision"),
}
"""What is asked, but not in a plan: words, and the parameter."""

PLAN_WORDS: Final = (
    "dp",
    "fsdp",
    "zero",
    "tp",
    "sp",
    "cp",
    "pp",
    "vp",
    "ep",
    "mb",
    "ga",
    "schedule",
    "recompute",
    "overlap",
    "overlap_tensor",
    "overlap_experts",
    "dispatch",
    "prefetch",
)
"""What they are called here, in the order in which a plan is written."""
