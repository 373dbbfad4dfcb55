"""Which program a measured iteration ran, by the words of its row."""

import re
from typing import Final

from .....records import dataclass

MEGATRON_BRIDGE: Final = "megatron-bridge"
LLM_FOUNDRY: Final = "llm-foundry"
FMS_FSDP: Final = "fms-fsdp"
TORCHTITAN: Final = "torchtitan"
MEGATRON_SOURCES: Final = (MEGATRON_BRIDGE, "nemo", "dgxc", "mlperf")
_PLAIN_TORCH: Final = re.compile(
    r"torchtitan|automodel|transformers|hugging ?face|axolotl|torchtune|deepspeed|accelerate|\b(hf|trl|fsdp2?)\b"
)
_ENGINE: Final = re.compile(r"\bte\b|transformer.?engine")
_OTHER_ATTENTION: Final = re.compile(r"flex.?att|sdpa")
_ASYNC: Final = re.compile(r"async.?t")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgram:
    """Say what a row's program is."""

    is_plain: bool
    """Whether it is PyTorch's FSDP on a model of plain modules."""
    is_eager: bool
    """Whether nothing compiled that model, and no other kernels stand in for its modules."""
    is_megatron: bool
    """Whether it is Megatron-Core, or XLA beside it."""
    is_torchtitan: bool
    has_engine_attention: bool
    """Whether attention is Transformer Engine's beside its norms and products, not FlexAttention or torch's.

    AutoModel's summary of its performance says which; FlexAttention is taken for FlashAttention-2."""
    has_deepep: bool
    """Whether tokens go to experts by DeepEP and Megatron's fused permutes (AutoModel's experts)."""
    stops_early: bool
    """Whether its checkpoints end with the last result that backward reads. llm-foundry's tables name no version: that
    those but the A100 40GB's are of such a torch, their iterations say (8 % shorter for it)."""
    has_async_tensor: bool
    """Whether tensor-parallel collectives run beside products: torchtitan's `enable_async_tensor_parallel`."""


def program_of(source: str, framework: str, said: str) -> TrainingProgram:
    """Return the program of a row; `said` is what else its texts say.

    >>> program_of("torchtitan", "torchtitan, torch.compile", "").is_eager
    False
    """
    name = f"{source} {framework}".lower()
    said = f"{name} {said}".lower()
    is_other = source in (LLM_FOUNDRY, FMS_FSDP) or "megatron" in name
    is_plain = not is_other and bool(_PLAIN_TORCH.search(name))
    has_engine = is_plain and bool(_ENGINE.search(said))
    return TrainingProgram(
        is_plain=is_plain,
        is_eager=is_plain and not has_engine and "compile" not in said,
        is_megatron=source.startswith(MEGATRON_SOURCES) and not is_plain,
        is_torchtitan=is_plain and TORCHTITAN in name,
        has_engine_attention=has_engine and not _OTHER_ATTENTION.search(said),
        has_deepep=is_plain and "deepep" in said,
        stops_early=is_plain or (source == LLM_FOUNDRY and "40gb" not in said),
        has_async_tensor=is_plain and bool(_ASYNC.search(said)),
    )
